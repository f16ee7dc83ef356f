// SPDX-License-Identifier: Apache-2.0
// Manual pages, for man.
#pragma once

#include <string>

#include "description.hpp"

namespace command {

[[nodiscard]] std::string manual_page(const command_description& c);

}  // namespace command
