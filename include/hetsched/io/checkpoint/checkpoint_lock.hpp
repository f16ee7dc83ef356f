// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>

namespace hetsched {

/// Holds a folder of checkpoints for one writer, from construction to destruction or the end of the process, by a lock on a
/// file `owner` in it, which says who that is. Trainings take one on their first rank: two that write to one folder would
/// remove each other's checkpoints. `run` names a training whose first rank may change: whoever holds the folder for the same run
/// has been left out of it, stopped perhaps, and loses the folder to this one.
/// Requires: a folder that is there. Where its file system has no locks, nothing is held.
/// Throws: input_error if it is held, naming the holder, or if the file cannot be opened.
/// Example:
///     const hetsched::checkpoint_lock lock("state");
class checkpoint_lock {
 public:
  explicit checkpoint_lock(const std::string& folder, const std::string& run = {}) : path_(folder + "/owner") {
    std::array<char, 512> text{};
    do {
      if (file_ >= 0) ::close(file_);
      file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
      if (file_ < 0) throw input_error(path_ + ": cannot be opened: " + std::generic_category().message(errno));
      if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        const auto count = ::pread(file_, text.data(), text.size(), 0);
        const auto told = std::string(text.data(), as_size(std::max<ssize_t>(count, 0)));
        const auto holder = told.substr(0, told.find('\n'));
        if (!run.empty() && told == holder + "\nrun " + run) {
          ::unlink(path_.c_str());
          continue;
        }
        ::close(file_);
        throw input_error(folder + ": another training writes its checkpoints there" + (count > 0 ? ": " + holder : ""));
      }
    } while (!is_there());
    const std::string host = ::gethostname(text.data(), text.size() - 1) == 0 ? text.data() : "?";
    const auto own = "process " + std::to_string(::getpid()) + " on " + host + (run.empty() ? "" : "\nrun " + run);
    [[maybe_unused]] const bool named = ::ftruncate(file_, 0) == 0 && ::pwrite(file_, own.data(), own.size(), 0) > 0;
  }
  checkpoint_lock(checkpoint_lock&& other) noexcept : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  checkpoint_lock& operator=(checkpoint_lock&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~checkpoint_lock() {
    if (file_ < 0) return;
    if (is_there()) ::unlink(path_.c_str());
    ::close(file_);
  }

 private:
  // A holder that ended meanwhile has removed what was opened, and so has one that took its place.
  [[nodiscard]] bool is_there() const {
    struct stat opened = {}, named = {};
    return ::fstat(file_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
  }

  std::string path_;
  int file_ = -1;
};

}  // namespace hetsched
