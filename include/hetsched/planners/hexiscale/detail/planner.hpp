// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/hexiscale_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/planners/hexiscale/detail/group_line.hpp>
#include <hetsched/planners/hexiscale/options.hpp>
#include <hetsched/planners/hexiscale/partition.hpp>
#include <hetsched/planners/hexiscale/polish.hpp>
#include <hetsched/planners/hexiscale/published.hpp>
#include <hetsched/planners/interop_dp/detail/planner.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// No plan takes less: the arithmetic of all microbatches, on devices that never wait and add no gradients up, as of many
/// pipelines each may have but one microbatch. 0 unless costs are additive, or where go_on, asked now and then, returns false.
[[nodiscard]] inline double least_work_s(price_book& book, int microbatches, function_ref<bool()> go_on = {}) {
  if (!book.additive()) return 0;
  const auto& hardware = book.hardware();
  const auto layers = as_size(book.layers());
  // With any price of each subcluster's time, a layer costs what it costs where it is cheapest.
  std::vector<double> cheapest(layers, infinity);
  double prices = 0;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    std::vector<double> least(layers, infinity);
    for (const auto& mesh : submeshes(hardware.subclusters[k], static_cast<int>(k)))
      for (const int p : book.placements(mesh)) {
        if (go_on && !go_on()) return 0;
        for (std::size_t l = 0; l < layers; ++l) {
          const auto& own = book.layers_on(p)[l];
          least[l] = std::min(least[l], (own.total_s() - own.sums_s) * mesh.device_count());
        }
      }
    const double sum = std::accumulate(least.begin(), least.end(), 0.0);
    if (!(sum > 0 && sum < longest_time_s)) continue;
    prices += hardware.subclusters[k].device_count() / sum;
    for (std::size_t l = 0; l < layers; ++l) cheapest[l] = std::min(cheapest[l], least[l] / sum);
  }
  const double work = std::accumulate(cheapest.begin(), cheapest.end(), 0.0);
  return work < longest_time_s && prices > 0 ? microbatches * work / prices * (1 - tolerance::sums) : 0;
}

class hexiscale_planner {
 public:
  hexiscale_planner(price_book& book, const planning_problem& problem, const hexiscale_options& options)
      : book_(book),
        hardware_(book.hardware()),
        costs_(book.costs()),
        asked_(problem),
        options_(options),
        table_(book, problem.poll()),
        bound_(least_work_s(book, problem.microbatches, problem.poll())) {
    if (!options_.partitioner) options_.partitioner = grow_and_refine;
  }

  [[nodiscard]] outcome<plan> run() {
    if (ended()) return none();
    bool any_size = false;
    for (std::size_t k = 0; k < hardware_.subclusters.size(); ++k)
      any_size = any_size || !table_.sizes(static_cast<int>(k)).empty();
    if (!any_size)
      return refusal{refusal::kind::infeasible, "the cost model offers no placement on any single node of this cluster"};
    search();
    if (best_ && options_.polish && options_.warmup == warmup_rule::exact && !options_.serial_transfers && !stopped_)
      best_ = polish_pipelines(
          hardware_, costs_, *std::move(best_), best_devices_, asked_,
          {.epsilon = options_.epsilon, .effort = options_.polish_effort, .enumeration = 10 * options_.polish_effort});
    if (!best_) return none();
    best_->evidence = {.objective_value = best_s(),
                       .objective_bound = std::min(bound_, best_s()),
                       .complete = best_s() <= bound_ * (1 + tolerance::sums),
                       .work = {{"partitions", partitions_},
                                {"groups", static_cast<std::int64_t>(lines_.size())},
                                {"evaluations", evaluations_}},
                       .space = "one pipeline or more, on any devices in any order"};
    return *std::move(best_);
  }

 private:
  using group = std::vector<machine_part>;
  using shapes = std::vector<std::pair<int, int>>;  // of a group: subcluster and devices of each part

