// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <hetsched/core/error.hpp>

namespace hetsched::detail {

/// What writing a checkpoint does to the disk, one operation per call, so that tests can stop after any of them. Failures are
/// thrown.
struct checkpoint_files {
  static void make_folder(const std::string& path) {
    std::error_code wrong;
    std::filesystem::create_directories(path, wrong);
    if (wrong) throw error(path + ": cannot be made: " + wrong.message());
  }
  /// Makes a file or empties it.
  static void create(const std::string& path) { done(path, open(path, O_WRONLY | O_CREAT | O_TRUNC)); }
  static void append(const std::string& path, std::span<const std::byte> bytes);
  /// Forces a file, or the names in a folder, to the disk.
  static void sync(const std::string& path) {
    const int file = open(path, O_RDONLY);
    if (::fsync(file) != 0) fail(path, "cannot be written", file);
    done(path, file);
  }
  static void rename(const std::string& from, const std::string& to) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "cannot be renamed to " + to);
  }
  static void remove(const std::string& path) {
    std::error_code wrong;
    std::filesystem::remove_all(path, wrong);
    if (wrong) throw error(path + ": cannot be removed: " + wrong.message());
  }

 private:
  static int open(const std::string& path, int flags) {
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (file < 0) fail(path, "cannot be opened");
    return file;
  }
  static void done(const std::string& path, int file) {
    if (::close(file) != 0) fail(path, "cannot be written");
  }
  [[noreturn]] static void fail(const std::string& path, const std::string& what, int file = -1) {
    const std::string reason = std::strerror(errno);
    if (file >= 0) ::close(file);
    throw error(path + ": " + what + ": " + reason);
  }
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/io/checkpoint/detail/checkpoint_files.ipp>
#endif
