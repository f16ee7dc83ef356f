// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Decisions taken one after the other, at whose end stands a cost, say seconds. A state is what was decided so far:
/// root() has decided nothing, actions(state) can be decided next, apply(state, action) is the state after it, and
/// cost(state) is asked where finished(state). An infinite cost is not feasible; a state that is not finished and has no
/// actions is a dead end.
/// Optional: bound(state), which no finished state below `state` goes under; rollout(state, actions), the index of the action
/// that a cheap policy takes, or play_out(state, random), the state where it ends, finished or not; cost(state, enough), the
/// cost, or a bound of it that is no less than `enough`; and improve(state, cost), a finished state near this one, of that cost,
/// which costs no more. Not checked: that costs are above 0, that equal states get equal answers, that decisions end, that bounds
/// hold, and that const members can be called from several threads at once.
template <class P>
concept decision_problem = requires(const P& problem, const typename P::state& at, const typename P::action& next) {
  requires std::copyable<typename P::state> && std::copyable<typename P::action>;
  { problem.root() } -> std::same_as<typename P::state>;
  { problem.actions(at) } -> std::same_as<std::vector<typename P::action>>;
  { problem.apply(at, next) } -> std::same_as<typename P::state>;
  { problem.finished(at) } -> std::convertible_to<bool>;
  { problem.cost(at) } -> std::convertible_to<double>;
};

/// How a tree is searched. A budget of time is a `progress` that returns false when it is used up.
struct tree_search_options {
  std::int64_t rollouts = 100'000;  ///< of all trees together
  int trees = 4;                    ///< searched side by side, each with random numbers of its own
  std::int64_t round = 64;          ///< rollouts of a tree between two exchanges of incumbents, each followed by `progress`
  std::uint64_t seed = 0;
  double exploration = 1;       ///< weight of the second term of UCB
  double greedy = 0.5;          ///< share of rollouts by the problem's own policy, if it has one; the others are random
  bool relative_reward = true;  ///< best cost so far / cost; else 1 / (1 + cost)
  bool close_branches = true;   ///< never enter again what was seen to its end, and cut what a bound excludes
  bool improve = true;          ///< each new incumbent by small changes, if the problem knows some
  bool record_rollouts = true;  ///< the ends of rollouts are candidates, not only the leaves of the tree
  std::function<bool(const search_progress&)> progress = {};  ///< after each round; false stops the search
  std::function<bool()> go_on = {};  ///< before each rollout, also on the threads of `parallel`; false ends the search at once
  parallel_for parallel = {};        ///< runs the trees; the result does not depend on it
};

/// HetAuto's search as it was published: exploration weight 10, reward 1 / (1 + cost), random rollouts that are not kept,
/// no branch ever closed.
/// Source: HetAuto, section 4.1, Algorithm 1.
[[nodiscard]] inline tree_search_options published_tree_search() {
  tree_search_options o;
  o.trees = 1;
  o.exploration = 10;
  o.greedy = 0;
  o.relative_reward = o.close_branches = o.record_rollouts = o.improve = false;
  return o;
}

/// What a tree search found.
template <class State>
struct tree_search_result {
  std::optional<State> best = {};  ///< none: nothing feasible was seen
  double cost = infinity;          ///< of best
  bool complete = false;           ///< proved: nothing costs less, or without `best`, nothing is feasible
  bool stopped = false;            ///< by progress
  std::int64_t rollouts = 0;
  std::int64_t nodes = 0;  ///< of all trees
};

namespace detail {

/// One of the trees, with its random numbers and its incumbent.
template <decision_problem Problem>
class search_tree {
 public:
  using state = typename Problem::state;
  using action = typename Problem::action;

  search_tree(const Problem& problem, const tree_search_options& options, std::uint64_t seed)
      : problem_(problem), options_(options), random_(seed) {
    add(problem_.root());
  }

  void search(std::int64_t rollouts) {
    for (std::int64_t i = 0; i < rollouts && !exhausted() && (!options_.go_on || options_.go_on()); ++i, ++rollouts_) rollout();
  }

  /// Another tree has found this cost.
  void learn(double cost) { limit_ = std::min(limit_, cost); }

  [[nodiscard]] bool exhausted() const { return options_.close_branches && nodes_.front().closed; }
  [[nodiscard]] const std::optional<state>& best() const { return best_; }
  [[nodiscard]] double cost() const { return cost_; }
  [[nodiscard]] std::int64_t rollouts() const { return rollouts_; }
  [[nodiscard]] std::int64_t nodes() const { return static_cast<std::int64_t>(nodes_.size()); }

