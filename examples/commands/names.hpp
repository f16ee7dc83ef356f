// SPDX-License-Identifier: Apache-2.0
// Names in messages: many of them, and what a mistyped one may have been. Defined in line/names.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace command {

/// "a, b, c and 5 more".
[[nodiscard]] std::string listed(const std::vector<std::string>& names);

/// `; did you mean a, b or c?`, or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& known);

/// That `name`, given to `option`, is not among the known ones. A file where @FILE is known was to be one.
[[nodiscard]] std::string unknown_name_text(const std::string& option, const std::string& name,
                                            const std::vector<std::string_view>& known);

/// Throws input_error: unknown_name_text.
[[noreturn]] void unknown_name(const std::string& option, const std::string& name, const std::vector<std::string_view>& known);

}  // namespace command
