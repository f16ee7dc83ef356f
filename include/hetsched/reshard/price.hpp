// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>

namespace hetsched {

/// What a transfer plan takes.
struct reshard_price {
  double seconds = 0;     ///< from the first message to the last; infinity where a link is missing
  double occupied_s = 0;  ///< what the busiest port carries, in all phases together; at most `seconds`
  std::int64_t messages = 0;
  std::int64_t cross_bytes = 0;       ///< that leave the sending stage for the receiving one
  std::int64_t peak_extra_bytes = 0;  ///< the most that a device holds of what is neither its slice before nor after
  friend bool operator==(const reshard_price&, const reshard_price&) = default;
};

/// The devices of groups, in order.
/// Throws: input_error for devices that the cluster does not have.
[[nodiscard]] inline std::vector<device_id> devices_of(const cluster& c, const std::vector<device_group>& groups) {
  std::vector<device_id> all;
  for (const auto& g : groups) {
    const auto& s = subcluster_of(c, g.mesh);
    if (g.first_device < 0 || g.first_device + g.mesh.device_count() > s.device_count())
      throw input_error("subcluster " + s.name + " has no devices " + std::to_string(g.first_device) + " to " +
                        std::to_string(g.first_device + g.mesh.device_count() - 1));
    for (int i = g.first_device; i < g.first_device + g.mesh.device_count(); ++i)
      all.push_back({g.mesh.subcluster, i / s.devices_per_node, i % s.devices_per_node});
  }
  return all;
}

namespace detail {

/// What carries one message at a time: of every device the port to send and the port to receive, of every node the same to other
/// nodes.
class port_loads {
 public:
  explicit port_loads(std::span<const device_id> devices) : ports_(4 * devices.size()) {
    std::map<std::pair<int, int>, std::size_t> nodes;
    for (const auto& d : devices) node_of_.push_back(nodes.emplace(std::pair(d.subcluster, d.node), nodes.size()).first->second);
  }
  [[nodiscard]] bool share_node(std::size_t a, std::size_t b) const { return node_of_[a] == node_of_[b]; }
  void add(std::size_t from, std::size_t to, double seconds) {
    raise(4 * from, seconds);
    raise(4 * to + 1, seconds);
    if (share_node(from, to)) return;
    raise(4 * node_of_[from] + 2, seconds);
    raise(4 * node_of_[to] + 3, seconds);
  }
  /// The busiest since the last call.
  [[nodiscard]] double busiest_s() {
    double most = 0;
    for (const auto p : touched_) most = std::max(most, std::exchange(ports_[p], 0.0));
    touched_.clear();
    return most;
  }

 private:
  void raise(std::size_t port, double seconds) {
    if (ports_[port] == 0) touched_.push_back(port);
    ports_[port] += seconds;
  }
  std::vector<std::size_t> node_of_;
  std::vector<double> ports_;
  std::vector<std::size_t> touched_;
};

}  // namespace detail

/// What a transfer plan takes on these devices (sources, then destinations), with so many bytes per element. A device's port, a
/// node's port to other nodes and each of their directions carry one message at a time, each for the latency and the bytes over
/// the bandwidth of the link between its ends; between subclusters every pair of nodes has the link's bandwidth. A phase takes as
/// long as its busiest port. Chunks overlap: each phase works on one at a time, and no port does more than it can. So do whole
/// transfers: microbatches can follow each other occupied_s apart, each on its way for `seconds`.
/// Requires: as many devices as the plan has.
/// Complexity: O(messages + devices log nodes).
[[nodiscard]] inline reshard_price price_of(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                            double element_bytes) {
  HETSCHED_EXPECTS(devices.size() == static_cast<std::size_t>(p.sources + p.destinations));
  reshard_price price{.messages = static_cast<std::int64_t>(p.messages.size())};
  detail::port_loads phase_ports(devices), all_ports(devices);
  const auto stages = p.phase_count() / static_cast<std::size_t>(p.chunks);
  std::vector<double> ended(stages + 1, 0);  // of the latest chunk, by phase
  std::vector<std::int64_t> received(devices.size(), 0);
  double cross = 0;
  link over{};
  device_id last_from{-1, 0, 0}, last_to{-1, 0, 0};
  for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
    for (const auto& m : p.phase(phase)) {
      const auto from = static_cast<std::size_t>(m.from), to = static_cast<std::size_t>(m.to);
      const auto &a = devices[from], &b = devices[to];
      if (last_from.subcluster != a.subcluster || last_to.subcluster != b.subcluster ||
          (last_from.node == last_to.node) != (a.node == b.node)) {
        const auto found = c.between(a, b);
        if (!found) {
          price.seconds = price.occupied_s = std::numeric_limits<double>::infinity();
          return price;
        }
        over = *found;
        last_from = a;
        last_to = b;
      }
      const double bytes = static_cast<double>(m.elements) * element_bytes, seconds = over.transfer_s(bytes);
      phase_ports.add(from, to, seconds);
      if (p.phase_count() > 1) all_ports.add(from, to, seconds);
      received[to] += m.elements;
      if (p.crosses(m)) cross += bytes;
    }
    const auto s = phase % stages;
    ended[s + 1] = std::max(ended[s], ended[s + 1]) + phase_ports.busiest_s();
    if (s == 0) ended[0] = 0;
  }
  price.seconds = price.occupied_s = ended.back();
  if (p.phase_count() > 1) {
    price.occupied_s = all_ports.busiest_s();
    if (p.chunks > 1) price.seconds = std::max(price.seconds, price.occupied_s);
    price.occupied_s = std::min(price.occupied_s, price.seconds);  // rounding
  }
  price.cross_bytes = static_cast<std::int64_t>(cross + 0.5);
  std::int64_t most = 0;
  for (std::size_t d = 0; d < received.size(); ++d)
    most = std::max(
        most, received[d] - (d < static_cast<std::size_t>(p.sources) ? 0 : p.wanted[d - static_cast<std::size_t>(p.sources)]));
  // What is passed on in chunks waits for at most two of them.
  price.peak_extra_bytes =
      static_cast<std::int64_t>(static_cast<double>(most) * element_bytes * std::min(1.0, 2.0 / p.chunks) + 0.5);
  return price;
}

