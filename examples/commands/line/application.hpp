// SPDX-License-Identifier: Apache-2.0
// A command line of CLI11, whose code is compiled once for all commands. Who includes this needs no more of CLI11.
#pragma once

#include <string>

#include <CLI/App.hpp>

namespace command {

/// A CLI::App. CLI11 is headers, and whoever makes an App compiles its parser, help and configuration files, which are several
/// times what a small command has itself: so whoever makes one of these does not.
class application : public CLI::App {
 public:
  application(std::string about, std::string name);
  application(const application&) = delete;
  application& operator=(const application&) = delete;
  ~application() override;

  /// Options under a heading of their own; CLI::App's.
  CLI::App* add_option_group(std::string name, std::string about);

  /// CLI::App's.
  CLI::App* add_subcommand(std::string name, std::string about);
};

}  // namespace command
