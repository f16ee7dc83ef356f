// SPDX-License-Identifier: Apache-2.0
// What the commands share: exit status, progress on standard error, interruption, output files.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <streambuf>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <hetsched/core/error.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/write_file.hpp>

#include "interruption.hpp"
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
  explicit silence(bool silent) : before_(silent ? std::cout.rdbuf(this) : nullptr) { reigns_ = silent; }
  ~silence() override {
    if (before_) std::cout.rdbuf(before_);
    reigns_ = false;
  }
  [[nodiscard]] static bool reigns() { return reigns_; }
  silence(const silence&) = delete;
  silence& operator=(const silence&) = delete;

 private:
  int overflow(int c) override { return traits_type::not_eof(c); }
  std::streambuf* before_;
  static inline bool reigns_ = false;
};

/// Parses the command line and runs `body`, which returns a status. Errors become one line on standard error and their status.
template <class Body>
int run(CLI::App& app, int argc, char** argv, Body body, stdout_use use = stdout_use::tables) {
  const auto complain = [&](const char* what, status s) {
    std::cerr << app.get_name() << ": " << hetsched::printable(what, true) << '\n';
    return s;
  };
  try {
    prepare(app);
    app.parse(argc, argv);
    const auto* const json = app.get_option_no_throw("--json");
    const bool silent = quiet && use == stdout_use::tables && (json == nullptr || json->count() == 0);
    const silence during(silent);
    const int result = body();
    errno = 0;
    if (!std::cout.flush())
      return complain(
          ("standard output cannot be written" + (errno != 0 ? ": " + std::string(std::strerror(errno)) : "")).c_str(), fault);
    return result;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    const auto unknown = unknown_argument(app);
    return complain(((unknown.empty() ? reworded(wrong.what()) : unknown) + " (see --help)").c_str(), bad_input);
  } catch (const hetsched::input_error& wrong) {
    return complain(wrong.what(), bad_input);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory", fault);
  } catch (const std::exception& failure) {
    return complain(failure.what(), fault);
  }
}

/// Files to write at the very end: they are checked when they are named, and nothing is written before `write`. No two outputs
/// may be the same file, nor an output and an input, by whatever names; but terminals, /dev/null and /dev/stdout may be several.
/// Where a file goes to -, all that would be printed to standard output is printed to standard error.
class outputs {
 public:
  outputs() = default;
  outputs(const outputs&) = delete;
  outputs& operator=(const outputs&) = delete;
  ~outputs() {
    if (printed_) std::cout.rdbuf(printed_);
  }

  /// An empty path means that the file is not wanted.
  void expect(const std::string& path) {
    if (path.empty()) return;
    if (path == "-" && !printed_ && !silence::reigns()) printed_ = std::cout.rdbuf(std::cerr.rdbuf());
    hetsched::check_writable(path);
    const named file{path, hetsched::detail::find_write_target(path)};
    for (const auto& other : expected_)
      if (clash(file, other)) throw hetsched::input_error(same(file, other) + "named for two outputs");
    for (const auto& input : read_) refuse(file, input);
    expected_.push_back(file);
  }

  /// A file that the command reads, if it is there. An empty path means none.
  void reads(const std::string& path) {
    if (path == "-" && std::exchange(reads_input_, true)) throw hetsched::input_error("-: standard input is named for two files");
    std::error_code none;
    if (path.empty() || !std::filesystem::exists(path, none) || std::filesystem::is_directory(path, none)) return;
    const named input{path, hetsched::detail::find_write_target(path)};
    for (const auto& file : expected_) refuse(file, input);
    read_.push_back(input);
  }

  void add(const std::string& path, std::string text) {
    if (!path.empty()) files_.emplace_back(path, std::move(text));
  }

  /// Tries all of them. Throws: error for the first that cannot be written; paths() and summary() are of the others then.
  void write() {
    std::cout.flush();  // what has been printed stands first, should a file be standard output
    std::exception_ptr wrong;
    std::erase_if(files_, [&](const auto& file) {
      try {
        hetsched::write_file(file.first, file.second);
        return false;
      } catch (const hetsched::error&) {
        if (!wrong) wrong = std::current_exception();
        return true;
      }
    });
    if (wrong) std::rethrow_exception(wrong);
  }

  /// The files written, for --json.
  [[nodiscard]] std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const auto& [path, ignored] : files_) all.push_back(path);
    return all;
  }

  /// One line for each file written.
  [[nodiscard]] std::string summary() const {
    std::string text;
    for (const auto& [path, ignored] : files_) text += "wrote " + path + "\n";
    return text;
  }

 private:
  struct named {
    std::string path;
    hetsched::detail::write_target target;
  };

  static bool clash(const named& a, const named& b) {
    return a.target == b.target && !(a.target.is_stream() && b.target.is_stream());
  }
  static std::string same(const named& a, const named& b) { return a.path + (a.path == b.path ? ": " : ": is " + b.path + ", "); }
  static void refuse(const named& output, const named& input) {
    if (clash(output, input)) throw hetsched::input_error(same(output, input) + "an input, which would be overwritten");
  }

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
  progress_line() : start_(clock::now()), next_(start_ + std::chrono::seconds(1)) {}
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  ~progress_line() {
    if (drawn_ && terminal_) std::cerr << "\r\033[K";
  }

  [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

  /// Whether show() would print: what is costly to put into words can ask first.
  [[nodiscard]] bool due() const { return !quiet && clock::now() >= next_; }

  /// `share` in [0, 1] of the work is done.
  void show(double share, const std::string& text) {
    const auto now = clock::now();
    if (quiet || now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(200) : now - start_);
    drawn_ = true;
    const auto line = std::to_string(static_cast<long>(elapsed_s())) + " s: " + text;
    if (terminal_) {
      const int filled = static_cast<int>(30 * share);
      const std::string bar =
          std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(30 - filled), '.');
      std::cerr << "\r\033[K[" + bar + "] " + line;
    } else {
      std::cerr << line + '\n';
    }
  }

 private:
  [[nodiscard]] static bool no_color() {
    const char* asked = std::getenv("NO_COLOR");
    return asked && *asked;
  }

  using clock = std::chrono::steady_clock;
  clock::time_point start_;
  clock::time_point next_;
  bool drawn_ = false;
  bool terminal_ = ::isatty(2) != 0 && !no_color();
};

}  // namespace command
