// SPDX-License-Identifier: Apache-2.0
// The GPT's layers and loss behind declarations, so that each is compiled once for all commands.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include <hetsched/cluster/placement.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>

#include <gpt/config.hpp>
#include <gpt/tensor.hpp>

namespace train {

/// As gpt::make_layer and gpt::cross_entropy_part, for float and double.
template <class Real>
[[nodiscard]] hetsched::any_layer<gpt::tensor<Real>> make_layer(const gpt::config& m, int layer,
                                                                const hetsched::device_axis<Real>& axis,
                                                                hetsched::recomputation recompute,
                                                                const hetsched::device_axis<Real>& context = {},
                                                                const hetsched::device_axis<Real>& expert = {},
                                                                const std::vector<double>& shares = {});
template <class Real>
[[nodiscard]] hetsched::loss_value<gpt::tensor<Real>> cross_entropy_part(gpt::tensor<Real> logits,
                                                                         const gpt::tensor<Real>& targets, std::size_t all_rows);

/// Times all layers of a model on a microbatch of a text; on a tensor axis this rank's part of them, with all ranks of it.
template <class Real>
[[nodiscard]] std::vector<hetsched::layer_profile> profile_model(const gpt::config& m, std::string_view text, int samples,
                                                                 const hetsched::profile_options& options,
                                                                 const hetsched::device_axis<Real>& axis = {});

/// FLOP/s of products of square matrices, the best of a few.
template <class Real>
[[nodiscard]] double matrix_flops();

}  // namespace train
