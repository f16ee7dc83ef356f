// SPDX-License-Identifier: Apache-2.0
#include "description.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace command {

namespace {

/// The words between the first braces of a validator's text, as in {a,b} and {a->0,b->1}.
std::vector<std::string> words_in_braces(std::string_view text) {
  const auto begin = text.find('{'), end = text.find('}');
  std::vector<std::string> words;
  if (begin == std::string_view::npos || end == std::string_view::npos) return words;
  for (text = text.substr(begin + 1, end - begin - 1); !text.empty();) {
    const auto comma = std::min(text.find(','), text.size());
    const auto word = text.substr(0, comma);
    words.emplace_back(word.substr(0, word.find("->")));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return words;
}

/// `1 to 9` of a validator's text like INT in [1 - 9]; else nothing.
std::string range_in_brackets(std::string_view text) {
  const auto begin = text.find("in ["), middle = text.find(" - "), end = text.find(']');
  if (begin == std::string_view::npos || middle == std::string_view::npos || end == std::string_view::npos) return {};
  return std::string(text.substr(begin + 4, middle - begin - 4)) + " to " +
         std::string(text.substr(middle + 3, end - middle - 3));
}

std::vector<std::string> sorted_names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const auto* o : options)
    if (o->get_name() != "--help") names.push_back(o->get_name());
  std::sort(names.begin(), names.end());
  return names;
}

void describe_section(const CLI::App& app, const std::string& title, std::set<std::string>& seen,
                      std::vector<option_section>& sections) {
  option_section section{title, {}};
  for (const auto* option : app.get_options())
    if (!option->get_group().empty() && seen.insert(option->get_name()).second)
      section.options.push_back(page::describe(*option));
  if (!section.options.empty()) sections.push_back(std::move(section));
  for (const auto* group : app.get_subcommands([](const CLI::App*) { return true; }))
    if (group->get_name().empty()) describe_section(*group, group->get_description(), seen, sections);
}

}  // namespace

std::string page::joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) text += (i ? between : "") + words[i];
  return text;
}

option_description page::describe(const CLI::Option& option) {
  option_description result;
  for (const auto& n : option.get_snames()) result.names.push_back("-" + n);
  for (const auto& n : option.get_lnames()) result.names.push_back("--" + n);
  result.positional = !option.nonpositional();
  if (result.positional) result.names = {option.get_name()};
  result.about = option.get_description();
  result.required = option.get_required();
  if (option.get_items_expected_max() > 0) {
    const auto type = option.get_type_name();
    const auto kind = type.substr(0, type.find(':'));
    result.choices = words_in_braces(type);
    if (!result.positional)
      result.value = kind == "INT" || kind == "UINT" ? "N" : kind == "FLOAT" ? "X" : result.choices.empty() ? kind : "WORD";
    if (option.get_items_expected_max() > 1) result.value += " ...";
    if (result.required) result.notes.push_back("required");
    if (!result.choices.empty()) result.notes.push_back("one of " + joined(result.choices, ", "));
    if (const auto range = range_in_brackets(type); !range.empty()) result.notes.push_back(range);
    if (type.find("POSITIVE") != std::string::npos) result.notes.push_back("above 0");
    if (!option.get_default_str().empty()) result.notes.push_back("default " + option.get_default_str());
  }
  if (const auto names = sorted_names(option.get_needs()); !names.empty()) result.notes.push_back("with " + joined(names, ", "));
  if (const auto names = sorted_names(option.get_excludes()); !names.empty())
    result.notes.push_back("not with " + joined(names, ", "));
  return result;
}

std::string words_type(const std::vector<std::string>& words) { return "{" + page::joined(words, ",") + "}"; }

command_description describe(const CLI::App& app) {
  command_description result{app.get_name(), app.get_description(), "[OPTION]...", {}, {}, {}};
  std::set<std::string> seen;
  describe_section(app, "Options", seen, result.sections);
  for (const auto* option : app.get_options())
    if (option->get_positional()) result.usage += " " + option->get_name();
  for (const auto* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_name().empty()) result.commands.emplace_back(sub->get_name(), sub->get_description());
  if (!result.commands.empty()) result.usage = "[OPTION] COMMAND [ARGUMENT]...";
  const auto footer = app.get_footer();
  for (std::string_view rest = footer; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    result.examples.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return result;
}

}  // namespace command
