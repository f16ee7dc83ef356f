// SPDX-License-Identifier: Apache-2.0
#include <hetsched/search/tree_search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

/// A tree written down: its states are vertices, its actions the children.
struct written_tree {
  using state = std::size_t;
  using action = std::size_t;
  struct vertex {
    std::vector<std::size_t> children = {};
    bool leaf = false;
    double cost = infinity;  // of a leaf; else the least below
  };
  std::vector<vertex> vertices;

  [[nodiscard]] state root() const { return 0; }
  [[nodiscard]] std::vector<action> actions(state s) const { return vertices[s].children; }
  [[nodiscard]] state apply(state, action a) const { return a; }
  [[nodiscard]] bool finished(state s) const { return vertices[s].leaf; }
  [[nodiscard]] double cost(state s) const { return vertices[s].cost; }
};

/// Leaves, some of them not feasible, dead ends, and vertices of one to four children.
std::size_t grow(written_tree& tree, random_source& random, int depth) {
  const auto at = tree.vertices.size();
  tree.vertices.emplace_back();
  if (depth == 0 || (at > 0 && random.uniform() < 0.15)) {
    if (random.uniform() < 0.1) return at;  // a dead end
    tree.vertices[at].leaf = true;
    if (random.uniform() < 0.8) tree.vertices[at].cost = random.uniform(0.5, 5);
    return at;
  }
  const int children = random.integer(1, 4);
  for (int c = 0; c < children; ++c) {
    const auto child = grow(tree, random, depth - 1);
    tree.vertices[at].children.push_back(child);
    tree.vertices[at].cost = std::min(tree.vertices[at].cost, tree.vertices[child].cost);
  }
  return at;
}

written_tree random_tree(std::uint64_t seed) {
  random_source random(seed);
  written_tree tree;
  grow(tree, random, 5);
  return tree;
}

/// The same with a bound that is often far from the least cost below, and a policy.
struct bounded_tree : written_tree {
  [[nodiscard]] double bound(state s) const { return vertices[s].cost * (s % 3 == 0 ? 1 : 0.7); }
  [[nodiscard]] std::size_t rollout(state, const std::vector<action>& next) const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < next.size(); ++i)
      if (bound(next[i]) < bound(next[best])) best = i;
    return best;
  }
};

/// The same with a policy that plays to the end or to a dead end, and costs that are told only where they matter.
struct played_tree : bounded_tree {
  using written_tree::cost;
  [[nodiscard]] state play_out(state s, random_source& random) const {
    while (!vertices[s].children.empty())
      s = vertices[s].children[static_cast<std::size_t>(random.integer(0, static_cast<int>(vertices[s].children.size()) - 1))];
    return s;
  }
  [[nodiscard]] double cost(state s, double enough) const {
    const double least = 0.9 * vertices[s].cost;
    return least >= enough ? least : vertices[s].cost;
  }
};

/// Notes the leaves that were asked for.
struct watched_tree : written_tree {
  mutable std::set<std::size_t> seen = {};
  [[nodiscard]] double cost(state s) const {
    seen.insert(s);
    return vertices[s].cost;
  }
};

/// Arms whose every pull is another leaf: it costs 1 with the arm's chance, and is not feasible otherwise.
struct bandit {
  struct state {
    int arm = -1, pull = -1;
  };
  using action = int;
  std::vector<double> chances;
  int pulls;
  std::uint64_t seed;
  mutable std::vector<int> pulled = {};

  [[nodiscard]] state root() const { return {}; }
  [[nodiscard]] std::vector<action> actions(state s) const {
    std::vector<action> all(s.arm < 0 ? chances.size() : static_cast<std::size_t>(pulls));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    return all;
  }
  [[nodiscard]] state apply(state s, action a) const { return s.arm < 0 ? state{a, -1} : state{s.arm, a}; }
  [[nodiscard]] bool finished(state s) const { return s.pull >= 0; }
  [[nodiscard]] double cost(state s) const {
    const auto arm = static_cast<std::size_t>(s.arm);
    ++pulled[arm];
    random_source random(seed ^ (static_cast<std::uint64_t>(s.arm) << 32) ^ static_cast<std::uint64_t>(s.pull));
    return random.uniform() < chances[arm] ? 1 : infinity;
  }
};

