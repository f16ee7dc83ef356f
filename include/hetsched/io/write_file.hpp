// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hetsched {
namespace detail {

/// Where writing to a path leads.
struct write_target {
  std::filesystem::path path;  ///< in its canonical folder, and no symbolic link
  int descriptor = -1;         ///< of this process, where the path names one, as /dev/stdout does
  bool exists = false;
  struct ::stat status = {};  ///< of what exists

  [[nodiscard]] bool is_regular() const { return descriptor < 0 && (!exists || S_ISREG(status.st_mode)); }
  /// Whether what is written to it neither replaces what was nor hides what comes: terminals, /dev/null, open descriptors.
  [[nodiscard]] bool is_stream() const { return descriptor >= 0 || (exists && S_ISCHR(status.st_mode)); }
  [[nodiscard]] bool operator==(const write_target& other) const {
    if (exists != other.exists) return false;
    return exists ? status.st_dev == other.status.st_dev && status.st_ino == other.status.st_ino : path == other.path;
  }
};

/// Follows the links of a path, even of one that leads to no file yet.
/// Throws: input_error where no file can be.
[[nodiscard]] write_target find_write_target(const std::string& path);

/// As find_write_target.
/// Throws: input_error also where this process may not write.
[[nodiscard]] write_target writable_target(const std::string& path);

}  // namespace detail

/// Checks that a file may be made or replaced at `path`, or a device or pipe written. For the start of long work, so that its
/// end does not fail.
/// Throws: input_error if not.
inline void check_writable(const std::string& path) { (void)detail::writable_target(path); }

/// Writes a whole file or nothing: the text goes to a temporary name in the same folder, which is renamed at the end. A file
/// that is replaced hands on its mode, and its owner where that is allowed. A symbolic link stays; what it names is replaced
/// or made. Devices, pipes and descriptors (/dev/stdout, or - for it) are written as they are.
/// Throws: error on failure; an older file at `path` is then unchanged.
void write_file(const std::string& path, std::string_view text);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/write_file.ipp>
#endif
