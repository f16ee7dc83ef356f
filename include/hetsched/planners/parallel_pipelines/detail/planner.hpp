// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/parallel_pipelines_test.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/interop_dp/detail/chain_costs.hpp>
#include <hetsched/planners/interop_dp/detail/iteration_bound.hpp>
#include <hetsched/planners/interop_dp/detail/work_bound.hpp>
#include <hetsched/planners/parallel_pipelines/detail/candidates.hpp>
#include <hetsched/planners/parallel_pipelines/detail/column_pool.hpp>
#include <hetsched/planners/parallel_pipelines/detail/copied_boxes.hpp>
#include <hetsched/planners/parallel_pipelines/detail/counted.hpp>
#include <hetsched/planners/parallel_pipelines/detail/counted_search.hpp>
#include <hetsched/planners/parallel_pipelines/detail/home_cases.hpp>
#include <hetsched/planners/parallel_pipelines/detail/money_bound.hpp>
#include <hetsched/planners/parallel_pipelines/detail/neighbours.hpp>
#include <hetsched/planners/parallel_pipelines/detail/relaxation.hpp>
#include <hetsched/planners/parallel_pipelines/detail/stage_orders.hpp>
#include <hetsched/planners/parallel_pipelines/detail/whole_sets.hpp>
#include <hetsched/planners/parallel_pipelines/options.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

namespace detail {

/// The search of parallel_pipelines: one pipeline, equal copies, sets from the relaxation's columns; small problems by counting.
/// Where money counts, parts of the cluster and sets of limited rates as well.
class parallel_planner {
 public:
  parallel_planner(price_book& book, const interop_problem& problem, const stage_prices& table, warmup_algebra algebra,
                   const planning_problem& asked, const parallel_pipelines_options& options)
      : book_(book),
        hardware_(book.hardware()),
        costs_(book.costs()),
        problem_(problem),
        table_(table),
        ends_(book.costs(), problem),
        algebra_(algebra),
        asked_(asked),
        options_(options),
        found_(book.hardware(), book.costs(), problem, table, ends_, algebra, asked, options.warmup, options.epsilon) {}

  [[nodiscard]] outcome<plan> run() {
    const bool whole = options_.search == pipelines_search::whole;
    if (whole && !found_.worth().money()) several_bound_ = one_bound_ = work_bound(problem_, table_, asked_.microbatches);
    for (const auto& lines : options_.start) found_.consider({.pipelines = lines});
    if (options_.search == pipelines_search::changes) {
      if (!found_.best()) return refusal{refusal::kind::infeasible, "no plan was given that fits in memory"};
      if (go_on()) improve();
      return unproven();
    }
    std::optional<refusal> why;
    // What a look before this one has found to fit is not sought again, where more than that is known.
    const bool looked_before = found_.best() && asked_.beat < infinity;
    if (!looked_before) why = one_pipeline(true);
    if (whole && !looked_before) first_sets();
    if (!whole) {
      if (go_on()) share_out();
      if (!found_.best()) return why_none(why);
      return unproven();
    }
    if (!go_on() || cannot_win()) return finish(why);
    // What is looked at to the end has the best single pipeline soon: little time may be left for what takes longer. It is put
    // aside until sets have been sought: begun with it, their search finds less.
    const bool at_once = to_the_end() && !found_.worth().money() && one_bound_ < infinity;
    if (at_once) why = one_pipeline(false);
    if (!found_.worth().money() && !comes_within(options_.hopeless) && options_.distant < infinity &&
        comes_within(options_.distant))
      look_shortly();
    if (options_.more && (!found_.best() || comes_within(options_.more_within)))
      for (auto& lines : options_.more()) found_.consider({.pipelines = std::move(lines)});
    if ((one_bound_ == infinity && !asked_.use_all_devices) || !go_on() || count_all()) return finish(why);
    if (found_.worth().money()) {
      search_cheap_sets();
    } else {
      auto ask = [&] { return go_on(); };
      relaxation relaxed(problem_, table_, ends_, algebra_, asked_.microbatches, ends_.any());
      column_pool pool(problem_.devices, asked_.microbatches);
      whole_sets sets(pool, found_, problem_.devices, asked_.microbatches, ask);
      // Where a plan is known, copies show whether this comes near it.
      if (asked_.beat < infinity && comes_within(std::max(options_.hopeless, options_.distant))) share_out();
      if (comes_within(options_.hopeless)) {
        search_sets(relaxed, pool, sets);
        if (!stopped_ && !at_once) why = one_pipeline(false);
        take_single();
        if (!stopped_) tell_cases_apart(relaxed, pool, sets);
      }
    }
    follow_bound();
    improve();
    return finish(why);
  }

