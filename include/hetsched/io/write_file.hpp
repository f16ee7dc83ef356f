// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// Throws input_error unless a file may be made at `path`: its folder exists and can be written, and it is no folder itself.
/// For the start of long work, so that the end of it does not fail.
inline void check_writable(const std::string& path) {
  const std::filesystem::path target(path);
  std::error_code ignored;
  const auto folder = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(folder, ignored)) throw input_error(path + ": there is no folder " + folder.string());
  if (std::filesystem::is_directory(target, ignored)) throw input_error(path + ": is a folder");
  if (::access(folder.c_str(), W_OK) != 0) throw input_error(path + ": the folder " + folder.string() + " cannot be written");
}

/// Writes a whole file or nothing: the text goes to a temporary name in the same folder, which is renamed at the end.
/// Throws error on failure; an older file at `path` is then unchanged.
inline void write_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  const auto fail = [&](const std::string& what) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw error(path + ": " + what + ": " + reason);
  };
  std::FILE* out = std::fopen(temporary.c_str(), "wb");
  if (out == nullptr) fail("cannot be written");
  const bool written =
      std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0 && ::fsync(::fileno(out)) == 0;
  if (std::fclose(out) != 0 || !written) fail("writing failed");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot be replaced");
}

}  // namespace hetsched
