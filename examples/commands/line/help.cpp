// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"

#include <string>
#include <string_view>

namespace command {

namespace {

/// The words of `text`, in lines that begin at column `indent` and end before `help_width`. The first line has `begun` columns
/// already. A word that is too long has a line of its own.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t begun) {
  std::string result;
  if (begun < indent) {
    result.append(indent - begun, ' ');
    begun = indent;
  }
  for (bool first = true; !text.empty(); first = false) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    if (!first && begun + 1 + word.size() > help_width) {
      result += '\n' + std::string(indent, ' ');
      begun = indent;
    } else if (!first) {
      result += ' ';
      ++begun;
    }
    result += word;
    begun += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result + '\n';
}

/// What stands beside a name: in a column of its own, below the name if that is long.
std::string help_entry(const std::string& name, const std::string& text) {
  constexpr std::size_t column = 28;
  const auto head = "  " + name;
  if (head.size() + 1 < column) return head + wrapped(text, column, head.size());
  return head + '\n' + wrapped(text, column, 0);
}

}  // namespace

std::string page::about_with_notes(const option_description& o) {
  return o.about + (o.notes.empty() ? "" : (o.about.empty() ? "[" : " [") + joined(o.notes, "; ") + "]");
}

std::string help_text(const command_description& c) {
  std::string text = wrapped(c.about, 0, 0) + "Usage: " + c.name + " " + c.usage + "\n";
  if (!c.commands.empty()) {
    text += "\nCommands:\n";
    for (const auto& [name, about] : c.commands) text += help_entry(name, about);
  }
  for (const auto& section : c.sections) {
    text += "\n" + section.title + ":\n";
    for (const auto& o : section.options)
      text += help_entry(page::joined(o.names, ", ") + (o.value.empty() ? "" : " " + o.value), page::about_with_notes(o));
  }
  if (!c.examples.empty()) text += "\nExamples:\n";
  for (const auto& example : c.examples) text += "  " + example + "\n";
  text += "\nExit status:\n";
  for (const auto& [status, meaning] : exit_statuses) text += help_entry(std::to_string(status), std::string(meaning));
  return text;
}

}  // namespace command
