// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/parallel_pipelines/detail/neighbours.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/plan/plan.hpp>

using namespace hetsched;
using namespace hetsched::detail;

namespace {

/// Sets whose iteration is their slowest stage's time per microbatch: layers have weights, placements speeds.
struct weighed_sets {
  using line = std::pair<const std::vector<interop_stage>*, int>;

  std::vector<double> weight, speed;
  std::vector<std::vector<interop_stage>> stages;  // of the best plan's pipelines
  std::optional<plan> best_plan;
  double best_s = 0;
  int looked_at = 0;

  [[nodiscard]] double worth(std::span<const line> lines) const {
    double slowest = 0;
    for (const auto& [own, microbatches] : lines)
      for (const auto& s : *own) {
        double sum = 0;
        for (int l = s.layers.first; l < s.layers.last; ++l) sum += weight[static_cast<std::size_t>(l)];
        slowest = std::max(slowest, microbatches * sum / speed[static_cast<std::size_t>(s.placement)]);
      }
    return slowest;
  }
  void start(std::vector<std::vector<interop_stage>> pipelines) {
    stages = std::move(pipelines);
    best_plan.emplace();
    std::vector<line> lines;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      auto& own = best_plan->pipelines.emplace_back();
      own.microbatch_size = static_cast<int>(i) + 1;  // which one it is
      lines.push_back({&stages[i], 1});
    }
    best_s = worth(lines);
  }

  [[nodiscard]] const std::optional<plan>& best() const { return best_plan; }
  [[nodiscard]] double least() const { return best_s; }
  [[nodiscard]] std::optional<std::vector<interop_stage>> stages_of(const pipeline_plan& own) const {
    return stages[static_cast<std::size_t>(own.microbatch_size - 1)];
  }
  double consider(std::span<const line> lines) {
    ++looked_at;
    const double seconds = worth(lines);
    if (seconds < best_s) {
      best_s = seconds;
      stages.clear();
      for (const auto& own : lines) stages.push_back(*own.first);
    }
    return seconds;
  }
};

void search(const interop_problem& problem, weighed_sets& sets, int tries, int asked = 1 << 30) {
  auto go_on = [&] { return --asked >= 0; };
  neighbour_search<weighed_sets>(problem, sets, go_on).run(tries);
}

interop_problem with_placements(const std::vector<submesh>& meshes, int layers) {
  interop_problem problem;
  problem.layers = layers;
  for (const auto& m : meshes) {
    auto& placed = problem.placements.emplace_back();
    placed.where.mesh = m;
  }
  return problem;
}

}  // namespace

TEST_CASE("ends where no neighbour is better, and is never worse than it began") {
  random_source random(7301);
  for (int n = 0; n < 200; ++n) {
    CAPTURE(n);
    const int layers = random.integer(4, 14), count = random.integer(2, 4);
    const auto problem = with_placements({{0, 1, 1}}, layers);
    weighed_sets sets;
    sets.speed = {1};
    for (int l = 0; l < layers; ++l) sets.weight.push_back(random.uniform(0.5, 2));
    std::vector<interop_stage> stages;
    for (int i = 0; i < count; ++i) stages.push_back({0, {i, i + 1}});
    stages.back().layers.last = layers;
    sets.start({stages});
    const double before = sets.best_s;
    search(problem, sets, 100'000);
    CHECK(sets.best_s <= before);
    const auto end = sets.stages.front();
    REQUIRE(end.front().layers.first == 0);
    REQUIRE(end.back().layers.last == layers);
    for (int from = 0; from < count; ++from)
      for (int to = 0; to < count; ++to) {
        if (from == to) continue;
        // Sizes with one layer taken from one stage and given to another; the cuts follow from them.
        std::vector<int> sizes;
        for (const auto& s : end) sizes.push_back(s.layers.last - s.layers.first);
        --sizes[static_cast<std::size_t>(from)];
        ++sizes[static_cast<std::size_t>(to)];
        if (sizes[static_cast<std::size_t>(from)] == 0) continue;
        std::vector<interop_stage> other;
        for (int first = 0; const int size : sizes) {
          other.push_back({0, {first, first + size}});
          first += size;
        }
        const weighed_sets::line line{&other, 1};
        CHECK(sets.worth({&line, 1}) >= sets.best_s);
      }
  }
}

TEST_CASE("equal pipelines change together, and placements on their submeshes") {
  const auto problem = with_placements({{0, 1, 1}, {0, 1, 1}, {0, 1, 2}}, 6);
  weighed_sets sets;
  sets.weight.assign(6, 1.0);
  sets.speed = {1, 1.5, 9};
  // The faster placement on the same submesh; not that on another one. One pipeline alone would gain nothing.
  const std::vector<interop_stage> slow{{0, {0, 6}}}, fast{{1, {0, 6}}};
  sets.start({slow, slow});
  search(problem, sets, 1000);
  CHECK(sets.stages == std::vector{fast, fast});
  CHECK(sets.best_s == doctest::Approx(4));
}

TEST_CASE("looks at no more plans than it may") {
  const auto problem = with_placements({{0, 1, 1}}, 40);
  weighed_sets sets;
  sets.weight.assign(40, 1.0);
  sets.speed = {1};
  sets.start({{{0, {0, 1}}, {0, {1, 2}}, {0, {2, 40}}}});
  search(problem, sets, 5);
  CHECK(sets.looked_at == 5);
  search(problem, sets, 1000, 2);
  CHECK(sets.looked_at <= 7);
}
