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

double solved_by_clp(const std::vector<spmd_stage>& stages, const std::vector<device_kind>& kinds) {
  std::vector<std::size_t> kind_of;
  for (std::size_t k = 0; k < kinds.size(); ++k) kind_of.insert(kind_of.end(), static_cast<std::size_t>(kinds[k].count), k);
  const int devices = static_cast<int>(kind_of.size()), largest = devices, first_stage = devices + 1;
  std::vector<double> cost(static_cast<std::size_t>(devices) + 1 + stages.size());
  double fixed = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    fixed += stages[s].collective.fixed_s;
    cost[static_cast<std::size_t>(largest)] += stages[s].collective.slope_s;
    cost[static_cast<std::size_t>(first_stage) + s] = 1;
  }
  std::vector<double> low(cost.size(), 0.0), high(cost.size(), unbounded), row_low{1}, row_high{1}, elements;
  std::vector<CoinBigIndex> starts{0};
  std::vector<int> columns;
  for (int d = 0; d < devices; ++d) {
    columns.push_back(d);
    elements.push_back(1);
  }
  const auto row = [&](std::vector<int> at, std::vector<double> value, double least) {
    starts.push_back(static_cast<CoinBigIndex>(elements.size()));
    columns.insert(columns.end(), at.begin(), at.end());
    elements.insert(elements.end(), value.begin(), value.end());
    row_low.push_back(least);
    row_high.push_back(unbounded);
  };
  for (int d = 0; d < devices; ++d) {
    row({largest, d}, {1, -1}, 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto& own = stages[s].compute[kind_of[static_cast<std::size_t>(d)]];
      row({first_stage + static_cast<int>(s), d}, {1, -own.slope_s}, own.fixed_s);
    }
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
    std::vector<device_kind> kinds;
    for (int k = random.integer(1, 3); k > 0; --k) kinds.push_back({"", random.integer(1, 2)});
    std::vector<spmd_stage> stages;
    for (int s = random.integer(1, 4); s > 0; --s) {
      spmd_stage stage{.collective = {random.uniform(0, 0.1), random.integer(0, 1) * random.uniform(0, 3)}};
      for (std::size_t k = 0; k < kinds.size(); ++k)
        stage.compute.push_back(
            {random.integer(0, 1) * random.uniform(0, 1), random.integer(0, 4) > 0 ? random.uniform(0, 10) : 0.0});
      stages.push_back(std::move(stage));
    }
    CAPTURE(instance);
    int devices = 0;
    for (const auto& k : kinds) devices += k.count;
    const double optimum = solved_by_clp(stages, kinds);
    const auto best = best_shares(stages, kinds, std::vector<double>(kinds.size(), 1.0 / devices));
    CHECK(std::abs(best.seconds - optimum) <= 1e-9 * (1 + optimum));
    CHECK(best.bound <= best.seconds);
    CHECK(best.bound >= optimum * (1 - 1e-9) - 1e-9);
  }
}
