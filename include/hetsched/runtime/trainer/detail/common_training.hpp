// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/allocation_test.cpp.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
#include <hetsched/runtime/layout/layer_shapes.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

// What the ranks of one process read alike of a training. Each value is made by the first of them that needs it, and is the same
// as each would make for itself.
namespace hetsched::detail {

struct common_layout {
  training_layout layout;
  std::array<double, 3> digests{};  ///< of its ranks, its stages and its schedules
};
/// Throws: as validate().
[[nodiscard]] std::shared_ptr<const common_layout> find_common(shared_values* values, const training_layout& layout);

/// How tensors travel between the groups of a pipeline.
struct common_boundaries {
  std::shared_ptr<const common_layout> of;
  std::size_t pipeline = 0;
  std::vector<boundary_shape> shapes;  ///< behind each stage but the last; or one for all
  bool by_rule = false;                ///< laid out by a user's function: ranks share what they all have found by theirs
  pipeline_groups groups;
  double digest = 0;
};
/// Throws: as make_pipeline_groups.
[[nodiscard]] std::shared_ptr<const common_boundaries> find_common(shared_values* values,
                                                                   const std::shared_ptr<const common_layout>& of,
                                                                   std::size_t pipeline, const layer_shapes& shape_after,
                                                                   const layout_rule& rule);

/// What all ranks have told of their layers, put together.
struct common_model {
  std::shared_ptr<const common_layout> of;
  std::uint64_t round = 0;  ///< of gather(), in which they have told it
  std::vector<model_parameter> parameters;
  std::vector<std::vector<tensor_shape>> buffers;  ///< by layer
  std::vector<layer_names> names;                  ///< by layer
};
/// `told`: of every rank the digest of its boundaries, and what tell_layer() tells of each of its layers.
/// Throws: agreed_error where ranks' boundaries, or as learn_directory and model_parameters, layers are not alike.
[[nodiscard]] std::shared_ptr<const common_model> find_common(shared_values* values,
                                                              const std::shared_ptr<const common_layout>& of,
                                                              const told_numbers& told, const std::vector<parameter_tie>& ties,
                                                              bool shard_optimizer);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/detail/common_training.ipp>
#endif
