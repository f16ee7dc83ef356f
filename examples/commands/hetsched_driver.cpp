// SPDX-License-Identifier: Apache-2.0
// hetsched: starts the command beside it, as in hetsched plan.
#include <cerrno>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <CLI/App.hpp>

#include "command.hpp"
#include "names.hpp"

namespace {

using command::commands;

/// In this program's folder, if it was called by a path; else, and where it is not there, as the shell finds it. Comes back if it
/// is nowhere.
int start(const command::command_entry& entry, char** argv) {
  const std::string self = argv[0], program = entry.program();
  const auto folder = self.substr(0, self.rfind('/') + 1);
  std::string name = program;
  std::vector<char*> arguments{name.data()};
  for (char** a = argv + 2; *a; ++a) arguments.push_back(*a);
  arguments.push_back(nullptr);
  if (!folder.empty()) ::execv((folder + program).c_str(), arguments.data());
  if (folder.empty() || errno == ENOENT) ::execvp(program.c_str(), arguments.data());
  std::cerr << "hetsched: " << program << ": " << (errno == ENOENT ? "is not installed" : std::strerror(errno)) << '\n';
  return command::fault;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  std::vector<std::string_view> names;
  for (const auto& c : commands) {
    if (c.name == first) return start(c, argv);
    names.push_back(c.name);
  }
  if (argc > 1 && !first.starts_with("-")) {
    std::cerr << "hetsched: there is no command " << first << command::did_you_mean(first, names) << " (see --help)\n";
    return command::bad_input;
  }
  command::application app("Plans and runs pipeline-parallel training on mixed GPUs.", "hetsched");
  for (const auto& c : commands) app.add_subcommand(std::string(c.name), std::string(c.about));
  app.footer("hetsched plan --cluster cluster.json --model model.json --global-batch 256 --out plan.json\nhetsched plan --help");
  return command::run(app, argc, argv, [&] {
    std::cout << app.help();
    return command::done;
  });
}
