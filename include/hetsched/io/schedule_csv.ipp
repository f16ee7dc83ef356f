// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io/schedule_csv.hpp>

namespace hetsched {

HETSCHED_INLINE schedule parse_schedule(std::string_view text, const std::string& file_name) {
  try {
    return parse_schedule_csv(text);
  } catch (const input_error& wrong) {
    throw file_error(file_name, {}, wrong.what());
  }
}

}  // namespace hetsched