 private:
  struct node {
    std::vector<action> actions = {};        // those tried come first
    std::vector<std::size_t> children = {};  // of the actions tried
    std::size_t open = 0;                    // actions not tried, and children not closed
    double bound = 0;
    double worth = 0;  // its reward, if nothing is below it
    double sum = 0;    // of rewards
    double visits = 0;
    bool closed = false;
  };

  // Sums of rewards are kept as sums of 1/cost: what they are relative to is multiplied in when they are compared, so all
  // are on one scale although the best cost falls.
  [[nodiscard]] double worth_of(double cost) const { return options_.relative_reward ? 1 / cost : 1 / (1 + cost); }
  [[nodiscard]] double scale() const { return !options_.relative_reward ? 1 : limit_ < infinity ? limit_ : 0; }

  [[nodiscard]] double cost_of(const state& leaf) const {
    if constexpr (requires {
                    { problem_.cost(leaf, limit_) } -> std::convertible_to<double>;
                  })
      return problem_.cost(leaf, limit_);
    else
      return problem_.cost(leaf);
  }

  double price(const state& leaf, bool record) {
    const double cost = cost_of(leaf);
    if (record && cost < limit_) keep(leaf, cost);
    return worth_of(cost);
  }

  // A new incumbent, and what small changes make of it.
  void keep(const state& leaf, double cost) {
    limit_ = cost_ = cost;
    best_ = leaf;
    if constexpr (requires {
                    { problem_.improve(leaf, cost) } -> std::same_as<state>;
                  }) {
      if (!options_.improve) return;
      auto better = problem_.improve(leaf, cost);
      if (const double found = problem_.cost(better); found < limit_) {
        limit_ = cost_ = found;
        best_ = std::move(better);
      }
    }
  }

  std::size_t add(const state& at) {
    node n;
    if constexpr (requires {
                    { problem_.bound(at) } -> std::convertible_to<double>;
                  })
      n.bound = problem_.bound(at);
    if (problem_.finished(at)) {
      n.worth = price(at, true);
    } else {
      n.actions = problem_.actions(at);
    }
    n.open = n.actions.size();
    n.closed = n.open == 0;
    nodes_.push_back(std::move(n));
    return nodes_.size() - 1;
  }

  void rollout() {
    auto at = problem_.root();
    path_.assign(1, 0);
    double worth = 0;
    while (true) {
      const auto here = path_.back();
      if (nodes_[here].actions.empty()) {
        worth = nodes_[here].worth;
        break;
      }
      const auto tried = nodes_[here].children.size();
      const bool expands = tried < nodes_[here].actions.size();
      if (expands) {
        auto& actions = nodes_[here].actions;
        std::swap(actions[tried], actions[pick(tried, actions.size())]);
        at = problem_.apply(std::move(at), actions[tried]);
        const auto child = add(at);
        nodes_[here].children.push_back(child);
        path_.push_back(child);
        if (nodes_[child].closed) {
          worth = nodes_[child].worth;
        } else if (excluded(nodes_[child])) {
          nodes_[child].closed = true;
        } else {
          worth = to_the_end(at);
        }
        if (nodes_[child].closed) lose(here);
        break;
      }
      const auto next = select(here);
      if (next == none) break;
      at = problem_.apply(std::move(at), nodes_[here].actions[next]);
      path_.push_back(nodes_[here].children[next]);
    }
    for (auto p = path_.size(); p-- > 0;) {
      auto& n = nodes_[path_[p]];
      n.sum += worth;
      n.visits += 1;
      if (n.open == 0 && !n.closed) {
        n.closed = true;
        if (p > 0) lose(path_[p - 1]);
      }
    }
  }

  void lose(std::size_t parent) { --nodes_[parent].open; }

  [[nodiscard]] bool excluded(const node& n) const { return options_.close_branches && n.bound >= limit_; }

  /// The child with the largest upper confidence bound; none if all are closed.
  std::size_t select(std::size_t parent) {
    const double all = std::log(nodes_[parent].visits), per_worth = scale();
    std::size_t chosen = none;
    double most = -infinity;
    for (std::size_t c = 0; c < nodes_[parent].children.size(); ++c) {
      auto& n = nodes_[nodes_[parent].children[c]];
      if (!n.closed && excluded(n)) {
        n.closed = true;
        lose(parent);
      }
      if (n.closed && options_.close_branches) continue;
      const double score = per_worth * n.sum / n.visits + options_.exploration * std::sqrt(all / n.visits);
      if (score > most) {
        most = score;
        chosen = c;
      }
    }
    return chosen;
  }

