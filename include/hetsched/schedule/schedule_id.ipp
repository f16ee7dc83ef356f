// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/schedule_id.hpp>

namespace hetsched {

HETSCHED_INLINE std::optional<schedule_id> find_schedule_id(std::string_view name) {
  for (std::size_t i = 0; i < std::size(detail::schedule_id_names); ++i)
    if (detail::schedule_id_names[i] == name) return static_cast<schedule_id>(i);
  return {};
}

}  // namespace hetsched
