// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hetauto/search_space.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/hetauto.hpp>

#include "../interop_dp/random_instance.hpp"

using namespace hetsched;

namespace {

/// The five counts, plan by plan.
std::array<std::uint64_t, 5> counted_one_by_one(const plan_space& space) {
  std::array<std::uint64_t, 5> counts{};
  const auto clusters = space.ways.size();
  using stage = std::vector<std::pair<std::size_t, std::int64_t>>;  // by cluster: devices and which way; 0 devices: none
  std::vector<stage> stages;
  std::vector<std::size_t> left;
  for (const auto& ways : space.ways) left.push_back(ways.size() - 1);

  const auto judge = [&](bool whole) {
    if (space.use_all_devices && std::any_of(left.begin(), left.end(), [](std::size_t n) { return n > 0; })) return;
    ++counts[0];
    if (!whole) return;
    ++counts[1];
    std::vector<std::size_t> of;
    for (const auto& s : stages)
      for (std::size_t k = 0; k < clusters; ++k)
        if (s[k].first > 0) of.push_back(k);
    if (of.size() > stages.size()) return;
    ++counts[2];
    auto runs = of;
    runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
    std::sort(runs.begin(), runs.end());
    if (std::adjacent_find(runs.begin(), runs.end()) != runs.end()) return;
    ++counts[3];
    for (std::size_t i = 1; i < of.size(); ++i)
      if (of[i] == of[i - 1] && stages[i][of[i]] != stages[i - 1][of[i]]) return;
    ++counts[4];
  };
  const int per_layer = space.operators / space.layers;
  std::function<void(int, bool)> next;
  const auto place = [&](int first, bool whole) {
    stages.emplace_back(clusters);
    const std::function<void(std::size_t, bool)> on = [&](std::size_t k, bool any) {
      if (k == clusters) {
        if (any)
          for (int last = first + 1; last <= space.operators; ++last) next(last, whole && last % per_layer == 0);
        return;
      }
      on(k + 1, any);
      for (std::size_t n = 1; n <= left[k]; ++n)
        for (std::int64_t w = 0; w < space.ways[k][n]; ++w) {
          left[k] -= n;
          stages.back()[k] = {n, w};
          on(k + 1, true);
          stages.back()[k] = {};
          left[k] += n;
        }
    };
    on(0, false);
    stages.pop_back();
  };
  next = [&](int first, bool whole) {
    if (first == space.operators)
      judge(whole);
    else
      place(first, whole);
  };
  next(0, true);
  return counts;
}

}  // namespace

TEST_CASE("plans are counted as one by one, under each principle") {
  random_source random(5);
  for (int i = 0; i < 60; ++i) {
    plan_space space{.layers = random.integer(1, 3), .use_all_devices = random.integer(0, 2) == 0};
    space.operators = space.layers * random.integer(1, 2);
    const int clusters = random.integer(1, 3);
    for (int k = 0; k < clusters; ++k) {
      auto& ways = space.ways.emplace_back(static_cast<std::size_t>(random.integer(1, clusters > 2 ? 2 : 4)) + 1);
      for (std::size_t n = 1; n < ways.size(); ++n) ways[n] = random.integer(0, 2);
    }
    std::string given = std::to_string(space.operators) + " in " + std::to_string(space.layers);
    for (const auto& ways : space.ways) {
      given += ";";
      for (const auto n : ways) given += " " + std::to_string(n);
    }
    INFO(given << (space.use_all_devices ? ", all" : ""));
    const auto counts = count_plans(space);
    const auto judge = counted_one_by_one(space);
    CHECK((counts.all == judge[0]));
    CHECK((counts.whole_layers == judge[1]));
    CHECK((counts.one_cluster == judge[2]));
    CHECK((counts.consecutive == judge[3]));
    CHECK((counts.uniform == judge[4]));
  }
}

TEST_CASE("the estimate of HetAuto's appendix A, and what there is in its example") {
  const auto power = [](std::uint64_t base, int n) {
    plan_count p = 1;
    for (int i = 0; i < n; ++i) p *= base;
    return p;
  };
  // The paper multiplies rounded factors: 6e23 * 8e16 * 1e40 * 3e29.
  CHECK(short_text(plan_count(6 * 8 * 3) * power(10, 23 + 16 + 40 + 29)) == "1.4e110");
  CHECK(short_text(power(2, 79)) == "6.0e23");
  CHECK(short_text(power(7, 20)) == "8.0e16");
  CHECK(short_text(power(30, 20)) == "3.5e29");
  CHECK(short_text(power(2, 79) * power(7, 20) * power(100, 20) * power(30, 20)) == "1.7e110");

  plan_space space{.operators = 80, .layers = 80};
  std::vector<int> shapes;
  for (const auto& [nodes, per_node] : {std::pair{32, 8}, std::pair{32, 8}, std::pair{32, 16}}) {
    subcluster s;
    s.nodes = nodes;
    s.devices_per_node = per_node;
    auto& ways = space.ways.emplace_back(static_cast<std::size_t>(nodes * per_node) + 1);
    const auto meshes = submeshes(s, 0);
    shapes.push_back(static_cast<int>(meshes.size()));
    for (const auto& mesh : meshes)  // ordered products of three factors
      for (int d = 1; d <= mesh.device_count(); ++d)
        for (int c = 1; c * d <= mesh.device_count(); ++c)
          if (mesh.device_count() % (c * d) == 0) ++ways[static_cast<std::size_t>(mesh.device_count())];
  }
  CHECK(shapes == std::vector<int>{35, 35, 36});  // as the paper has them
  const auto counts = count_plans(space);
  CHECK(counts.all == counts.whole_layers);
  CHECK(counts.one_cluster < counts.whole_layers);
  CHECK(counts.consecutive < counts.one_cluster);
  CHECK(counts.uniform < counts.consecutive);
  const std::vector<std::string> in_docs{short_text(counts.all), short_text(counts.one_cluster), short_text(counts.consecutive),
                                         short_text(counts.uniform)};
  CHECK(in_docs == std::vector<std::string>{"3.8e309", "5.5e177", "6.3e144", "3.1e33"});
}

TEST_CASE("counts of plans are exact as far as a double is, and as large as they have to be") {
  random_source random(3);
  for (int i = 0; i < 2000; ++i) {
    const auto draw = [&] { return random() >> random.integer(39, 63) << random.integer(0, 1); };
    const std::uint64_t a = draw(), b = draw();
    INFO(a << " " << b);
    CHECK((plan_count(a) + plan_count(b) == plan_count(a + b)));
    CHECK((plan_count(a) * plan_count(b) == plan_count(a * b)));
    CHECK((plan_count(a) < plan_count(b)) == (a < b));
  }
  CHECK(short_text(plan_count()) == "0");
  CHECK(short_text(1234567) == "1234567");
  CHECK(short_text(12345678) == "1.2e7");
  CHECK(short_text(12500000) == "1.3e7");
  CHECK(short_text(99500000) == "1.0e8");
  plan_count factorial = 1, power = 1;
  for (std::uint64_t i = 2; i <= 40; ++i) factorial *= i;
  CHECK(short_text(factorial) == "8.2e47");
  for (int i = 0; i < 20000; ++i) power *= 2;
  CHECK(short_text(power) == "4.0e6020");
  CHECK(short_text(power + factorial) == "4.0e6020");
  CHECK(factorial < power);
  CHECK_FALSE(power < factorial);
  CHECK((plan_count() * power == plan_count()));
  CHECK((plan_count() + factorial == factorial));
}
