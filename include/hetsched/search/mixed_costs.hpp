// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/parts.hpp>
#include <hetsched/cost/questions/stage_part.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/state_shares.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/search/mixed_view.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// Samples of each replica by part that add up to `samples`, at least 1 each, so that the slowest part is done soonest: part p
/// has `replicas[p]` replicas that take `sample_s[p]` for each. Empty where no whole numbers do. Numbers are tried outwards from
/// those of equal finishing times, as long as neither they nor what they leave to others takes too long.
class shared_samples {
 public:
  [[nodiscard]] static std::vector<int> find(const std::vector<int>& replicas, const std::vector<double>& sample_s, int samples) {
    shared_samples search{replicas, sample_s};
    search.choose(0, samples, 0);
    return search.best_;
  }

 private:
  shared_samples(const std::vector<int>& replicas, const std::vector<double>& sample_s)
      : replicas_(&replicas), sample_s_(&sample_s), now_(replicas.size()) {}

  void choose(std::size_t p, int left, double slowest_s) {
    const int count = (*replicas_)[p];
    const double each_s = (*sample_s_)[p];
    if (p + 1 == now_.size()) {
      now_[p] = left / count;
      const double all_s = std::max(slowest_s, now_[p] * each_s);
      if (left % count != 0 || now_[p] < 1 || all_s >= best_s_) return;
      best_ = now_;
      best_s_ = all_s;
      return;
    }
    double others = 0;  // samples per second
    for (auto q = p + 1; q < now_.size(); ++q) others += (*replicas_)[q] / (*sample_s_)[q];
    const auto too_many = [&](int n) { return n * count >= left || n * each_s >= best_s_; };
    const auto too_few = [&](int n) { return n < 1 || (left - n * count) / others >= best_s_; };
    const auto attempt = [&](int n) {
      if (too_many(n) || too_few(n)) return;
      now_[p] = n;
      choose(p + 1, left - n * count, std::max(slowest_s, n * each_s));
    };
    const int equal = std::clamp(static_cast<int>(left / (others + count / each_s) / each_s), 1, left);
    for (int up = equal, down = equal - 1; !too_many(up) || !too_few(down); ++up, --down) {
      attempt(up);
      attempt(down);
    }
  }

  const std::vector<int>* replicas_;
  const std::vector<double>* sample_s_;
  std::vector<int> now_, best_ = {};
  double best_s_ = infinity;
};

}  // namespace detail

/// The costs of a view: those of the cluster's own subclusters, and of stages on mixed nodes. Such a stage has tensor parallelism
/// inside each kind of device, data parallelism over all, and each replica as many samples as its speed allows; or, on one node
/// and where the costs know slices of layers, it is one replica, whose tensor ranks have as many slices as their speed allows.
/// Its figures are those that evaluate has for it, but that each layer takes what its slowest part takes (evaluate: of replicas
/// the slowest part takes all layers), that memory is as if the fullest part held the most of everything, and that transfers
/// cross nodes. So evaluate never finds a plan worse. `costs_for`: the cluster's cost models; copies may be
/// asked from several threads if those may. Additive where those are.
class mixed_costs {
 public:
  /// Requires: the view and the cluster outlive this.
  /// Complexity: a few questions for each layer and mixed placement.
  mixed_costs(const cluster& hardware, const mixed_view& view, costs_by_size costs_for, int microbatch_size)
      : hardware_(&hardware), view_(&view), costs_for_(std::move(costs_for)), size_(microbatch_size) {
    for (std::size_t k = 0; k < view.of.size(); ++k) {
      if (!view.is_mixed(static_cast<int>(k))) continue;
      const auto& s = view.hardware.subclusters[k];
      for (int nodes = 1; nodes <= s.nodes; ++nodes) add_placements({static_cast<int>(k), nodes, s.devices_per_node});
      add_sliced({static_cast<int>(k), 1, s.devices_per_node});
    }
  }

