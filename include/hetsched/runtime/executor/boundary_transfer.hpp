// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// How the tensors of a boundary travel from the devices of one stage to those of the next. A gradient lies on both sides as its
/// activation does. Devices that hold the same slice of an activation also hold the same of its gradient: what each one's
/// backward returns is the whole gradient of what it holds, with nothing left to be summed over replicas (as in Megatron-LM). It
/// is sent back by one of them for each device that needs it.
struct boundary_transfer {
  layout from;               ///< of the sending stage's output
  layout to;                 ///< of the next stage's input
  transfer_plan activation;  ///< from the layout `from` to the layout `to`
  transfer_plan gradient;    ///< back
  /// How many leading dimensions of the layouts are one of the tensors, one inside the other: 2 where [batch, sequence, hidden]
  /// is kept as [batch * sequence, hidden].
  int merged = 1;
  friend bool operator==(const boundary_transfer&, const boundary_transfer&) = default;
};

/// The transfer between two layouts of one tensor, the same way there and back.
/// Throws: input_error as plan_transfer.
[[nodiscard]] inline boundary_transfer make_boundary_transfer(layout from, layout to,
                                                              reshard_strategy strategy = reshard_strategy::direct,
                                                              const reshard_options& options = {}, int merged = 1) {
  auto there = plan_transfer(from, to, strategy, options), back = plan_transfer(to, from, strategy, options);
  return {.from = std::move(from),
          .to = std::move(to),
          .activation = std::move(there),
          .gradient = std::move(back),
          .merged = merged};
}

/// The devices behind each rank of a schedule, and how tensors travel between them.
struct pipeline_groups {
  std::vector<int> devices;                   ///< how many each rank of the schedule has; they are consecutive ranks
  std::vector<boundary_transfer> boundaries;  ///< by direction, then by the stage before it
};

namespace detail {

/// The shape of a slice's tensor, with the leading dimensions merged.
[[nodiscard]] inline tensor_shape shape_of_slice(std::span<const interval> s, int merged = 1) {
  tensor_shape shape;
  for (std::size_t d = 0; d < s.size(); ++d) {
    const auto extent = static_cast<std::size_t>(s[d].size());
    if (d > 0 && d < static_cast<std::size_t>(merged))
      shape.front() *= extent;
    else
      shape.push_back(extent);
  }
  return shape;
}

/// A layout of one device.
[[nodiscard]] inline layout whole_layout(const tensor_shape& shape) {
  layout l{.mesh = {1}, .dimensions = {}};
  for (const auto extent : shape) l.dimensions.push_back({.extent = static_cast<std::int64_t>(extent)});
  return l;
}

/// Every rank of a schedule is one device; `boundaries`: the shape of each stage's output, without the last's.
/// Throws: input_error for another number of shapes.
[[nodiscard]] inline pipeline_groups single_devices(const schedule& order, const std::vector<tensor_shape>& boundaries) {
  if (boundaries.size() + 1 != static_cast<std::size_t>(std::max(order.stages, 1)))
    throw input_error("boundaries needs one shape per boundary (stages - 1)");
  pipeline_groups g{.devices = std::vector<int>(static_cast<std::size_t>(std::max(order.ranks, 0)), 1), .boundaries = {}};
  for (int c = 0; c < order.directions; ++c)
    for (const auto& shape : boundaries) g.boundaries.push_back(make_boundary_transfer(whole_layout(shape), whole_layout(shape)));
  return g;
}

/// Whether boxes have all elements of s together.
[[nodiscard]] inline bool covers(std::span<const slice> boxes, const slice& s) {
  if (element_count(s) == 0) return true;
  if (boxes.empty()) return false;
  const auto& box = boxes.front();
  const auto rest = boxes.subspan(1);
  if (!overlap(box, s)) return covers(rest, s);
  // What of s lies outside of the box, cut off one dimension after the other.
  slice left = s;
  for (std::size_t d = 0; d < s.size(); ++d) {
    const auto inside = interval{std::max(left[d].first, box[d].first), std::min(left[d].last, box[d].last)};
    for (const auto outside : {interval{left[d].first, inside.first}, interval{inside.last, left[d].last}}) {
      if (outside.size() <= 0) continue;
      slice part = left;
      part[d] = outside;
      if (!covers(rest, part)) return false;
    }
    left[d] = inside;
  }
  return true;
}

/// Throws: input_error unless every device has what it sends by then, and what it needs in the end.
inline void check_transfer(const transfer_plan& p, const layout& from, const layout& to) {
  const int sources = from.device_count(), destinations = to.device_count();
  const auto wrong = [](const std::string& text) { throw input_error("a transfer plan cannot be run: " + text); };
  if (p.sources != sources || p.destinations != destinations)
    wrong("it is for " + std::to_string(p.sources) + " and " + std::to_string(p.destinations) + " devices, not " +
          std::to_string(sources) + " and " + std::to_string(destinations));
  if (p.dimensions != from.dimensions.size() || from.whole() != to.whole()) wrong("its tensor has another shape");
  std::vector<std::vector<slice>> held(static_cast<std::size_t>(sources + destinations));
  for (int i = 0; i < sources; ++i) held[static_cast<std::size_t>(i)].push_back(slice_of(from, i));
  for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
    std::vector<std::pair<int, slice>> come;
    for (const auto& m : p.phase(phase)) {
      const auto number = std::to_string(&m - p.messages.data());
      if (m.from < 0 || m.to < 0 || m.from >= sources + destinations || m.to >= sources + destinations || m.from == m.to)
        wrong("message " + number + " goes from device " + std::to_string(m.from) + " to device " + std::to_string(m.to));
      const auto part = p.slice_of(m);
      come.emplace_back(m.to, slice(part.begin(), part.end()));
      if (!covers(held[static_cast<std::size_t>(m.from)], come.back().second))
        wrong("device " + std::to_string(m.from) + " does not have what it is to send in message " + number);
    }
    for (auto& [device, part] : come) held[static_cast<std::size_t>(device)].push_back(std::move(part));
  }
  for (int j = 0; j < destinations; ++j)
    if (!covers(held[static_cast<std::size_t>(sources + j)], slice_of(to, j)))
      wrong("device " + std::to_string(sources + j) + " does not get all of its slice");
}

}  // namespace detail
}  // namespace hetsched
