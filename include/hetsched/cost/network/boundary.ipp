// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/submesh.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/network/transfer.hpp>
#include <hetsched/reshard/strategy.hpp>

namespace hetsched::detail {

/// A stage at a boundary: its devices hold a grid of `data` by `rest` equal parts of the batch and of the sequence.
struct boundary_side {
  int data = 1, rest = 1, per_node = 1, nodes = 1;
  link inside_node{}, between_nodes{};

  boundary_side(const cluster& c, const placement& p)
      : data(p.degrees.data),
        rest(p.degrees.context * p.degrees.tensor),
        per_node(p.mesh.devices_per_node),
        nodes(p.mesh.nodes),
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

/// Prices the ways over one boundary as price_of does, without writing down the messages. Devices are numbered as in transfer
/// plans.
class boundary_pricer {
 public:
  /// `cross`: the link between the stages.
  boundary_pricer(const boundary_side& from, const boundary_side& to, const link& cross, bool on_one_node, double bytes)
      : from_(from),
        to_(to),
        cross_(cross),
        on_one_node_(on_one_node),
        bytes_(bytes),
        data_(overlaps_of(from.data, to.data)),
        rest_(overlaps_of(from.rest, to.rest)),
        ports_(2 * as_size(from.devices() + to.devices() + from.nodes + to.nodes)),
        carried_(ports_.size()) {}

  [[nodiscard]] double direct() {
    for_each_overlap([&](int i, int j, double share) { send(i, from_.devices() + j, share); });
    return busiest();
  }

  [[nodiscard]] transfer_cost best() {
    const double seconds = direct();
    transfer_cost best(seconds, seconds, 0, 0, name_of(reshard_strategy::direct));
    const auto consider = [&](reshard_strategy s, double price) {
      const double occupied_s = busiest_overall();
      if (!(price < best.forward_s)) return;
      best = {price, price, 0, static_cast<bytes_t>(extra_ * bytes_ + 0.5), name_of(s)};
      // Rounding apart, no port carries more in all phases than these take. The gradient takes the same messages back.
      if (occupied_s < price) best.forward_occupied_s = best.backward_occupied_s = occupied_s;
    };
    // What every way takes at least that crosses in as many messages as there are devices on the smaller side.
    const int ways = on_one_node_ ? std::min(from_.devices(), to_.devices()) : std::min(from_.nodes, to_.nodes);
    const int fewest = std::min(from_.devices(), to_.devices());
    const double aligned = (fewest + ways - 1) / ways * cross_.latency_s + bytes_ / ways / cross_.bandwidth;
    if (seconds > aligned) {
      consider(reshard_strategy::regroup_before, regroup_before());
      consider(reshard_strategy::regroup_after, regroup_after());
    }
    const int outer = std::gcd(from_.data, to_.data);
    if (best.forward_s > cross_.latency_s + bytes_ / ways / cross_.bandwidth)
      consider(reshard_strategy::one_to_one, one_to_one(outer));
    if (outer > 1 && best.forward_s > cross_.latency_s + bytes_ / cross_.bandwidth)
      consider(reshard_strategy::one_to_one, one_to_one(1));
    return best;
  }

 private:
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
    const bool leaves = crosses ? !on_one_node_ : a != b;
    const double seconds = (crosses ? cross_ : leaves ? side.between_nodes : side.inside_node).transfer_s(share * bytes_);
    ports_[2 * as_size(from)] += seconds;
    ports_[2 * as_size(to) + 1] += seconds;
    if (!leaves) return;
    ports_[2 * a] += seconds;
    ports_[2 * b + 1] += seconds;
  }
  [[nodiscard]] double busiest() {
    double most = 0;
    for (auto& p : ports_) most = std::max(most, std::exchange(p, 0.0));
    return most;
  }
  // The same at the end of one of several phases.
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
  link cross_;
  bool on_one_node_;
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
  const auto over = on_one_node ? subcluster_of(c, from.mesh).intra_node : link_between(c, links, from.mesh, to.mesh);
  if (!over) return {std::numeric_limits<double>::infinity()};
  const boundary_side here(c, from), there(c, to);
  auto best = boundary_pricer(here, there, *over, on_one_node, static_cast<double>(bytes)).best();
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
