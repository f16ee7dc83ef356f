// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/forest.hpp>
#include <hetsched/cost/models/layer_features.hpp>

using namespace hetsched;

namespace {

struct table {
  int width = 0;
  std::vector<double> features{}, targets{};

  [[nodiscard]] std::span<const double> row(std::size_t i) const {
    return std::span(features).subspan(i * static_cast<std::size_t>(width), static_cast<std::size_t>(width));
  }
  void add(const std::vector<double>& x, double y) {
    features.insert(features.end(), x.begin(), x.end());
    targets.push_back(y);
  }
};

// Like a correction of an analytic model: smooth in some features, a step in one, nothing in others, some noise.
table friendly(int rows, int width, double noise, std::uint64_t seed) {
  random_source random(seed);
  table t{.width = width};
  for (int i = 0; i < rows; ++i) {
    std::vector<double> x(static_cast<std::size_t>(width));
    for (auto& f : x) f = random.uniform();
    t.add(x, std::sin(3 * x[0]) + 2 * (x[1] - 0.5) * (x[2] - 0.5) + (x[3] > 0.4 ? 0.5 : 0) + noise * random.uniform(-1, 1));
  }
  return t;
}

// Whole numbers, so that no machine's arithmetic can tell apart how the rows were made.
table whole(int rows, int width, std::uint64_t seed) {
  random_source random(seed);
  table t{.width = width};
  for (int i = 0; i < rows; ++i) {
    std::vector<double> x(static_cast<std::size_t>(width));
    int y = 0;
    for (std::size_t f = 0; f < x.size(); ++f) {
      const int value = random.integer(0, 50);
      x[f] = value;
      y += value * (f % 3 == 0 ? 7 : 1);
    }
    t.add(x, y * 0.125);
  }
  return t;
}

double mean_squared_error(const random_forest& forest, const table& t) {
  double sum = 0;
  for (std::size_t i = 0; i < t.targets.size(); ++i) sum += std::pow(forest.predict(t.row(i)) - t.targets[i], 2);
  return sum / static_cast<double>(t.targets.size());
}

double variance(const table& t) {
  double mean = 0, sum = 0;
  for (const double y : t.targets) mean += y / static_cast<double>(t.targets.size());
  for (const double y : t.targets) sum += (y - mean) * (y - mean);
  return sum / static_cast<double>(t.targets.size());
}

std::uint64_t fingerprint(const std::string& text) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

random_forest trained(const table& t, const forest_options& options = {}) {
  return random_forest::train(t.features, t.width, t.targets, options);
}

}  // namespace

TEST_CASE("a forest learns what it was not shown, and more trees do not hurt") {
  const auto shown = friendly(2000, 8, 0.05, 1), hidden = friendly(1000, 8, 0.05, 2);
  const double spread = variance(hidden);
  const double one = mean_squared_error(trained(shown, {.trees = 1}), hidden), many = mean_squared_error(trained(shown), hidden);
  CAPTURE(spread);
  CAPTURE(one);
  CAPTURE(many);
  CHECK(many < 0.2 * spread);
  CHECK(many < 0.6 * one);
}

TEST_CASE("the same seed gives the same forest, on every machine, and another seed another") {
  const auto t = whole(300, 5, 11);
  const auto forest = trained(t, {.trees = 10, .seed = 42});
  CHECK(forest == trained(t, {.trees = 10, .seed = 42}));
  CHECK(!(forest == trained(t, {.trees = 10, .seed = 43})));
  CHECK(fingerprint(forest.text()) == 10909926715225013423u);
}

TEST_CASE("trees do not depend on trees after them") {
  const auto t = whole(200, 4, 3);
  const auto few = trained(t, {.trees = 3}).text(), more = trained(t, {.trees = 30}).text();
  const auto body = few.substr(few.find('\n', few.find('\n') + 1) + 1);
  CHECK(more.find(body) == more.find('\n', more.find('\n') + 1) + 1);
}

TEST_CASE("steps without noise come back exactly") {
  table t{.width = 2};
  random_source random(5);
  for (int i = 0; i < 400; ++i) {
    const double x = random.integer(0, 3), noise = random.uniform();
    t.add({x, noise}, 10 * x * x - 3);
  }
  const auto forest = trained(t, {.trees = 33, .features_per_split = 2, .least_leaf_rows = 1});
  for (int x = 0; x <= 3; ++x)
    for (const double off : {-0.4, 0.0, 0.4})
      CHECK(forest.predict(std::vector<double>{x + off, 0.5}) == doctest::Approx(10 * x * x - 3).epsilon(1e-14));
  // Two features next to each other still part.
  table close{.width = 1};
  for (int i = 0; i < 100; ++i) close.add({i % 2 == 0 ? 1.0 : std::nextafter(1.0, 2.0)}, i % 2);
  const auto near = trained(close, {.trees = 5, .least_leaf_rows = 1});
  CHECK(near.predict(std::vector<double>{1.0}) == 0);
  CHECK(near.predict(std::vector<double>{std::nextafter(1.0, 2.0)}) == 1);
  // It stays constant outside.
  CHECK(forest.predict(std::vector<double>{1e300, 0.5}) == forest.predict(std::vector<double>{3, 0.5}));
  CHECK(forest.predict(std::vector<double>{-std::numeric_limits<double>::infinity(), 0.5}) ==
        forest.predict(std::vector<double>{0, 0.5}));
}

