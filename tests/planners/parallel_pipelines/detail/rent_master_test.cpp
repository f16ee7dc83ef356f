// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/parallel_pipelines/detail/rent_master.hpp>

using namespace hetsched;
using namespace hetsched::detail;

namespace {

/// The least that a pipeline costs at these rents.
double least_of(const std::vector<rented_pipeline>& all, const set_rents& rents) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& p : all) {
    double rent = -rents.off - 1;
    for (std::size_t k = 0; k < p.devices.size(); ++k) rent += rents.devices[k] * p.devices[k];
    least = std::min(least, p.first + p.period * rent);
  }
  return least;
}

/// What everything costs together.
double total_of(const std::vector<int>& devices, pipeline_count number, const set_rents& rents) {
  double total = -rents.off * (rents.off > 0 ? number.fewest : number.most);
  for (std::size_t k = 0; k < devices.size(); ++k) total += rents.devices[k] * devices[k];
  return total;
}

}  // namespace

TEST_CASE("the highest rents reach their deadline, and none reach a later one") {
  random_source random(6113);
  int below = 0;
  for (int n = 0; n < 500; ++n) {
    CAPTURE(n);
    const int kinds = random.integer(1, 3), fewest = random.integer(1, 3), microbatches = random.integer(3, 200);
    const pipeline_count number{fewest, n % 2 == 0 ? microbatches : std::min(microbatches, fewest + random.integer(0, 2))};
    std::vector<int> devices;
    for (int k = 0; k < kinds; ++k) devices.push_back(random.integer(fewest, 12));
    std::vector<rented_pipeline> all;
    for (int i = random.integer(2, 12); i > 0; --i) {
      rented_pipeline p{random.uniform(0.1, 2), random.uniform(0.05, 1), {}};
      for (int k = 0; k < kinds; ++k) p.devices.push_back(random.integer(0, devices[static_cast<std::size_t>(k)]));
      ++p.devices[static_cast<std::size_t>(random.integer(0, kinds - 1))];
      all.push_back(p);
    }
    // One that is small, so that there can be as many as there must be.
    all.push_back({0.3, 1.0, std::vector<int>(devices.size(), 0)});
    all.back().devices[0] = 1;
    const auto best = highest_rents(all, devices, number, microbatches);
    REQUIRE(best.seconds < 1e300);
    CAPTURE(number.fewest);
    CAPTURE(number.most);
    below += best.off < 0;
    CHECK(total_of(devices, number, best) == doctest::Approx(microbatches));
    CHECK(least_of(all, best) == doctest::Approx(best.seconds));
    for (int t = 0; t < 50; ++t) {
      set_rents other{.seconds = 0, .devices = {}, .off = random.integer(-1, 1) * random.uniform(0, 1)};
      for (int k = 0; k < kinds; ++k) other.devices.push_back(random.uniform(0, 1));
      const double total = total_of(devices, number, other);
      if (!(total > 0.01)) continue;
      for (auto& r : other.devices) r *= microbatches / total;
      other.off *= microbatches / total;
      REQUIRE(least_of(all, other) <= best.seconds + 1e-6);
    }
  }
  CHECK(below > 20);
}

TEST_CASE("without pipelines there are no rents") { CHECK(!(highest_rents({}, {4}, {}, 8).seconds < 1e300)); }
