// SPDX-License-Identifier: Apache-2.0
#include "../command.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/io/write_file.hpp>

namespace command {

namespace {

/// Whether progress is to be plain.
bool no_color() {
  const char* asked = std::getenv("NO_COLOR");
  return asked && *asked;
}

}  // namespace

silence::silence(bool silent) : before_(silent ? std::cout.rdbuf(this) : nullptr) { reigns_ = silent; }

silence::~silence() {
  if (before_) std::cout.rdbuf(before_);
  reigns_ = false;
}

int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body, stdout_use use) {
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

outputs::~outputs() {
  if (printed_) std::cout.rdbuf(printed_);
}

void outputs::expect(const std::string& path) {
  if (path.empty()) return;
  if (path == "-" && !printed_ && !silence::reigns()) printed_ = std::cout.rdbuf(std::cerr.rdbuf());
  hetsched::check_writable(path);
  const named file{path, hetsched::detail::find_write_target(path)};
  for (const auto& other : expected_)
    if (clash(file, other)) throw hetsched::input_error(same(file, other) + "named for two outputs");
  for (const auto& input : read_) refuse(file, input);
  expected_.push_back(file);
}

void outputs::reads(const std::string& path) {
  if (path == "-" && std::exchange(reads_input_, true)) throw hetsched::input_error("-: standard input is named for two files");
  std::error_code none;
  if (path.empty() || !std::filesystem::exists(path, none) || std::filesystem::is_directory(path, none)) return;
  const named input{path, hetsched::detail::find_write_target(path)};
  for (const auto& file : expected_) refuse(file, input);
  read_.push_back(input);
}

void outputs::write() {
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

std::vector<std::string> outputs::paths() const {
  std::vector<std::string> all;
  for (const auto& [path, ignored] : files_) all.push_back(path);
  return all;
}

std::string outputs::summary() const {
  std::string text;
  for (const auto& [path, ignored] : files_) text += "wrote " + path + "\n";
  return text;
}

bool outputs::clash(const named& a, const named& b) {
  return a.target == b.target && !(a.target.is_stream() && b.target.is_stream());
}

std::string outputs::same(const named& a, const named& b) { return a.path + (a.path == b.path ? ": " : ": is " + b.path + ", "); }

void outputs::refuse(const named& output, const named& input) {
  if (clash(output, input)) throw hetsched::input_error(same(output, input) + "an input, which would be overwritten");
}

progress_line::progress_line()
    : start_(clock::now()), next_(start_ + std::chrono::seconds(1)), terminal_(::isatty(2) != 0 && !no_color()) {}

progress_line::~progress_line() {
  if (drawn_ && terminal_) std::cerr << "\r\033[K";
}

void progress_line::show(double share, const std::string& text) {
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

}  // namespace command