 private:
  using candidates = plan_candidates;
  using line = candidates::line;
  using relaxation = pipeline_relaxation;

  [[nodiscard]] double bound() const { return std::min({several_bound_, one_bound_, found_.least()}); }
  [[nodiscard]] bool closed() const { return std::min(found_.least(), asked_.beat) <= bound() * (1 + options_.gap); }

  /// Whether the search is to end at once, plan or none.
  [[nodiscard]] bool ended() { return stopped_ = stopped_ || !asked_.may_go_on(); }

  /// The same of a search that a bound on sums has ended: an iteration may lie below.
  [[nodiscard]] bool may_prove() const { return (!stopped_ || beaten_) && asked_.may_go_on(); }

  [[nodiscard]] bool go_on() {
    if (ended()) return false;
    if (asked_.progress && !asked_.progress({found_.plans(), "plans", least(), bound()})) stopped_ = true;
    if (!stopped_ && bound() > asked_.beat) beaten_ = stopped_ = true;
    return !stopped_;
  }

  /// Whether what is known of other problems leaves nothing out.
  [[nodiscard]] bool to_the_end() const { return !(options_.hopeless < infinity); }

  /// Whether the best plan so far takes at most `times` as long as what is to be beaten.
  [[nodiscard]] bool comes_within(double times) const { return least() <= times * asked_.beat; }

  // What interop_dp is asked.
  [[nodiscard]] interop_options single() const {
    return {.warmup = options_.warmup,
            .epsilon = options_.epsilon,
            .order = options_.order,
            .gap = options_.gap,
            .near_tie = options_.near_tie,
            .effort = options_.effort,
            .looks = options_.looks,
            .hope = options_.distant < infinity ? 1.1 : 1,  // iterations may lie below sums; to follow these takes time
            .prove = false,
            .rows = to_the_end()};
  }
  [[nodiscard]] planning_problem for_iteration() const {
    auto problem = asked_;
    problem.objective = plan_objective::iteration;
    problem.deadline_s = infinity;
    // Sums over stages, by which it leaves out what does not beat a plan, and iterations may part by more than hope.
    const bool all = found_.worth().money() || to_the_end();
    problem.beat = all ? infinity : std::min(asked_.beat, found_.least());
    return problem;
  }

  [[nodiscard]] copied_boxes copies(function_ref<bool()> ask) {
    return {hardware_, costs_, problem_, table_, ends_, algebra_, for_iteration(), single(), found_, ask};
  }

  void share_out() {
    constexpr double well = 0.2, soon = 0.02;  // efforts; with a tenth most copies are as good, in half the time
    shared_out_ = true;
    auto ask = [&] { return go_on(); };
    copies(ask).share_out(options_.search == pipelines_search::whole ? well : soon);
  }

