// SPDX-License-Identifier: Apache-2.0
// --help: at most 100 columns wide.
#pragma once

#include <cstddef>
#include <string>

#include "description.hpp"

namespace command {

inline constexpr std::size_t help_width = 100;

namespace page {

[[nodiscard]] std::string about_with_notes(const option_description& o);

}  // namespace page

[[nodiscard]] std::string help_text(const command_description& c);

}  // namespace command
