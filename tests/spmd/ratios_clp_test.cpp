// SPDX-License-Identifier: Apache-2.0
// Shares against the linear program of HAP, sec. 5.1, solved by Clp: a share for each device, the largest, and a time for each
// stage.
#include <hetsched/spmd/ratios.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <coin/Clp_C_Interface.h>
#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

namespace {

using namespace hetsched;

constexpr double unbounded = std::numeric_limits<double>::max();

double solved_by_clp(const std::vector<spmd::stage>& stages, const std::vector<spmd::device_kind>& kinds, int segments) {
  std::vector<std::size_t> kind_of;
  for (std::size_t k = 0; k < kinds.size(); ++k) kind_of.insert(kind_of.end(), static_cast<std::size_t>(kinds[k].count), k);
  // Columns: the devices' shares of each segment; of each stage its largest share, and the time of its slowest device.
  const int devices = static_cast<int>(kind_of.size()), shares = devices * segments, count = static_cast<int>(stages.size());
  const auto largest = [&](int s) { return shares + s; };
  const auto slowest = [&](int s) { return shares + count + s; };
  std::vector<double> cost(static_cast<std::size_t>(shares + 2 * count));
  double fixed = 0;
  for (int s = 0; s < count; ++s) {
    const auto& collective = stages[static_cast<std::size_t>(s)].collective;
    fixed += collective.fixed_s;
    cost[static_cast<std::size_t>(largest(s))] = collective.slope_s;
    cost[static_cast<std::size_t>(slowest(s))] = 1;
  }
  std::vector<double> low(cost.size(), 0.0), high(cost.size(), unbounded), row_low, row_high, elements;
  std::vector<CoinBigIndex> starts;
  std::vector<int> columns;
  const auto row = [&](const std::vector<int>& at, const std::vector<double>& value, double least, double most) {
    starts.push_back(static_cast<CoinBigIndex>(elements.size()));
    columns.insert(columns.end(), at.begin(), at.end());
    elements.insert(elements.end(), value.begin(), value.end());
    row_low.push_back(least);
    row_high.push_back(most);
  };
  for (int g = 0; g < segments; ++g) {
    std::vector<int> all;
    for (int d = 0; d < devices; ++d) all.push_back(g * devices + d);
    row(all, std::vector<double>(all.size(), 1), 1, 1);
  }
  for (int s = 0; s < count; ++s)
    for (int d = 0; d < devices; ++d) {
      const auto& stage = stages[static_cast<std::size_t>(s)];
      for (const int g : {stage.segment, stage.other}) row({largest(s), g * devices + d}, {1, -1}, 0, unbounded);
      std::vector<int> at{slowest(s)};
      std::vector<double> value{1};
      double alone = 0;
      for (int g = 0; g < segments; ++g) {
        const auto& own = stage.compute[static_cast<std::size_t>(g) * kinds.size() + kind_of[static_cast<std::size_t>(d)]];
        at.push_back(g * devices + d);
        value.push_back(-own.slope_s);
        alone += own.fixed_s;
      }
      row(at, value, alone, unbounded);
    }
  starts.push_back(static_cast<CoinBigIndex>(elements.size()));
  auto* model = Clp_newModel();
  Clp_setLogLevel(model, 0);
  Clp_setPrimalTolerance(model, 1e-11);
  Clp_setDualTolerance(model, 1e-11);
  Clp_resize(model, 0, static_cast<int>(cost.size()));
  Clp_chgObjCoefficients(model, cost.data());
  Clp_chgColumnLower(model, low.data());
  Clp_chgColumnUpper(model, high.data());
  Clp_addRows(model, static_cast<int>(row_low.size()), row_low.data(), row_high.data(), starts.data(), columns.data(),
              elements.data());
  Clp_initialSolve(model);
  const double value = Clp_status(model) == 0 ? Clp_objectiveValue(model) + fixed : NAN;
  Clp_deleteModel(model);
  return value;
}

}  // namespace

TEST_CASE("shares are those of the linear program") {
  for (int instance = 0; instance < 10'000; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    std::vector<spmd::device_kind> kinds;
    for (int k = random.integer(1, 3); k > 0; --k) kinds.push_back({"", random.integer(1, 2)});
    std::vector<spmd::stage> stages;
    const int segments = instance % 3 == 0 ? random.integer(2, 3) : 1;
    for (int s = random.integer(1, 4); s > 0; --s) {
      spmd::stage stage{.collective = {random.uniform(0, 0.1), random.integer(0, 1) * random.uniform(0, 3)}};
      if (segments > 1) stage.segment = random.integer(0, segments - 1);
      stage.other = segments > 1 ? random.integer(0, segments - 1) : 0;
      for (std::size_t k = 0; k < kinds.size() * static_cast<std::size_t>(segments); ++k)
        stage.compute.push_back(
            {random.integer(0, 1) * random.uniform(0, 1), random.integer(0, 4) > 0 ? random.uniform(0, 10) : 0.0});
      stages.push_back(std::move(stage));
    }
    CAPTURE(instance);
    int devices = 0;
    for (const auto& k : kinds) devices += k.count;
    const double optimum = solved_by_clp(stages, kinds, segments);
    const auto best =
        spmd::best_shares(stages, kinds, std::vector<double>(kinds.size() * static_cast<std::size_t>(segments), 1.0 / devices));
    CHECK(std::abs(best.seconds - optimum) <= 1e-9 * (1 + optimum));
    CHECK(best.bound <= best.seconds);
    CHECK(best.bound >= optimum * (1 - 1e-9) - 1e-9);
  }
}
