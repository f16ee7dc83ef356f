// SPDX-License-Identifier: Apache-2.0
// What a training tells beside its state: files and streams that never hold it up, and never end it.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <hetsched/core/printable.hpp>
#include <hetsched/io/write_file.hpp>

namespace train {

/// Texts that a thread writes to a file, so that nobody waits for a disk that is full or a pipe whose reader stands still. What
/// cannot be written is dropped, told once on standard error with its cause, and counted there at the end.
class side_output {
 public:
  enum class how {
    behind,  ///< what the file has
    anew,    ///< the first text empties the file
    whole    ///< each text takes the place of the file, at once for whoever reads it
  };

  /// Nothing is opened before the first text.
  side_output(std::string path, how writes) : shared_(std::make_shared<shared>(std::move(path), writes)) {}
  /// For a descriptor of this process. Its troubles are told nowhere, as it may be standard error.
  explicit side_output(int descriptor) : shared_(std::make_shared<shared>("", how::behind)) {
    shared_->file = descriptor;
    shared_->told = true;
  }
  side_output(const side_output&) = delete;
  side_output& operator=(const side_output&) = delete;
  /// Waits for what is still to be written as long as that gets on.
  ~side_output() {
    finish();
    tell();
    const auto& s = *shared_;
    if (const auto dropped = count_dropped(); dropped > 0 && !s.path.empty())
      std::cerr << line(s.path + ": " + std::to_string(dropped) + (dropped > 1 ? " texts were" : " text was") + " not written");
  }

  /// Returns at once. Any thread may call it.
  void add(std::string text) {
    {
      const std::lock_guard lock(shared_->mutex);
      auto& s = *shared_;
      if (s.writes == how::whole) s.texts.clear();  // the newest counts
      if (s.bytes() > most_bytes) {
        ++s.dropped;
        if (s.why.empty()) s.why = s.path + ": what reads it, or the disk, is too slow: " + std::strerror(EAGAIN);
      } else {
        s.texts.push_back(std::move(text));
        if (!started_) start();
      }
    }
    shared_->changed.notify_all();
    tell();
  }

  /// Whether all has been written or dropped; waits as long as that gets on.
  bool finish() {
    std::unique_lock lock(shared_->mutex);
    auto& s = *shared_;
    s.ends = true;
    s.changed.notify_all();
    for (auto before = s.progress; started_ && !s.idle(); before = s.progress)
      if (!s.changed.wait_for(lock, patience, [&] { return s.idle() || s.progress != before; })) {
        s.dropped += static_cast<std::int64_t>(s.texts.size()) + (s.is_writing ? 1 : 0);
        s.texts.clear();
        if (s.why.empty()) s.why = s.path + ": what reads it, or the disk, stands still: " + std::strerror(EAGAIN);
        return false;
      }
    return true;
  }

  [[nodiscard]] std::int64_t count_dropped() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->dropped;
  }

 private:
  static constexpr std::size_t most_bytes = 1 << 18, piece_bytes = 4096;
  static constexpr std::chrono::seconds patience{1};

  /// What the thread has, for as long as it lives: one that hangs in a write is left behind.
  struct shared {
    shared(std::string p, how w) : path(std::move(p)), writes(w) {}
    ~shared() {
      if (file >= 0 && !path.empty()) ::close(file);
    }
    const std::string path;
    const how writes;
    std::mutex mutex{};
    std::condition_variable changed{};
    std::deque<std::string> texts{};
    std::string why{};  ///< of the first text that was dropped
    std::int64_t dropped = 0, progress = 0;
    bool is_writing = false, ends = false, told = false;
    int file = -1;             ///< of the thread
    bool keeps_whole = false;  ///< lines of a file that it has opened

    [[nodiscard]] bool idle() const { return texts.empty() && !is_writing; }
    [[nodiscard]] std::size_t bytes() const {
      std::size_t all = 0;
      for (const auto& t : texts) all += t.size();
      return all;
    }
  };

