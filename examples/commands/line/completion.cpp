// SPDX-License-Identifier: Apache-2.0
#include "completion.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "commands.hpp"

namespace command {

namespace {

/// `text` with each of `letters` behind a backslash.
std::string escaped(std::string_view text, std::string_view letters) {
  std::string result;
  for (const char c : text) {
    if (letters.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

/// As one word of a POSIX shell.
std::string shell_word(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// The program that a driver starts for a command.
std::string program_of(std::string_view name) { return command_entry{name, {}}.program(); }

}  // namespace

std::string bash_completion(const command_description& c) {
  const auto function = "_" + identifier(c.name);
  std::string names, cases, programs, known;
  for (const auto& o : c.options()) {
    names += (names.empty() ? "" : " ") + page::joined(o.names, " ");
    if (o.value.empty()) continue;
    cases += "    " + page::joined(o.names, "|") + ") ";
    if (!o.choices.empty()) cases += "COMPREPLY=($(compgen -W '" + page::joined(o.choices, " ") + "' -- \"$word\")); ";
    cases += "return ;;\n";
  }
  for (const auto& [name, about] : c.commands) {
    known += name + " ";
    programs += "      " + name + ") program=" + program_of(name) + " ;;\n";
  }
  std::string text = "# bash completion for " + c.name + "\n" + function + "() {\n";
  // A value may stand behind '=', which bash takes for a word.
  text +=
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n  COMPREPLY=()\n"
      "  if [[ $word == = ]]; then\n    word=\n  elif [[ $before == = ]]; then\n    before=${COMP_WORDS[COMP_CWORD - 2]}\n  fi\n";
  if (!c.commands.empty()) {
    text += "  if ((COMP_CWORD > 1)); then\n    local program= folder=${BASH_SOURCE[0]%/*}\n    case ${COMP_WORDS[1]} in\n" +
            programs +
            "      *) return ;;\n    esac\n"
            "    declare -F \"_${program//-/_}\" >/dev/null || source \"$folder/$program\" 2>/dev/null || return\n"
            "    COMP_WORDS=(\"$program\" \"${COMP_WORDS[@]:2}\")\n    ((--COMP_CWORD))\n    \"_${program//-/_}\"\n    return\n  "
            "fi\n";
  }
  text += "  case $before in\n" + cases + "    *) ;;\n  esac\n";
  text += "  COMPREPLY=($(compgen -W '" + known + names + "' -- \"$word\"))\n";
  return text + "}\ncomplete -o default -F " + function + " " + c.name + "\n";
}

std::string zsh_completion(const command_description& c) {
  const auto about_of = [](const option_description& o) { return "[" + escaped(o.about, "[]\\:") + "]"; };
  std::string text = "#compdef " + c.name + "\nlocal curcontext=$curcontext state line\ntypeset -A opt_args\n_arguments -C \\\n";
  for (const auto& o : c.options()) {
    auto rest = about_of(o);
    if (!o.value.empty()) {
      rest = "=" + rest + ":" + escaped(o.value, ":") + ":" +
             (o.choices.empty() ? "_files" : "(" + page::joined(o.choices, " ") + ")");
    }
    for (const auto& name : o.names) text += "  " + shell_word(name + (name.starts_with("--") ? rest : about_of(o))) + " \\\n";
  }
  if (c.commands.empty()) return text.substr(0, text.size() - 3) + "\n";
  std::string programs;
  for (const auto& [name, about] : c.commands) programs += "      " + name + ") words[1]=" + program_of(name) + " ;;\n";
  std::string names;
  for (const auto& [name, about] : c.commands) names += (names.empty() ? "" : " ") + name;
  text += "  '1:command:(" + names + ")' \\\n  '*::argument:->arguments'\n";
  return text + "case $state in\n  arguments)\n    case $words[1] in\n" + programs + "    esac\n    _normal\n    ;;\nesac\n";
}

std::string fish_completion(const command_description& c) {
  const auto line = "complete -c " + c.name;
  // fish knows \' and \\ between single quotes.
  const auto word = [](std::string_view text) { return "'" + escaped(text, "'\\") + "'"; };
  std::string text = "# fish completion for " + c.name + "\n", condition;
  if (!c.commands.empty()) {
    condition = " -n __fish_use_subcommand";
    text += "function __" + identifier(c.name) +
            "_arguments\n  set -l given (commandline -opc)\n  set -l program\n  switch $given[2]\n";
    for (const auto& [name, about] : c.commands) text += "    case " + name + "\n      set program " + program_of(name) + "\n";
    text += "  end\n  test -n \"$program\"; and complete -C \"$program $given[3..] \"(commandline -ct)\nend\n";
    for (const auto& [name, about] : c.commands) text += line + condition + " -f -a " + name + " -d " + word(about) + "\n";
    text += line + " -n 'not __fish_use_subcommand' -f -a '(__" + identifier(c.name) + "_arguments)'\n";
  }
  for (const auto& o : c.options()) {
    text += line + condition;
    for (const auto& name : o.names) text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (!o.value.empty()) text += o.choices.empty() ? " -r -F" : " -x -a " + word(page::joined(o.choices, " "));
    text += " -d " + word(o.about) + "\n";
  }
  return text;
}

}  // namespace command
