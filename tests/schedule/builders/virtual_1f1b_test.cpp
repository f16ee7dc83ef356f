// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/virtual_1f1b.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/builders/warmup.hpp>

#include "../reference_times.hpp"

using namespace hetsched;

namespace {

/// Three clusters of equally many stages; forward 1/3, backward 2/3; transfers take `transfer_s` between clusters, else nothing.
struct three_clusters {
  std::vector<bool> cross;
  pipeline p;

  three_clusters(int stages, double transfer_s) : cross(static_cast<std::size_t>(stages) - 1, false) {
    const auto count = static_cast<std::size_t>(stages);
    cross[count / 3 - 1] = cross[2 * count / 3 - 1] = true;
    p.forward_s.assign(count, 1.0 / 3);
    p.backward_s.assign(count, 2.0 / 3);
    for (const bool slow : cross) p.transfer_s.push_back(slow ? transfer_s : 0);
  }
  [[nodiscard]] int stages() const { return p.stages(); }
  [[nodiscard]] schedule plain(int microbatches) const { return one_f_one_b(one_f_one_b_warmups(stages()), microbatches); }

  /// Transfers between clusters go through three phases, each with wires of its own.
  [[nodiscard]] double virtual_s(int microbatches) const {
    const auto order = virtual_1f1b(cross, microbatches);
    auto w = make_workload(p, order);
    for (auto* paths : {&w.activations, &w.gradients})
      for (auto& r : *paths) {
        if (r.network.occupied_s == 0) continue;
        const double whole = r.network.occupied_s;
        r.staged = true;
        r.d2h = {.wires = {static_cast<int>(w.wires.size()), -1, -1}, .occupied_s = 0.15 * whole, .latency_s = 0};
        r.h2d = {.wires = {static_cast<int>(w.wires.size()) + 1, -1, -1}, .occupied_s = 0.15 * whole, .latency_s = 0};
        r.network.occupied_s = 0.7 * whole;
        w.wires.resize(w.wires.size() + 2);
      }
    return test::times_of(w, order).makespan;
  }

  [[nodiscard]] double overlapped_1f1b_s(int microbatches) const {
    const auto order = plain(microbatches);
    return test::times_of(make_workload(p, order), order).makespan;
  }

  /// HetAuto's baseline: both ranks of a boundary wait while a tensor crosses it.
  [[nodiscard]] double blocking_1f1b_s(int microbatches) const {
    auto q = p;
    for (std::size_t i = 0; i < cross.size(); ++i)
      for (const std::size_t stage : {i, i + 1}) {
        q.forward_s[stage] += p.transfer_s[i];
        q.backward_s[stage] += p.transfer_s[i];
      }
    q.transfer_s.assign(cross.size(), 0.0);
    const auto order = plain(microbatches);
    return test::times_of(make_workload(q, order), order).makespan;
  }
};

}  // namespace

TEST_CASE("one more forward for every boundary between clusters at or after the stage") {
  CHECK(virtual_1f1b_warmups({}) == std::vector<int>{1});
  CHECK(virtual_1f1b_warmups({false, false, false}) == one_f_one_b_warmups(4));
  CHECK(virtual_1f1b_warmups({false, true, false}) == std::vector<int>{5, 4, 2, 1});
  CHECK(virtual_1f1b_warmups({true, false, true, true}) == std::vector<int>{8, 6, 5, 3, 1});
  CHECK(test::lines(virtual_1f1b({true}, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3\n");
  CHECK_THROWS_AS((void)virtual_1f1b({true}, 0), input_error);
}

TEST_CASE("up to half a period, a transfer between clusters costs no time per microbatch") {
  const three_clusters clusters(6, 0.5);
  CHECK(clusters.virtual_s(80) - clusters.virtual_s(60) == doctest::Approx(20));
  CHECK(clusters.overlapped_1f1b_s(80) - clusters.overlapped_1f1b_s(60) == doctest::Approx(30));
  const three_clusters slower(6, 0.75);
  CHECK(slower.virtual_s(80) - slower.virtual_s(60) > 20.5);
}

// HetAuto 7.7 (figure 13) reports that Virtual-1F1B is 1.68 to 1.84 times as fast as 1F1B, whose communication is blocking:
// sender and receiver both wait. A stage at a boundary then takes t + 2c per microbatch, and under Virtual-1F1B t as long as
// c <= t/2, so the speed-up tends to 1 + 2c/t: the range is that of c/t from about 0.34 to 0.42 with many microbatches, of
// somewhat larger ones with fewer (18 stages and 32 microbatches: 0.7 to 0.9). With one stage per cluster the middle one waits
// at both its boundaries, t + 4c, and c/t of 0.17 to 0.21 is enough.
TEST_CASE("three clusters: against blocking 1F1B, the speed-ups of 1.68 to 1.84 are reached") {
  const auto speedup = [](int stages, double c, int microbatches) {
    const three_clusters clusters(stages, c);
    return clusters.blocking_1f1b_s(microbatches) / clusters.virtual_s(microbatches);
  };
  for (const int stages : {6, 9, 18}) {
    CAPTURE(stages);
    CHECK(speedup(stages, 0.30, 512) < 1.68);
    CHECK(speedup(stages, 0.40, 512) > 1.68);
    CHECK(speedup(stages, 0.40, 512) < 1.84);
    CHECK(speedup(stages, 0.48, 512) > 1.84);
  }
  CHECK(speedup(18, 0.7, 32) > 1.68);
  CHECK(speedup(18, 0.9, 32) < 1.84);
  CHECK(speedup(3, 0.20, 512) > 1.68);
  CHECK(speedup(3, 0.20, 512) < 1.84);
}

// Where 1F1B's transfers overlap with computation too, the range is out of reach. A period is the largest ratio, over windows
// of neighbouring stages, of the time that a microbatch takes there and back to the microbatches that may be in them at once
// (methods.md 1.3): as many as there are stages under 1F1B, and one more for every boundary between clusters under Virtual-1F1B.
// Two stages around a boundary gain 3/2, three around two boundaries 5/3, and any other window less.
TEST_CASE("three clusters: against 1F1B with overlapped transfers, no more than 5/3") {
  double most = 0;
  for (const int stages : {3, 6, 9})
    for (double c = 0; c <= 2; c += 0.125) {
      CAPTURE(stages);
      CAPTURE(c);
      const three_clusters clusters(stages, c);
      const double speedup = clusters.overlapped_1f1b_s(512) / clusters.virtual_s(512);
      most = std::max(most, speedup);
      CHECK(speedup >= 1);
      CHECK(speedup < (stages == 3 ? 5.0 / 3 : 3.0 / 2));
    }
  CHECK(most > 1.64);
}
