// SPDX-License-Identifier: Apache-2.0
// What every command line has beside its own options, and what it says of mistyped ones.
#pragma once

#include <string>

#include <CLI/App.hpp>

#include "description.hpp"

namespace command {

/// Whether --quiet was given.
inline bool quiet = false;

/// Adds --version, --quiet but for the driver, and the hidden --manual-page and --completion SHELL, which write what `describe`
/// says for man and for shells.
void prepare(CLI::App& app);

/// CLI11's message for a value outside of a set ("--zero: 4 not in {auto,0,1}") in the words of the other messages; any other
/// message as it is.
[[nodiscard]] std::string reworded(const std::string& what);

/// What is wrong with the first argument that nothing takes, with a guess where it looks like an option; else nothing.
[[nodiscard]] std::string unknown_argument(const CLI::App& app);

}  // namespace command
