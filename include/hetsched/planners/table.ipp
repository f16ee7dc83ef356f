// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/planners/baselines.hpp>
#include <hetsched/planners/detail/offered.hpp>
#include <hetsched/planners/detail/quickly_placed.hpp>
#include <hetsched/planners/hetauto.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>
#include <hetsched/planners/hexiscale.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/planners/table.hpp>
#include <hetsched/search/detail/uses_all.hpp>

namespace hetsched {

namespace detail::table {

// The prices that are known already, or a book for those of one search.
class prices_for {
 public:
  prices_for(const cluster& hardware, const any_cost_model& costs, const planner_choice& given)
      : book_(given.prices ? *given.prices : own_.emplace(hardware, costs)) {}
  prices_for(const prices_for&) = delete;
  prices_for& operator=(const prices_for&) = delete;
  [[nodiscard]] price_book& book() { return book_; }

 private:
  std::optional<price_book> own_;
  price_book& book_;
};

// Under another schedule, what evaluate says of the stages under the planner's own one is no better guide than the sum it bounds.
template <class Options>
void follow_schedule(Options& options, const planner_choice& given) {
  if (given.schedule.empty() || find_schedule_id(given.schedule) == id_of(given.warmup)) return;
  options.near_tie = 0.002;
  options.looks = 0;
}

inline outcome<plan> one_pipeline(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                  const planner_choice& given) {
  interop_options options{.warmup = given.warmup, .epsilon = given.epsilon};
  options.splits = given.splits;
  if (given.all_orders) options.order = subcluster_order::all;
  follow_schedule(options, given);
  return interop_dp(prices_for(hardware, costs, given).book(), problem, options);
}

inline constexpr int quickly_polished = 64;  // devices

inline parallel_pipelines_options of_pipelines(const planner_choice& given) {
  parallel_pipelines_options options{.warmup = given.warmup, .epsilon = given.epsilon};
  options.splits = given.splits;
  if (given.all_orders) options.order = subcluster_order::all;
  follow_schedule(options, given);
  return options;
}

// Pipelines with the warm-ups of a rule, unless they have it.
inline std::vector<pipeline_plan> under_rule(std::vector<pipeline_plan> lines, warmup_rule rule) {
  for (auto& line : lines) {
    if (id_of(line.schedule) == id_of(rule)) continue;
    line.schedule = {.name = std::string(schedule_name(rule))};
    for (auto& s : line.stages) s.warmup = 0;
  }
  return lines;
}

/// Costs without the placements that compute activations again.
struct unsaved_costs {
  any_cost_model costs;

