// SPDX-License-Identifier: Apache-2.0
// What shells complete: names of options, their words, and else names of files.
#pragma once

#include <string>

#include "description.hpp"

namespace command {

[[nodiscard]] std::string bash_completion(const command_description& c);

[[nodiscard]] std::string zsh_completion(const command_description& c);

[[nodiscard]] std::string fish_completion(const command_description& c);

}  // namespace command
