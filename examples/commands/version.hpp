// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace command {

/// As the project in CMakeLists.txt has it.
inline constexpr std::string_view version = "0.1.0";

}  // namespace command