  [[nodiscard]] bool additive() const { return costs.additive(); }
  [[nodiscard]] bool has_transfer_class() const { return costs.has_transfer_class(); }
  [[nodiscard]] bool asks_proximity() const { return costs.asks_proximity(); }
  [[nodiscard]] int layer_count() const { return costs.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    auto found = costs.placements(mesh);
    std::erase_if(found, [](const placement& p) { return p.recompute != recomputation::none; });
    return found;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& p) const { return costs.stage(layers, p); }
  [[nodiscard]] stage_cost layer(int index, const placement& p) const { return costs.layer(index, p); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs.transfer(boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& p) const { return costs.update(layers, p); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return costs.gradient_sync(layers, holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& p) const { return costs.overheads(p); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& p) const { return costs.copies(p); }
  [[nodiscard]] std::int64_t transfer_class(const placement& p) const { return costs.transfer_class(p); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs.boundary_class(boundary); }
};

// Whether costs have stages on single devices both with and without all activations kept.
inline bool may_save_activations(const cluster& hardware, const any_cost_model& costs) {
  bool keeps = false, saves = false;
  for (int k = 0; k < static_cast<int>(hardware.subclusters.size()); ++k)
    for (const auto& p : costs.placements({k, 1, 1})) (p.recompute == recomputation::none ? keeps : saves) = true;
  return keeps && saves;
}

// Pipelines of other planners, with which the search of several begins: the best uniform one, the groups of HexiScale, polished
// where that takes no time, and those of single devices. Where there is little to search, what is soon done comes first.
class other_planners {
 public:
  // `whole`: not a first look, which takes quick ones.
  other_planners(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                 const planner_choice& given, bool whole)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        given_(given),
        whole_(whole),
        small_(hardware.device_count() <= quickly_placed) {
    if (small_) problem_.beat = infinity;
  }

  [[nodiscard]] std::vector<std::vector<pipeline_plan>> run(price_book& book) {
    auto sets = on(book, costs_);
    // Fewer choices lead a local search elsewhere, at times further: more of them are to be no worse.
    if (whole_ && small_ && may_save_activations(hardware_, costs_)) {
      const unsaved_costs unsaved{costs_};
      price_book fewer(hardware_, unsaved);
      for (auto& lines : on(fewer, unsaved)) sets.push_back(std::move(lines));
    }
    return sets;
  }

  // The best plan of groups that was met.
  [[nodiscard]] std::optional<plan>& partition() { return partition_; }

 private:
  // On these costs, which the book has.
  [[nodiscard]] std::vector<std::vector<pipeline_plan>> on(price_book& priced, const any_cost_model& as_priced) {
    std::vector<std::vector<pipeline_plan>> sets;
    // Others than uniform ones are hard to find where there are many devices, and the search of these looks at all near ties. Its
    // first look tells the microbatch sizes of small problems apart.
    const auto add_uniform = [&] {
      auto found = hetauto_exact(priced, problem_, {.warmup = given_.warmup, .epsilon = given_.epsilon, .prove = false});
      if (found) sets.push_back(std::move(found->pipelines));
    };
    if (whole_ && small_ && as_priced.additive())
      if (auto singles = place_stages(hardware_, as_priced, problem_, {.prove = false}))
        sets.push_back(under_rule(std::move(singles->pipelines), given_.warmup));
    if (small_) add_uniform();
    hexiscale_options groups{.seed = given_.seed, .warmup = given_.warmup, .epsilon = given_.epsilon};
    if (!whole_ || hardware_.device_count() > quickly_polished) {
      groups.balance = {1.1};
      groups.seeds = 1;
      groups.polish = false;
    }
    auto until_done = problem_;
    if (!whole_) until_done.progress = {};
    if (whole_ || hardware_.device_count() <= quickly_begun)
      if (auto found = hexiscale(priced, until_done, groups)) {
        sets.push_back(found->pipelines);
        if (!partition_ || objective_of(*found) < objective_of(*partition_)) partition_ = *std::move(found);
      }
    if (!small_ && (whole_ || hardware_.device_count() <= quickly_begun)) add_uniform();
    // What stands idle in all of them may still be of use, and a search that is to use it looks elsewhere.
    if (whole_ && small_ &&
        std::none_of(sets.begin(), sets.end(), [&](const auto& lines) { return uses_all(hardware_, lines); })) {
      auto all = problem_;
      all.use_all_devices = true;
      if (auto found = interop_dp(priced, all, {.warmup = given_.warmup, .epsilon = given_.epsilon, .prove = false}))
        sets.push_back(std::move(found->pipelines));
    }
    return sets;
  }

  const cluster& hardware_;
  const any_cost_model& costs_;
  planning_problem problem_;
  const planner_choice& given_;
  bool whole_, small_;
  std::optional<plan> partition_;
};

inline outcome<plan> several_pipelines(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                       const planner_choice& given) {
  auto options = of_pipelines(given);
  options.others_s = given.others_s;
  const int devices = hardware.device_count();
  // Small problems are looked at to the end, whatever another microbatch size has: what was found first says little of them.
  if (devices <= quickly_placed) options.hopeless = infinity;
  // Plans that are known may come back to a subcluster.
  if (!given.known.empty()) options.start.push_back(given.known);
  if (!given.similar.empty() && offered(costs, given.similar)) options.start.push_back(under_rule(given.similar, given.warmup));
  prices_for prices(hardware, costs, given);
  auto& book = prices.book();
  const bool whole = !problem.progress || problem.progress({0, "plans", infinity, 0});
  other_planners others(hardware, costs, problem, given, whole);
  if (problem.objective == plan_objective::iteration) {
    // A first look ends before there is time for more, and hands on what it has. On many devices others take long: there only
    // sizes whose first plan comes near the best are worth it.
    if (whole) options.more = [&] { return others.run(book); };
    constexpr std::size_t few_sets = 4;  // subclusters: hetauto_exact looks at all sets of them
    if (!given.known.empty() && devices > quickly_polished)
      options.more_within = hardware.subclusters.size() > few_sets || devices > quickly_begun ? 1.03 : 1.15;
    if (devices <= quickly_begun) options.distant = 1.35;
    if (!whole)
      for (auto& lines : others.run(book)) options.start.push_back(std::move(lines));
  }
  auto found = parallel_pipelines(book, problem, options);
  auto& partition = others.partition();
  if (found || found.why_not().why != refusal::kind::stopped || !partition) return found;
  partition->planner = "parallel_pipelines";
  partition->evidence->complete = false;
  return *std::move(partition);
}

inline outcome<std::vector<plan>> frontier(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                           const planner_choice& given) {
  return time_cost_frontier(hardware, costs, problem, of_pipelines(given));
}

inline outcome<plan> by_partition(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                  const planner_choice& given) {
  return hexiscale(prices_for(hardware, costs, given).book(), problem,
                   {.seed = given.seed, .serial_transfers = given.published, .warmup = given.warmup, .epsilon = given.epsilon});
}

inline outcome<plan> single_devices(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                    const planner_choice& given) {
  return place_stages(hardware, costs, problem, {.stages = given.stages});
}

inline hetauto_options of_tree_search(const planner_choice& given) {
  hetauto_options options;
  if (has_warmups(given.schedule)) options.schedule = given.schedule;
  if (given.published) options.search = published_tree_search();
  options.search.seed = given.seed;
  options.principles = given.principles;
  return options;
}

inline outcome<plan> by_tree_search(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                    const planner_choice& given) {
  return hetauto(hardware, costs, problem, of_tree_search(given));
}

inline outcome<plan> by_one_tree(const cluster& hardware, const costs_by_size& costs_for, int batch,
                                 const planning_problem& problem, const planner_choice& given) {
  return hetauto_of_batch(hardware, costs_for, batch, problem, of_tree_search(given));
}

inline outcome<plan> by_parts(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                              const planner_choice& given) {
  return hetauto_exact(prices_for(hardware, costs, given).book(), problem, {.warmup = given.warmup, .epsilon = given.epsilon});
}

template <auto Baseline>
outcome<plan> by_baseline(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                          const planner_choice& given) {
  const bool named = !given.schedule.empty() && find_schedule_id(given.schedule) != schedule_id::searched;
  return Baseline(hardware, costs, problem,
                  {.schedule = named ? given.schedule : std::string(schedule_name(given.warmup)),
                   .epsilon = given.epsilon,
                   .one_order = given.one_order});
}

inline std::string sizes_of_space(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                                  int operators) {
  const auto space = plan_space_of(hardware, costs, operators, problem.use_all_devices);
  const auto counts = count_plans(space);
  std::string text = "plans of one pipeline, with microbatches of " + std::to_string(problem.microbatch_size) +
                     (problem.microbatch_size == 1 ? " sample:\n" : " samples:\n");
  const auto add = [&](std::string what, const plan_count& count) {
    what.resize(std::max<std::size_t>(what.size(), 46), ' ');
    text += "  " + what + " " + short_text(count) + "\n";
  };
  add("cut anywhere between " + std::to_string(space.operators) + " parts", counts.all);
  add("1. cut between " + std::to_string(space.layers) + " layers", counts.whole_layers);
  add("2. and a stage lies on one subcluster", counts.one_cluster);
  add("3. and those of a subcluster follow each other", counts.consecutive);
  add("4. and have one placement", counts.uniform);
  return text;
}

inline constexpr planner_entry planner_table[] = {
    {"parallel_pipelines", "one pipeline or more, which may differ in everything, with a bound", several_pipelines, frontier,
     false},
    {"interop_dp", "one pipeline, exact", one_pipeline, nullptr, true},
    {"hexiscale", "pipelines by graph partition", by_partition, nullptr, false},
    {"hetauto", "one pipeline by tree search over HetAuto's decisions, under Virtual-1F1B", by_tree_search, nullptr, true, true,
     sizes_of_space, by_one_tree},
    {"hetauto_exact", "the best one pipeline of HetAuto's space, with a bound", by_parts, nullptr, true, false, sizes_of_space},
    {"placement", "one pipeline of single devices in any order, also for inference", single_devices, nullptr, true},
    {"uniform", "to compare with: equal degrees and numbers of layers, as of Megatron-LM", by_baseline<uniform_pipelines>,
     nullptr, false, false, nullptr, nullptr, true},
    {"amp", "to compare with: equal degrees, layers by AMP's dynamic program", by_baseline<amp>, nullptr, false, false, nullptr,
     nullptr, true},
    {"metis_like", "to compare with: a size of groups per subcluster, layers by capability, as Metis", by_baseline<metis_like>,
     nullptr, true},
    {"alpa_like", "to compare with: submeshes by a dynamic program that takes devices for alike, as Alpa", by_baseline<alpa_like>,
     nullptr, true},
};
inline constexpr std::size_t baselines = 4;  // at the end

}  // namespace detail::table

HETSCHED_INLINE std::span<const planner_entry> planners_and_baselines() { return detail::table::planner_table; }

HETSCHED_INLINE std::span<const planner_entry> planners() {
  const auto all = planners_and_baselines();
  return all.first(all.size() - detail::table::baselines);
}

HETSCHED_INLINE const planner_entry& planner_named(std::string_view name, std::span<const planner_entry> table) {
  std::string known;
  for (const auto& entry : table) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw input_error("there is no planner " + std::string(name) + "; there are " + known);
}

}  // namespace hetsched
