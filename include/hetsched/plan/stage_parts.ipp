// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/reshard/cut_points.hpp>

namespace hetsched {

HETSCHED_INLINE bool is_mixed(const std::vector<device_group>& devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const device_group& g) { return g.mesh.subcluster != devices.front().mesh.subcluster; });
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE bool are_uneven(const std::vector<double>& shares) {
  return std::any_of(shares.begin(), shares.end(), [&](double s) { return s != shares.front(); });
}

/// Appends the parts of one group of devices, whose replicas get these samples.
inline void append_parts(std::vector<stage_part>& parts, const stage_plan& s, const device_group& g,
                         const std::vector<int>& samples) {
  const int each = s.degrees.context * s.degrees.tensor, on_node = g.mesh.devices_per_node;
  if (each < on_node ? on_node % each != 0 : each % on_node != 0)
    throw input_error("a data rank of " + std::to_string(each) + " devices lies across nodes of " + std::to_string(on_node));
  const int per_node = std::max(1, on_node / each);
  const int count = static_cast<int>(samples.size());
  for (int first = 0; first < count;) {
    int last = first;
    while (last < count && at(samples, last) == at(samples, first)) ++last;
    // Whole nodes, or what is on one node.
    int taken = last - first;
    if (each < on_node)
      taken =
          first % per_node == 0 && taken >= per_node ? taken / per_node * per_node : std::min(taken, per_node - first % per_node);
    auto mesh = g.mesh;
    mesh.nodes = std::max(1, taken * each / on_node);
    mesh.devices_per_node = std::min(on_node, taken * each);
    auto degrees = s.degrees;
    degrees.data = taken;
    parts.push_back({.where = {.mesh = mesh, .degrees = degrees, .recompute = s.recompute, .zero = s.zero},
                     .devices = {{.mesh = mesh, .first_device = g.first_device + first * each}},
                     .samples = taken * at(samples, first)});
    first += taken;
  }
}

