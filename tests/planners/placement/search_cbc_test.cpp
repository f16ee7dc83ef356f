// SPDX-License-Identifier: Apache-2.0
// Placement as a mixed integer program, as HAP5 poses it (sec. IV-D): Cbc judges the shortest path.
#include <hetsched/planners/placement/search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <coin/Cbc_C_Interface.h>

#include <hetsched/core/random.hpp>

#include "../../sanitizer_share.hpp"

using namespace hetsched;
using hetsched::test::sweep_share;

namespace {

enum class placement_goal { sum, slowest, iteration };

/// Layers to stages (a), stages to kinds of devices (y), both at once (z), and two neighbours in two stages (w).
class placement_program {
 public:
  /// Requires: chain.stages > 0, one kind per pool, and the same temporary memory for all layers.
  placement_program(const placement_chain& chain, placement_goal goal, int microbatches) : chain_(chain) {
    kinds_ = static_cast<int>(chain.kinds.size());
    const bool sums = goal != placement_goal::slowest;
    slowest_ = column(0, 1e9, sums ? (goal == placement_goal::iteration ? microbatches - 1 : 0) : 1, false);
    for (int l = 0; l < chain.layers; ++l)
      for (int s = 0; s < chain.stages; ++s) a_.push_back(column(0, 1, 0, true));
    for (int s = 0; s < chain.stages; ++s)
      for (int k = 0; k < kinds_; ++k) y_.push_back(column(0, 1, 0, true));
    for (int l = 0; l < chain.layers; ++l)
      for (int s = 0; s < chain.stages; ++s)
        for (int k = 0; k < kinds_; ++k) z_.push_back(column(0, 1, sums ? seconds(l, k) : 0, false));
    assign();
    remember();
    time_stages();
    cross(sums);
  }

  /// The least value, none if there are no such stages.
  [[nodiscard]] std::optional<double> solve() {
    Cbc_setLogLevel(model_.get(), 0);
    Cbc_setParameter(model_.get(), "ratioGap", "0");
    Cbc_setParameter(model_.get(), "allowableGap", "1e-9");
    // A third of the time.
    Cbc_setParameter(model_.get(), "cuts", "off");
    Cbc_setParameter(model_.get(), "heuristics", "off");
    Cbc_solve(model_.get());
    if (Cbc_isProvenInfeasible(model_.get())) return std::nullopt;
    REQUIRE(Cbc_isProvenOptimal(model_.get()));
    return Cbc_getObjValue(model_.get());
  }

 private:
  using terms = std::vector<std::pair<int, double>>;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int a(int l, int s) const { return a_[at(l * chain_.stages + s)]; }
  [[nodiscard]] int y(int s, int k) const { return y_[at(s * kinds_ + k)]; }
  [[nodiscard]] int z(int l, int s, int k) const { return z_[at((l * chain_.stages + s) * kinds_ + k)]; }
  [[nodiscard]] double seconds(int l, int k) const { return of_layer(chain_.kinds[at(k)].seconds_before, l); }
  static double of_layer(const std::vector<double>& sums, int l) { return sums[at(l + 1)] - sums[at(l)]; }

  int column(double low, double high, double cost, bool whole) {
    Cbc_addCol(model_.get(), ("x" + std::to_string(columns_)).c_str(), low, high, cost, whole ? 1 : 0, 0, nullptr, nullptr);
    return columns_++;
  }
  void row(const terms& left, char sense, double right) {
    std::vector<int> where;
    std::vector<double> factor;
    for (const auto& [c, f] : left) {
      where.push_back(c);
      factor.push_back(f);
    }
    Cbc_addRow(model_.get(), "", static_cast<int>(where.size()), where.data(), factor.data(), sense, right);
  }

  void assign() {
    for (int l = 0; l < chain_.layers; ++l) {
      terms once;
      for (int s = 0; s < chain_.stages; ++s) {
        once.emplace_back(a(l, s), 1);
        terms parts{{a(l, s), -1}};
        for (int k = 0; k < kinds_; ++k) {
          parts.emplace_back(z(l, s, k), 1);
          row({{z(l, s, k), 1}, {y(s, k), -1}}, 'L', 0);
        }
        row(parts, 'E', 0);
      }
      row(once, 'E', 1);
      if (l == 0) continue;
      terms up_to;  // stage s: the next layer lies in none of them unless this one does
      for (int s = 0; s + 1 < chain_.stages; ++s) {
        up_to.emplace_back(a(l, s), 1);
        up_to.emplace_back(a(l - 1, s), -1);
        row(up_to, 'L', 0);
      }
    }
    for (int s = 0; s < chain_.stages; ++s) {
      terms some, one;
      for (int l = 0; l < chain_.layers; ++l) some.emplace_back(a(l, s), 1);
      row(some, 'G', 1);
      for (int k = 0; k < kinds_; ++k) one.emplace_back(y(s, k), 1);
      row(one, 'E', 1);
    }
    for (int k = 0; k < kinds_; ++k) {
      terms taken;
      for (int s = 0; s < chain_.stages; ++s) taken.emplace_back(y(s, k), 1);
      row(taken, 'L', chain_.pools[at(chain_.kinds[at(k)].pool)].count);
    }
  }