TEST_CASE("features that cannot part the rows do not stop a tree") {
  table t{.width = 9};
  for (int i = 0; i < 100; ++i) t.add({1, 1, 1, 1, i % 2 * 1.0, 1, 1, 1, 1}, i % 2);
  const auto forest = trained(t, {.trees = 20, .features_per_split = 1});
  CHECK(forest.predict(t.row(0)) == 0);
  CHECK(forest.predict(t.row(1)) == 1);
}

TEST_CASE("predictions lie within the targets, and the first split is the one that takes off most squared error") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    // Few distinct values, so that ties abound.
    random_source random(seed);
    table t{.width = 3};
    for (int i = 0; i < 40; ++i)
      t.add({std::floor(random.uniform(0, 5)), std::floor(random.uniform(0, 9)), 1}, random.integer(-20, 20));
    const auto forest = trained(t, {.trees = 17, .features_per_split = 3, .seed = seed});
    double low = 1e300, high = -1e300;
    for (const double y : t.targets) low = std::min(low, y), high = std::max(high, y);
    for (std::size_t i = 0; i < t.targets.size(); ++i) {
      CHECK(forest.predict(t.row(i)) >= low);
      CHECK(forest.predict(t.row(i)) <= high);
    }
    // One tree of depth 1 over rows that all weigh the same in the limit: every draw of a table that repeats each row often is
    // like it.
    table often{.width = 3};
    for (int k = 0; k < 400; ++k)
      for (std::size_t i = 0; i < 40; ++i) often.add({t.row(i).begin(), t.row(i).end()}, t.targets[i]);
    const auto error_of = [&](const auto& left) {
      double sum[2] = {}, count[2] = {}, squares = 0;
      for (std::size_t i = 0; i < 40; ++i) {
        const auto side = left(t.row(i)) ? 0 : 1;
        sum[side] += t.targets[i];
        count[side] += 1;
        squares += t.targets[i] * t.targets[i];
      }
      for (const int side : {0, 1}) squares -= count[side] > 0 ? sum[side] * sum[side] / count[side] : 0;
      return squares;
    };
    double best = 1e300;
    for (const std::size_t f : {0u, 1u})
      for (double cut = 0.5; cut < 8; ++cut) best = std::min(best, error_of([&](auto x) { return x[f] <= cut; }));
    const auto stump = trained(often, {.trees = 1, .features_per_split = 3, .max_depth = 1, .seed = seed});
    REQUIRE(stump.node_count() == 3);
    const double first = stump.predict(t.row(0));
    const double found = error_of([&](auto x) { return stump.predict(x) == first; });
    CAPTURE(best);
    CHECK(found <= 1.05 * best);
  }
}

TEST_CASE("text comes back as the same forest, bit by bit") {
  for (const int trees : {1, 7, 16, 17, 40}) {
    const auto t = friendly(300, 6, 0.3, static_cast<std::uint64_t>(trees));
    const auto forest = trained(t, {.trees = trees});
    const auto again = random_forest::read(forest.text());
    CHECK(again == forest);
    CHECK(again.text() == forest.text());
    CHECK(again.tree_count() == trees);
    CHECK(again.feature_count() == 6);
    for (std::size_t i = 0; i < 50; ++i) CHECK(again.predict(t.row(i)) == forest.predict(t.row(i)));
  }
  CHECK(random_forest::read(random_forest().text()) == random_forest());
  CHECK(random_forest().predict({}) == 0);
}