  [[nodiscard]] static std::string line(const std::string& what) {
    return "hetsched-train: " + hetsched::printable(what, true) + '\n';
  }

  void tell() {
    std::string why;
    {
      const std::lock_guard lock(shared_->mutex);
      if (shared_->why.empty() || std::exchange(shared_->told, true)) return;
      why = shared_->why;
    }
    std::cerr << line(why + "; the training goes on without it");
  }

  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // signals are for the other threads
    std::thread([s = shared_] { serve(*s); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    started_ = true;
  }

  static void serve(shared& s) {
    std::unique_lock lock(s.mutex);
    while (true) {
      s.changed.wait(lock, [&] { return s.ends || !s.texts.empty(); });
      if (s.texts.empty()) return;
      const auto text = std::move(s.texts.front());
      s.texts.pop_front();
      s.is_writing = true;
      lock.unlock();
      const auto why = s.writes == how::whole ? replace(s, text) : append(s, text);
      lock.lock();
      s.is_writing = false;
      ++s.progress;
      if (!why.empty()) {
        ++s.dropped;
        if (s.why.empty()) s.why = why;
      }
      s.changed.notify_all();
    }
  }

  /// Both return why the text was not written; empty: it was.
  [[nodiscard]] static std::string replace(const shared& s, const std::string& text) {
    try {
      hetsched::write_file(s.path, text);
      return {};
    } catch (const std::exception& e) {
      return e.what();
    }
  }
  [[nodiscard]] static std::string append(shared& s, std::string_view text) {
    const auto failed = [&](int file, off_t whole) {
      const std::string why = s.path + ": cannot be written: " + std::strerror(errno);
      if (file >= 0 && whole >= 0 && ::ftruncate(file, whole) != 0) return why + ", and its last line is not whole";
      return why;
    };
    if (s.file < 0) s.file = open(s);
    if (s.file < 0) return failed(-1, -1);
    struct ::stat status = {};
    const off_t whole = s.keeps_whole && ::fstat(s.file, &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : -1;
    while (!text.empty()) {
      const auto written = ::write(s.file, text.data(), std::min(text.size(), piece_bytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed(s.file, whole);
      text.remove_prefix(static_cast<std::size_t>(written));
      const std::lock_guard lock(s.mutex);
      ++s.progress;
      s.changed.notify_all();
    }
    return {};
  }
  [[nodiscard]] static int open(shared& s) {
    try {
      const auto target = hetsched::detail::find_write_target(s.path);
      if (target.descriptor >= 0) return ::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 0);
    } catch (const std::exception&) {  // open() says why
    }
    s.keeps_whole = true;
    return ::open(s.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC | (s.writes == how::anew ? O_TRUNC : 0),
                  0666);
  }

  std::shared_ptr<shared> shared_;
  bool started_ = false;
};

/// While it lives, what is said on std::cerr holds nobody up, and neither a reader that goes away nor a limit on files ends
/// anything.
class side_errors : std::streambuf {
 public:
  side_errors() : out_(STDERR_FILENO), before_(std::cerr.rdbuf(this)) {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);  // a write that exceeds a limit (ulimit -f) fails and is told
  }
  side_errors(const side_errors&) = delete;
  side_errors& operator=(const side_errors&) = delete;
  ~side_errors() override {
    const bool all = out_.finish();
    std::cerr.rdbuf(before_);
    if (const auto dropped = out_.count_dropped(); all && dropped > 0)
      std::cerr << "hetsched-train: " + std::to_string(dropped) + " texts for standard error were not written\n";
  }

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    out_.add({text, static_cast<std::size_t>(size)});
    return size;
  }
  int overflow(int c) override {
    if (c != traits_type::eof()) out_.add(std::string(1, static_cast<char>(c)));
    return traits_type::not_eof(c);
  }

  side_output out_;
  std::streambuf* before_;
};

}  // namespace train
