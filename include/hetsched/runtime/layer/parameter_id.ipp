// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>

namespace hetsched {

HETSCHED_INLINE std::string to_text(const parameter_id& p) {
  return "parameter " + std::to_string(p.number) + " of layer " + std::to_string(p.layer);
}

}  // namespace hetsched
