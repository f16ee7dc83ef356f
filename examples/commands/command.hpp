// SPDX-License-Identifier: Apache-2.0
// What the commands share: exit status, progress on standard error, output files.
#pragma once

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <hetsched/core/error.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/write_file.hpp>

namespace command {

enum status { done = 0, infeasible = 1, bad_input = 2, fault = 3 };

/// Parses the command line and runs `body`, which returns a status. Errors become one line on standard error and their status.
template <class Body>
int run(CLI::App& app, int argc, char** argv, Body body) {
  const auto complain = [&](const char* what, status s) {
    std::cerr << app.get_name() << ": " << what << '\n';
    return s;
  };
  try {
    app.parse(argc, argv);
    const int result = body();
    if (!std::cout.flush()) return complain("standard output cannot be written", fault);
    return result;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    return complain((std::string(wrong.what()) + " (see --help)").c_str(), bad_input);
  } catch (const hetsched::input_error& wrong) {
    return complain(wrong.what(), bad_input);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory", fault);
  } catch (const std::exception& failure) {
    return complain(failure.what(), fault);
  }
}

/// Files to write at the very end: their folders are checked when they are named, and nothing is written before `write`.
class outputs {
 public:
  /// An empty path means that the file is not wanted.
  void expect(const std::string& path) {
    if (path.empty()) return;
    hetsched::check_writable(path);
    for (const auto& other : paths_)
      if (other == path) throw hetsched::input_error(path + ": named for two outputs");
    paths_.push_back(path);
  }

  void add(const std::string& path, std::string text) {
    if (!path.empty()) files_.emplace_back(path, std::move(text));
  }

  void write() const {
    for (const auto& [path, text] : files_) hetsched::write_file(path, text);
  }

  /// One line for each file written.
  [[nodiscard]] std::string summary() const {
    std::string text;
    for (const auto& [path, ignored] : files_) text += "wrote " + path + "\n";
    return text;
  }

 private:
  std::vector<std::string> paths_;
  std::vector<std::pair<std::string, std::string>> files_;
};

/// Progress of work that takes longer than a second, on standard error: a bar on a terminal, plain lines at growing
/// intervals otherwise.
class progress_line {
 public:
  progress_line() : start_(clock::now()), next_(start_ + std::chrono::seconds(1)) {}
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;
  ~progress_line() {
    if (drawn_ && terminal_) std::fputs("\r\033[K", stderr);
  }

  [[nodiscard]] double elapsed_s() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

  /// `share` in [0, 1] of the work is done.
  void show(double share, const std::string& text) {
    const auto now = clock::now();
    if (now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(200) : now - start_);
    drawn_ = true;
    if (terminal_) {
      const int filled = static_cast<int>(30 * share);
      const std::string bar =
          std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(30 - filled), '.');
      std::fprintf(stderr, "\r\033[K[%s] %s", bar.c_str(), text.c_str());
    } else {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
    std::fflush(stderr);
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point start_;
  clock::time_point next_;
  bool drawn_ = false;
  bool terminal_ = ::isatty(2) != 0;
};

}  // namespace command
