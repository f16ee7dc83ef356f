// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/plan/evaluate.hpp>
#include <hetsched/plan/pack_devices.hpp>
#include <hetsched/plan/problem.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/parallel_pipelines/counted.hpp>
#include <hetsched/planners/parallel_pipelines/counted_search.hpp>
#include <hetsched/planners/parallel_pipelines/relaxation.hpp>

namespace hetsched {

/// What planning_problem leaves open.
struct parallel_pipelines_options {
  warmup_rule warmup = warmup_rule::exact;
  double epsilon = default_epsilon;                      ///< H-1F1B's tolerance
  subcluster_order order = subcluster_order::automatic;  ///< of the search for one pipeline
  double gap = 0.001;                                    ///< the search ends when no plan can be faster by more than this share
  int rounds = 40;                                       ///< of rents, at the most
  double effort = 50;                                    ///< of the search for one pipeline, as interop_options has it
  std::int64_t listed = 20'000;                          ///< small problems list all pipelines: of no more than so many
  std::vector<std::vector<pipeline_plan>> start = {};    ///< sets of pipelines that are known, from another planner, say
};

namespace detail {

/// The search of parallel_pipelines: one pipeline, equal copies, sets from the relaxation's columns; small problems by counting.
template <class Table, class Algebra, class Costs>
class parallel_planner {
 public:
  parallel_planner(const cluster& hardware, const Costs& costs, const interop_problem& problem, const Table& table,
                   Algebra algebra, const planning_problem& asked, const parallel_pipelines_options& options)
      : hardware_(hardware),
        costs_(costs),
        problem_(problem),
        table_(table),
        ends_(costs, problem),
        algebra_(algebra),
        asked_(asked),
        options_(options) {}

  [[nodiscard]] outcome<plan> run() {
    for (const auto& lines : options_.start) consider_plan({.pipelines = lines});
    auto why = one_pipeline(true);
    if (!go_on() || count_all()) return finish(why);
    search_sets();
    if (!stopped_) why = one_pipeline(false);
    if (!stopped_) shift_microbatches();
    return finish(why);
  }

 private:
  using line = std::pair<const std::vector<interop_stage>*, int>;  // stages, microbatches

  [[nodiscard]] double best_s() const { return best_ ? best_->predicted.iteration_s : infinity; }
  [[nodiscard]] double bound() const { return std::min({several_bound_, one_bound_, best_s()}); }
  [[nodiscard]] bool closed() const { return best_s() <= bound() * (1 + options_.gap); }

  [[nodiscard]] bool go_on() {
    if (stopped_) return false;
    if (asked_.progress && !asked_.progress({plans_, "plans", best_s(), bound()})) stopped_ = true;
    if (bound() > asked_.beat_s) stopped_ = true;
    return !stopped_;
  }

  /// The plan of these pipelines, if they fit into the cluster.
  [[nodiscard]] std::optional<plan> assemble(std::span<const line> lines) const {
    plan p{.planner = "parallel_pipelines"};
    std::vector<std::vector<submesh>> shapes;
    for (const auto& [stages, microbatches] : lines) {
      const auto column = column_of(problem_, table_, ends_, algebra_, *stages, microbatches, false);
      if (!column) return std::nullopt;
      auto& own = p.pipelines.emplace_back();
      own.microbatches = microbatches;
      own.microbatch_size = asked_.microbatch_size;
      own.schedule.name = schedule_name(options_.warmup);
      shapes.emplace_back();
      for (std::size_t i = 0; i < stages->size(); ++i) {
        const auto& s = (*stages)[i];
        const auto& where = problem_.placements[static_cast<std::size_t>(s.placement)].where;
        shapes.back().push_back(where.mesh);
        own.stages.push_back({.layers = s.layers,
                              .devices = {},
                              .degrees = where.degrees,
                              .recompute = where.recompute,
                              .zero = where.zero,
                              .warmup = std::min(column->warmups[i], microbatches)});
      }
    }
    const auto groups = pack_devices(hardware_, shapes);
    for (std::size_t l = 0; l < groups.size(); ++l)
      for (std::size_t i = 0; i < groups[l].size(); ++i) p.pipelines[l].stages[i].devices = {groups[l][i]};
    return p;
  }

