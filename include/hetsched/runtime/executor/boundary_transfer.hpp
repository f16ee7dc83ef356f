// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// How the tensors of a boundary travel from the devices of one stage to those of the next. A gradient lies on both sides as its
/// activation does, unless it has layouts of its own. Devices that hold the same slice of an activation also hold the same of its
/// gradient: what each one's backward returns is the whole gradient of what it holds, with nothing left to be summed over
/// replicas (as in Megatron-LM). It is sent back by one of them for each device that needs it.
struct boundary_transfer {
  layout from;               ///< of the sending stage's output
  layout to;                 ///< of the next stage's input
  transfer_plan activation;  ///< from the layout `from` to the layout `to`
  transfer_plan gradient;    ///< back
  /// How many leading dimensions of the layouts are one of the tensors, one inside the other: 2 where [batch, sequence, hidden]
  /// is kept as [batch * sequence, hidden].
  int merged = 1;
  layout own_gradient_from{}, own_gradient_to{};  ///< of gradients of another shape, at the same devices; else without dimensions
  [[nodiscard]] const layout& gradient_from() const { return own_gradient_from.dimensions.empty() ? from : own_gradient_from; }
  [[nodiscard]] const layout& gradient_to() const { return own_gradient_to.dimensions.empty() ? to : own_gradient_to; }
  friend bool operator==(const boundary_transfer&, const boundary_transfer&) = default;
};

/// The transfer between two layouts of one tensor, the same way there and back.
/// Throws: input_error as plan_transfer.
[[nodiscard]] boundary_transfer make_boundary_transfer(layout from, layout to,
                                                       reshard_strategy strategy = reshard_strategy::direct,
                                                       const reshard_options& options = {}, int merged = 1);

/// The devices behind each rank of a schedule, and how tensors travel between them.
struct pipeline_groups {
  std::vector<int> devices;                   ///< how many each rank of the schedule has; they are consecutive ranks
  std::vector<boundary_transfer> boundaries;  ///< by direction, then by the stage before it
  friend bool operator==(const pipeline_groups&, const pipeline_groups&) = default;
};

namespace detail {

/// The shape of a slice's tensor, with the leading dimensions merged.
[[nodiscard]] tensor_shape shape_of_slice(std::span<const interval> s, int merged = 1);

/// A layout of one device.
[[nodiscard]] layout whole_layout(const tensor_shape& shape);

/// Every rank of a schedule is one device; `boundaries`: the shape of each stage's output, without the last's.
/// Throws: input_error for another number of shapes.
[[nodiscard]] pipeline_groups single_devices(const schedule& order, const std::vector<tensor_shape>& boundaries);

/// The same for ranks of one process, with what it was made of.
struct common_devices {
  int ranks = 0, directions = 0;
  std::vector<tensor_shape> shapes;
  pipeline_groups groups;
};
[[nodiscard]] std::shared_ptr<const common_devices> find_common(shared_values* values, const schedule& order,
                                                                const std::vector<tensor_shape>& boundaries);

/// Whether boxes have all elements of s together.
[[nodiscard]] bool covers(std::span<const slice> boxes, const slice& s);

/// Throws: input_error unless every device has what it sends by then, and what it needs in the end.
void check_transfer(const transfer_plan& p, const layout& from, const layout& to);

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/boundary_transfer.ipp>
#endif
