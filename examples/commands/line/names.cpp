// SPDX-License-Identifier: Apache-2.0
#include "../names.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/io/json_reader.hpp>

namespace command {

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  const auto shown = names.size() <= most ? names.size() : most - 1;
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i ? ", " : "") + names[i];
  return shown == names.size() ? text : text + " and " + std::to_string(names.size() - shown) + " more";
}

std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& known) {
  const auto like = hetsched::detail::names_like(name, known);
  std::string text;
  for (std::size_t i = 0; i < like.size(); ++i)
    text += (i == 0 ? "; did you mean " : i + 1 < like.size() ? ", " : " or ") + std::string(like[i]);
  return text.empty() ? text : text + "?";
}

std::string unknown_name_text(const std::string& option, const std::string& name, const std::vector<std::string_view>& known) {
  std::string text = option + ": found " + name + ", expected one of ";
  bool files = false;
  for (std::size_t i = 0; i < known.size(); ++i) {
    text += (i ? ", " : "") + std::string(known[i]);
    files = files || known[i] == "@FILE";
  }
  std::error_code none;
  return text + (files && std::filesystem::exists(name, none) ? "; did you mean @" + name + "?" : did_you_mean(name, known));
}

void unknown_name(const std::string& option, const std::string& name, const std::vector<std::string_view>& known) {
  throw hetsched::input_error(unknown_name_text(option, name, known));
}

}  // namespace command
