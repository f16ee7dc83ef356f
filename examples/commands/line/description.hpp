// SPDX-License-Identifier: Apache-2.0
// A command's options as data: help, manual pages and completions are made from it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

namespace command {

/// What an exit status means, in every command.
inline constexpr std::pair<int, std::string_view> exit_statuses[] = {{0, "done"},
                                                                     {1, "no feasible answer; the reason is on standard error"},
                                                                     {2, "bad input or usage"},
                                                                     {3, "a fault at run time"}};

struct option_description {
  std::vector<std::string> names;  ///< with their dashes
  std::string value;               ///< what follows, for readers: N, X, TEXT; empty: a flag
  std::vector<std::string> choices;
  std::string about;
  std::vector<std::string> notes;  ///< range, default, what it needs and excludes
  bool required = false;
  bool positional = false;

  [[nodiscard]] const std::string& name() const { return names.back(); }
};

struct option_section {
  std::string title;
  std::vector<option_description> options;
};

struct command_description {
  std::string name, about, usage;  ///< usage: what stands behind the name
  std::vector<std::string> examples;
  std::vector<option_section> sections;
  std::vector<std::pair<std::string, std::string>> commands;  ///< those behind a driver, with what they do

  /// Those with dashes.
  [[nodiscard]] std::vector<option_description> options() const {
    std::vector<option_description> all;
    for (const auto& s : sections)
      for (const auto& o : s.options)
        if (!o.positional) all.push_back(o);
    return all;
  }
};

namespace page {

[[nodiscard]] std::string joined(const std::vector<std::string>& words, const std::string& between);

[[nodiscard]] option_description describe(const CLI::Option& option);

}  // namespace page

/// For Option::type_name: words that may follow an option beside others, which the command itself checks.
[[nodiscard]] std::string words_type(const std::vector<std::string>& words);

/// What the command line of `app` takes, options of groups with it; options without a group are hidden, named subcommands are the
/// commands behind a driver, and the lines of the footer are examples.
[[nodiscard]] command_description describe(const CLI::App& app);

}  // namespace command
