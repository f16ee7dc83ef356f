// SPDX-License-Identifier: Apache-2.0
#include "application.hpp"

#include <string>
#include <utility>

// All of CLI11. Others include CLI/App.hpp alone, without what writes its help and reads its configuration files.
#include <CLI/CLI.hpp>

namespace command {

application::application(std::string about, std::string name) : CLI::App(std::move(about), std::move(name)) {}
application::~application() = default;

CLI::App* application::add_option_group(std::string name, std::string about) {
  return CLI::App::add_option_group(std::move(name), std::move(about));
}

CLI::App* application::add_subcommand(std::string name, std::string about) {
  return CLI::App::add_subcommand(std::move(name), std::move(about));
}

}  // namespace command