/// Mean regret over seeds: chances lost against always pulling the best arm.
double regret(tree_search_options options, int pulls) {
  double sum = 0;
  const int seeds = 20;
  for (int s = 0; s < seeds; ++s) {
    const std::vector<double> chances{0.5, 0.9, 0.4, 0.2};
    const bandit arms{chances, 2 * pulls, random_source(static_cast<std::uint64_t>(s))(), std::vector<int>(chances.size())};
    options.seed = static_cast<std::uint64_t>(s);
    options.rollouts = pulls;
    options.trees = 1;
    const auto found = tree_search(arms, options);
    CHECK(found.rollouts == pulls);
    for (std::size_t a = 0; a < chances.size(); ++a) sum += arms.pulled[a] * (0.9 - chances[a]);
  }
  return sum / seeds;
}

parallel_for on_threads(int threads) {
  return [threads](int count, const std::function<void(int)>& body) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([=, &body] {
        for (int i = t; i < count; i += threads) body(i);
      });
    for (auto& t : all) t.join();
  };
}

}  // namespace

TEST_CASE("tree search finds the optimum of random trees and knows when it has seen everything") {
  int infeasible = 0, cut = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const auto tree = random_tree(seed);
    const double least = tree.vertices[0].cost;
    infeasible += least == infinity ? 1 : 0;
    const auto size = static_cast<std::int64_t>(tree.vertices.size());
    for (const bool relative : {true, false}) {
      tree_search_options options;
      options.seed = seed;
      options.trees = 1;
      options.relative_reward = relative;
      options.rollouts = size;  // what the proof takes at most

      const watched_tree watched{tree};
      const auto all = tree_search(watched, options);
      CHECK(all.complete);
      CHECK(all.cost == least);
      CHECK(all.best.has_value() == (least < infinity));
      if (all.best) CHECK(tree.vertices[*all.best].cost == least);
      std::set<std::size_t> leaves;
      for (std::size_t v = 0; v < tree.vertices.size(); ++v)
        if (tree.vertices[v].leaf) leaves.insert(v);
      CHECK(watched.seen == leaves);
      CHECK(all.nodes == size);

      const auto bounded = tree_search(bounded_tree{tree}, options);
      CHECK(bounded.complete);
      CHECK(bounded.cost == least);
      cut += bounded.nodes < size ? 1 : 0;

      const auto played = tree_search(played_tree{{tree}}, options);
      CHECK(played.complete);
      CHECK(played.cost == least);
      CHECK(played.best.has_value() == (least < infinity));
      if (played.best) CHECK(tree.vertices[*played.best].cost == least);

      if (all.rollouts > 1) {  // one rollout fewer, and there is something left to see
        options.rollouts = all.rollouts - 1;
        CHECK_FALSE(tree_search(tree, options).complete);
      }
    }
    auto published = published_tree_search();
    published.rollouts = 30 * size;
    published.seed = seed;
    const auto found = tree_search(tree, published);
    CHECK_FALSE((found.complete && size > 1));
    CHECK(found.cost == least);
  }
  CHECK(infeasible >= 1);
  CHECK(cut > 100);
}