  [[nodiscard]] double seconds_of(const plan& p) const {
    return options_.serial_transfers ? hexiscale_iteration_s(p) : p.predicted.iteration_s;
  }
  [[nodiscard]] double best_s() const { return best_ ? seconds_of(*best_) : infinity; }

  /// Whether the search is to end at once, plan or none.
  [[nodiscard]] bool ended() { return stopped_ = stopped_ || !asked_.may_go_on(); }

  [[nodiscard]] bool go_on() {
    if (ended()) return false;
    if (asked_.progress && !asked_.progress({partitions_, "partitions", best_s(), std::min(bound_, best_s())})) stopped_ = true;
    if (std::min(bound_, best_s()) > asked_.beat) stopped_ = true;
    return !stopped_;
  }

  // Phase 1, over numbers of pipelines, sizes of pieces, balances and directions of the cut.
  void search() {
    int coarsest = 1;
    for (const auto& s : hardware_.subclusters) coarsest = std::max(coarsest, s.devices_per_node);
    const int most = std::min({options_.max_pipelines, asked_.microbatches, hardware_.device_count()});
    int last_possible = 1;
    for (int pipelines = 1; pipelines <= most; ++pipelines) {
      for (int grain = coarsest;; grain = (grain + 1) / 2) {
        const auto parts = machine_parts(hardware_, grain);
        if (grain < coarsest && parts.size() > as_size(options_.most_vertices)) break;
        if (parts.size() >= as_size(pipelines)) {
          const auto g = graph_of(hardware_, parts, asked_.arithmetic);
          if (cut_into(pipelines, parts, g)) last_possible = pipelines;
          if (stopped_) return;
        }
        if (grain == 1 || pipelines == 1) break;
      }
      if (best_ && pipelines > last_possible + 2) return;
    }
  }

  /// Whether any partition holds the model.
  bool cut_into(int pipelines, const std::vector<machine_part>& parts, const device_graph& g) {
    bool possible = false;
    for (const double balance : options_.balance)
      for (const bool maximise : {false, true})
        for (int s = 0; s < options_.seeds; ++s) {
          ++partitions_;
          const auto part = options_.partitioner(g, {.parts = pipelines,
                                                     .balance = balance,
                                                     .maximise = maximise,
                                                     .seed = options_.seed + static_cast<std::uint64_t>(s),
                                                     .go_on = asked_.go_on});
          if (ended()) return possible;
          if (part.size() != g.size() || std::any_of(part.begin(), part.end(), [&](int p) { return p < 0 || p >= pipelines; }))
            throw input_error("a partitioner has to name one of the parts for every vertex");
          std::vector<group> groups(as_size(pipelines));
          for (std::size_t v = 0; v < part.size(); ++v) add(at(groups, part[v]), parts[v]);
          possible = try_groups(std::move(groups)) || possible;
          if (!go_on() || pipelines == 1) return possible;
        }
    return possible;
  }

  static void add(group& to, const machine_part& p) {
    if (!to.empty() && to.back().subcluster == p.subcluster && to.back().node == p.node)
      to.back().devices += p.devices;
    else
      to.push_back(p);
  }

  // Devices with more memory for their arithmetic come first in a pipeline: there most microbatches are in flight.
  void sort_parts(group& parts) const {
    const auto key = [&](const machine_part& p) {
      const auto& device = at(hardware_.subclusters, p.subcluster).device;
      return -static_cast<double>(device.memory_bytes) / device.flops(asked_.arithmetic);
    };
    std::sort(parts.begin(), parts.end(), [&](const machine_part& a, const machine_part& b) {
      const double x = key(a), y = key(b);
      if (x != y) return x < y;
      if (a.subcluster != b.subcluster) return a.subcluster < b.subcluster;
      if (a.devices != b.devices) return a.devices > b.devices;
      return a.node < b.node;
    });
  }

  [[nodiscard]] static shapes shapes_of(const group& parts) {
    shapes found;
    for (const auto& p : parts) found.emplace_back(p.subcluster, p.devices);
    return found;
  }

