// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/partition.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;
using hetsched::test::sanitizer_share;

namespace {

// The same arrays as a user's own cost model.
struct own_model {
  std::vector<std::vector<double>> seconds;
  std::vector<double> transfer_s;
  std::vector<long> weight, activation;
};

int layer_count(const own_model& m) { return static_cast<int>(m.seconds.front().size()); }
std::vector<placement> placements(const own_model&, const submesh& mesh) {
  if (mesh.nodes * mesh.devices_per_node != 1) return {};
  return {{mesh, {}}};
}
stage_cost layer(const own_model& m, int l, const placement& p) {
  const double s = m.seconds[static_cast<std::size_t>(p.mesh.subcluster)][static_cast<std::size_t>(l)];
  return {.forward_s = s * (1. / 3),
          .backward_s = s - s * (1. / 3),
          .weight_bytes = m.weight[static_cast<std::size_t>(l)],
          .activation_bytes = m.activation[static_cast<std::size_t>(l)]};
}
stage_cost stage(const own_model& m, layer_range r, const placement& p) {
  stage_cost sum;
  for (int l = r.first; l < r.last; ++l) sum += layer(m, l, p);
  return sum;
}
double transfer(const own_model& m, int boundary, const placement&, const placement&) {
  return m.transfer_s[static_cast<std::size_t>(boundary)];
}

partition_problem some_problem(random_source& random, int most_layers) {
  partition_problem asked;
  const int kinds = random.integer(1, 3), layers = random.integer(2, most_layers);
  std::vector<std::vector<double>> seconds(static_cast<std::size_t>(kinds));
  for (auto& row : seconds)
    for (int l = 0; l < layers; ++l) row.push_back(random.uniform(0.1, 2));
  asked.seconds = number_table(seconds);
  for (int k = 0; k < kinds; ++k) asked.devices.push_back(random.integer(1, 3));
  std::vector<double> transfers, weights, activations, memory;
  for (int l = 0; l + 1 < layers; ++l) transfers.push_back(random.uniform(0, 1));
  for (int l = 0; l < layers; ++l) weights.push_back(random.integer(0, 20));
  for (int l = 0; l < layers; ++l) activations.push_back(random.integer(0, 10));
  for (int k = 0; k < kinds; ++k) memory.push_back(random.integer(15, 150));
  asked.transfer_s = number_table(transfers);
  asked.weight_bytes = number_table(weights);
  asked.activation_bytes = number_table(activations);
  asked.memory_bytes = number_table(memory);
  asked.microbatches = random.integer(1, 24);
  return asked;
}

outcome<plan> by_own_model(const partition_problem& asked) {
  own_model m;
  cluster c;
  for (std::size_t k = 0; k < asked.devices.size(); ++k) {
    const auto row = asked.seconds[static_cast<int>(k)];
    m.seconds.emplace_back(row.begin(), row.end());
    device d{.name = "kind " + std::to_string(k), .memory_bandwidth = 1};
    d.peak_flops.fill(1);
    d.memory_bytes = static_cast<bytes_t>(asked.memory_bytes.values()[k]);
    c.subclusters.push_back({d.name, d, 1, asked.devices[k], {0, 1}, {}});
    for (std::size_t other = 0; other < k; ++other) connect(c, c.subclusters[other].name, d.name, {0, 1});
  }
  m.transfer_s.assign(asked.transfer_s.values().begin(), asked.transfer_s.values().end());
  for (const double x : asked.weight_bytes.values()) m.weight.push_back(static_cast<long>(x));
  for (const double x : asked.activation_bytes.values()) m.activation.push_back(static_cast<long>(x));
  return interop_dp(c, m, {.microbatches = asked.microbatches});
}

// The shortest simulated iteration of all cuts and kinds, under the least warm-ups that reach the best period memory allows.
// Stages of a kind follow each other.
class all_partitions {
 public:
  explicit all_partitions(const partition_problem& asked) : asked_(asked), left_(asked.devices) {}
  double best() {
    grow(0);
    return best_;
  }

 private:
  void grow(int first) {
    const int layers = asked_.seconds.columns();
    if (first == layers) {
      if (!asked_.in_order || (std::is_sorted(kinds_.begin(), kinds_.end()) && left_ == std::vector<int>(left_.size(), 0)))
        judge();
      return;
    }
    for (std::size_t k = 0; k < left_.size(); ++k) {
      if (left_[k] == 0) continue;
      const int kind = static_cast<int>(k);
      const bool comes_back = std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end() && kinds_.back() != kind;
      if (comes_back) continue;
      --left_[k];
      for (int last = first + 1; last <= layers; ++last) {
        cuts_.push_back(last);
        kinds_.push_back(kind);
        grow(last);
        cuts_.pop_back();
        kinds_.pop_back();
      }
      ++left_[k];
    }
  }
  void judge() {
    pipeline p;
    std::vector<int> caps;
    int first = 0;
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      double seconds = 0, weight = 0, activation = 0;
      for (int l = first; l < cuts_[i]; ++l) {
        const auto n = static_cast<std::size_t>(l);
        seconds += asked_.seconds[kinds_[i]][n];
        weight += asked_.weight_bytes.values()[n];
        activation += asked_.activation_bytes.values()[n];
      }
      const double room = asked_.memory_bytes.values()[static_cast<std::size_t>(kinds_[i])] - weight;
      if (room < activation || room < 0) return;
      caps.push_back(activation == 0 ? 1000 : static_cast<int>(std::min(1000.0, room / activation)));
      p.forward_s.push_back(seconds / 3);
      p.backward_s.push_back(seconds - seconds / 3);
      if (i + 1 < cuts_.size()) p.transfer_s.push_back(asked_.transfer_s.values()[static_cast<std::size_t>(cuts_[i]) - 1]);
      first = cuts_[i];
    }
    const auto order = one_f_one_b(exact_warmups_within(p, caps), asked_.microbatches);
    best_ = std::min(best_, simulate(p, order).makespan_s);
  }