  [[nodiscard]] bool additive() const { return plain().additive(); }
  [[nodiscard]] bool has_transfer_class() const { return plain().has_transfer_class(); }
  [[nodiscard]] int layer_count() const { return plain().layer_count(); }

  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> all;
    if (view_->is_mixed(mesh.subcluster)) {
      for (const auto& m : mixed_)
        if (m.seen.mesh == mesh) all.push_back(m.seen);
      return all;
    }
    all = plain().placements(real(mesh));
    for (auto& p : all) p.mesh.subcluster = mesh.subcluster;
    return all;
  }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    if (!view_->is_mixed(where.mesh.subcluster)) return plain().layer(index, real(where));
    const auto& parts = parts_of(where);
    auto cost = cost_of_parts(costs_for_, {index, index + 1}, parts);
    auto& all = cost.slowest;
    all.weight_bytes = all.activation_bytes = all.temporary_bytes = 0;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const double scale = memory_scale(where, parts[k]);
      const auto scaled = [&](bytes_t& most, bytes_t bytes) {
        most = std::max(most, detail::whole_bytes(static_cast<double>(bytes) * scale));
      };
      scaled(all.weight_bytes, cost.parts[k].weight_bytes);
      scaled(all.activation_bytes, cost.parts[k].activation_bytes);
      scaled(all.temporary_bytes, cost.parts[k].temporary_bytes);
    }
    return all;
  }

  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    if (!view_->is_mixed(where.mesh.subcluster)) return plain().stage(layers, real(where));
    return sum_of_layers(*this, layers, where);
  }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    if (!view_->is_mixed(from.mesh.subcluster) && !view_->is_mixed(to.mesh.subcluster))
      return plain().transfer(boundary, real(from), real(to), near);
    const auto here = all_parts(from), there = all_parts(to);
    const auto one = [&](const stage_part& a, const stage_part& b, int samples) {
      return costs_for_(samples).transfer(boundary, a.where, b.where, proximity::other_node);
    };
    return transfer_of_parts(here, there, one);
  }

  [[nodiscard]] double update(layer_range layers, const placement& where) const {
    return update_of_parts(costs_for_, layers, all_parts(where));
  }

  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    std::vector<placement> behind;
    for (const auto& h : holders)
      for (const auto& part : all_parts(h)) behind.push_back(part.where);
    return plain().gradient_sync(layers, behind);
  }

  [[nodiscard]] memory_overheads overheads(const placement& where) const {
    memory_overheads most;
    for (const auto& p : all_parts(where)) {
      const auto own = costs_for_(p.samples).overheads(p.where);
      most.runtime_bytes = std::max(most.runtime_bytes, own.runtime_bytes);
      most.buffer_bytes = std::max(most.buffer_bytes, own.buffer_bytes);
      most.fragmentation = std::max(most.fragmentation, own.fragmentation);
      most.margin = std::max(most.margin, own.margin);
    }
    return most;
  }

  /// Of mixed placements as many bytes as all parts save at least; none of slices.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const {
    if (!view_->is_mixed(where.mesh.subcluster)) return plain().copies(real(where));
    const auto& parts = parts_of(where);
    auto least = costs_for_(parts.front().samples).copies(parts.front().where);
    for (auto& c : least) c.gradient_bytes = c.optimizer_bytes = 0;
    for (const auto& part : parts) {
      const auto own = costs_for_(part.samples).copies(part.where);
      const double scale = part.slices > 0 ? 0 : memory_scale(where, part);
      for (std::size_t i = 0; i < own.size(); ++i)
        least[i].weight_bytes =
            std::min(least[i].weight_bytes, static_cast<bytes_t>(static_cast<double>(own[i].weight_bytes) * scale));
    }
    return least;
  }

  /// Of mixed placements each its own.
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const {
    if (!view_->is_mixed(where.mesh.subcluster)) return plain().transfer_class(real(where));
    return find(where) - mixed_.begin();
  }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return plain().boundary_class(boundary); }

  /// The plan on the cluster's own devices, with the shares of its mixed stages; not evaluated.
  [[nodiscard]] plan on_cluster(plan seen) const {
    for (auto& line : seen.pipelines)
      for (auto& s : line.stages) {
        const auto where = s.where();
        std::vector<device_group> behind;
        for (const auto& g : s.devices)
          for (auto& r : devices_behind(*view_, *hardware_, g)) behind.push_back(r);
        s.devices = std::move(behind);
        if (!view_->is_mixed(where.mesh.subcluster)) continue;
        for (const auto& p : parts_of(where))
          if (p.slices > 0)
            s.shares.tensor.insert(s.shares.tensor.end(), as_size(p.where.degrees.tensor),
                                   static_cast<double>(p.slices) / plain().slices());
          else
            s.shares.data.insert(s.shares.data.end(), as_size(p.where.degrees.data),
                                 static_cast<double>(p.samples) / p.where.degrees.data / size_);
      }
    return seen;
  }

 private:
  struct mixed_placement {
    placement seen{};
    std::vector<stage_part> parts{};
  };

  [[nodiscard]] any_cost_model plain() const { return costs_for_(size_); }
  // What makes bytes of a part's devices shares of a device with the least memory of any.
  [[nodiscard]] double memory_scale(const placement& where, const stage_part& part) const {
    const auto least = at(view_->hardware.subclusters, where.mesh.subcluster).device.memory_bytes;
    return static_cast<double>(least) / static_cast<double>(subcluster_of(*hardware_, part.where.mesh).device.memory_bytes);
  }
  [[nodiscard]] submesh real(submesh mesh) const {
    mesh.subcluster = at(view_->of, mesh.subcluster)[0].subcluster;
    return mesh;
  }
  [[nodiscard]] placement real(placement where) const {
    where.mesh = real(where.mesh);
    return where;
  }
  [[nodiscard]] std::vector<mixed_placement>::const_iterator find(const placement& where) const {
    const auto found = std::find_if(mixed_.begin(), mixed_.end(), [&](const auto& m) { return m.seen == where; });
    HETSCHED_EXPECTS(found != mixed_.end());
    return found;
  }
  [[nodiscard]] const std::vector<stage_part>& parts_of(const placement& where) const { return find(where)->parts; }
  [[nodiscard]] std::vector<stage_part> all_parts(const placement& where) const {
    if (view_->is_mixed(where.mesh.subcluster)) return parts_of(where);
    return {{.where = real(where), .samples = size_}};
  }

  // One replica on all devices of a node, with the slices that are done soonest of all whole numbers.
  void add_sliced(const submesh& mesh) {
    constexpr std::size_t most_kinds = 3;  // numbers of slices grow with the product of all but one
    const auto groups = devices_behind(*view_, *hardware_, {mesh, 0});
    const int slices = plain().slices();
    if (groups.size() > most_kinds || slices < mesh.devices_per_node) return;
    std::vector<stage_part> parts, best;
    for (const auto& g : groups)
      parts.push_back(
          {.where = {.mesh = g.mesh, .degrees = {.tensor = g.mesh.device_count()}}, .devices = {g}, .samples = size_});
    for (const auto& p : parts)
      if (!has(plain(), p.where)) return;
    const layer_range whole{0, layer_count()};
    double best_s = longest_time_s;
    const auto choose = [&](auto&& self, std::size_t k, int left) -> void {
      const int ranks = parts[k].where.degrees.tensor;
      if (k + 1 < parts.size()) {
        for (parts[k].slices = 1; parts[k].slices * ranks < left; ++parts[k].slices)
          self(self, k + 1, left - parts[k].slices * ranks);
        return;
      }
      if (left % ranks != 0) return;
      parts[k].slices = left / ranks;
      const double all_s = cost_of_parts(costs_for_, whole, parts).slowest.total_s();
      if (all_s >= best_s) return;
      best_s = all_s;
      best = parts;
    };
    for (const auto& p : plain().placements(parts[0].where.mesh)) {
      if (!(p.degrees == parts[0].where.degrees)) continue;
      for (auto& part : parts) part.where.recompute = p.recompute;
      best.clear();
      best_s = longest_time_s;
      choose(choose, 0, slices);
      if (best.empty()) continue;
      mixed_.push_back({{.mesh = mesh, .degrees = {.tensor = mesh.devices_per_node}, .recompute = p.recompute}, best});
    }
  }

  void add_placements(const submesh& mesh) {
    const auto groups = devices_behind(*view_, *hardware_, {mesh, 0});
    for (int tensor = 1; tensor <= groups[0].mesh.devices_per_node; tensor *= 2) {
      std::vector<stage_part> parts;
      std::vector<int> replicas;
      int all = 0;
      for (const auto& g : groups) {
        if (g.mesh.devices_per_node % tensor != 0) return;
        replicas.push_back(g.mesh.device_count() / tensor);
        all += replicas.back();
      }
      if (all > size_) continue;
      std::vector<double> sample_s;
      for (std::size_t k = 0; k < groups.size(); ++k) {
        const int each = std::max(1, size_ / all);
        const placement where{.mesh = groups[k].mesh, .degrees = {.data = replicas[k], .tensor = tensor}};
        const auto costs = costs_for_(each * replicas[k]);
        if (!has(costs, where)) break;
        sample_s.push_back(costs.stage({0, layer_count()}, where).total_s() / each);
      }
      if (sample_s.size() != groups.size()) continue;
      const auto samples = detail::shared_samples::find(replicas, sample_s, size_);
      if (samples.empty()) continue;
      bool known = true;
      for (std::size_t k = 0; k < groups.size(); ++k) {
        parts.push_back({.where = {.mesh = groups[k].mesh, .degrees = {.data = replicas[k], .tensor = tensor}},
                         .devices = {groups[k]},
                         .samples = samples[k] * replicas[k]});
        known = known && has(costs_for_(parts[k].samples), parts[k].where);
      }
      if (!known) continue;
      // How memory is saved: as the part with the most replicas may.
      const auto& widest = *std::max_element(
          parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.where.degrees.data < b.where.degrees.data; });
      for (const auto& p : costs_for_(widest.samples).placements(widest.where.mesh)) {
        if (!(p.degrees == widest.where.degrees)) continue;
        mixed_placement one{{.mesh = mesh, .degrees = {.data = all, .tensor = tensor}, .recompute = p.recompute, .zero = p.zero},
                            parts};
        for (auto& part : one.parts) {
          part.where.recompute = p.recompute;
          part.where.zero = p.zero;
        }
        const layer_range whole{0, layer_count()};
        const double joined_s = update_of_parts(costs_for_, whole, one.parts);
        if (joined_s < longest_time_s && cost_of_parts(costs_for_, whole, one.parts).slowest.total_s() < longest_time_s)
          mixed_.push_back(std::move(one));
      }
    }
  }

  [[nodiscard]] static bool has(const any_cost_model& costs, const placement& where) {
    const auto known = costs.placements(where.mesh);
    return std::any_of(known.begin(), known.end(), [&](const placement& p) { return p.degrees == where.degrees; });
  }

  const cluster* hardware_;
  const mixed_view* view_;
  costs_by_size costs_for_;
  int size_;
  std::vector<mixed_placement> mixed_;
};

