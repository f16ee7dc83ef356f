// SPDX-License-Identifier: Apache-2.0
// What the commands share: exit status, progress on standard error, interruption, output files. Defined in line/command.cpp.
#pragma once

#include <chrono>
#include <functional>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include <hetsched/io/write_file.hpp>

#include "interruption.hpp"
#include "line/application.hpp"
#include "line/commands.hpp"
#include "line/prepare.hpp"

namespace command {

enum status { done = 0, infeasible = 1, bad_input = 2, fault = 3 };

/// Whether standard output is for people, so that --quiet leaves it out unless --json asks for an object; or what the command is
/// for.
enum class stdout_use { tables, result };

/// Drops what is printed to standard output while it lives, if so told.
class silence : std::streambuf {
 public:
  explicit silence(bool silent);
  ~silence() override;
  [[nodiscard]] static bool reigns() { return reigns_; }
  silence(const silence&) = delete;
  silence& operator=(const silence&) = delete;

 private:
  int overflow(int c) override { return traits_type::not_eof(c); }
  std::streambuf* before_;
  static inline bool reigns_ = false;
};

/// Parses the command line and runs `body`, which returns a status. Errors become one line on standard error and their status.
int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body, stdout_use use = stdout_use::tables);

/// Files to write at the very end: they are checked when they are named, and nothing is written before `write`. No two outputs
/// may be the same file, nor an output and an input, by whatever names; but terminals, /dev/null and /dev/stdout may be several.
/// Where a file goes to -, all that would be printed to standard output is printed to standard error.
class outputs {
 public:
  outputs() = default;
  outputs(const outputs&) = delete;
  outputs& operator=(const outputs&) = delete;
  ~outputs();

  /// An empty path means that the file is not wanted.
  void expect(const std::string& path);

  /// A file that the command reads, if it is there. An empty path means none.
  void reads(const std::string& path);

  void add(const std::string& path, std::string text) {
    if (!path.empty()) files_.emplace_back(path, std::move(text));
  }

  /// Tries all of them. Throws: error for the first that cannot be written; paths() and summary() are of the others then.
  void write();

  /// The files written, for --json.
  [[nodiscard]] std::vector<std::string> paths() const;

  /// One line for each file written.
  [[nodiscard]] std::string summary() const;

 private:
  struct named {
    std::string path;
    hetsched::detail::write_target target;
  };

  static bool clash(const named& a, const named& b);
  static std::string same(const named& a, const named& b);
  static void refuse(const named& output, const named& input);

  std::vector<named> expected_, read_;
  std::vector<std::pair<std::string, std::string>> files_;
  std::streambuf* printed_ = nullptr;  ///< where standard output led
  bool reads_input_ = false;
};

/// The file that --schedule names as @FILE; else none.
[[nodiscard]] inline std::string schedule_file(const std::string& name) { return name.starts_with('@') ? name.substr(1) : ""; }

/// Progress of work that takes longer than a second, with the time that it has taken, on standard error: a bar on a terminal,
/// plain lines at growing intervals otherwise, and where NO_COLOR is set; nothing under --quiet.
class progress_line {
 public:
  progress_line();
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  ~progress_line();

  [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

  /// Whether show() would print: what is costly to put into words can ask first.
  [[nodiscard]] bool due() const { return !quiet && clock::now() >= next_; }

  /// `share` in [0, 1] of the work is done.
  void show(double share, const std::string& text);

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point start_;
  clock::time_point next_;
  bool drawn_ = false;
  bool terminal_;
};

}  // namespace command