  const partition_problem& asked_;
  std::vector<int> left_, cuts_, kinds_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("planners.partition: 500 random arrays are cut as interop_dp cuts them for a model with their numbers") {
  random_source random(20261127);
  int refused = 0;
  for (int n = 0; n < 500 / sanitizer_share; ++n) {
    const auto asked = some_problem(random, 9);
    const auto found = partition(asked);
    const auto other = by_own_model(asked);
    REQUIRE(static_cast<bool>(found) == static_cast<bool>(other));
    if (!found) {
      ++refused;
      CHECK(found.why_not().reason == other.why_not().reason);
      continue;
    }
    REQUIRE(found->iteration_s == other->predicted.iteration_s);
    const auto& stages = other->pipelines.front().stages;
    REQUIRE(found->kinds.size() == stages.size());
    REQUIRE(found->cuts.size() == stages.size() + 1);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      CHECK(layer_range{found->cuts[i], found->cuts[i + 1]} == stages[i].layers);
      CHECK(found->kinds[i] == stages[i].where().mesh.subcluster);
      CHECK(found->warmups[i] == stages[i].warmup);
    }
    CHECK(found->bound_s <= found->iteration_s);
  }
  CHECK(refused > 0);
  CHECK(refused < 400 / sanitizer_share);
}

TEST_CASE("planners.partition: no other cut of small chains is faster, by enumeration and simulation") {
  random_source random(7);
  int met = 0;
  for (int n = 0; n < 200; ++n) {
    const auto asked = some_problem(random, 5);
    const double best = all_partitions(asked).best();
    const auto found = partition(asked);
    REQUIRE(static_cast<bool>(found) == (best < std::numeric_limits<double>::infinity()));
    if (!found) continue;
    ++met;
    CHECK(found->iteration_s <= best * (1 + 1e-3));
    CHECK(found->bound_s <= best * (1 + 1e-9));
    CHECK(found->complete);
  }
  CHECK(met > 100);
}

TEST_CASE("planners.partition: in the order of the kinds, on all devices, enumeration finds next to nothing faster") {
  random_source random(8);
  int met = 0, best_of_all = 0;
  for (int n = 0; n < 300; ++n) {
    auto asked = some_problem(random, 6);
    asked.in_order = true;
    if (n % 2 == 0) asked.memory_bytes = number_table();  // enough for anything
    auto judged = asked;
    if (n % 2 == 0) judged.memory_bytes = number_table(std::vector<double>(asked.devices.size(), 1e9));
    const double best = all_partitions(judged).best();
    const auto found = partition(asked);
    REQUIRE(static_cast<bool>(found) == (best < std::numeric_limits<double>::infinity()));
    if (!found) continue;
    ++met;
    CAPTURE(n);
    CHECK(std::is_sorted(found->kinds.begin(), found->kinds.end()));
    CHECK(found->kinds.size() == found->warmups.size());
    CHECK(found->iteration_s >= best * (1 - 1e-9));
    CHECK(found->iteration_s <= best * 1.05);
    best_of_all += found->iteration_s <= best * (1 + 1e-9);
  }
  CHECK(met > 60);
  CHECK(best_of_all * 10 > met * 9);
}

TEST_CASE("planners.partition: Eigen's arrays, links by pairs of kinds, and no memory told") {
  Eigen::MatrixXd seconds = Eigen::MatrixXd::Ones(2, 6);
  seconds.row(1) *= 2;
  const auto found = partition({.seconds = seconds, .devices = {1, 1}, .microbatches = 32});
  REQUIRE(found);
  const int fast = found->kinds[0] == 0 ? found->cuts[1] : 6 - found->cuts[1];
  CHECK(fast == 4);
  CHECK(found->iteration_s >= 4 * 32);
  // Over a link of no use between the kinds, one device computes all.
  Eigen::MatrixXd slow = Eigen::MatrixXd::Constant(4, 5, 1e6);
  const auto alone = partition({.seconds = seconds, .devices = {1, 1}, .microbatches = 32, .transfer_s = slow});
  REQUIRE(alone);
  CHECK(alone->kinds == std::vector{0});
  CHECK(alone->cuts == std::vector{0, 6});
  CHECK(alone->iteration_s == doctest::Approx(6 * 32));
}

TEST_CASE("planners.partition: what does not fit is refused in words") {
  const auto says = [](const partition_problem& asked, const char* text) {
    CHECK_THROWS_WITH_AS(static_cast<void>(partition(asked)), text, input_error);
  };
  says({}, "partition: expected at least one kind of device and one layer");
  says({.seconds = {{1, 2}, {1, 2}}, .devices = {1}}, "partition: seconds has 2 values, expected 1, a row per kind of device");
  says({.seconds = {1, -2}, .devices = {1}}, "partition: seconds[1] is -2, expected a finite number of at least 0");
  says({.seconds = {1, 2}, .devices = {0}}, "partition: devices[0] is 0, expected 1 to 1048576");
  says({.seconds = {1, 2}, .devices = {1}, .transfer_s = {1, 2, 3}},
       "partition: transfer_s has 3 values, expected 1, one per boundary between layers (or as many for every pair of kinds)");
  says({.seconds = {1, 2}, .devices = {1}, .weight_bytes = {1}},
       "partition: weight_bytes has 1 values, expected 2, one per layer");
  const auto found = partition({.seconds = {1, 2}, .devices = {2}, .weight_bytes = {5, 6}, .memory_bytes = {5}});
  REQUIRE_FALSE(found);
  CHECK(found.why_not().reason.find("kind 0") != std::string::npos);
}