TEST_CASE("broken text is refused or is another forest, and no walk goes astray") {
  const auto forest = trained(whole(60, 3, 9), {.trees = 2});
  const auto text = forest.text();
  random_source random(17);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    auto broken = text;
    const auto at = static_cast<std::size_t>(random.integer(0, static_cast<int>(text.size()) - 1));
    if (random.integer(0, 2) == 0)
      broken.erase(at, static_cast<std::size_t>(random.integer(1, 9)));
    else
      broken[at] = "0123456789- .e\n"[random.integer(0, 14)];
    try {
      const auto read = random_forest::read(broken);
      const std::vector<double> x(static_cast<std::size_t>(read.feature_count()), 25.0);
      CHECK(std::isfinite(read.predict(x)));
    } catch (const input_error&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
  for (const char* wrong : {"", "forest\n", "hetsched-forest 1\n", "hetsched-forest 1\n1 1\n", "hetsched-forest 1\n0 1\n1\n- 0\n",
                            "hetsched-forest 1\n1 1\n1\n- nan\n", "hetsched-forest 1\n1 1\n1\n0 0 1\n",
                            "hetsched-forest 1\n1 1\n2\n0 1 5\n- 1\n", "hetsched-forest 1\n1 1\n3\n- 1\n- 1\n- 1\n",
                            "hetsched-forest 1\n1 1\n1\n- 1\nmore\n", "hetsched-forest 1\n1 1\n999999999\n- 1\n"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS((void)random_forest::read(wrong), input_error);
  }
  CHECK(random_forest::read("hetsched-forest 1\n1 1\n3\n0 1 0.5\n- 1\n- 2\n").predict(std::vector<double>{0.5}) == 1);
  CHECK(random_forest::read("hetsched-forest 1\n1 1\n3\n0 1 0.5\n- 1\n- 2\n").predict(std::vector<double>{0.6}) == 2);
}

TEST_CASE("leaves keep their rows, depth its limit, and equal targets are one leaf") {
  const auto t = whole(200, 4, 21);
  CHECK(trained(t, {.trees = 5, .max_depth = 0}).node_count() == 5);
  CHECK(trained(t, {.trees = 5, .max_depth = 3}).node_count() <= 5 * 15);
  CHECK(trained(t, {.trees = 5, .least_leaf_rows = 40}).node_count() <= 5 * 9);
  CHECK(trained(t, {.trees = 5, .least_leaf_rows = 201}).node_count() == 5);
  CHECK(trained(t, {.trees = 5, .least_leaf_rows = 1, .most_leaves = 7}).node_count() <= 5 * 13);
  CHECK(trained(t, {.trees = 5, .most_leaves = 5}) == trained(t, {.trees = 5, .least_leaf_rows = 40}));
  auto flat = t;
  for (auto& y : flat.targets) y = 0.1;
  const auto forest = trained(flat, {.trees = 5, .least_leaf_rows = 1});
  CHECK(forest.node_count() == 5);
  CHECK(forest.predict(t.row(0)) == doctest::Approx(0.1));
  const auto single = random_forest::train(std::vector<double>{1, 2}, 2, std::vector<double>{5});
  CHECK(single.predict(std::vector<double>{0, 0}) == 5);
}

TEST_CASE("senseless training is refused") {
  const std::vector<double> x{1, 2, 3, 4}, y{1, 2}, bad{1, std::numeric_limits<double>::quiet_NaN()};
  CHECK_THROWS_AS((void)random_forest::train({}, 2, {}), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 0, y), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 3, y), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 2, bad), input_error);
  CHECK_THROWS_AS((void)random_forest::train(bad, 1, y), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 2, y, {.trees = 0}), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 2, y, {.least_leaf_rows = 0}), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 2, y, {.most_leaves = 0}), input_error);
  CHECK_THROWS_AS((void)random_forest::train(x, 2, y, {.max_depth = -1}), input_error);
}

TEST_CASE("HetAuto's features of a layer (Table 6)") {
  // b 2, s 1024, h 16 * 64 = 1024, c 2, t 4, e 2: u = 2^21, and all else follows
  const auto f = layer_features(
      {.sequence = 1024, .heads = 16, .head_size = 64, .context = 2, .tensor = 4, .samples = 2, .element_bytes = 2});
  const double u = 2097152, flops = (24 * u * 1024 + 4 * u * 1024) / 8,
               memory = (12.0 * 1024 * 1024 + 8 * u + 4.0 * 2 * 1024 * 16) * 2 / 8;
  const std::vector<double> expected{1024,
                                     1024,
                                     16,
                                     64,
                                     2,
                                     4,
                                     2,
                                     2,
                                     u,
                                     flops,
                                     memory,
                                     2 * 3 * u * 2 / 8,
                                     6 * 1 * u * 2 / 8,
                                     flops / memory,
                                     flops / (12 * u * 2 / 8)};
  REQUIRE(expected.size() == f.size());
  for (std::size_t i = 0; i < f.size(); ++i) {
    CAPTURE(i);
    CHECK(f[i] == doctest::Approx(expected[i]).epsilon(1e-14));
  }
  CHECK(layer_features({.sequence = 8, .heads = 1, .head_size = 8}).back() == 0);
}
