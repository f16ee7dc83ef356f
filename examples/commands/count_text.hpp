// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace command {

/// "1 stage", "2 stages", "1 microbatch", "2 microbatches".
[[nodiscard]] inline std::string count_text(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + ' ' + std::string(noun) + (count == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

}  // namespace command
