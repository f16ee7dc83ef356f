// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <system_error>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/write_file.hpp>

namespace hetsched::detail {

/// The descriptor that the name of a file in a canonical folder stands for; -1 if it is none of this process.
[[nodiscard]] inline int own_descriptor(const std::filesystem::path& file) {
  std::error_code none;
  const auto folder = std::filesystem::canonical("/proc/self/fd", none);
  if (none || file.parent_path() != folder) return -1;
  const auto name = file.filename().string();
  int number = -1;
  const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), number);
  return wrong == std::errc{} && end == name.data() + name.size() ? number : -1;
}

HETSCHED_INLINE write_target find_write_target(const std::string& path) {
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& what) { throw input_error(path + ": " + what); };
  std::error_code wrong;
  if (fs::is_directory(path, wrong)) fail("is a folder");
  write_target target{.path = path == "-" ? "/dev/stdout" : path};
  for (int links = 0;; ++links) {
    if (!target.path.has_filename()) fail("names no file");
    const auto parent = target.path.has_parent_path() ? target.path.parent_path() : fs::path(".");
    const auto folder = fs::canonical(parent, wrong);
    if (wrong == std::errc::no_such_file_or_directory) fail("there is no folder " + parent.string());
    if (wrong) fail(wrong.message());
    target.path = folder / target.path.filename();
    target.descriptor = own_descriptor(target.path);
    if (target.descriptor >= 0 || !fs::is_symlink(fs::symlink_status(target.path, wrong))) break;
    if (links == 40) fail("too many symbolic links");
    target.path = folder / fs::read_symlink(target.path, wrong);
    if (wrong) fail(wrong.message());
  }
  target.exists =
      (target.descriptor >= 0 ? ::fstat(target.descriptor, &target.status) : ::stat(target.path.c_str(), &target.status)) == 0;
  if (!target.exists && (target.descriptor >= 0 || errno != ENOENT)) fail(std::strerror(errno));
  return target;
}

[[nodiscard]] inline bool may_write(const std::filesystem::path& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

HETSCHED_INLINE write_target writable_target(const std::string& path) {
  auto target = find_write_target(path);
  const auto fail = [&](const std::string& what) { throw input_error(path + ": " + what); };
  if (target.descriptor >= 0) {
    if ((::fcntl(target.descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY) fail("is open for reading only");
    return target;
  }
  if (target.exists && S_ISSOCK(target.status.st_mode)) fail("is a socket");
  if (target.exists && !may_write(target.path)) fail("the file cannot be written: " + std::string(std::strerror(errno)));
  if (!target.is_regular()) return target;
  // A file is written under another name first, so its folder is written.
  const auto folder = target.path.parent_path();
  if (!may_write(folder)) fail("the folder " + folder.string() + " cannot be written: " + std::strerror(errno));
  struct ::stat around = {};
  const auto me = ::geteuid();
  if (target.exists && me != 0 && target.status.st_uid != me && ::stat(folder.c_str(), &around) == 0 &&
      (around.st_mode & S_ISVTX) != 0 && around.st_uid != me)
    fail("is somebody else's file, which cannot be replaced in " + folder.string());
  return target;
}

/// Writes all of a text and closes. Returns whether it could; if not, errno says why.
[[nodiscard]] inline bool write_and_close(int file, std::string_view text, bool to_disk) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    text.remove_prefix(as_size(written));
  }
  const bool good = text.empty() && (!to_disk || ::fsync(file) == 0);
  const int why = errno;
  const bool closed = ::close(file) == 0;
  if (!good) errno = why;
  return good && closed;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void write_file(const std::string& path, std::string_view text) {
  const auto target = detail::writable_target(path);
  std::string temporary;
  const auto fail = [&](const std::string& what) {
    const std::string reason = std::strerror(errno);
    if (!temporary.empty()) ::unlink(temporary.c_str());
    throw error(path + ": " + what + ": " + reason);
  };
  if (!target.is_regular()) {
    const int out = target.descriptor >= 0 ? ::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 0)
                                           : ::open(target.path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (out < 0) fail("cannot be opened");
    if (!detail::write_and_close(out, text, false)) fail("writing failed");
    return;
  }
  const auto name = target.path.filename().string().substr(0, 200) + ".tmp" + std::to_string(::getpid());
  int out = -1;
  for (int attempt = 0; out < 0; ++attempt) {
    const auto free = (target.path.parent_path() / (name + (attempt > 0 ? "-" + std::to_string(attempt) : ""))).string();
    out = ::open(free.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, target.exists ? 0600 : 0666);
    if (out >= 0) temporary = free;
    if (out < 0 && (errno != EEXIST || attempt == 100)) fail("cannot be written");
  }
  if (target.exists) {
    const auto& old = target.status;
    const bool owned = ::fchown(out, old.st_uid, old.st_gid) == 0 || ::fchown(out, static_cast<uid_t>(-1), old.st_gid) == 0;
    (void)::fchmod(out, old.st_mode & (owned ? 0777U : 0707U));
  }
  if (!detail::write_and_close(out, text, true)) fail("writing failed");
  if (::rename(temporary.c_str(), target.path.c_str()) != 0) fail("cannot be replaced");
}

}  // namespace hetsched