  // A first look says little where devices differ: sets from a few columns, which cost next to nothing where microbatches are
  // small.
  void first_sets() {
    if (!(options_.distant < infinity) || to_the_end() || found_.worth().money() || ends_.alone() || asked_.microbatches < 2 ||
        found_.best_s() > options_.distant * options_.others_s)
      return;
    auto ask = [&] { return !ended(); };
    relaxation relaxed(problem_, table_, ends_, algebra_, asked_.microbatches, ends_.any());
    column_pool pool(problem_.devices, asked_.microbatches);
    whole_sets sets(pool, found_, problem_.devices, asked_.microbatches, ask);
    if (static_cast<double>(relaxed.path_work()) * static_cast<double>(problem_.devices.size()) > soon_started) return;
    relaxed.start(ask);
    for (const auto& c : relaxed.columns()) pool.add(c);
    sets.pack(infinity, found_.best_s() * 1.02);
  }

  // A single pipeline by a short search, which begins with nothing that is known: may it come near what is to be beaten?
  void look_shortly() {
    auto problem = for_iteration();
    problem.beat = infinity;
    problem.progress = [&](const search_progress&) { return !ended(); };
    auto short_search = single();
    short_search.effort = options_.effort / 10;
    short_search.enumeration = 0;
    if (auto found = interop_dp(book_, problem, short_search)) put_aside(*std::move(found));
  }

  // The fastest single pipeline, or only a first one; the refusal if there is none.
  [[nodiscard]] std::optional<refusal> one_pipeline(bool first_only) {
    auto problem = for_iteration();
    problem.progress = [&](const search_progress& state) {
      if (first_only) return false;
      if (asked_.progress && !asked_.progress({state.steps, state.unit, std::min(found_.least(), state.incumbent),
                                               std::min(several_bound_, state.bound)}))
        stopped_ = true;
      // Where sets keep the bound down, and no plan comes near what is to be beaten.
      if (state.bound > several_bound_ && several_bound_ < asked_.beat &&
          std::min(found_.least(), state.incumbent) > options_.hopeless * asked_.beat)
        return false;
      return !stopped_;
    };
    auto found = interop_dp(book_, problem, single());
    if (!found) {
      if (found.why_not().why == refusal::kind::infeasible) one_bound_ = infinity;
      return found.why_not();
    }
    if (found->evidence && !found_.worth().money()) {
      one_bound_ = std::max(one_bound_, found->evidence->sum_bound);
    }
    put_aside(*std::move(found));
    if (first_only) take_single();
    return std::nullopt;
  }
  void put_aside(plan found) {
    if (!single_ || objective_of(found) < objective_of(*single_)) single_ = std::move(found);
  }
  void take_single() {
    if (single_) found_.keep(*std::exchange(single_, std::nullopt));
  }
  [[nodiscard]] double least() const { return std::min(found_.least(), single_ ? objective_of(*single_) : infinity); }

  // Whether bounds alone show that a plan that is known stays the best.
  [[nodiscard]] bool cannot_win() {
    if (!(asked_.beat < infinity) || found_.worth().money() || found_.best_s() <= asked_.beat * (1 + options_.gap)) return false;
    auto ask = [&] { return !stopped_ && asked_.may_go_on(); };
    constexpr std::int64_t few = 400;
    const double aim = asked_.beat * (1 - options_.gap);
    const bool splits = options_.splits;
    if (!iteration_bound(problem_, table_, hardware_, costs_, {}, splits).out_of_reach(asked_.microbatches, aim, few, ask))
      return false;
    const auto between = [&](int p, int first, int last) { return ends_.reduction(p, first, last); };
    if (!ends_.alone() &&
        !iteration_bound(problem_, table_, hardware_, costs_, between, splits).out_of_reach(asked_.microbatches, aim, few, ask))
      return false;
    out_of_reach_ = aim;
    return true;
  }