TEST_CASE("regret of tree search on a bandit stays below UCB1's bound") {
  // Auer, Cesa-Bianchi, Fischer 2002, theorem 1, whose bonus is sqrt(2 ln n / n_j).
  const auto bound = [](int n) {
    double sum = 0;
    for (const double gap : {0.4, 0.5, 0.7}) sum += 8 * std::log(n) / gap + (1 + std::acos(-1) * std::acos(-1) / 3) * gap;
    return sum;
  };
  tree_search_options options;
  options.exploration = std::sqrt(2);
  const double short_run = regret(options, 500), long_run = regret(options, 2000);
  CHECK(long_run < bound(2000));
  CHECK(long_run < 2 * short_run);  // grows by a logarithm: four times the pulls are not four times the regret
  options.exploration = 1;
  CHECK(regret(options, 2000) < long_run);
  CHECK(regret(published_tree_search(), 2000) > 1.5 * long_run);  // its bonus dwarfs the reward
}

TEST_CASE("tree search improves its incumbents, where the problem knows how") {
  // Costs of bits that are to be all set; improve sets one after the other.
  struct bits {
    using state = std::vector<int>;
    using action = int;
    [[nodiscard]] state root() const { return {}; }
    [[nodiscard]] std::vector<action> actions(const state& s) const {
      return finished(s) ? std::vector<action>{} : std::vector<action>{0, 1};
    }
    [[nodiscard]] state apply(state s, action a) const {
      s.push_back(a);
      return s;
    }
    [[nodiscard]] bool finished(const state& s) const { return s.size() == 20; }
    [[nodiscard]] double cost(const state& s) const { return 21.0 - static_cast<double>(std::count(s.begin(), s.end(), 1)); }
    [[nodiscard]] state improve(state s, double cost) const {
      CHECK(this->cost(s) == cost);
      for (auto& bit : s) bit = 1;
      return s;
    }
  };
  tree_search_options options{.rollouts = 1, .trees = 1};
  CHECK(tree_search(bits{}, options).cost == 1);
  options.improve = false;
  CHECK(tree_search(bits{}, options).cost > 1);
  CHECK(published_tree_search().improve == false);
}

TEST_CASE("tree search gives the same for every number of threads [threads]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    const bounded_tree tree{random_tree(1000 + seed)};
    for (const std::int64_t rollouts : {10, 37, 100'000}) {
      tree_search_options options;
      options.seed = seed;
      options.round = 5;
      options.rollouts = rollouts;
      const auto alone = tree_search(tree, options);
      for (const int threads : {1, 2, 4}) {
        options.parallel = on_threads(threads);
        const auto found = tree_search(tree, options);
        CHECK(found.best == alone.best);
        CHECK(found.cost == alone.cost);
        CHECK(found.rollouts == alone.rollouts);
        CHECK(found.nodes == alone.nodes);
        CHECK(found.complete == alone.complete);
      }
    }
  }
}

TEST_CASE("tree search tells where it stands, and can be stopped") {
  written_tree tree;
  random_source random(7);
  while (tree.vertices.size() < 300) {
    tree.vertices.clear();
    grow(tree, random, 5);
  }
  tree_search_options options;
  options.trees = 2;
  options.round = 3;
  std::vector<search_progress> heard;
  options.progress = [&](const search_progress& p) {
    heard.push_back(p);
    return p.steps < 30;
  };
  const auto found = tree_search(bounded_tree{tree}, options);
  CHECK(found.stopped != found.complete);
  REQUIRE(heard.size() > 1);
  for (std::size_t i = 1; i < heard.size(); ++i) {
    CHECK(heard[i].steps > heard[i - 1].steps);
    CHECK(heard[i].incumbent <= heard[i - 1].incumbent);
    CHECK(heard[i].bound <= tree.vertices[0].cost);
  }
  CHECK(heard.back().incumbent == found.cost);

  options.progress = [](const search_progress&) { return false; };
  const auto first = tree_search(tree, options);
  CHECK(first.stopped);
  CHECK(first.rollouts == 2 * 3);
  CHECK(first.best);

  options = {};
  options.rollouts = 0;
  CHECK_THROWS_AS(static_cast<void>(tree_search(tree, options)), input_error);
  options = {};
  options.exploration = -1;
  CHECK_THROWS_AS(static_cast<void>(tree_search(tree, options)), input_error);
}
