// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/ratios.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>

namespace {

using namespace hetsched;

}  // namespace

TEST_CASE("without communication devices finish together") {
  // Speeds 1, 2 and 5, of which the second twice.
  const std::vector<spmd::device_kind> kinds{{"slow", 1}, {"middle", 2}, {"fast", 1}};
  const std::vector<spmd::stage> stages{{.compute = {{0, 10}, {0, 5}, {0, 2}}}, {.compute = {{0, 20}, {0, 10}, {0, 4}}}};
  const auto best = spmd::best_shares(stages, kinds, {0.25, 0.25, 0.25});
  CHECK(best.seconds == doctest::Approx(3.0));
  CHECK(best.bound == doctest::Approx(3.0));
  const std::vector<double> expected{0.1, 0.2, 0.5};
  for (std::size_t k = 0; k < 3; ++k) CHECK(best.shares[k] == doctest::Approx(expected[k]));
}

TEST_CASE("dear communication makes shares even") {
  // Two devices, one twice as fast: 3 s of work at most against a gather that the largest share decides.
  const std::vector<spmd::device_kind> kinds{{"slow", 1}, {"fast", 1}};
  for (const double network : {0.0, 1.0, 100.0}) {
    const std::vector<spmd::stage> stages{{.compute = {{0, 2}, {0, 1}}}, {.collective = {0, network}, .compute = {{}, {}}}};
    const auto best = spmd::best_shares(stages, kinds, {0.5, 0.5});
    // With share x >= 1/2 of the fast one: max(2 (1 - x), x) + network x; least at 2/3, or at 1/2 once the network costs more
    // than 2.
    const double x = network < 2 ? 2.0 / 3 : 0.5;
    CHECK(best.shares[1] == doctest::Approx(x));
    CHECK(best.seconds == doctest::Approx(2 * (1 - x) + network * x));
  }
}

TEST_CASE("parts are whole, add up, and differ from shares by less than one") {
  for (int instance = 0; instance < 200; ++instance) {
    random_source random(static_cast<std::uint64_t>(instance));
    CAPTURE(instance);
    std::vector<spmd::device_kind> kinds;
    std::vector<double> shares;
    double all = 0;
    for (int k = random.integer(1, 4); k > 0; --k) {
      kinds.push_back({"", random.integer(1, 4)});
      shares.push_back(random.uniform(0, 1));
      all += shares.back() * kinds.back().count;
    }
    for (auto& s : shares) s /= all;
    const auto parts = random.integer(1, 1000);
    const auto whole = spmd::whole_parts(parts, kinds, shares);
    CHECK(std::accumulate(whole.begin(), whole.end(), std::int64_t{0}) == parts);
    std::size_t device = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k)
      for (int i = 0; i < kinds[k].count; ++i, ++device)
        CHECK(std::abs(static_cast<double>(whole[device]) - shares[k] * parts) < 1 + 1e-6);
  }
}
