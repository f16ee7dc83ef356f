// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/model/layer.hpp>

namespace hetsched {

/// The same layers with attention in one kernel that never stores its scores. They are neither kept nor moved through memory,
/// and backward makes them again: five products to the two of forward. So for model FLOPs, ask training_flops of the chain
/// before.
/// Source: Dao et al. 2022, sec. 3.
[[nodiscard]] layer_chain with_flash_attention(layer_chain chain);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/flash_attention.ipp>
#endif