  /// Hands a plan to evaluate, keeps it if it is the best so far, and returns its iteration; infinity if it does not fit.
  double consider_plan(plan p) {
    ++plans_;
    p.planner = "parallel_pipelines";
    auto judged =
        evaluate(hardware_, costs_, std::move(p),
                 {.flops_per_sample = asked_.flops_per_sample, .arithmetic = asked_.arithmetic, .epsilon = options_.epsilon});
    if (!judged || !judged->shortage.empty()) return infinity;
    const double seconds = judged->plan.predicted.iteration_s;
    if (seconds < best_s() && (!asked_.use_all_devices || uses_all(judged->plan))) best_ = std::move(judged->plan);
    return seconds;
  }

  double consider(std::span<const line> lines) {
    auto p = assemble(lines);
    return p ? consider_plan(*std::move(p)) : infinity;
  }

  [[nodiscard]] bool uses_all(const plan& p) const {
    int used = 0;
    for (const auto& own : p.pipelines)
      for (const auto& s : own.stages)
        for (const auto& g : s.devices) used += g.mesh.device_count();
    return used == hardware_.device_count();
  }

  /// The best single pipeline, or only a first one; the refusal if there is none.
  [[nodiscard]] std::optional<refusal> one_pipeline(bool first_only) {
    auto problem = asked_;
    interop_options options{.warmup = options_.warmup,
                            .epsilon = options_.epsilon,
                            .order = options_.order,
                            .gap = options_.gap,
                            .effort = options_.effort};
    double found_bound = 0;
    problem.beat_s = std::min(asked_.beat_s, best_s());
    problem.progress = [&](const search_progress& state) {
      found_bound = std::max(found_bound, state.bound);
      if (first_only) return false;
      if (asked_.progress &&
          !asked_.progress({state.steps, state.unit, std::min(best_s(), state.incumbent), std::min(several_bound_, state.bound)}))
        stopped_ = true;
      return !stopped_;
    };
    auto found = interop_dp(hardware_, costs_, problem, options);
    if (!found) {
      if (found.why_not().why == refusal::kind::infeasible) one_bound_ = infinity;
      return found.why_not();
    }
    if (found->evidence) {
      one_bound_ = std::max(one_bound_, found->evidence->objective_bound);
      one_complete_ = found->evidence->complete;
    }
    if (found->predicted.iteration_s < best_s()) {
      best_ = *std::move(found);
      best_->planner = "parallel_pipelines";
    }
    return std::nullopt;
  }

  // Small problems: all pipelines are listed, and all sets of them counted. Returns false if they are too many.
  [[nodiscard]] bool count_all() {
    listed_pipelines<Table> listed(problem_, table_);
    double pairs = static_cast<double>(asked_.microbatches) * asked_.microbatches;
    for (const int d : problem_.devices) pairs *= 0.5 * (d + 1) * (d + 2);
    if (pairs > 4e6 || asked_.use_all_devices) return false;
    if (!listed.list(static_cast<std::size_t>(options_.listed))) return false;
    counted_batches<Table> batches(listed, asked_.microbatches);
    const int whole = listed.box_of(problem_.devices);
    const auto alone = [&](const auto& pipeline, int microbatches) {
      const line own[]{{&pipeline.stages, microbatches}};
      return consider_alone(own, microbatches);
    };
    auto ask = [&] { return go_on(); };
    several_bound_ = one_bound_ = batches.exact(whole, alone, ask);
    if (!(several_bound_ < infinity) || stopped_) return true;
    std::vector<line> best;
    for (const auto& share : batches.split(whole, asked_.microbatches))
      best.push_back({&batches.stages(share), share.microbatches});
    consider(best);
    if (closed_exactly()) return complete_ = true;
    auto judge = [&](std::span<const line> lines) {
      consider(lines);
      return best_s();
    };
    counted_search<Table> sets(problem_, listed, batches, ends_, asked_.microbatches);
    complete_ = sets.run(whole, best_s(), judge, ask) && !stopped_;
    if (complete_) several_bound_ = one_bound_ = best_s();
    return true;
  }

  [[nodiscard]] bool closed_exactly() const { return best_s() <= bound() * (1 + 1e-9); }

  // A single pipeline of some of the microbatches: only those of all of them are plans.
  double consider_alone(std::span<const line> own, int microbatches) {
    if (microbatches == asked_.microbatches) return consider(own);
    ++plans_;
    auto p = assemble(own);
    if (!p) return infinity;
    auto judged = evaluate(hardware_, costs_, *std::move(p), {.epsilon = options_.epsilon});
    return judged && judged->shortage.empty() ? judged->plan.predicted.iteration_s : infinity;
  }

