// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <tuple>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/reshard/strategies.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<device_id> devices_of(const cluster& c, const std::vector<device_group>& groups) {
  std::vector<device_id> all;
  for (const auto& g : groups) {
    const auto& s = subcluster_of(c, g.mesh);
    detail::expect_count(s.devices_per_node, "devices_per_node of subcluster " + s.name);
    if (g.mesh.nodes < 1 || g.mesh.devices_per_node < 1)
      throw input_error("a group of " + std::to_string(g.mesh.nodes) + "x" + std::to_string(g.mesh.devices_per_node) +
                        " devices");
    if (std::int64_t{g.mesh.nodes} * g.mesh.devices_per_node > std::int64_t{s.nodes} * s.devices_per_node)
      throw input_error("subcluster " + s.name + " has no " + std::to_string(g.mesh.nodes) + "x" +
                        std::to_string(g.mesh.devices_per_node) + " devices");
    if (g.first_device < 0 || g.first_device > s.device_count() - g.mesh.device_count())
      throw input_error("subcluster " + s.name + " has no devices " + std::to_string(g.first_device) + " to " +
                        std::to_string(std::int64_t{g.first_device} + g.mesh.device_count() - 1));
    for (int i = g.first_device; i < g.first_device + g.mesh.device_count(); ++i)
      all.push_back({g.mesh.subcluster, i / s.devices_per_node, i % s.devices_per_node});
  }
  return all;
}

}  // namespace hetsched

namespace hetsched::detail {

/// What carries one message at a time: of every device the port to send and the port to receive, of every node those to other
/// nodes.
class port_loads {
 public:
  explicit port_loads(std::span<const device_id> devices) : ports_(4 * devices.size()) {
    std::map<std::pair<int, int>, std::size_t> nodes;
    for (const auto& d : devices) node_of_.push_back(nodes.emplace(std::pair(d.subcluster, d.node), nodes.size()).first->second);
    devices_on_.resize(nodes.size());
    for (const auto node : node_of_) ++devices_on_[node];
  }
  [[nodiscard]] bool share_node(std::size_t a, std::size_t b) const { return node_of_[a] == node_of_[b]; }
  /// `nics`: ports of a node to the other; as many of them work at once as the node has devices here.
  void add(std::size_t from, std::size_t to, double seconds, int nics) {
    raise(4 * from, seconds);
    raise(4 * to + 1, seconds);
    if (share_node(from, to)) return;
    const auto ports = [&](std::size_t device) { return std::min(nics, devices_on_[node_of_[device]]); };
    raise(4 * node_of_[from] + 2, seconds / ports(from));
    raise(4 * node_of_[to] + 3, seconds / ports(to));
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
  std::vector<int> devices_on_;  // by node
  std::vector<double> ports_;
  std::vector<std::size_t> touched_;
};

/// Requires devices of a cluster whose counts and links are valid. Returns: whether no device is there twice.
[[nodiscard]] inline bool expect_devices(const cluster& c, std::span<const device_id> devices) {
  validate_network(c);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto& d = devices[i];
    const auto name = [&] { return "device " + std::to_string(i) + " of a transfer: its "; };
    if (d.subcluster < 0 || as_size(d.subcluster) >= c.subclusters.size())
      expect_count(d.subcluster, name() + "subcluster", 0, static_cast<std::int64_t>(c.subclusters.size()) - 1);
    const auto& s = at(c.subclusters, d.subcluster);
    if (d.node < 0 || d.node >= s.nodes) expect_count(d.node, name() + "node", 0, s.nodes - 1);
    if (d.slot < 0 || d.slot >= s.devices_per_node) expect_count(d.slot, name() + "slot", 0, s.devices_per_node - 1);
  }
  const auto place = [](const device_id& d) { return std::tuple(d.subcluster, d.node, d.slot); };
  const auto rises = [&](const device_id& a, const device_id& b) { return place(a) < place(b); };
  const auto ascend = [&](std::span<const device_id> d) {
    return std::adjacent_find(d.begin(), d.end(), [&](const auto& a, const auto& b) { return !rises(a, b); }) == d.end();
  };
  if (ascend(devices)) return true;
  std::vector<device_id> sorted(devices.begin(), devices.end());
  std::sort(sorted.begin(), sorted.end(), rises);
  return ascend(sorted);
}

/// Requires bytes that 64 bits count, twice over.
inline void expect_moved(double bytes) {
  if (!(bytes < 0x1p62)) throw input_error("a transfer moves " + number_text(bytes) + " bytes, expected less than 2^62");
}

/// Requires messages whose ends are different devices.
inline void expect_ways(const transfer_plan& p, std::span<const device_id> devices) {
  for (const auto& m : p.messages)
    if (devices[as_size(m.from)] == devices[as_size(m.to)])
      throw input_error("a message of a transfer goes from device " + std::to_string(m.from) + " to " + std::to_string(m.to) +
                        ", which are one");
}

}  // namespace hetsched::detail

