// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/reshard/strategy.hpp>

namespace hetsched::detail {

/// A stage at a boundary: its devices hold a grid of `data` by `rest` equal parts of the batch and of the sequence.
struct boundary_side {
  int data = 1, rest = 1, per_node = 1, nodes = 1;
  int ports = 1;  // of a node, to nodes of its subcluster
  link inside_node{}, between_nodes{};

  boundary_side(const cluster& c, const placement& p)
      : data(p.degrees.data),
        rest(p.degrees.context * p.degrees.tensor),
        per_node(p.mesh.devices_per_node),
        nodes(p.mesh.nodes),
        ports(subcluster_of(c, p.mesh).ports(p.mesh.devices_per_node)),
        inside_node(subcluster_of(c, p.mesh).intra_node),
        between_nodes(subcluster_of(c, p.mesh).inter_node) {}
  [[nodiscard]] int devices() const { return data * rest; }
  [[nodiscard]] int node_of(int device) const { return device / per_node; }
};

/// Parts of two even cuts of one dimension that overlap, and the share of the dimension that they have in common.
struct even_overlap {
  int from = 0, to = 0;
  double share = 0;
};

[[nodiscard]] inline std::vector<even_overlap> overlaps_of(int from, int to) {
  std::vector<even_overlap> found;
  found.reserve(as_size(from + to));
  const double whole = static_cast<double>(from) * to;
  for (std::int64_t a = 0, b = 0; a < from && b < to;) {
    const auto first = std::max(a * to, b * from), last = std::min((a + 1) * to, (b + 1) * from);
    found.push_back({static_cast<int>(a), static_cast<int>(b), static_cast<double>(last - first) / whole});
    a += (a + 1) * to == last;
    b += (b + 1) * from == last;
  }
  return found;
}

/// What leads from one stage to the next.
struct boundary_way {
  link there{}, back{};
  bool one_subcluster = false, one_node = false;
};

/// Prices the ways over one boundary as price_of does, without writing down the messages. Devices are numbered as in transfer
/// plans.
class boundary_pricer {
 public:
  boundary_pricer(const boundary_side& from, const boundary_side& to, const boundary_way& way, double bytes)
      : from_(from),
        to_(to),
        way_(way),
        cross_(slower_of(way.there, way.back)),
        bytes_(bytes),
        data_(overlaps_of(from.data, to.data)),
        rest_(overlaps_of(from.rest, to.rest)),
        ports_(2 * as_size(from.devices() + to.devices() + from.nodes + to.nodes)),
        carried_(ports_.size()) {}

  // The way that is cheapest over the slower of both directions, which the messages of the gradient take back.
  [[nodiscard]] transfer_cost best() {
    const auto chosen = cheapest();
    auto cost = chosen.cost;
    if (way_.there == way_.back) return cost;
    const auto over = [&](const link& one) {
      cross_ = one;
      const double seconds = price(chosen.strategy, chosen.parts), occupied_s = busiest_overall();
      return std::pair(seconds, std::min(seconds, occupied_s));
    };
    const auto [there_s, there_busy_s] = over(way_.there);
    const auto [back_s, back_busy_s] = over(way_.back);
    cost.forward_s = there_s;
    cost.backward_s = back_s;
    cost.forward_occupied_s = there_busy_s;
    cost.backward_occupied_s = back_busy_s;
    return cost;
  }

 private:
  struct choice {
    transfer_cost cost;
    reshard_strategy strategy = reshard_strategy::direct;
    int parts = 1;  // of one_to_one
  };

