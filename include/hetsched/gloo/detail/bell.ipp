// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/bell.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void bell::ring(bool of_send, bool late) {
  (of_send ? sent_ : received_) = true;
  if (waits_ == for_all || (waits_ == for_receives && !of_send)) {
    if (late)
      late_ = true;
    else
      changed_.notify_one();
  }
  if (also_) also_();
}

}  // namespace hetsched::detail
