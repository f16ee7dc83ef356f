// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <hetsched/cost/models/training_stack.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

namespace detail {

/// A stack in a file: the name of one that the library knows, or an object with the keys of a stack.json.
[[nodiscard]] training_stack read_stack(const json_value& value);

/// What read_stack reads back as an equal stack: the name, where the library knows the stack.
[[nodiscard]] nlohmann::ordered_json write_stack(const training_stack& s);

}  // namespace detail

/// Reads a stack.json: what it leaves out is as in the stack that it is `like`, hetsched if it names none.
/// Throws: file_error.
[[nodiscard]] training_stack parse_stack(std::string_view text, std::string_view file_name);

/// The stack of that name, else that of the stack.json of that path.
/// Throws: input_error for what is neither, and file_error.
[[nodiscard]] training_stack read_stack(const std::string& name_or_path);

/// The text of a stack.json that parse_stack reads back as an equal stack.
[[nodiscard]] std::string to_json(const training_stack& s);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/stack_json.ipp>
#endif