/// A planner with its options: makes a plan for whatever costs it is given.
using cost_planner = std::function<outcome<plan>(const cluster&, const any_cost_model&, const planning_problem&)>;

/// The plan of a planner, or a better one with a stage of unlike devices: the planner is asked again for each view of the
/// cluster, and evaluate judges its plan on the cluster itself, with the state that ZeRO shares out where memory has room.
/// `make(hardware, costs, problem)`: the planner, for any cost model that it is given; `first`: what it found without mixed
/// stages.
/// Returns: the better plan. The bound of its evidence is the least of all searches', where those of views go by their costs (see
/// mixed_costs); it is complete if all are. The refusal of `first` where no search has found a plan.
/// Throws: input_error as evaluate.
/// Determinism: views are tried in order, and a later one has to be better.
[[nodiscard]] inline outcome<plan> with_mixed_stages(const cluster& hardware, const costs_by_size& costs_for,
                                                     planning_problem problem, const evaluate_options& options,
                                                     outcome<plan> first, const cost_planner& make) {
  std::optional<plan> best;
  if (first) best = *first;
  double bound = infinity;
  bool complete = true;
  std::int64_t views = 0;
  // A search that has proved that it cannot beat the best is as good as one that came to its end.
  const auto note = [&](const plan& p) {
    const double least = p.evidence ? p.evidence->objective_bound : 0;
    bound = std::min(bound, least);
    complete = complete && p.evidence && (p.evidence->complete || (best && least >= objective_of(*best)));
  };
  if (best) note(*best);
  for (const auto& view : mixed_views(hardware)) {
    if (!problem.may_go_on()) {
      complete = false;
      bound = 0;  // there are views that nobody looked at
      break;
    }
    const mixed_costs costs(hardware, view, costs_for, problem.microbatch_size);
    const auto mixed = static_cast<int>(view.of.size()) - 1;
    const auto& s = view.hardware.subclusters.back();
    bool offered = false;
    for (int n = 1; n <= s.nodes; ++n) offered = offered || !costs.placements({mixed, n, s.devices_per_node}).empty();
    if (!offered) continue;
    ++views;
    if (best) problem.beat = std::min(problem.beat, objective_of(*best));
    auto found = make(view.hardware, costs, problem);
    if (!found) {
      // Nobody has looked at all of the view then.
      if (found.why_not().why == refusal::kind::stopped) complete = false, bound = 0;
      continue;
    }
    note(*found);
    auto evidence = found->evidence;
    auto judged = evaluate(hardware, costs_for, costs.on_cluster(*std::move(found)), options);
    if (judged) judged = with_state_by_room(hardware, costs_for, *std::move(judged), options);
    if (!judged || !judged->shortage.empty()) continue;
    if (best && objective_of(judged->plan) >= objective_of(*best)) continue;
    best = std::move(judged->plan);
    best->evidence = std::move(evidence);
  }
  if (!best) return first;
  if (best->evidence) {
    auto& told = *best->evidence;
    told.objective_value = objective_of(*best);
    told.objective_bound = std::min(bound, told.objective_value);
    told.complete = complete;
    told.work.emplace_back("views", views);
  }
  return *std::move(best);
}

}  // namespace hetsched
