// SPDX-License-Identifier: Apache-2.0
#include "manual.hpp"

#include <cctype>
#include <string>
#include <string_view>

#include "../version.hpp"
#include "help.hpp"

namespace command {

namespace {

/// As roff prints it letter by letter.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\'') {
      result += "\\(aq";
    } else if (c == '.' && result.empty()) {
      result += "\\&.";
    } else {
      result += c;
    }
  }
  return result;
}

std::string capitals(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string manual_page(const command_description& c) {
  std::string text = ".TH " + capitals(c.name) + " 1 \"\" \"hetsched " + std::string(version) + "\" \"hetsched\"\n";
  auto about = c.about;
  if (about.ends_with('.')) about.pop_back();
  text += ".SH NAME\n" + roff(c.name) + " \\- " + roff(about) + "\n";
  text += ".SH SYNOPSIS\n.B " + roff(c.name) + "\n" + roff(c.usage) + "\n";
  if (!c.commands.empty()) {
    text += ".SH COMMANDS\n";
    for (const auto& [name, what] : c.commands) text += ".TP\n.B " + roff(name) + "\n" + roff(what) + "\n";
  }
  for (const auto& section : c.sections) {
    text += ".SH " + capitals(section.title) + "\n";
    for (const auto& o : section.options) {
      text += ".TP\n";
      for (std::size_t i = 0; i < o.names.size(); ++i) text += (i ? ", \\fB" : "\\fB") + roff(o.names[i]) + "\\fR";
      text += (o.value.empty() ? "" : " \\fI" + roff(o.value) + "\\fR") + "\n" + roff(page::about_with_notes(o)) + "\n";
    }
  }
  if (!c.examples.empty()) text += ".SH EXAMPLES\n.nf\n";
  for (const auto& example : c.examples) text += roff(example) + "\n";
  if (!c.examples.empty()) text += ".fi\n";
  text += ".SH EXIT STATUS\n";
  for (const auto& [status, meaning] : exit_statuses) text += ".TP\n" + std::to_string(status) + "\n" + roff(meaning) + "\n";
  text +=
      ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nIf set and not empty, progress is plain lines of text, as where standard error is no "
      "terminal.\n";
  if (c.name != "hetsched") text += ".SH SEE ALSO\n.BR hetsched (1)\n";
  return text;
}

}  // namespace command
