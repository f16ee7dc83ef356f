// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <hetsched/plan/target.hpp>

namespace hetsched {

/// Reads a target.json: what it leaves out is as in the target that it is `like`, and without that all that plans can say.
/// Throws: file_error.
[[nodiscard]] plan_target parse_target(std::string_view text, std::string_view file_name);

/// The target of that name, else that of the target.json of that path.
/// Throws: input_error for what is neither, and file_error.
[[nodiscard]] plan_target read_target(const std::string& name_or_path);

/// The text of a target.json that parse_target reads back as an equal target.
[[nodiscard]] std::string to_json(const plan_target& t);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/target_json.ipp>
#endif
