// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string of_place(payload p, int number) {
  return (p == payload::layer_gradient ? " of layer "
          : p == payload::collective   ? " of group "
                                       : " of stage ") +
         std::to_string(number);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_text(const edge& e) {
  return std::string(payload_name(e.what)) + detail::of_place(e.what, e.stage) + " from rank " + std::to_string(e.from) +
         " to rank " + std::to_string(e.to) + (e.part == 0 ? "" : ", part " + std::to_string(e.part)) +
         (e.direction == 0 ? "" : " (direction " + std::to_string(e.direction) + ")");
}

HETSCHED_INLINE std::string to_text(const stamp& s) {
  const bool collective = s.what == payload::collective;
  return (collective ? "call " : "step ") + std::to_string(s.step) + ", " +
         (collective                       ? "kind "
          : detail::between_stages(s.what) ? "microbatch "
                                           : "parameter ") +
         std::to_string(s.microbatch) + ", " + payload_name(s.what) + detail::of_place(s.what, s.stage) +
         (s.direction == 0 ? "" : " (direction " + std::to_string(s.direction) + ")");
}

}  // namespace hetsched