  // Phase 2: a pipeline of each group, the microbatches, and what it is worth. False if a group holds no pipeline.
  bool try_groups(std::vector<group> groups) {
    double all = 0;
    std::vector<double> flops;
    for (auto& parts : groups) {
      if (parts.empty()) return false;
      sort_parts(parts);
      double sum = 0;
      for (const auto& p : parts) sum += p.devices * at(hardware_.subclusters, p.subcluster).device.flops(asked_.arithmetic);
      flops.push_back(sum);
      all += sum;
    }
    std::sort(groups.begin(), groups.end(),
              [](const group& a, const group& b) { return std::pair(shapes_of(a), a) < std::pair(shapes_of(b), b); });
    std::vector<shapes> signature;
    for (const auto& parts : groups) signature.push_back(shapes_of(parts));
    if (const auto at = seen_.find(signature); at != seen_.end()) return at->second;
    std::vector<const group_line*> lines;
    std::vector<line_pace> paces;
    auto& possible = seen_[signature];
    for (const auto& parts : groups) {
      const auto* line = line_of(parts, all);
      if (!line) return false;
      lines.push_back(line);
      paces.push_back(line->pace);
    }
    possible = true;
    const auto counts = hand_out(asked_.microbatches, paces);
    double end = 0;
    for (std::size_t l = 0; l < lines.size(); ++l) end = std::max(end, paces[l].end_s(counts[l]));
    if (end < best_s()) judge(groups, lines, counts);
    return true;
  }