  // Sets of columns: rents, new columns and whole sets in turn.
  void search_sets() {
    if (ends_.alone() || asked_.microbatches < 2) {
      several_bound_ = infinity;
      converged_ = true;
      return;
    }
    pipeline_relaxation<Table, Algebra> relaxed(problem_, table_, ends_, algebra_, asked_.microbatches, ends_.any());
    const auto most = static_cast<std::int64_t>(options_.effort * (1e5 + 10 * static_cast<double>(relaxed.path_work())));
    relaxed.start();
    whole_sets(relaxed);
    equal_copies();
    auto ask = [&] { return go_on(); };
    for (int round = 0; round < options_.rounds && relaxed.looked_at() < most && go_on(); ++round) {
      const bool more = relaxed.improve(best_s(), options_.gap / 2, ask);
      several_bound_ = std::max(several_bound_, relaxed.bound());
      converged_ = !more;
      if (!more || round % 4 == 3) whole_sets(relaxed);
      if (!more || closed()) break;
    }
    looked_at_ = relaxed.looked_at();
    copies_of_columns(relaxed.columns());
  }

  // The least deadline by which whole columns do all microbatches, by bisection.
  void whole_sets(const pipeline_relaxation<Table, Algebra>& relaxed) {
    std::vector<double> prices;
    double low = relaxed.relaxed_deadline(&prices);
    if (!(low < infinity)) return;
    double high = low * 1.001;
    const auto& columns = relaxed.columns();
    std::optional<std::vector<int>> last;
    const auto reach = [&](double seconds) {
      const auto given = relaxed.packing_at(seconds, true);
      const auto found = solve_whole(given, prices, asked_.microbatches, most_steps);
      if (found.value < asked_.microbatches) return false;
      last = found.counts;
      return true;
    };
    const double limit = std::min(best_s() * 1.02, low * 1e3);
    while (!reach(high)) {
      low = high;
      high *= high < 1.2 * relaxed.relaxed_deadline() ? 1.02 : 1.5;
      if (high > limit) return;
    }
    consider_counts(columns, *last);
    for (int i = 0; i < 10 && high > low * 1.0005 && go_on(); ++i) {
      const double middle = (low + high) / 2;
      if (reach(middle)) {
        high = middle;
        consider_counts(columns, *last);
      } else {
        low = middle;
      }
    }
  }

  void consider_counts(const std::vector<pipeline_column>& columns, const std::vector<int>& counts) {
    if (!tried_.insert(counts).second) return;
    std::vector<const pipeline_column*> set;
    for (std::size_t i = 0; i < counts.size(); ++i) set.insert(set.end(), static_cast<std::size_t>(counts[i]), &columns[i]);
    consider_set(set);
  }

  void consider_set(std::vector<const pipeline_column*> set) {
    if (set.empty()) return;
    const auto counts = hand_out(set, asked_.microbatches);
    std::vector<line> lines;
    for (std::size_t i = 0; i < set.size(); ++i)
      if (counts[i] > 0) lines.push_back({&set[i]->stages, counts[i]});
    consider(lines);
  }

  // Copies of a single column each: all have the same cuts, so that no gradient leaves its subcluster for nothing.
  void copies_of_columns(const std::vector<pipeline_column>& columns) {
    struct guess {
      double seconds;
      std::size_t column;
      int copies;
    };
    std::vector<guess> guesses;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      int fits = asked_.microbatches;
      for (std::size_t k = 0; k < problem_.devices.size(); ++k)
        if (columns[i].devices[k] > 0) fits = std::min(fits, problem_.devices[k] / columns[i].devices[k]);
      if (fits < 1) continue;
      guesses.push_back({columns[i].iteration_s((asked_.microbatches + fits - 1) / fits), i, fits});
    }
    std::stable_sort(guesses.begin(), guesses.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    for (std::size_t i = 0; i < std::min<std::size_t>(guesses.size(), 8) && guesses[i].seconds < best_s() && go_on(); ++i)
      consider_set(std::vector<const pipeline_column*>(static_cast<std::size_t>(guesses[i].copies), &columns[guesses[i].column]));
  }

