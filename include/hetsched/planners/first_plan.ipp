// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/first_plan.hpp>
#include <hetsched/planners/hexiscale/hand_out.hpp>
#include <hetsched/planners/hexiscale/polish.hpp>
#include <hetsched/planners/plan_request.hpp>
#include <hetsched/search/microbatch.hpp>

namespace hetsched {

namespace detail {

/// Some nodes of a cluster as a cluster of their own.
struct cluster_part {
  cluster hardware;             // its subclusters are named by their positions
  std::vector<int> origin;      // of each of them: the subcluster that it is a part of
  std::vector<int> first_node;  // there

  [[nodiscard]] placement in_whole(placement p) const {
    p.mesh.subcluster = at(origin, p.mesh.subcluster);
    return p;
  }
  [[nodiscard]] device_group in_whole(device_group g) const {
    const int k = g.mesh.subcluster;
    g.mesh.subcluster = at(origin, k);
    g.first_device += at(first_node, k) * at(hardware.subclusters, k).devices_per_node;
    return g;
  }
};

/// The costs of a cluster, asked about a part of it.
struct part_costs {
  const cluster_part& part;
  any_cost_model costs;

  [[nodiscard]] bool additive() const { return costs.additive(); }
  [[nodiscard]] bool has_transfer_class() const { return costs.has_transfer_class(); }
  [[nodiscard]] bool asks_proximity() const { return costs.asks_proximity(); }
  [[nodiscard]] int layer_count() const { return costs.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(submesh mesh) const {
    const int k = std::exchange(mesh.subcluster, at(part.origin, mesh.subcluster));
    auto found = costs.placements(mesh);
    for (auto& p : found) p.mesh.subcluster = k;
    return found;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& p) const { return costs.stage(layers, part.in_whole(p)); }
  [[nodiscard]] stage_cost layer(int index, const placement& p) const { return costs.layer(index, part.in_whole(p)); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs.transfer(boundary, part.in_whole(from), part.in_whole(to), near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& p) const { return costs.update(layers, part.in_whole(p)); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    std::vector<placement> all;
    for (const auto& h : holders) all.push_back(part.in_whole(h));
    return costs.gradient_sync(layers, all);
  }
  [[nodiscard]] memory_overheads overheads(const placement& p) const { return costs.overheads(part.in_whole(p)); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& p) const { return costs.copies(part.in_whole(p)); }
  [[nodiscard]] std::int64_t transfer_class(const placement& p) const { return costs.transfer_class(part.in_whole(p)); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs.boundary_class(boundary); }
};

/// Cuts a cluster into parts of about as much memory, node by node, subclusters in an order along wide links.
class cluster_parts {
 public:
  cluster_parts(const cluster& hardware, precision arithmetic) : hardware_(hardware), links_(hardware) {
    put_in_order(arithmetic);
  }

  /// Subclusters, each before the one whose link to it is the widest of those left.
  [[nodiscard]] const std::vector<int>& order() const { return order_; }

  /// Parts of at least so many bytes, `most` at the most; what is left at the end is none.
  [[nodiscard]] std::vector<cluster_part> of(double bytes, std::size_t most) const {
    std::vector<cluster_part> parts;
    cluster_part open;
    double held = 0;
    for (const int k : order_) {
      const auto& whole = at(hardware_.subclusters, k);
      const double each = whole.devices_per_node * static_cast<double>(whole.device.memory_bytes);
      for (int node = 0; node < whole.nodes;) {
        if (parts.size() == most) return parts;
        const double wanted = (bytes - held) / each;
        const int taken = wanted < whole.nodes - node
                              ? std::max(1, static_cast<int>(wanted) + (wanted > static_cast<int>(wanted)))
                              : whole.nodes - node;
        add(open, k, node, taken);
        node += taken;
        held += taken * each;
        if (held < bytes) continue;
        parts.push_back(std::exchange(open, {}));
        held = 0;
      }
    }
    return parts;
  }

 private:
  void put_in_order(precision arithmetic) {
    const auto count = hardware_.subclusters.size();
    std::vector<bool> taken(count);
    while (order_.size() < count) {
      // By the link to the last one, then like devices first, then the fastest.
      using worth = std::tuple<double, bool, double>;
      std::optional<std::pair<worth, int>> best;
      for (std::size_t k = 0; k < count; ++k) {
        if (taken[k]) continue;
        const auto& s = hardware_.subclusters[k];
        worth own{0, false, s.device_count() * s.device.flops(arithmetic)};
        if (!order_.empty()) {
          const auto over = links_.between(order_.back(), static_cast<int>(k));
          std::get<0>(own) = over ? over->bandwidth : 0;
          std::get<1>(own) = at(hardware_.subclusters, order_.back()).device.name == s.device.name;
        }
        if (!best || best->first < own) best = {own, static_cast<int>(k)};
      }
      taken[as_size(best->second)] = true;
      order_.push_back(best->second);
    }
  }

  void add(cluster_part& to, int k, int first_node, int nodes) const {
    auto s = at(hardware_.subclusters, k);
    const int own = static_cast<int>(to.origin.size());
    s.name = std::to_string(own);
    s.nodes = nodes;
    for (int other = 0; other < own; ++other)
      if (const auto over = links_.between(at(to.origin, other), k))
        to.hardware.links.push_back({other, own, *over, {}, links_.between(k, at(to.origin, other))->bandwidth});
    to.hardware.subclusters.push_back(std::move(s));
    to.origin.push_back(k);
    to.first_node.push_back(first_node);
  }

  const cluster& hardware_;
  link_index links_;
  std::vector<int> order_;
};

/// Bytes that all layers hold at the least, whatever is in flight, on the smallest submesh of a subcluster that has costs;
/// infinity if none has.
[[nodiscard]] inline double state_bytes(const any_cost_model& costs, const subcluster& s, int k) {
  for (const auto& mesh : submeshes(s, k)) {
    double least = infinity;
    for (const auto& where : costs.placements(mesh)) {
      double sum = 0;
      for (int l = 0; l < costs.layer_count(); ++l)
        sum += static_cast<double>(costs.layer(l, where).weight_bytes) * mesh.device_count();
      for (const auto& c : costs.copies(where)) sum -= static_cast<double>(c.weight_bytes) * mesh.device_count();
      least = std::min(least, sum);
    }
    if (least < infinity) return least;
  }
  return infinity;
}

/// The search of first_plan, for one microbatch size.
class first_plan_search {
 public:
  first_plan_search(const cluster& hardware, const any_cost_model& costs, const plan_request& request,
                    const planner_entry& planner, int size)
      : hardware_(hardware),
        costs_(costs),
        request_(request),
        planner_(planner),
        problem_(problem_of(request, size)),
        parts_(hardware, request.arithmetic),
        makers_{&planner} {
    problem_.progress = [](const search_progress&) { return false; };
    // Of parts of the batch, on parts of the cluster.
    problem_.objective = plan_objective::iteration;
    problem_.deadline_s = infinity;
    // The default planner's plans may be as those of these.
    if (planner.name == planners().front().name)
      for (const auto name : {std::string_view("interop_dp"), partition}) makers_.push_back(&planner_named(name));
  }

  [[nodiscard]] outcome<plan> run() {
    const int first = parts_.order().front();
    const auto& fastest = at(hardware_.subclusters, first);
    const double state = std::max(state_bytes(costs_, fastest, first), static_cast<double>(fastest.device.memory_bytes) / 2);
    double all = 0;
    for (const auto& s : hardware_.subclusters) all += s.device_count() * static_cast<double>(s.device.memory_bytes);
    std::optional<plan> best;
    int in_vain = 0;  // doublings in a row
    for (double bytes = 1.25 * state; bytes < all && !request_.use_all_devices; bytes *= 2) {
      auto parts = parts_.of(bytes, as_size(problem_.microbatches));
      if (parts.empty() || (best && shapes_of(parts.front()) > most_shapes)) break;
      const double before = best_of(best);
      for (const auto* planner : makers_) {
        // The default planner's own first plans on larger parts are much as those of the others, and take longer.
        if (best && makers_.size() > 1 && planner == &planner_) continue;
        if (best && hurried()) return *std::move(best);
        keep(best, plan_on({&parts[0], 1}, *planner));
        if (parts.size() > 1 && !planner_.one_pipeline) keep(best, plan_on(parts, *planner));
      }
      in_vain = best_of(best) < before ? 0 : in_vain + 1;
      if (best && in_vain >= (planner_.slow_start ? 1 : 2)) break;
    }
    const auto whole = parts_.of(all * (1 - tolerance::sums), 1);
    // A partition of all nodes, unless they are very many.
    for (const auto* planner : makers_)
      if (planner->name == partition && nodes_in_all() <= most_nodes && !(best && hurried()))
        keep(best, plan_on(whole, *planner));
    if (best) return *std::move(best);
    // Else what the planner finds first on all of it.
    problem_.go_on = request_.wait_for_first;
    refusal why{refusal::kind::stopped, "the search was stopped before it found a plan"};
    if (request_.wait_for_first || shapes_of(whole.front()) <= most_shapes) {
      cluster_part all_of_it{hardware_, std::vector<int>(hardware_.subclusters.size()),
                             std::vector<int>(hardware_.subclusters.size())};
      std::iota(all_of_it.origin.begin(), all_of_it.origin.end(), 0);
      keep(best, plan_on({&all_of_it, 1}, planner_, &why));
    }
    if (best) return *std::move(best);
    return why;
  }

 private:
  [[nodiscard]] static double best_of(const std::optional<plan>& best) { return best ? objective_of(*best) : infinity; }
  /// Whether the first plan that was found is to do.
  [[nodiscard]] bool hurried() const { return request_.go_on && !request_.go_on(); }
  void keep(std::optional<plan>& best, std::optional<plan> found) const {
    if (!found) return;
    found->planner = planner_.name;
    found->setting = request_.setting;
    if (request_.met) request_.met(*found);
    if (objective_of(*found) < best_of(best)) best = std::move(found);
  }

  [[nodiscard]] std::int64_t nodes_in_all() const {
    std::int64_t count = 0;
    for (const auto& s : hardware_.subclusters) count += s.nodes;
    return count;
  }

  /// Submeshes, with which planners' tables grow.
  [[nodiscard]] static std::size_t shapes_of(const cluster_part& part) {
    std::size_t count = 0;
    for (const auto& s : part.hardware.subclusters) count += submeshes(s, 0).size();
    return count;
  }

  // The best of 1, 2, 4 ... parts. `why`: to say why there is none, where a part is the whole cluster.
  [[nodiscard]] std::optional<plan> plan_on(std::span<const cluster_part> parts, const planner_entry& planner,
                                            refusal* why = nullptr) {
    std::vector<std::pair<const cluster*, std::vector<pipeline_plan>>> known;
    auto part_problem = problem_;
    part_problem.microbatches = std::max(1, problem_.microbatches / static_cast<int>(parts.size()));
    std::optional<plan> best;
    plan p;
    std::vector<line_pace> paces;
    std::size_t next = 2;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& part = parts[i];
      auto like = std::find_if(known.begin(), known.end(), [&](const auto& k) { return *k.first == part.hardware; });
      if (like == known.end()) {
        if (known.size() == most_kinds) break;
        auto choice = request_.how;
        choice.schedule = request_.schedule;
        choice.known.clear();
        choice.similar.clear();
        auto found = planner.make(part.hardware, part_costs{part, costs_}, part_problem, choice);
        if (!found && why) *why = found.why_not();
        known.push_back({&part.hardware, found ? std::move(found->pipelines) : std::vector<pipeline_plan>{}});
        like = known.end() - 1;
      }
      if (i == 0 && like->second.empty()) return {};
      if (like->second.empty() || p.pipelines.size() + like->second.size() > as_size(problem_.microbatches)) break;
      for (auto line : like->second) {
        paces.push_back(pace_of(line));
        for (auto& s : line.stages)
          for (auto& g : s.devices) g = part.in_whole(g);
        p.pipelines.push_back(std::move(line));
      }
      if (i > 0 && i + 1 != next && i + 1 != parts.size()) continue;
      next = 2 * (i + 1);
      auto judged = evaluated(p, paces);
      if (!judged) continue;
      if (best && objective_of(*judged) >= objective_of(*best)) break;
      best = std::move(judged);
    }
    return best;
  }

  [[nodiscard]] std::optional<plan> evaluated(plan p, const std::vector<line_pace>& paces) {
    ++plans_;
    const auto counts = hand_out(problem_.microbatches, paces);
    for (std::size_t l = 0; l < counts.size(); ++l) {
      auto& line = p.pipelines[l];
      line.microbatches = counts[l];
      line.boundaries.clear();
      line.schedule.actions.reset();
      for (auto& s : line.stages) s.warmup = request_.schedule.empty() ? std::min(s.warmup, counts[l]) : 0;
      if (!request_.schedule.empty()) line.schedule = {.name = request_.schedule};
    }
    p.objective = request_.objective;
    p.gradient_sync.clear();
    auto judged = evaluate(
        hardware_, costs_, std::move(p),
        {.flops_per_sample = request_.flops_per_sample, .arithmetic = request_.arithmetic, .epsilon = request_.how.epsilon});
    if (!judged || !judged->shortage.empty() || judged->plan.predicted.iteration_s > request_.deadline_s) return {};
    judged->plan.evidence = search_evidence{
        .objective_value = objective_of(judged->plan), .objective_bound = 0, .complete = false, .work = {{"plans", plans_}}};
    return std::move(judged->plan);
  }

  static constexpr std::string_view partition = "hexiscale";
  static constexpr std::int64_t most_nodes = 512;
  static constexpr std::size_t most_kinds = 6;    // of parts, for each of which the planner is asked
  static constexpr std::size_t most_shapes = 64;  // of a part, once there is a plan on a smaller one

  const cluster& hardware_;
  any_cost_model costs_;
  const plan_request& request_;
  const planner_entry& planner_;
  planning_problem problem_;
  cluster_parts parts_;
  std::vector<const planner_entry*> makers_;
  std::int64_t plans_ = 0;
};

}  // namespace detail

HETSCHED_INLINE outcome<plan> first_plan(const cluster& hardware, const costs_by_size& costs, const plan_request& request,
                                         const planner_entry& planner) {
  const refusal none{refusal::kind::stopped, "the search was stopped before it found a plan"};
  for (const int size :
       request.microbatch_size > 0 ? std::vector{request.microbatch_size} : microbatch_sizes(request.global_batch)) {
    if (request.lacks && !request.lacks(size).empty()) continue;
    validate(hardware, problem_of(request, size));
    auto found = detail::first_plan_search(hardware, costs(size), request, planner, size).run();
    if (found) found->setting = request.setting;
    return found;
  }
  return none;
}

}  // namespace hetsched