  // Small problems: all pipelines are listed, and all sets of them counted. Returns false if they are too many.
  [[nodiscard]] bool count_all() {
    listed_pipelines listed(problem_, table_);
    double pairs = static_cast<double>(asked_.microbatches) * asked_.microbatches;
    for (const int d : problem_.devices) pairs *= 0.5 * (d + 1) * (d + 2);
    if (pairs > 4e6 || asked_.use_all_devices) return false;
    if (!listed.list(as_size(options_.listed))) return false;
    counted_batches batches(listed, asked_.microbatches);
    const int whole = listed.box_of(problem_.devices);
    const auto& worth = found_.worth();
    const auto alone = [&](const auto& pipeline, int microbatches) {
      return found_.consider_alone(pipeline.stages, microbatches);
    };
    auto ask = [&] { return go_on(); };
    // The best of all boxes of devices, by lower bounds that are made exact where that matters. More devices make no iteration
    // longer: where money does not count, the box of all is the best.
    std::vector<bool> exact(as_size(whole) + 1, false);
    int best_box = whole;
    for (;;) {
      double least = infinity;
      for (int box = worth.money() ? 1 : whole; box <= whole; ++box) {
        const double value =
            worth.value(batches.least(box, asked_.microbatches) * (1 - tolerance::rounding), worth.rate(listed.devices_of(box)));
        if (!(value < least)) continue;
        least = value;
        best_box = box;
      }
      // At first by bounds of pipelines alone, under any schedule.
      if (counted_bound_ == 0) counted_bound_ = least;
      several_bound_ = one_bound_ = least;
      if (!(least < infinity) || stopped_) return true;
      if (at(exact, best_box)) break;
      at(exact, best_box) = true;
      (void)batches.exact(best_box, alone, ask);
    }
    std::vector<line> best;
    for (const auto& share : batches.split(best_box, asked_.microbatches))
      best.push_back({&batches.stages(share), share.microbatches});
    found_.consider(best);
    if (found_.least() <= bound() * (1 + tolerance::sums)) return complete_ = true;
    auto judge = [&](std::span<const line> lines) {
      found_.consider(lines);
      return found_.least();
    };
    counted_search sets(problem_, listed, batches, ends_, worth, asked_.microbatches);
    // A set may lie on fewer nodes than those that it was given.
    complete_ = sets.run(whole, found_.least(), judge, ask) && !stopped_ && !worth.whole_nodes();
    if (complete_) several_bound_ = one_bound_ = found_.least();
    return true;
  }

  // Sets of columns: rents, new columns and whole sets in turn.
  void search_sets(relaxation& relaxed, column_pool& pool, whole_sets& sets) {
    if (ends_.alone() || asked_.microbatches < 2) {
      several_bound_ = infinity;
      return;
    }
    auto ask = [&] { return go_on(); };
    // No round begins beyond the first number of ends of stages, and none ends beyond the second.
    auto most = most_work(relaxed), most_at_all = most;
    auto within_effort = [&] { return relaxed.looked_at() < most_at_all && go_on(); };
    const auto improve = [&] {
      // A problem that cannot win need not be bounded closely.
      const double enough = std::min(asked_.beat, found_.best_s()), gap = options_.gap / 2;
      const bool more = relaxed.improve(enough, gap, found_.best_s() > asked_.beat ? std::max(gap, coarse) : gap, within_effort);
      several_bound_ = std::max(several_bound_, relaxed.bound());
      return more && several_bound_ < enough;
    };
    // What is known to be beaten by bounds alone needs no columns.
    for (int round = 0; round < first_rounds && asked_.beat < found_.best_s() && go_on(); ++round)
      if (!improve()) break;
    if (several_bound_ >= asked_.beat) return;
    relaxed.start(ask);
    most = relaxed.looked_at() + most_work(relaxed);
    most_at_all = most + most_work(relaxed);
    auto fill = [&, pooled = std::size_t{0}]() mutable {
      for (; pooled < relaxed.columns().size(); ++pooled) pool.add(relaxed.columns()[pooled]);
    };
    const auto pack = [&] {
      fill();
      sets.pack(infinity, found_.best_s() * 1.02);
    };
    pack();
    if (!shared_out_) share_out();
    if (const auto& best = found_.best())
      for (const auto& own : best->pipelines)
        if (auto stages = found_.stages_of(own)) relaxed.add(*std::move(stages));
    for (int round = 0; round < options_.rounds && relaxed.looked_at() < most && go_on(); ++round) {
      const bool more = improve();
      if (!more || round % 4 == 3) pack();
      if (!more || closed()) break;
    }
    looked_at_ = relaxed.looked_at();
    fill();
    sets.copy_columns();
  }