namespace hetsched::detail::unchecked {

inline reshard_price price_of(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                              double element_bytes) {
  reshard_price price{.messages = static_cast<std::int64_t>(p.messages.size())};
  detail::port_loads phase_ports(devices), all_ports(devices);
  const auto stages = p.phase_count() / as_size(p.chunks);
  std::vector<double> ended(stages + 1, 0);  // of the latest chunk, by phase
  std::vector<std::int64_t> received(devices.size(), 0);
  double cross = 0;
  link over{};
  device_id last_from{-1, 0, 0}, last_to{-1, 0, 0};
  for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
    for (const auto& m : p.phase(phase)) {
      const auto from = as_size(m.from), to = as_size(m.to);
      const auto &a = devices[from], &b = devices[to];
      if (last_from.subcluster != a.subcluster || last_to.subcluster != b.subcluster ||
          (last_from.node == last_to.node) != (a.node == b.node)) {
        const auto found = c.between(a, b);
        if (!found) {
          price.seconds = price.occupied_s = infinity;
          return price;
        }
        over = *found;
        last_from = a;
        last_to = b;
      }
      const double bytes = static_cast<double>(m.elements) * element_bytes, seconds = over.transfer_s(bytes);
      const int nics = a.subcluster == b.subcluster ? at(c.subclusters, a.subcluster).nics : 1;
      phase_ports.add(from, to, seconds, nics);
      if (p.phase_count() > 1) all_ports.add(from, to, seconds, nics);
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
    most = std::max(most, received[d] - (d < as_size(p.sources) ? 0 : p.wanted[d - as_size(p.sources)]));
  // What is passed on in chunks waits for at most two of them.
  price.peak_extra_bytes =
      static_cast<std::int64_t>(static_cast<double>(most) * element_bytes * std::min(1.0, 2.0 / p.chunks) + 0.5);
  return price;
}

}  // namespace hetsched::detail::unchecked

namespace hetsched {

HETSCHED_INLINE reshard_price price_of(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                       double element_bytes) {
  const auto elements = detail::validate(p);
  detail::expect_size(devices.size(), as_size(p.sources + p.destinations), "devices", "sources and destinations");
  if (!detail::expect_devices(c, devices)) detail::expect_ways(p, devices);
  detail::expect_natural(element_bytes, "element_bytes");
  detail::expect_moved(static_cast<double>(elements) * element_bytes);
  return detail::unchecked::price_of(p, c, devices, element_bytes);
}

HETSCHED_INLINE std::vector<reshard_choice> price_strategies(const cluster& c, std::span<const device_id> devices,
                                                             const layout& from, const layout& to, double element_bytes,
                                                             const choice_options& options) {
  detail::validate_pair(from, to);
  detail::expect_size(devices.size(), as_size(from.device_count() + to.device_count()), "devices", "sources and destinations");
  const bool distinct = detail::expect_devices(c, devices);
  detail::expect_natural(element_bytes, "element_bytes");
  detail::expect_count(options.outer, "outer");
  if (options.chunks.empty()) throw input_error("chunks has no values, expected at least one");
  for (const int chunks : options.chunks) detail::expect_count(chunks, "chunks", 1, most_chunks);
  std::vector<reshard_choice> all;
  for (const auto strategy : options.strategies) {
    detail::expect_strategy(strategy);
    reshard_choice best{.strategy = strategy};
    bool first = true;
    const auto consider = [&](transfer_plan plan) {
      const auto price = detail::unchecked::price_of(plan, c, devices, element_bytes);
      const auto rank = [&](const reshard_price& p) { return std::pair(p.peak_extra_bytes > options.memory_bytes, p.seconds); };
      if (!first && !(rank(price) < rank(best.price))) return;
      best.plan = std::move(plan);
      best.price = price;
      first = false;
    };
    const bool by_parts = strategy == reshard_strategy::one_to_one || strategy == reshard_strategy::inner_rank_0;
    for (const int outer : {options.outer, 1}) {
      const auto whole = detail::unchecked::plan_transfer(from, to, strategy, {.outer = outer});
      double elements = 0;
      for (const auto& m : whole.messages)
        if (whole.crosses(m)) elements += static_cast<double>(m.elements);
      detail::expect_moved(elements * element_bytes);
      if (!distinct) detail::expect_ways(whole, devices);
      for (const int chunks : options.chunks) {
        if (!first && whole.messages.size() > options.most_messages / as_size(chunks)) continue;
        consider(detail::unchecked::in_chunks(whole, chunks));
        if (whole.phase_count() < 2 || !goes_in_chunks(strategy)) break;
      }
      if (!by_parts || options.outer == 1) break;
    }
    all.push_back(std::move(best));
  }
  return all;
}

}  // namespace hetsched