  [[nodiscard]] choice cheapest() {
    const double seconds = price(reshard_strategy::direct, 1);
    static_cast<void>(busiest_overall());
    choice best{{seconds, seconds, 0, 0, name_of(reshard_strategy::direct)}};
    const auto consider = [&](reshard_strategy s, int parts = 1) {
      const double price_s = price(s, parts), occupied_s = busiest_overall();
      if (!(price_s < best.cost.forward_s)) return;
      best = {{price_s, price_s, 0, static_cast<bytes_t>(extra_ * bytes_ + 0.5), name_of(s)}, s, parts};
      // Rounding apart, no port carries more in all phases than these take. The gradient takes the same messages back.
      if (occupied_s < price_s) best.cost.forward_occupied_s = best.cost.backward_occupied_s = occupied_s;
    };
    // What every way takes at least that crosses in as many messages as there are devices on the smaller side.
    const auto ports_of = [&](const boundary_side& s) { return way_.one_node ? s.devices() : s.nodes * cross_ports(s); };
    const int ways = std::min(ports_of(from_), ports_of(to_));
    const int fewest = std::min(from_.devices(), to_.devices());
    const double turns = std::max(1.0, static_cast<double>(fewest) / ways);
    const double aligned = turns * cross_.latency_s + bytes_ / ways / cross_.bandwidth;
    if (seconds > aligned) {
      consider(reshard_strategy::regroup_before);
      consider(reshard_strategy::regroup_after);
    }
    const int outer = std::gcd(from_.data, to_.data);
    if (best.cost.forward_s > cross_.latency_s + bytes_ / ways / cross_.bandwidth) consider(reshard_strategy::one_to_one, outer);
    if (outer > 1 && best.cost.forward_s > cross_.latency_s + bytes_ / cross_.bandwidth) consider(reshard_strategy::one_to_one);
    return best;
  }

  [[nodiscard]] double price(reshard_strategy strategy, int parts) {
    if (strategy == reshard_strategy::regroup_before) return regroup_before();
    if (strategy == reshard_strategy::regroup_after) return regroup_after();
    if (strategy == reshard_strategy::one_to_one) return one_to_one(parts);
    for_each_overlap([&](int i, int j, double share) { send(i, from_.devices() + j, share); });
    return phase();
  }

  // Ports of a node that lead to the other stage.
  [[nodiscard]] int cross_ports(const boundary_side& s) const { return way_.one_subcluster ? s.ports : 1; }

  template <class Visit>
  void for_each_overlap(Visit&& visit) const {
    for (const auto& d : data_)
      for (const auto& r : rest_) visit(d.from * from_.rest + r.from, d.to * to_.rest + r.to, d.share * r.share);
  }
  [[nodiscard]] std::size_t node_port(int device) const {
    const auto sources = from_.devices();
    return as_size(sources + to_.devices() +
                   (device < sources ? from_.node_of(device) : from_.nodes + to_.node_of(device - sources)));
  }
  // A message of a share of the tensor.
  void send(int from, int to, double share) {
    const int sources = from_.devices();
    const bool crosses = from < sources && to >= sources;
    const auto& side = to < sources ? from_ : to_;
    const auto a = node_port(from), b = node_port(to);
    const bool leaves = crosses ? !way_.one_node : a != b;
    const double seconds = (crosses ? cross_ : leaves ? side.between_nodes : side.inside_node).transfer_s(share * bytes_);
    ports_[2 * as_size(from)] += seconds;
    ports_[2 * as_size(to) + 1] += seconds;
    if (!leaves) return;
    ports_[2 * a] += seconds / (crosses ? cross_ports(from_) : side.ports);
    ports_[2 * b + 1] += seconds / (crosses ? cross_ports(to_) : side.ports);
  }
  // The busiest port, at the end of a phase.
  [[nodiscard]] double phase() {
    double most = 0;
    for (std::size_t p = 0; p < ports_.size(); ++p) {
      most = std::max(most, ports_[p]);
      carried_[p] += std::exchange(ports_[p], 0.0);
    }
    return most;
  }
  // Of all phases since the last call.
  [[nodiscard]] double busiest_overall() {
    double most = 0;
    for (auto& p : carried_) most = std::max(most, std::exchange(p, 0.0));
    return most;
  }

  [[nodiscard]] double one_to_one(int parts) {
    const int here = from_.devices() / parts, there = to_.devices() / parts;
    const int sources = from_.devices();
    const double n = from_.devices(), m = to_.devices();
    for (int i = 0; i < sources; ++i)
      if (i % here != 0) send(i, i / here * here, 1 / n);
    double seconds = phase();
    for (int p = 0; p < parts; ++p) send(p * here, sources + p * there, 1.0 / parts);
    seconds += phase();
    for (int j = 0; j < to_.devices(); ++j)
      if (j % there != 0) send(sources + j / there * there, sources + j, 1 / m);
    extra_ = std::max(1.0 / parts - 1 / n, 1.0 / parts - 1 / m);
    return seconds + phase();
  }

