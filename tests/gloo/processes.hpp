// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hetsched::test {

/// A folder of its own, removed with all that is in it.
class scratch_folder {
 public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "hetsched_gloo_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no folder for scratch files");
    path = name;
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  std::string path;
};

/// Processes forked from this one, which must have no other threads then. Each runs a body and says what it has to say: one text
/// on the way, if it likes, and one at its end. None outlives this object, or this process.
class process_group {
 public:
  /// body(number, say) -> std::string, its last words; an exception's text with "threw: " before it.
  using body = std::function<std::string(int, const std::function<void(const std::string&)>&)>;

  process_group(int count, const body& run) {
    std::fflush(nullptr);
    for (int i = 0; i < count; ++i) {
      int ends[2];
      if (pipe(ends) != 0) throw std::runtime_error("no pipe");
      const pid_t parent = getpid(), id = fork();
      if (id < 0) throw std::runtime_error("no process");
      if (id == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        close(ends[0]);
        for (const auto& m : members_) close(m.from);
        const auto say = [&](const std::string& text) {
          const std::string line = text + '\0';
          for (std::size_t done = 0; done < line.size();) {
            const auto n = ::write(ends[1], line.data() + done, line.size() - done);
            if (n <= 0) _exit(1);
            done += static_cast<std::size_t>(n);
          }
        };
        std::string last;
        try {
          last = run(i, say);
        } catch (const std::exception& e) {
          last = std::string("threw: ") + e.what();
        }
        say(last);
        _exit(0);
      }
      close(ends[1]);
      members_.push_back({.id = id, .from = ends[0], .heard = {}, .status = 0, .ended = false});
    }
  }
  ~process_group() {
    for (auto& m : members_) {
      if (!m.ended) {
        ::kill(m.id, SIGKILL);
        waitpid(m.id, &m.status, 0);
      }
      close(m.from);
    }
  }
  process_group(const process_group&) = delete;
  process_group& operator=(const process_group&) = delete;

  void kill(int member) { ::kill(members_[static_cast<std::size_t>(member)].id, SIGKILL); }

  void stop(int member) { ::kill(members_[static_cast<std::size_t>(member)].id, SIGSTOP); }

  /// The next text of a member; "silent" if none comes in time, "ended: STATUS" if none can come any more.
  std::string hear(int member, double limit_s = 120) {
    auto& m = members_[static_cast<std::size_t>(member)];
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
    while (true) {
      if (const auto end = m.heard.find('\0'); end != std::string::npos) {
        auto text = m.heard.substr(0, end);
        m.heard.erase(0, end + 1);
        return text;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      pollfd one{.fd = m.from, .events = POLLIN, .revents = 0};
      if (left <= 0 || poll(&one, 1, static_cast<int>(left)) == 0) return "silent";
      char some[4096];
      const auto n = read(m.from, some, sizeof some);
      if (n > 0) {
        m.heard.append(some, static_cast<std::size_t>(n));
        continue;
      }
      if (!m.ended) {
        waitpid(m.id, &m.status, 0);
        m.ended = true;
      }
      return WIFSIGNALED(m.status) ? "ended: signal " + std::to_string(WTERMSIG(m.status))
                                   : "ended: " + std::to_string(WEXITSTATUS(m.status));
    }
  }

 private:
  struct child {
    pid_t id;
    int from;
    std::string heard;
    int status;
    bool ended;
  };
  std::vector<child> members_;
};

}  // namespace hetsched::test
