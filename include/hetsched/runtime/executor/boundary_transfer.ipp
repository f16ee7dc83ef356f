// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

HETSCHED_INLINE boundary_transfer make_boundary_transfer(layout from, layout to, reshard_strategy strategy,
                                                         const reshard_options& options, int merged) {
  auto there = plan_transfer(from, to, strategy, options), back = plan_transfer(to, from, strategy, options);
  return {.from = std::move(from),
          .to = std::move(to),
          .activation = std::move(there),
          .gradient = std::move(back),
          .merged = merged};
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE tensor_shape shape_of_slice(std::span<const interval> s, int merged) {
  tensor_shape shape;
  for (std::size_t d = 0; d < s.size(); ++d) {
    const auto extent = as_size(s[d].size());
    if (d > 0 && d < as_size(merged))
      shape.front() *= extent;
    else
      shape.push_back(extent);
  }
  return shape;
}

HETSCHED_INLINE layout whole_layout(const tensor_shape& shape) {
  layout l{.mesh = {1}, .dimensions = {}};
  for (const auto extent : shape) l.dimensions.push_back({.extent = static_cast<std::int64_t>(extent)});
  return l;
}

HETSCHED_INLINE pipeline_groups single_devices(const schedule& order, const std::vector<tensor_shape>& boundaries) {
  if (boundaries.size() + 1 != as_size(std::max(order.stages, 1)))
    throw input_error("boundaries needs one shape per boundary (stages - 1)");
  pipeline_groups g{.devices = std::vector<int>(as_size(std::max(order.ranks, 0)), 1), .boundaries = {}};
  for (int c = 0; c < order.directions; ++c)
    for (const auto& shape : boundaries) g.boundaries.push_back(make_boundary_transfer(whole_layout(shape), whole_layout(shape)));
  return g;
}

HETSCHED_INLINE std::shared_ptr<const common_devices> find_common(shared_values* values, const schedule& order,
                                                                  const std::vector<tensor_shape>& boundaries) {
  return find_or_make<common_devices>(
      values,
      [&](const common_devices& one) {
        return one.ranks == order.ranks && one.directions == order.directions && one.shapes == boundaries;
      },
      [&] {
        return std::make_shared<common_devices>(
            common_devices{order.ranks, order.directions, boundaries, single_devices(order, boundaries)});
      });
}

HETSCHED_INLINE bool covers(std::span<const slice> boxes, const slice& s) {
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

HETSCHED_INLINE void check_transfer(const transfer_plan& p, const layout& from, const layout& to) {
  const int sources = from.device_count(), destinations = to.device_count();
  const auto wrong = [](const std::string& text) { throw input_error("a transfer plan cannot be run: " + text); };
  if (p.sources != sources || p.destinations != destinations)
    wrong("it is for " + std::to_string(p.sources) + " and " + std::to_string(p.destinations) + " devices, not " +
          std::to_string(sources) + " and " + std::to_string(destinations));
  if (p.dimensions != from.dimensions.size() || from.whole() != to.whole()) wrong("its tensor has another shape");
  std::vector<std::vector<slice>> held(as_size(sources + destinations));
  for (int i = 0; i < sources; ++i) at(held, i).push_back(slice_of(from, i));
  for (std::size_t phase = 0; phase < p.phase_count(); ++phase) {
    std::vector<std::pair<int, slice>> come;
    for (const auto& m : p.phase(phase)) {
      const auto number = std::to_string(&m - p.messages.data());
      if (m.from < 0 || m.to < 0 || m.from >= sources + destinations || m.to >= sources + destinations || m.from == m.to)
        wrong("message " + number + " goes from device " + std::to_string(m.from) + " to device " + std::to_string(m.to));
      const auto part = p.slice_of(m);
      come.emplace_back(m.to, slice(part.begin(), part.end()));
      if (!covers(at(held, m.from), come.back().second))
        wrong("device " + std::to_string(m.from) + " does not have what it is to send in message " + number);
    }
    for (auto& [device, part] : come) at(held, device).push_back(std::move(part));
  }
  for (int j = 0; j < destinations; ++j)
    if (!covers(at(held, sources + j), slice_of(to, j)))
      wrong("device " + std::to_string(sources + j) + " does not get all of its slice");
}

}  // namespace hetsched::detail