  [[nodiscard]] double regroup_before() {
    const int sources = from_.devices(), destinations = to_.devices();
    const auto proxy = [&](int j) { return static_cast<int>(std::int64_t{j} * sources / destinations); };
    std::vector<double> received(as_size(sources), 0.0);
    for_each_overlap([&](int i, int j, double share) {
      if (i == proxy(j)) return;
      send(i, proxy(j), share);
      at(received, proxy(j)) += share;
    });
    const double seconds = phase();
    for (int j = 0; j < destinations; ++j) send(proxy(j), sources + j, 1.0 / destinations);
    extra_ = *std::max_element(received.begin(), received.end());
    return seconds + phase();
  }

  [[nodiscard]] double regroup_after() {
    const int sources = from_.devices(), destinations = to_.devices();
    const auto proxy = [&](int i) { return static_cast<int>(std::int64_t{i} * destinations / sources); };
    std::vector<double> received(as_size(destinations), -1.0 / destinations);
    for (int i = 0; i < sources; ++i) {
      send(i, sources + proxy(i), 1.0 / sources);
      at(received, proxy(i)) += 1.0 / sources;
    }
    const double seconds = phase();
    for_each_overlap([&](int i, int j, double share) {
      if (proxy(i) == j) return;
      send(sources + proxy(i), sources + j, share);
      at(received, j) += share;
    });
    extra_ = std::max(0.0, *std::max_element(received.begin(), received.end()));
    return seconds + phase();
  }

  const boundary_side& from_;
  const boundary_side& to_;
  const boundary_way& way_;
  link cross_;
  double bytes_;
  std::vector<even_overlap> data_, rest_;
  std::vector<double> ports_;    // to send and to receive, of devices, then of nodes
  std::vector<double> carried_;  // by each of them, in the phases that are over
  double extra_ = 0;             // share of the tensor that a device holds on its way, of the last one priced
};

template <class Links>
[[nodiscard]] transfer_cost boundary_cost(const cluster& c, const Links& links, const placement& from, const placement& to,
                                          proximity near, bytes_t bytes) {
  for (const auto* p : {&from, &to}) {
    const auto& d = p->degrees;
    const auto devices = std::int64_t{p->mesh.nodes} * p->mesh.devices_per_node;
    if (d.data < 1 || d.context < 1 || d.tensor < 1 || p->mesh.nodes < 1 || p->mesh.devices_per_node < 1 ||
        devices > INT_MAX / 8 || devices / d.data / d.context < d.tensor)
      throw input_error("a stage of data x context x tensor = " + std::to_string(d.data) + "x" + std::to_string(d.context) + "x" +
                        std::to_string(d.tensor) + " on " + std::to_string(p->mesh.nodes) + "x" +
                        std::to_string(p->mesh.devices_per_node) + " devices");
    static_cast<void>(subcluster_of(c, p->mesh));
  }
  expect_count(bytes, "the bytes of a boundary", 0, std::int64_t{1} << 60);
  const bool joined = from.mesh.subcluster == to.mesh.subcluster;
  const bool on_one_node = joined && (near == proximity::same_node || subcluster_of(c, from.mesh).nodes == 1);
  const auto link_from = [&](const placement& a, const placement& b) {
    return on_one_node ? subcluster_of(c, a.mesh).intra_node : link_between(c, links, a.mesh, b.mesh);
  };
  const auto over = link_from(from, to), back = link_from(to, from);
  if (!over || !back) return {infinity};
  const boundary_side here(c, from), there(c, to);
  const boundary_way way{*over, *back, joined, on_one_node};
  auto best = boundary_pricer(here, there, way, static_cast<double>(bytes)).best();
  best.bytes = bytes;
  return best;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE transfer_cost boundary_cost(const cluster& c, const placement& from, const placement& to, proximity near,
                                            bytes_t bytes) {
  return detail::boundary_cost(c, c, from, to, near, bytes);
}

HETSCHED_INLINE transfer_cost boundary_cost(const cluster& c, const link_index& links, const placement& from, const placement& to,
                                            proximity near, bytes_t bytes) {
  return detail::boundary_cost(c, links, from, to, near, bytes);
}

}  // namespace hetsched