  // A closer bound on sets where links between subclusters are slow, if they keep the bound down; and the columns of the cases.
  void tell_cases_apart(const relaxation& relaxed, column_pool& pool, whole_sets& sets) {
    const double enough = std::min({asked_.beat, found_.best_s(), one_bound_});
    // There is a case for each subcluster, which begins with a look at each.
    constexpr std::size_t most_homes = 12;
    if (problem_.devices.size() < 2 || problem_.devices.size() > most_homes || !ends_.any() || several_bound_ >= enough ||
        !go_on())
      return;
    auto ask = [&] { return go_on(); };
    home_cases cases(problem_, table_, ends_, algebra_, asked_.microbatches);
    const auto more_columns = [&](const relaxation& of) {
      for (const auto& c : of.columns()) pool.add(c);
    };
    several_bound_ =
        std::max(several_bound_, cases.bound(relaxed, enough, options_.gap / 2, most_work(relaxed), ask, more_columns));
    looked_at_ += cases.looked_at();
    sets.pack(infinity, found_.best_s() * 1.02);
  }

  // Ends of stages.
  [[nodiscard]] std::int64_t most_work(const relaxation& relaxed) const {
    return static_cast<std::int64_t>(options_.effort * (1e5 + 10 * static_cast<double>(relaxed.path_work())));
  }

  // Cheap sets: the fastest pipelines of boxes of devices and copies of them, and sets of these within one limit of money per
  // second after the other.
  void search_cheap_sets() {
    const auto& prices = found_.worth().prices();
    const double dearest = found_.worth().rate(problem_.devices), deadline = found_.worth().deadline_s();
    auto ask = [&] { return go_on(); };
    rented_path path(problem_, table_, ends_);
    money_bound money(problem_, table_, path, prices, asked_.microbatches);
    const auto prove = [&](double bound) { several_bound_ = one_bound_ = std::max(several_bound_, bound); };
    column_pool pool(problem_.devices, asked_.microbatches);
    whole_sets sets(pool, found_, problem_.devices, asked_.microbatches, ask);
    auto enough = [&] { return closed(); };
    copies(ask).try_parts(pool, enough);
    prove(money.alone(found_.least(), ask));
    const std::vector<double> plenty(prices.size(), 0.0);
    if (deadline < infinity && !closed()) prove(money.within(deadline, plenty, found_.least(), ask));

    column_pool::relaxed_set scarce;  // of the limit that just meets the deadline
    // From all devices down to what no deadline allows or no pipeline costs.
    for (double rate = dearest; rate > 1e-6 * dearest && go_on() && !closed(); rate *= 0.9) {
      pool.restrict_to(prices, rate, {});
      auto relaxed = pool.relaxed();
      if (!(relaxed.seconds < infinity) || relaxed.seconds > deadline) break;
      scarce = std::move(relaxed);
      sets.pack(rate, std::min(deadline, found_.worth().seconds_for(found_.least(), rate * 0.8)) * 1.02);
    }
    // There devices may be scarce: prices on top of money, in money.
    if (deadline < infinity && go_on() && !closed() && scarce.prices.size() > prices.size() && scarce.prices.back() > 0) {
      const double of_money = scarce.prices.back();
      scarce.prices.pop_back();
      for (auto& p : scarce.prices) p /= of_money;
      prove(money.within(deadline, scarce.prices, found_.least(), ask));
    }
    looked_at_ = path.looked_at();
  }

  // Small changes of the best plan.
  void improve() {
    if (!stopped_) shift_microbatches();
    if (!stopped_) change_single_pipeline();
    if (!stopped_) look_around();
  }
  // The best plan, which proves nothing. Requires: there is one.
  [[nodiscard]] plan unproven() {
    auto& best = found_.best();
    best->evidence = search_evidence{.objective_value = found_.least(), .work = {{"plans", found_.plans()}}};
    return *std::move(best);
  }