/// A way to move a tensor between two stages, and what it takes.
struct reshard_choice {
  reshard_strategy strategy = reshard_strategy::direct;
  transfer_plan plan{};
  reshard_price price{};
};

struct choice_options {
  int outer = 1;                          ///< as reshard_options have it; 1 is tried too
  std::int64_t memory_bytes = INT64_MAX;  ///< that a device has for what it passes on
  std::vector<int> chunks{1, 4, 16};      ///< worth trying for strategies of several phases
  std::size_t most_messages = 1 << 22;    ///< of all chunks; of `chunks`, the first is tried anyway
  std::span<const reshard_strategy> strategies = all_reshard_strategies;
};

/// Each strategy at its best number of chunks and of outer parts, in the order of the strategies.
/// Requires: as many devices as both layouts have, sources first.
/// Throws: as plan_transfer.
[[nodiscard]] inline std::vector<reshard_choice> price_strategies(const cluster& c, std::span<const device_id> devices,
                                                                  const layout& from, const layout& to, double element_bytes,
                                                                  const choice_options& options = {}) {
  std::vector<reshard_choice> all;
  for (const auto strategy : options.strategies) {
    reshard_choice best{.strategy = strategy};
    bool first = true;
    const auto consider = [&](transfer_plan plan) {
      const auto price = price_of(plan, c, devices, element_bytes);
      const auto rank = [&](const reshard_price& p) { return std::pair(p.peak_extra_bytes > options.memory_bytes, p.seconds); };
      if (!first && !(rank(price) < rank(best.price))) return;
      best.plan = std::move(plan);
      best.price = price;
      first = false;
    };
    const bool by_parts = strategy == reshard_strategy::one_to_one || strategy == reshard_strategy::inner_rank_0;
    for (const int outer : {options.outer, 1}) {
      const auto whole = plan_transfer(from, to, strategy, {.outer = outer});
      for (const int chunks : options.chunks) {
        if (!first && whole.messages.size() > options.most_messages / static_cast<std::size_t>(chunks)) continue;
        consider(in_chunks(whole, chunks));
        if (whole.phase_count() < 2 || !goes_in_chunks(strategy)) break;
      }
      if (!by_parts || options.outer == 1) break;
    }
    all.push_back(std::move(best));
  }
  return all;
}

/// The cheapest of them that fits into memory; of equally cheap ones the first.
/// Requires: one of them at least.
[[nodiscard]] inline const reshard_choice& cheapest(std::span<const reshard_choice> all, std::int64_t memory_bytes = INT64_MAX) {
  HETSCHED_EXPECTS(!all.empty());
  const auto rank = [&](const reshard_choice& r) { return std::pair(r.price.peak_extra_bytes > memory_bytes, r.price.seconds); };
  return *std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

/// The cheapest way, by price_of, to move a tensor from one layout on some devices to another on others that fits into their
/// memory. direct always fits. Requires, Throws: as price_strategies.
/// Complexity: that of some twenty plan_transfer.
[[nodiscard]] inline reshard_choice choose_reshard(const cluster& c, std::span<const device_id> devices, const layout& from,
                                                   const layout& to, double element_bytes, const choice_options& options = {}) {
  return cheapest(price_strategies(c, devices, from, to, element_bytes, options), options.memory_bytes);
}

}  // namespace hetsched
