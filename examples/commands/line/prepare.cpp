// SPDX-License-Identifier: Apache-2.0
#include "prepare.hpp"

#include <charconv>
#include <cmath>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "../names.hpp"
#include "../version.hpp"
#include "completion.hpp"
#include "description.hpp"
#include "help.hpp"
#include "manual.hpp"

namespace command {

namespace {

/// What is wrong with an integer that is written like 1e3 or 2.0; else nothing.
std::string not_whole(const std::string& text) {
  double value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (wrong != std::errc{} || end != text.data() + text.size() || text.find_first_of(".eE") == std::string::npos) return {};
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return "found " + text + ", expected a whole number" +
         (whole ? " in digits: " + std::to_string(static_cast<long long>(value)) : "");
}

void refuse_floats(CLI::App& app) {
  for (auto* option : app.get_options()) {
    const auto type = option->get_type_name();
    if (type.starts_with("UINT"))
      option->transform(CLI::Validator(
          [](std::string& text) { return text.starts_with('-') ? "found " + text + ", expected no negative number" : ""; }, ""));
    if (type.starts_with("INT") || type.starts_with("UINT"))
      option->transform(CLI::Validator([](std::string& text) { return not_whole(text); }, ""));
  }
  for (auto* group : app.get_subcommands([](const CLI::App*) { return true; }))
    if (group->get_name().empty()) refuse_floats(*group);
}

}  // namespace

void prepare(CLI::App& app) {
  app.formatter_fn([](const CLI::App* a, std::string, CLI::AppFormatMode) { return help_text(describe(*a)); });
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", app.get_name() + " " + std::string(version), "print the version");
  quiet = false;
  if (app.get_subcommands([](const CLI::App* sub) { return !sub->get_name().empty(); }).empty())
    app.add_flag("-q,--quiet", quiet, "no progress, and no tables: only errors, files, and what --json prints");
  const auto print = [](const std::string& text) {
    std::cout << text;
    throw CLI::Success();
  };
  app.add_flag_callback("--manual-page", [&app, print] { print(manual_page(describe(app))); })->group("");
  app.add_option_function<std::string>(
         "--completion",
         [&app, print](const std::string& shell) {
           const auto all = describe(app);
           print(shell == "bash" ? bash_completion(all) : shell == "zsh" ? zsh_completion(all) : fish_completion(all));
         })
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->group("");
  refuse_floats(app);
}

std::string reworded(const std::string& what) {
  constexpr std::string_view middle = " not in {";
  const auto colon = what.find(": "), set = what.find(middle);
  if (colon == what.npos || set == what.npos || set < colon || !what.ends_with('}')) return what;
  std::vector<std::string_view> known;
  for (std::string_view rest = std::string_view(what).substr(set + middle.size()); !rest.empty();) {
    const auto end = rest.find_first_of(",}");
    known.push_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  return unknown_name_text(what.substr(0, colon), what.substr(colon + 2, set - colon - 2), known);
}

std::string unknown_argument(const CLI::App& app) {
  const auto rest = app.remaining();
  if (rest.empty()) return {};
  const auto name = rest.front().substr(0, rest.front().find('='));
  if (!name.starts_with("-")) return "unexpected argument " + rest.front();
  const auto all = describe(app);
  std::vector<std::string> names;
  for (const auto& o : all.options()) names.insert(names.end(), o.names.begin(), o.names.end());
  return "there is no option " + name + did_you_mean(name, {names.begin(), names.end()});
}

}  // namespace command
