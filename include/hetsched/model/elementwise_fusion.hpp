// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/transformer_operators_test.cpp.

namespace hetsched {

/// Which elementwise operations run in one kernel.
enum class elementwise_fusion {
  none,      ///< as in an eager framework, each reads and writes its tensors by itself
  grouped,   ///< bias with activation, dropout with residual sum, scale and mask with softmax (Megatron-LM)
  absorbed,  ///< all ride on the products and norms beside them
};

}  // namespace hetsched