  // Single microbatches from the pipeline that is done last to others, as long as that helps.
  void shift_microbatches() {
    const auto& best = found_.best();
    if (!best) return;
    for (int tries = 0; tries < 32 && best->pipelines.size() > 1 && go_on(); ++tries) {
      const auto& lines = best->pipelines;
      std::vector<std::pair<double, std::size_t>> ends;
      for (std::size_t l = 0; l < lines.size(); ++l) {
        const auto bare = to_pipeline(lines[l]);
        ends.push_back({stage_ends(bare, warmups(lines[l]), lines[l].microbatches).front(), l});
      }
      std::sort(ends.begin(), ends.end());
      const auto from = ends.back().second, to = ends.front().second;
      if (lines[from].microbatches < 2) return;
      auto next = *best;
      --next.pipelines[from].microbatches;
      ++next.pipelines[to].microbatches;
      for (auto& own : next.pipelines)
        for (auto& s : own.stages) s.warmup = std::min(s.warmup, own.microbatches);
      const double before = found_.best_s();
      if (!(found_.consider(std::move(next)) < before)) return;
    }
  }

  // The best plan, where it is a single pipeline, changed a little: evaluate may say less than the bound by which others ended.
  void change_single_pipeline() {
    if (algebra_.is_exact()) {
      const bool orders_are_free = options_.order == subcluster_order::automatic || options_.order == subcluster_order::all;
      if (options_.looks == 0 || !found_.best() || found_.worth().money() || found_.best()->pipelines.size() > 1 ||
          !orders_are_free || found_.least() > options_.hopeless * asked_.beat)
        return;
      const auto stages = found_.stages_of(found_.best()->pipelines.front());
      if (!stages) return;
      const chain_costs chains(hardware_, costs_, problem_, table_, asked_, id_of(options_.warmup));
      const auto from = chains.chain_of(*stages);
      if (!chains.keeps_together(from)) return;
      const int looks = std::min(options_.looks, chains.looks_within(options_.effort, from));
      const auto better =
          chains.improve_any({{found_.best_s(), from}}, looks, 1 + options_.near_tie, true, [&] { return go_on(); });
      found_.consider_alone(chains.stages_of(better.what), asked_.microbatches);
    }
  }

  // Single pipelines that bounds leave open below what is known.
  void follow_bound() {
    if (found_.worth().money() || !algebra_.is_exact() || options_.splits) return;
    auto ask = [&] { return may_prove(); };
    const double known = std::min(found_.best_s(), asked_.beat);
    if (!(known < infinity)) return;
    const iteration_bound one(problem_, table_, hardware_, costs_);
    for (const auto& stages : one.nearly_within(asked_.microbatches, known, ask))
      found_.consider_alone(stages, asked_.microbatches);
  }

  // Neighbours of the best plan, if it comes near what is to be beaten.
  void look_around() {
    if (!found_.best() || found_.least() > std::max(worth_changes, options_.hopeless) * asked_.beat) return;
    auto ask = [&] { return go_on(); };
    const auto actions = [&] {
      double all = 0;
      for (const auto& own : found_.best()->pipelines) all += static_cast<double>(own.stages.size()) * own.microbatches;
      return all;
    };
    const auto change_little = [&] {
      neighbour_search(problem_, found_, ask).run(static_cast<int>(std::clamp(3e5 / actions(), 16.0, 1000.0)));
    };
    change_little();
    if (table_.additive()) {
      if (found_.worth().money()) return;
      const double before = found_.least();
      stage_order_search orders(problem_, table_, hardware_, costs_, found_, ask);
      orders.run(static_cast<std::int64_t>(options_.effort * 1e6), to_the_end());
      if (found_.least() < before) change_little();
    }
  }