  void remember() {
    for (int s = 0; s < chain_.stages; ++s)
      for (int k = 0; k < kinds_; ++k) {
        const auto& kind = chain_.kinds[at(k)];
        terms held{{y(s, k), kind.temporary[0] * kind.memory.scale - kind.memory.room}};
        for (int l = 0; l < chain_.layers; ++l)
          held.emplace_back(z(l, s, k), of_layer(kind.state_before, l) + chain_.in_flight(chain_.stages - s) *
                                                                             of_layer(kind.in_flight_before, l) *
                                                                             kind.memory.scale);
        row(held, 'L', 0);
      }
  }

  void time_stages() {
    for (int s = 0; s < chain_.stages; ++s) {
      terms work{{slowest_, -1}};
      for (int l = 0; l < chain_.layers; ++l)
        for (int k = 0; k < kinds_; ++k) work.emplace_back(z(l, s, k), seconds(l, k));
      row(work, 'L', 0);
    }
  }

  /// Each cut has one w, of the layers on both sides and their kinds.
  void cross(bool sums) {
    for (int s = 0; s + 1 < chain_.stages; ++s) {
      terms once;
      for (int l = 0; l + 1 < chain_.layers; ++l) {
        std::vector<terms> leaving(at(kinds_)), entering(at(kinds_));
        for (int from = 0; from < kinds_; ++from)
          for (int to = 0; to < kinds_; ++to) {
            const auto& t = chain_.transfer(l, from, to);
            const int w = column(0, 1, sums ? t.seconds : 0, false);
            row({{w, t.occupied_s}, {slowest_, -1}}, 'L', 0);
            leaving[at(from)].emplace_back(w, 1);
            entering[at(to)].emplace_back(w, 1);
            once.emplace_back(w, 1);
          }
        for (int k = 0; k < kinds_; ++k) {
          leaving[at(k)].emplace_back(z(l, s, k), -1);
          row(leaving[at(k)], 'L', 0);
          entering[at(k)].emplace_back(z(l + 1, s + 1, k), -1);
          row(entering[at(k)], 'L', 0);
        }
      }
      row(once, 'E', 1);
    }
  }

  const placement_chain& chain_;
  std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model_{Cbc_newModel(), Cbc_deleteModel};
  int kinds_ = 0, columns_ = 0, slowest_ = -1;
  std::vector<int> a_, y_, z_;
};

/// A transformer of up to 26 layers, the first and the last unlike the others, for three devices of one to three types.
placement_chain chain_of_hap5_size(random_source& random) {
  placement_chain chain;
  chain.layers = random.integer(8, 26);
  chain.stages = random.integer(2, 3);
  const int types = random.integer(1, 3);
  const double first = random.uniform(0, 0.5), last = random.uniform(0, 4), tight = random.uniform(0.9, 2);
  for (int p = 0; p < types; ++p) {
    chain.pools.push_back({.count = p + 1 < types ? 1 : 4 - types});
    placement_kind kind{.pool = p, .seconds_before = {0}, .state_before = {0}, .in_flight_before = {0}};
    const double slow = random.uniform(0.5, 2);
    for (int l = 0; l < chain.layers; ++l) {
      const double work = l == 0 ? first : l + 1 == chain.layers ? last : 1;
      kind.seconds_before.push_back(kind.seconds_before.back() + work * slow);
      kind.state_before.push_back(kind.state_before.back() + 1 + work);
      kind.in_flight_before.push_back(kind.in_flight_before.back() + 0.2);
      kind.temporary.push_back(0.3);
    }
    kind.memory = {.room = kind.state_before.back() / 3 * tight * random.uniform(0.7, 1.6) + 1, .scale = 1.06};
    chain.kinds.push_back(kind);
  }
  std::vector<placement_transfer> between;
  for (int n = 0; n < types * types; ++n) {
    const double s = random.uniform(0.05, 3);
    between.push_back({s, s * (n % 2 == 0 ? 1 : 0.5)});
  }
  for (int b = 0; b + 1 < chain.layers; ++b) chain.transfers.insert(chain.transfers.end(), between.begin(), between.end());
  if (random.integer(0, 1) == 0) chain.in_flight = [](int n) { return static_cast<double>(n); };
  return chain;
}

}  // namespace

TEST_CASE("placement: mixed integer programs of HAP5's size have the same optimum") {
  random_source random(2318);
  int possible = 0;
  for (int n = 0; n < 200 / sweep_share; ++n) {
    const auto chain = chain_of_hap5_size(random);
    const int microbatches = random.integer(2, 12);
    const auto goal = static_cast<placement_goal>(n % 3);
    CAPTURE(n);
    const auto judged = placement_program(chain, goal, microbatches).solve();
    const auto found = goal == placement_goal::sum       ? least_sum(chain)
                       : goal == placement_goal::slowest ? least_slowest(chain)
                                                         : least_iteration(chain, microbatches);
    REQUIRE(found.complete);
    REQUIRE(judged.has_value() == found.best.has_value());
    if (!judged) continue;
    ++possible;
    CHECK(found.value == doctest::Approx(*judged).epsilon(1e-6));
  }
  CHECK(possible > 100 / sweep_share);
  CHECK(possible < 200 / sweep_share);
}
