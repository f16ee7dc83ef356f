// SPDX-License-Identifier: Apache-2.0
// How closely transfers of one plan can follow each other, played message by message, against the price's occupied_s.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/price.hpp>

using namespace hetsched;

namespace {

/// A port: 's' to send, 'r' to receive, of a device; 'S' and 'R' of a node, to others.
using port = std::tuple<char, int, int, int>;

struct timed_message {
  int transfer = 0, from = 0, to = 0;
  std::size_t phase = 0;
  double seconds = 0;
  std::vector<port> ports;
  double end_s = -1;  // -1: it has not set out
};

std::vector<timed_message> messages_of(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                       double element_bytes, int transfers) {
  std::vector<timed_message> all;
  for (int t = 0; t < transfers; ++t)
    for (std::size_t phase = 0; phase < p.phase_count(); ++phase)
      for (const auto& m : p.phase(phase)) {
        const auto &a = devices[static_cast<std::size_t>(m.from)], &b = devices[static_cast<std::size_t>(m.to)];
        std::vector<port> ports{{'s', a.subcluster, a.node, a.slot}, {'r', b.subcluster, b.node, b.slot}};
        if (a.subcluster != b.subcluster || a.node != b.node) {
          ports.push_back({'S', a.subcluster, a.node, 0});
          ports.push_back({'R', b.subcluster, b.node, 0});
        }
        const double seconds = c.between(a, b)->transfer_s(static_cast<double>(m.elements) * element_bytes);
        all.push_back({t, m.from, m.to, phase, seconds, std::move(ports)});
      }
  return all;
}

/// When all messages are there. All tensors are ready at once; whenever a port is free it takes the first message in order that
/// can go: whose other ports are free, and whose sender has got all that earlier phases of its transfer send it.
double play(std::vector<timed_message>& messages) {
  std::map<port, double> free_s;
  std::map<std::tuple<int, int>, std::vector<const timed_message*>> to;  // transfer, receiver
  for (const auto& m : messages) to[{m.transfer, m.to}].push_back(&m);
  double now = 0, last = 0;
  for (std::size_t left = messages.size(); left > 0;) {
    double next = std::numeric_limits<double>::infinity();
    for (auto& m : messages) {
      if (m.end_s > now) next = std::min(next, m.end_s);
      if (m.end_s >= 0) continue;
      const auto& came = to[{m.transfer, m.from}];
      const bool held = std::all_of(came.begin(), came.end(), [&](const timed_message* before) {
        return before->phase >= m.phase || (before->end_s >= 0 && before->end_s <= now);
      });
      if (!held || std::any_of(m.ports.begin(), m.ports.end(), [&](const port& p) { return free_s[p] > now; })) continue;
      m.end_s = now + m.seconds;
      for (const auto& p : m.ports) free_s[p] = m.end_s;
      last = std::max(last, m.end_s);
      next = std::min(next, m.end_s);
      --left;
    }
    now = next;
  }
  return last;
}

double percentile(std::vector<double> values, std::size_t percent) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * percent / 100];
}

}  // namespace

TEST_CASE("transfers message by message follow each other hardly less closely than the busiest port allows") {
  random_source random(7);
  std::vector<double> spacing, both_ways;
  for (int n = 0; n < 1000; ++n) {
    cluster c;
    for (int k = 0; k < 2; ++k)
      c.subclusters.push_back({"s",
                               {},
                               random.integer(1, 3),
                               1 << random.integer(0, 2),
                               {random.uniform(0, 1e-5), random.uniform(1e11, 6e11)},
                               {random.uniform(0, 2e-5), random.uniform(3e9, 5e10)}});
    c.links = {{0, 1, {random.uniform(0, 5e-3), random.uniform(1e8, 1e10)}}};
    std::vector<device_group> groups;
    std::array<degrees, 2> split;
    for (int k = 0; k < 2; ++k) {
      const auto& s = c.subclusters[static_cast<std::size_t>(k)];
      groups.push_back({.mesh = {k, s.nodes, s.devices_per_node}});
      auto& d = split[static_cast<std::size_t>(k)];
      do d.data = random.integer(1, s.device_count());
      while (s.device_count() % d.data != 0);
      d.tensor = s.device_count() / d.data;
    }
    const auto devices = devices_of(c, groups);
    const int batch = std::lcm(split[0].data, split[1].data), sequence = std::lcm(split[0].tensor, split[1].tensor);
    const auto from = boundary_layout(split[0], batch, sequence, 64), to = boundary_layout(split[1], batch, sequence, 64);
    const double element_bytes = 1e6 / batch / sequence;
    const reshard_strategy known[] = {reshard_strategy::direct, reshard_strategy::one_to_one, reshard_strategy::regroup_before,
                                      reshard_strategy::regroup_after};  // those of boundary_cost
    const auto best = choose_reshard(c, devices, from, to, element_bytes,
                                     {.outer = std::gcd(split[0].data, split[1].data), .chunks = {1}, .strategies = known});
    if (!(best.price.occupied_s < 0.95 * best.price.seconds)) continue;
    constexpr int count = 8;
    auto messages = messages_of(best.plan, c, devices, element_bytes, count);
    const double last = play(messages);
    CAPTURE(n);
    CAPTURE(std::string(name_of(best.strategy)));
    REQUIRE(last >= count * best.price.occupied_s * (1 - 1e-12));
    spacing.push_back((last - best.price.seconds) / (count - 1) / best.price.occupied_s);
    // The gradient goes the same way back: what a port sends there, it receives here.
    std::map<port, double> loads;
    for (const auto& m : messages_of(best.plan, c, devices, element_bytes, 1))
      for (auto [kind, subcluster, node, slot] : m.ports) {
        loads[{kind, subcluster, node, slot}] += m.seconds;
        const char mirrored = kind == 's' ? 'r' : kind == 'r' ? 's' : kind == 'S' ? 'R' : 'S';
        loads[{mirrored, subcluster, node, slot}] += m.seconds;
      }
    double most = 0;
    for (const auto& [which, seconds] : loads) most = std::max(most, seconds);
    both_ways.push_back(most / best.price.occupied_s);
  }
  MESSAGE(spacing.size() << " boundaries; seconds between transfers over occupied_s: median " << percentile(spacing, 50)
                         << ", 90 % below " << percentile(spacing, 90) << ", worst " << percentile(spacing, 100)
                         << "; what the busiest port carries both ways: median " << percentile(both_ways, 50) << ", 90 % below "
                         << percentile(both_ways, 90) << ", worst " << percentile(both_ways, 100));
  CHECK(spacing.size() > 200);
  CHECK(percentile(spacing, 50) < 1.001);
  CHECK(percentile(spacing, 90) < 1.001);
  CHECK(percentile(spacing, 100) < 1.25);
}
