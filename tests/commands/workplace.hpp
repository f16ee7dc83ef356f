// SPDX-License-Identifier: Apache-2.0
// A folder in which the tests of the commands run them.
#pragma once

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <hetsched/io/json_reader.hpp>

namespace hetsched::test {

namespace fs = std::filesystem;

struct finished {
  int status = -1;
  std::string output, errors;

  /// Errors without the progress that a busy machine makes long enough to be told: "1 s: 3 plans, best 157 ms".
  [[nodiscard]] std::string complaints() const {
    std::istringstream lines(errors);
    std::string rest;
    for (std::string line; std::getline(lines, line);) {
      const auto end = line.find_first_not_of("0123456789");
      if (end == 0 || end == line.npos || line.compare(end, 4, " s: ") != 0) rest += line + '\n';
    }
    return rest;
  }
};

/// An empty folder in which commands run.
class workplace {
 public:
  workplace() : folder_(fs::temp_directory_path() / ("hetsched_commands_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  workplace(const workplace&) = delete;
  workplace& operator=(const workplace&) = delete;
  ~workplace() { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string get(const std::string& name) const { return read_text(path(name)); }
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename().string());
    return names;
  }

  /// Runs a command line in the folder; its first word is one of the commands.
  [[nodiscard]] finished run(const std::string& line) const {
    const auto errors = folder_ / ".errors";
    const std::string shell = "cd '" + folder_.string() + "' && " HETSCHED_COMMAND_DIR "/" + line + " 2> .errors";
    finished result;
    std::FILE* pipe = ::popen(shell.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 4096> buffer{};
    for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) result.output.append(buffer.data(), n);
    const int status = ::pclose(pipe);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    result.errors = read_text(errors.string());
    fs::remove(errors);
    return result;
  }

 private:
  fs::path folder_;
};

}  // namespace hetsched::test