/// The parts of one replica whose tensor ranks are unlike, or have unevenly many of so many slices.
[[nodiscard]] inline std::vector<stage_part> sliced_parts(const stage_plan& s, int microbatch_size, int slices) {
  if (s.degrees.data > 1 || s.degrees.context > 1)
    throw input_error(
        "tensor ranks with unlike devices or uneven shares have a price where the data and the context degree are "
        "1; here they are " +
        std::to_string(s.degrees.data) + " and " + std::to_string(s.degrees.context));
  if (slices == 0) throw input_error("tensor ranks with unlike devices or uneven shares have no price in these costs");
  const auto ranks = as_size(s.degrees.tensor);
  const auto shares = s.shares.tensor.empty() ? std::vector<double>(ranks, 1) : s.shares.tensor;
  if (shares.size() != ranks)
    throw input_error("it has " + std::to_string(shares.size()) + " shares for a tensor degree of " + std::to_string(ranks));
  const auto points = cut_points(slices, shares);
  auto by_rank = s;  // as data ranks, whose samples are the slices
  by_rank.degrees = {.data = s.degrees.tensor};
  std::vector<stage_part> parts;
  std::size_t rank = 0;
  for (const auto& g : s.devices) {
    std::vector<int> held;
    for (int r = 0; r < g.mesh.device_count(); ++r, ++rank) {
      held.push_back(static_cast<int>(points[rank + 1] - points[rank]));
      if (held.back() == 0)
        throw input_error("tensor rank " + std::to_string(rank) + " gets none of the " + std::to_string(slices) +
                          " slices of a layer");
    }
    append_parts(parts, by_rank, g, held);
  }
  for (auto& p : parts) {
    p.slices = p.samples / p.where.degrees.data;
    p.samples = microbatch_size;
    p.where.degrees = {.tensor = p.where.degrees.data};
  }
  return parts;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<stage_part> parts_of(const stage_plan& s, int microbatch_size, int slices) {
  const auto& d = s.degrees;
  for (const int degree : {d.data, d.context, d.tensor, d.expert}) detail::expect_count(degree, "a degree of a stage");
  detail::expect_count(microbatch_size, "microbatch_size");
  detail::expect_count(slices, "slices", 0);
  const int devices = device_count(s.devices);
  for (const auto& g : s.devices) detail::expect_count(g.first_device, "the first device of a group", 0, INT_MAX - devices);
  if (devices / d.data / d.context != d.tensor || checked_mul(d.data, d.context, d.tensor) != devices)
    throw input_error("data x context x tensor must be its " + std::to_string(devices) + " devices");
  if (detail::are_uneven(s.shares.context))
    throw input_error("uneven shares of the context axis have no price; those of the data and the tensor axis have");
  if (s.degrees.expert > 1 && detail::are_uneven(s.shares.state))
    throw input_error("uneven shares of the state of data ranks that share out experts have no price");
  const bool mixed = is_mixed(s.devices);
  if (detail::are_uneven(s.shares.tensor) || (mixed && s.degrees.data == 1))
    return detail::sliced_parts(s, microbatch_size, slices);
  if (!mixed && !detail::are_uneven(s.shares.data))
    return {{.where = s.where(), .devices = s.devices, .samples = microbatch_size}};
  if (s.degrees.expert > 1) throw input_error("experts on data ranks with different devices or numbers of samples have no price");
  const auto ranks = as_size(s.degrees.data);
  const auto shares = s.shares.data.empty() ? std::vector<double>(ranks, 1) : s.shares.data;
  if (shares.size() != ranks)
    throw input_error("it has " + std::to_string(shares.size()) + " shares for a data degree of " + std::to_string(ranks));
  const auto points = cut_points(microbatch_size, shares);
  std::vector<stage_part> parts;
  std::size_t rank = 0;
  const int each = s.degrees.context * s.degrees.tensor;
  for (const auto& g : s.devices) {
    if (g.mesh.device_count() % each != 0)
      throw input_error("a data rank of " + std::to_string(each) + " devices lies in two groups of devices");
    std::vector<int> samples;
    for (int r = 0; r < g.mesh.device_count() / each; ++r, ++rank) {
      samples.push_back(static_cast<int>(points[rank + 1] - points[rank]));
      if (samples.back() == 0)
        throw input_error("data rank " + std::to_string(rank) + " gets none of the " + std::to_string(microbatch_size) +
                          " samples of a microbatch");
    }
    detail::append_parts(parts, s, g, samples);
  }
  return parts;
}

HETSCHED_INLINE void share_state(const stage_plan& s, const std::vector<stage_part>& parts, parts_cost& cost) {
  if (s.shares.state.empty() || s.zero < 1) return;
  detail::expect_size(cost.parts.size(), parts.size(), "the costs of parts", "one per part");
  detail::expect_naturals(s.shares.state, "shares of the state");
  std::int64_t ranks = 0;
  for (const auto& p : parts) {
    detail::expect_count(p.where.degrees.data, "the data degree of a part");
    ranks += p.where.degrees.data;
  }
  detail::expect_size(s.shares.state.size(), static_cast<std::size_t>(ranks), "shares of the state", "one per data rank");
  std::size_t rank = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const int data = parts[k].where.degrees.data;
    double most = 0;
    for (int r = 0; r < data; ++r, ++rank) most = s.shares.state[rank] > most ? s.shares.state[rank] : most;
    auto& held = cost.parts[k];
    const auto shared_out = [&](bytes_t& bytes) {
      const double wanted = static_cast<double>(bytes) * data * most + 0.5;
      if (!(wanted >= 0 && wanted < 0x1p62)) throw input_error("a share of " + detail::number_text(wanted) + " bytes of a state");
      const auto now = static_cast<bytes_t>(wanted);
      held.weight_bytes = checked_add(held.weight_bytes, now - bytes);
      bytes = now;
    };
    shared_out(held.optimizer_bytes);
    if (s.zero >= 2) shared_out(held.gradient_bytes);
  }
  if (parts.size() == 1) cost.slowest = cost.parts.front();
}

}  // namespace hetsched