  /// Decides the rest, and returns the reward.
  double to_the_end(state at) {
    const bool greedy = options_.greedy > 0 && random_.uniform() < options_.greedy;
    if constexpr (requires {
                    { problem_.play_out(at, random_) } -> std::same_as<state>;
                  }) {
      if (greedy) {
        at = problem_.play_out(std::move(at), random_);
        return problem_.finished(at) ? price(at, options_.record_rollouts) : 0;
      }
    }
    while (!problem_.finished(at)) {
      const auto actions = problem_.actions(at);
      if (actions.empty()) return 0;
      std::size_t next = none;
      if constexpr (requires {
                      { problem_.rollout(at, actions) } -> std::convertible_to<std::size_t>;
                    }) {
        if (greedy) next = problem_.rollout(at, actions);
      }
      if (next == none) next = pick(0, actions.size());
      at = problem_.apply(std::move(at), actions[next]);
    }
    return price(at, options_.record_rollouts);
  }

  /// Uniform in [first, last).
  std::size_t pick(std::size_t first, std::size_t last) {
    return first + static_cast<std::size_t>(random_.uniform() * static_cast<double>(last - first));
  }

  static constexpr auto none = std::numeric_limits<std::size_t>::max();

  const Problem& problem_;
  const tree_search_options& options_;
  random_source random_;
  std::vector<node> nodes_;
  std::vector<std::size_t> path_;  // of the rollout under way
  std::optional<state> best_;
  double cost_ = infinity;   // of best_
  double limit_ = infinity;  // the least cost that any tree has told
  std::int64_t rollouts_ = 0;
};

}  // namespace detail

/// Looks for the finished state of least cost by Monte Carlo tree search: UCB chooses among tried actions, an action not yet
/// tried is taken at random, the rest is decided at random or by the problem's policy, and the reward is told upwards.
/// Trees are searched apart and tell each other only their best cost, once a round.
/// Returns: the best state seen; complete if one of the trees was seen to its end, which takes no more rollouts than the
/// tree has nodes. Without close_branches nothing is ever proved.
/// Throws: input_error for budgets, trees or rounds below 1, a negative exploration weight, and what the problem throws.
/// Complexity: O(depth * actions) per rollout, besides what the problem takes; memory for a node per rollout.
/// Determinism: equal for every `parallel`; where `progress` stops it, equal for an equal number of rounds.
/// Source: Kocsis and Szepesvari 2006; HetAuto, section 4.1.
template <decision_problem Problem>
[[nodiscard]] tree_search_result<typename Problem::state> tree_search(const Problem& problem,
                                                                      const tree_search_options& options = {}) {
  if (options.rollouts < 1 || options.trees < 1 || options.round < 1)
    throw input_error("a tree search needs at least one rollout, one tree and one rollout a round");
  if (!(options.exploration >= 0)) throw input_error("the exploration weight of a tree search must not be negative");
  const auto count = static_cast<int>(std::min<std::int64_t>(options.trees, options.rollouts));
  random_source seeds(options.seed);
  std::vector<detail::search_tree<Problem>> trees;
  for (int t = 0; t < count; ++t) trees.emplace_back(problem, options, seeds());

  double bound = 0;
  if constexpr (requires {
                  { problem.bound(problem.root()) } -> std::convertible_to<double>;
                })
    bound = problem.bound(problem.root());
  tree_search_result<typename Problem::state> found;
  while (true) {
    found.rollouts = found.nodes = 0;
    for (const auto& t : trees) {
      found.rollouts += t.rollouts();
      found.nodes += t.nodes();
      found.complete = found.complete || t.exhausted();
      if (t.cost() < found.cost) {
        found.cost = t.cost();
        found.best = t.best();
      }
    }
    for (auto& t : trees) t.learn(found.cost);
    // Whoever stops at once has what the first round has found.
    if (found.rollouts > 0 && options.progress &&
        !options.progress({found.rollouts, "rollouts", found.cost, found.complete ? found.cost : bound}))
      found.stopped = !found.complete && found.rollouts < options.rollouts;
    found.stopped = found.stopped || (!found.complete && options.go_on && !options.go_on());
    const auto left = options.rollouts - found.rollouts;
    if (found.complete || found.stopped || left == 0) return found;
    const std::function<void(int)> body = [&](int t) {
      const auto share = left / count + (t < left % count ? 1 : 0);
      at(trees, t).search(std::min(share, options.round));
    };
    if (options.parallel && count > 1) {
      options.parallel(count, body);
    } else {
      for (int t = 0; t < count; ++t) body(t);
    }
  }
}

}  // namespace hetsched
