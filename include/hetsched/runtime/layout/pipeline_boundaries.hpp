// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/group_training_test.cpp.

#include <functional>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// How a stage of these degrees lays out what lies between it and a neighbour, a tensor of this whole shape. Of more dimensions
/// than the shape where the shape's first is several in one, as in [batch * sequence, hidden].
using layout_rule = std::function<layout(const tensor_shape& whole, const degrees&)>;

/// The first dimension over data, the others whole: context and tensor ranks are replicas.
[[nodiscard]] layout batch_layout(const tensor_shape& whole, const degrees& d);

namespace detail {

/// Cuts the dimension that lies over data as the group shares its samples, if it does so unevenly.
/// Throws: input_error where data does not cut a dimension by itself, or not one of whole samples.
void cut_by_samples(layout& l, const pipeline_layout& line, int group);

}  // namespace detail

/// What an executor has to know of a pipeline's groups. `shape_after`: (layer) -> whole tensor_shape of its output for a
/// microbatch, or boundary_shape where the output's gradient has another. `layout_of`: may be empty, for batch_layout; even, as
/// uneven shares of data are cut here. Throws: input_error for layouts that are not of the shape; as validate(layout) and
/// plan_transfer.
[[nodiscard]] pipeline_groups make_pipeline_groups(const pipeline_layout& line,
                                                   const std::function<boundary_shape(int layer)>& shape_after,
                                                   const layout_rule& layout_of = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/pipeline_boundaries.ipp>
#endif
