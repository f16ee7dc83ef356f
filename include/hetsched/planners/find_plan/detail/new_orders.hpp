// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/find_plan/detail/new_orders_test.cpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>
#include <hetsched/schedule/search/min_memory.hpp>
#include <hetsched/search/taper.hpp>

namespace hetsched::detail {

/// What schedules take more microbatches for than there are, to make stages more even: see tapered().
inline constexpr std::array hastes{1.0, 2.0, 4.0};

/// What holds for all plans under a schedule.
enum class order_bound_kind {
  whole,   ///< bounds for forwards and backwards that stay whole
  split,   ///< bounds for backwards that may be split
  busy,    ///< devices that never stand idle: stages are cut
  nothing  ///< each rank works for two stages, with prices of the devices of either
};
[[nodiscard]] inline order_bound_kind bound_kind(schedule_id schedule) {
  using enum schedule_id;
  if (has_warmups(schedule) || schedule == gpipe) return order_bound_kind::whole;
  if (schedule == searched || schedule == zb_h1 || schedule == zb_h2) return order_bound_kind::split;
  return schedule == dualpipe || schedule == chimera ? order_bound_kind::nothing : order_bound_kind::busy;
}

/// The warm-up rule of a schedule of that name; none for schedules that are no rule.
[[nodiscard]] inline std::optional<warmup_rule> rule_of(schedule_id schedule) {
  for (const auto rule : {warmup_rule::exact, warmup_rule::one_f_one_b, warmup_rule::h1f1b, warmup_rule::eager})
    if (id_of(rule) == schedule) return rule;
  return {};
}

/// Prices by microbatch size, each made when it is first asked for.
class price_books {
 public:
  /// Both outlive this.
  price_books(const cluster& hardware, const costs_by_size& costs) : hardware_(hardware), costs_(costs) {}
  [[nodiscard]] price_book& of(int size) { return books_.try_emplace(size, hardware_, costs_(size)).first->second; }

 private:
  const cluster& hardware_;
  const costs_by_size& costs_;
  std::map<int, price_book> books_;
};

/// Of each pipeline, the first one of the same layers and kinds of devices that takes and may hold as much at every stage, as far
/// as the plan is evaluated.
[[nodiscard]] inline std::vector<std::size_t> first_alike(const plan& p) {
  const auto alike = [](const pipeline_plan& x, const pipeline_plan& y) {
    const auto same = [](const stage_plan& s, const stage_plan& t) { return s.layers == t.layers && s.where() == t.where(); };
    return x.boundaries.size() + 1 == x.stages.size() && x.boundaries.size() == y.boundaries.size() &&
           x.microbatches == y.microbatches && x.microbatch_size == y.microbatch_size &&
           std::equal(x.stages.begin(), x.stages.end(), y.stages.begin(), y.stages.end(), same) &&
           to_pipeline(x) == to_pipeline(y) && activation_rooms(x) == activation_rooms(y);
  };
  std::vector<std::size_t> first;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    std::size_t own = 0;
    while (own < l && !(first[own] == own && alike(p.pipelines[own], p.pipelines[l]))) ++own;
    first.push_back(own);
  }
  return first;
}

/// An evaluated plan with its layers cut anew for schedules that may keep more microbatches in flight than 1F1B, in some ways
/// that are not its own; of pipelines that have not had their turn where go_on is false, as they are.
[[nodiscard]] inline std::vector<plan> recut(price_books& books, const plan& p, function_ref<bool()> go_on) {
  std::array<plan, hastes.size()> all{p, p, p};
  const auto first = first_alike(p);
  for (std::size_t l = 0; l < p.pipelines.size() && go_on(); ++l) {
    if (first[l] == l) {
      const auto own = tapered(books.of(p.pipelines[l].microbatch_size), p.pipelines[l], hastes);
      for (std::size_t h = 0; h < own.size(); ++h) all[h].pipelines[l] = own[h];
      continue;
    }
    for (auto& candidate : all) {
      auto& line = candidate.pipelines[l];
      const auto& like = candidate.pipelines[first[l]];
      for (std::size_t i = 0; i < line.stages.size(); ++i) {
        line.stages[i].layers = like.stages[i].layers;
        line.stages[i].warmup = like.stages[i].warmup;
      }
      line.boundaries = like.boundaries;
      line.schedule = like.schedule;
    }
  }
  std::vector<plan> some;
  for (auto& candidate : all)
    if (candidate.pipelines != p.pipelines) some.push_back(std::move(candidate));
  return some;
}

/// A plan, evaluated, whose pipelines run the best order that is found of their forwards and whole backwards, within the memory
/// that their stages leave; none where that is no shorter than `below_s`, there is no room, or the orders are too long to look
/// at. Throws: as evaluate.
[[nodiscard]] inline std::optional<plan> with_whole_orders(const cluster& hardware, const costs_by_size& costs, const plan& p,
                                                           double below_s, const evaluate_options& options) {
  constexpr std::int64_t most_actions = 100'000;
  const auto priced = evaluate(hardware, costs, p, options);
  if (!priced) return {};
  const auto first = first_alike(priced->plan);
  std::int64_t actions = 0;
  for (std::size_t l = 0; l < first.size(); ++l)
    if (const auto& line = priced->plan.pipelines[l]; first[l] == l)
      actions += 2 * static_cast<std::int64_t>(line.stages.size()) * line.microbatches;
  if (actions > most_actions) return {};
  const auto ordered_by = [&](auto search) -> std::optional<plan> {
    auto ordered = priced->plan;
    for (std::size_t l = 0; l < first.size(); ++l) {
      auto& line = ordered.pipelines[l];
      if (const auto& like = ordered.pipelines[first[l]]; first[l] < l) {
        for (std::size_t i = 0; i < line.stages.size(); ++i) line.stages[i].warmup = like.stages[i].warmup;
        line.schedule = like.schedule;
        continue;
      }
      auto found =
          search(to_pipeline(line), line.microbatches,
                 auto_options{.memory_capacity = activation_rooms(line), .split_backward = false, .progress = options.progress});
      if (!found) return {};
      set_order(line, std::string(auto_schedule_name), std::move(found->order));
    }
    auto judged = evaluate(hardware, costs, std::move(ordered), options);
    if (!judged || !judged->shortage.empty() || objective_of(judged->plan) >= below_s) return {};
    return std::move(judged->plan);
  };
  // With little memory takes six times as long.
  auto found = ordered_by([](const auto&... given) { return auto_schedule(given...); });
  if (!found) return {};
  auto spare = ordered_by([](const auto&... given) { return auto_with_little_memory(given...); });
  return spare ? spare : found;
}

}  // namespace hetsched::detail