  /// The pipeline of a group; null if there is none. Groups of equal shapes have equal ones.
  [[nodiscard]] const group_line* line_of(const group& parts, double all_flops) {
    const auto [line, is_new] = lines_.try_emplace(shapes_of(parts));
    if (!is_new) return line->second ? &*line->second : nullptr;
    double flops = 0;
    auto apart = parts;  // each on a node of its own
    auto single = apart;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      apart[p].node = single[p].node = static_cast<int>(p);
      single[p].devices = 1;
      flops += parts[p].devices * at(hardware_.subclusters, parts[p].subcluster).device.flops(asked_.arithmetic);
    }
    const auto g = graph_of(hardware_, apart, asked_.arithmetic);
    const auto links = graph_of(hardware_, single, asked_.arithmetic);
    std::vector<std::vector<std::size_t>> orders;
    const int count = static_cast<int>(parts.size());
    std::set<int> numbers{1, (count + 1) / 2, count};
    for (const int sets : numbers) {
      const auto set_of = options_.partitioner(
          g, {.parts = sets, .balance = options_.balance.back(), .seed = options_.seed, .go_on = asked_.go_on});
      if (ended()) return nullptr;
      for (auto& order : part_orders(links, set_of, sets, options_.top, 2))
        if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
    }
    const int share = std::max(1, static_cast<int>(asked_.microbatches * (flops / all_flops) + 0.5));
    line_builder builder(table_, {.microbatches = share,
                                  .use_all = asked_.use_all_devices,
                                  .warmup = options_.warmup,
                                  .epsilon = options_.epsilon,
                                  .go_on = asked_.poll()});
    line->second = builder.best_of(apart, orders);
    return line->second ? &*line->second : nullptr;
  }

  void judge(const std::vector<group>& groups, const std::vector<const group_line*>& lines, const std::vector<int>& counts) {
    ++evaluations_;
    plan p{.planner = "hexiscale"};
    std::map<std::pair<int, int>, int> taken;  // devices of a node
    std::vector<pipeline_devices> devices;
    for (std::size_t l = 0; l < lines.size(); ++l) {
      std::vector<int> next;  // free device, by part
      auto& pieces = devices.emplace_back();
      for (const auto& part : groups[l]) {
        auto& used = taken[{part.subcluster, part.node}];
        next.push_back(part.node * at(hardware_.subclusters, part.subcluster).devices_per_node + used);
        pieces.push_back({{part.subcluster, 1, part.devices}, next.back()});
        used += part.devices;
      }
      auto& line = p.pipelines.emplace_back();
      line.microbatches = counts[l];
      line.microbatch_size = asked_.microbatch_size;
      line.schedule.name = schedule_name(options_.warmup);
      for (const auto& s : lines[l]->stages) {
        const auto& where = table_[s.choice].where;
        line.stages.push_back({.layers = s.layers,
                               .devices = {{where.mesh, next[s.part]}},
                               .degrees = where.degrees,
                               .recompute = where.recompute,
                               .zero = where.zero,
                               .warmup = std::min(s.warmup, counts[l])});
        next[s.part] += where.mesh.device_count();
      }
    }
    auto judged =
        evaluate(hardware_, costs_, std::move(p),
                 {.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic, .epsilon = options_.epsilon});
    if (!judged) {
      why_ = judged.why_not().reason;
    } else if (!judged->shortage.empty()) {
      why_ = judged->shortage;
    } else if (seconds_of(judged->plan) < best_s()) {
      best_ = std::move(judged->plan);
      best_devices_ = std::move(devices);
    }
  }

  [[nodiscard]] refusal none() {
    if (stopped_) return {refusal::kind::stopped, "the search was stopped before it found a plan"};
    if (!why_.empty()) return {refusal::kind::infeasible, "of the partitions tried, none holds the model: " + why_};
    // What the layers hold at the least, against what all devices have.
    double need = 0, room = 0;
    for (const auto& s : hardware_.subclusters) room += s.device_count() * static_cast<double>(s.device.memory_bytes);
    for (int l = 0; l < table_.layers(); ++l) {
      double least = infinity, short_of = least;
      std::string tightest;
      for (std::size_t k = 0; k < hardware_.subclusters.size(); ++k)
        for (const auto& size : table_.sizes(static_cast<int>(k)))
          for (const int c : size.choices) {
            stage_cost cost;
            table_.grow(c, l, l + 1, cost);
            const auto& choice = table_[c];
            const double each = static_cast<double>(cost.weight_bytes) +
                                static_cast<double>(checked_add(cost.activation_bytes, cost.temporary_bytes)) * choice.scale;
            least = std::min(least, each * size.devices);
            if (each - choice.room < short_of) {
              short_of = each - choice.room;
              tightest = in_gib(each) + " of the " + in_gib(choice.room) + " on " + describe(hardware_, choice.where);
            }
          }
      if (short_of > 0)
        return {refusal::kind::infeasible, "out of memory: " + describe(layer_range{l, l + 1}) + " alone needs " + tightest +
                                               ", and fits on no single node"};
      need += least;
    }
    if (need > room)
      return {refusal::kind::infeasible,
              "out of memory: the layers need " + in_gib(need) + " at least, all devices together have " + in_gib(room)};
    if (auto why = with_tables(book_, [&](const interop_problem& placed, const stage_prices& prices) {
          return why_no_pipeline(hardware_, costs_, placed, prices, asked_);
        }))
      return *std::move(why);
    return {refusal::kind::infeasible,
            std::string("no group of devices holds the model: memory is short on some of them, or links are missing") +
                (asked_.use_all_devices ? ", or not all devices can be used" : "") + " (the layers need " + in_gib(need) +
                " of " + in_gib(room) + " at least)"};
  }

  price_book& book_;
  const cluster& hardware_;
  any_cost_model costs_;
  planning_problem asked_;
  hexiscale_options options_;
  machine_costs table_;
  double bound_;
  std::map<shapes, std::optional<group_line>> lines_;
  std::map<std::vector<shapes>, bool> seen_;  // whether these groups hold pipelines
  std::optional<plan> best_;
  std::vector<pipeline_devices> best_devices_;
  std::string why_;
  bool stopped_ = false;
  std::int64_t partitions_ = 0, evaluations_ = 0;
};

}  // namespace detail

}  // namespace hetsched