  // Why there is no plan; `why`: there is none of one pipeline.
  [[nodiscard]] refusal why_none(const std::optional<refusal>& why) const {
    // Of several pipelines, any one could do all microbatches.
    if (one_bound_ == infinity && why && !asked_.use_all_devices) return *why;
    const bool beaten = bound() > asked_.beat;
    if (stopped_ && !beaten) return {refusal::kind::stopped, "the search was stopped before it found a plan"};
    if (found_.fastest_s() > found_.worth().deadline_s() && found_.fastest_s() < infinity)
      return too_late(found_.worth().deadline_s(), found_.fastest_s());
    if (why && why->why != refusal::kind::stopped) return *why;
    return {refusal::kind::infeasible, beaten                   ? "no plan has an objective below that of one that is known"
                                       : asked_.use_all_devices ? "no plan was found that uses all devices"
                                                                : "no plan was found that fits in memory"};
  }

  [[nodiscard]] outcome<plan> finish(const std::optional<refusal>& why) {
    take_single();
    auto& best = found_.best();
    if (!best) return why_none(why);
    const double value = found_.least(), proved = proved_bound();
    best->evidence =
        search_evidence{.objective_value = value,
                        .objective_bound = std::min(value, proved),
                        // Under another rule sets were judged under that one alone.
                        .complete = (complete_ && algebra_.is_exact() && !options_.splits) ||
                                    std::min(value, asked_.beat) * (1 - options_.gap) <= proved * (1 + tolerance::sums),
                        .work = {{"plans", found_.plans()}, {"ends of stages", looked_at_}},
                        .sum_bound = std::min(several_bound_, one_bound_),
                        .rule = std::string(schedule_name(options_.warmup)),
                        .space = ends_.alone() ? "one pipeline, on any devices in any order"
                                               : "one pipeline or more, on any devices in any order"};
    return *std::move(best);
  }

  // What no plan is below, whatever its warm-ups; less what is known to be beaten.
  [[nodiscard]] double proved_bound() {
    if (out_of_reach_ > 0) return out_of_reach_;
    // Devices in use are paid as long as the iteration takes, so they cost no less than while they work.
    if (found_.worth().money())
      return std::max(counted_bound_, asked_.microbatches * least_work(problem_, table_, found_.worth().prices()));
    auto ask = [&] { return may_prove(); };
    const auto between = [&](int p, int first, int last) { return ends_.reduction(p, first, last); };
    iteration_bound::reductions of_sets;
    if (!ends_.alone()) of_sets = iteration_bound::reductions(between);
    const double least =
        least_iteration(problem_, table_, hardware_, costs_, asked_.microbatches, std::min(found_.best_s(), asked_.beat),
                        options_.gap, ask, asked_.enough, of_sets, options_.splits);
    return options_.splits ? least : std::max(least, counted_bound_);
  }

  static constexpr double worth_changes = 1.08;  // times what is to be beaten: what small changes may bring
  static constexpr double soon_started = 6e4;    // ends of stages at a period, over all subclusters: a tenth of a second
  static constexpr int first_rounds = 4;         // that may show by bounds alone that a problem cannot win
  static constexpr double coarse = 0.005;        // how closely the bound of one that cannot win is sought

  price_book& book_;
  const cluster& hardware_;
  any_cost_model costs_;
  const interop_problem& problem_;
  const stage_prices& table_;
  end_table ends_;
  warmup_algebra algebra_;
  const planning_problem& asked_;
  const parallel_pipelines_options& options_;
  candidates found_;
  std::optional<plan> single_;                // of one pipeline, that does not count yet
  double several_bound_ = 0, one_bound_ = 0;  // no plan of several, of one pipeline has a smaller objective
  bool stopped_ = false, complete_ = false, shared_out_ = false;
  bool beaten_ = false;                          // stopped, as no sum is below what is to be beaten
  double out_of_reach_ = 0, counted_bound_ = 0;  // what has been proved
  std::int64_t looked_at_ = 0;
};

}  // namespace detail
}  // namespace hetsched
