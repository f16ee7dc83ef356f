// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/communicator/detail/sent_tensor.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string difference(const edge& where, const sent_tensor& sent, const sent_tensor& wanted) {
  if (sent.stamp != wanted.stamp)
    return to_text(where) + ": sent is " + to_text(sent.stamp) + ", expected is " + to_text(wanted.stamp);
  const bool fits = sent.shape == wanted.shape || sent.shape == no_shape || wanted.shape == no_shape;
  if (sent.bytes != wanted.bytes || !fits)
    return to_text(where) + ", " + to_text(sent.stamp) + ": sent are " + std::to_string(sent.elements) + " elements (" +
           std::to_string(sent.bytes) + " bytes), expected " + std::to_string(wanted.elements) + " (" +
           std::to_string(wanted.bytes) + " bytes), or of another shape";
  return {};
}

}  // namespace hetsched::detail
