// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hetauto/hetauto_test.cpp.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/planners/hetauto/detail/decisions.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched::detail {

/// HetAuto's decisions where the number of microbatches is one of them, behind the number of stages: from then on those of
/// hetauto_decisions for this number. An action is a place in the list of numbers there.
/// Source: HetAuto, section 4.1.
class any_size_decisions {
 public:
  using action = hetauto_decisions::action;
  struct state {
    int stages = 0;
    int size = -1;
    hetauto_decisions::state rest = {};
  };

  /// `sizes`: those of each number of microbatches, at least one.
  explicit any_size_decisions(std::vector<const hetauto_decisions*> sizes) : sizes_(std::move(sizes)) {}

  [[nodiscard]] state root() const { return {}; }
  [[nodiscard]] std::vector<action> actions(const state& from) const {
    if (from.stages == 0) return sizes_.front()->actions(sizes_.front()->root());
    if (from.size >= 0) return of(from).actions(from.rest);
    std::vector<action> all;
    for (std::size_t i = 0; i < sizes_.size(); ++i) all.push_back(static_cast<action>(i));
    return all;
  }
  [[nodiscard]] state apply(state from, action a) const {
    if (from.stages == 0) {
      from.stages = a;
    } else if (from.size < 0) {
      from.size = a;
      from.rest = of(from).apply(of(from).root(), from.stages);
    } else {
      from.rest = of(from).apply(std::move(from.rest), a);
    }
    return from;
  }
  [[nodiscard]] bool finished(const state& from) const { return from.size >= 0 && of(from).finished(from.rest); }
  [[nodiscard]] double cost(const state& from) const { return of(from).cost(from.rest); }
  [[nodiscard]] double cost(const state& from, double enough) const { return of(from).cost(from.rest, enough); }
  [[nodiscard]] double bound(const state& from) const { return from.size < 0 ? 0 : of(from).bound(from.rest); }

  /// Any number of microbatches, and then as hetauto_decisions.
  [[nodiscard]] state play_out(state from, random_source& random) const {
    while (from.size < 0) {
      const auto next = actions(from);
      const auto chosen = static_cast<std::size_t>(random.uniform() * static_cast<double>(next.size()));
      from = apply(std::move(from), next[chosen]);
    }
    from.rest = of(from).play_out(std::move(from.rest), random);
    return from;
  }
  /// By the small changes of hetauto_decisions, and by the next larger and smaller microbatches for the same parts.
  [[nodiscard]] state improve(state from, double cost) const {
    for (bool better = true; better;) {
      better = false;
      from.rest = of(from).improve(std::move(from.rest), cost);
      from.stages = from.rest.stages;
      cost = std::min(cost, this->cost(from));
      for (const int size : {from.size - 1, from.size + 1}) {
        if (better || size < 0 || size >= static_cast<int>(sizes_.size())) continue;
        state next{from.stages, size, {}};
        next.rest = of(next).chains().like(of(from).chains(), from.rest);
        if (!finished(next)) continue;
        if (const double found = this->cost(next, cost); found < cost) {
          cost = found;
          from = std::move(next);
          better = true;
        }
      }
    }
    return from;
  }
  [[nodiscard]] auto plan_of(const state& from) const { return of(from).plan_of(from.rest); }

 private:
  [[nodiscard]] const hetauto_decisions& of(const state& from) const { return *at(sizes_, from.size); }
  std::vector<const hetauto_decisions*> sizes_;
};

/// What hetauto_decisions need of a number of microbatches, and they.
struct sized_decisions {
  /// `problem`: of the book, with some placements at least. The book's cluster and costs outlive this.
  sized_decisions(price_book& book, interop_problem problem, planning_problem wanted, schedule_id schedule,
                  hetauto_principles principles)
      : placed(std::move(problem)), asked(std::move(wanted)), table(book, placed, asked.poll()) {
    mark_dominated(placed, table, asked.poll());
    decisions.emplace(book.hardware(), book.costs(), placed, table, asked, schedule, principles);
  }
  sized_decisions(const sized_decisions&) = delete;
  sized_decisions& operator=(const sized_decisions&) = delete;

  interop_problem placed;
  planning_problem asked;
  stage_prices table;
  std::optional<hetauto_decisions> decisions;
};

}  // namespace hetsched::detail