  // The best pipeline of a part of every subcluster, as often as there are such parts.
  void equal_copies() {
    for (int copies = 2; copies <= asked_.microbatches && go_on(); copies *= 2) {
      auto part = hardware_;
      for (auto& s : part.subclusters) {
        if (s.nodes % copies == 0) {
          s.nodes /= copies;
        } else if (copies % s.nodes == 0 && s.devices_per_node % (copies / s.nodes) == 0) {
          s.devices_per_node /= copies / s.nodes;
          s.nodes = 1;
        } else {
          return;
        }
      }
      auto problem = asked_;
      problem.microbatches = (asked_.microbatches + copies - 1) / copies;
      problem.beat_s = std::min(asked_.beat_s, best_s());
      problem.progress = [&](const search_progress&) { return go_on(); };
      const auto found = interop_dp(part, costs_, problem,
                                    {.warmup = options_.warmup,
                                     .epsilon = options_.epsilon,
                                     .order = options_.order,
                                     .gap = 0.005,
                                     .effort = std::min(options_.effort, 1.0),
                                     .enumeration = 0});
      if (!found) continue;
      std::vector<interop_stage> stages;
      for (const auto& s : found->pipelines.front().stages) {
        const auto where = s.where();
        const auto known = std::find_if(problem_.placements.begin(), problem_.placements.end(),
                                        [&](const interop_placement& p) { return p.where == where; });
        if (known == problem_.placements.end()) break;
        stages.push_back({static_cast<int>(known - problem_.placements.begin()), s.layers});
      }
      if (stages.size() != found->pipelines.front().stages.size()) continue;
      std::vector<line> lines;
      for (int i = 0; i < copies; ++i)
        lines.push_back({&stages, asked_.microbatches / copies + (i < asked_.microbatches % copies ? 1 : 0)});
      consider(lines);
    }
  }

  // Single microbatches from the pipeline that is done last to others, as long as that helps.
  void shift_microbatches() {
    if (!best_) return;
    for (int tries = 0; tries < 32 && best_->pipelines.size() > 1 && go_on(); ++tries) {
      const auto& lines = best_->pipelines;
      std::vector<std::pair<double, std::size_t>> ends;
      for (std::size_t l = 0; l < lines.size(); ++l) {
        const auto bare = to_pipeline(lines[l]);
        ends.push_back({stage_ends(bare, warmups(lines[l]), lines[l].microbatches).front(), l});
      }
      std::sort(ends.begin(), ends.end());
      const auto from = ends.back().second, to = ends.front().second;
      if (lines[from].microbatches < 2) return;
      auto next = *best_;
      --next.pipelines[from].microbatches;
      ++next.pipelines[to].microbatches;
      for (auto& own : next.pipelines)
        for (auto& s : own.stages) s.warmup = std::min(s.warmup, own.microbatches);
      const double before = best_s();
      if (!(consider_plan(std::move(next)) < before)) return;
    }
  }

  [[nodiscard]] outcome<plan> finish(const std::optional<refusal>& why) {
    if (!best_ && stopped_)
      return refusal{refusal::kind::stopped, "the search was stopped before it found a plan; none has an iteration below " +
                                                 std::to_string(bound() < infinity ? bound() : 0) + " s"};
    if (!best_) return why ? *why : refusal{refusal::kind::infeasible, "no plan uses all devices"};
    best_->evidence = search_evidence{
        .objective_value = best_s(),
        .objective_bound = bound(),
        .complete = !stopped_ && (complete_ || closed() || (converged_ && (one_complete_ || one_bound_ >= best_s()))),
        .work = {{"plans", plans_}, {"ends of stages", looked_at_}}};
    return *std::move(best_);
  }

  static constexpr std::int64_t most_steps = 20'000;

  const cluster& hardware_;
  const Costs& costs_;
  const interop_problem& problem_;
  const Table& table_;
  end_table ends_;
  Algebra algebra_;
  const planning_problem& asked_;
  const parallel_pipelines_options& options_;
  std::optional<plan> best_;
  double several_bound_ = 0, one_bound_ = 0;  // no plan of several, of one pipeline takes less
  bool stopped_ = false, complete_ = false;
  bool converged_ = false, one_complete_ = false;  // the searches for several, for one
  std::int64_t plans_ = 0, looked_at_ = 0;
  std::set<std::vector<int>> tried_;
};

}  // namespace detail
}  // namespace hetsched
