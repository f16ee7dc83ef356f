// SPDX-License-Identifier: Apache-2.0
// Commands that run beside the test, as ranks of one run do.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "workplace.hpp"

namespace hetsched::test {

/// A command that runs in a workplace; killed in the end, if it still does.
class process {
 public:
  /// line: as workplace::run takes it. settings: "NAME=VALUE ..." for its environment. name: of the files that hold its output.
  process(const workplace& w, const std::string& line, const std::string& name, const std::string& settings = "")
      : place_(&w), name_(name) {
    const std::string shell = "cd '" + w.path("") + "' && exec env " + settings + " " HETSCHED_COMMAND_DIR "/" + line + " > " +
                              name + ".out 2> " + name + ".err";
    id_ = ::fork();
    if (id_ == 0) {
      ::execl("/bin/sh", "sh", "-c", shell.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    REQUIRE(id_ > 0);
  }
  process(process&& other) noexcept : place_(other.place_), name_(other.name_), id_(other.id_) { other.id_ = -1; }
  process& operator=(process&&) = delete;
  ~process() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }

  [[nodiscard]] pid_t id() const { return id_; }
  void signal(int number) const { ::kill(id_, number); }

  /// Status 128 + signal if it was killed, 1000 if it still runs after so many seconds.
  [[nodiscard]] finished wait(double most_s = 120) {
    using clock = std::chrono::steady_clock;
    const auto until = clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(most_s));
    int status = 0;
    finished result{.status = 1000, .output = {}, .errors = {}};
    while (clock::now() < until) {
      const auto ended = ::waitpid(id_, &status, WNOHANG);
      if (ended == id_) {
        id_ = -1;
        result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    result.output = place_->get(name_ + ".out");
    result.errors = place_->get(name_ + ".err");
    return result;
  }

 private:
  const workplace* place_;
  std::string name_;
  pid_t id_ = -1;
};

/// The ranks of a run that meets in a file store of its own, as torchrun would start them; line(rank): what each runs.
template <class Line>
[[nodiscard]] std::vector<process> start_ranks(const workplace& w, int ranks, const std::string& run, Line line) {
  std::vector<process> all;
  for (int r = 0; r < ranks; ++r)
    all.emplace_back(w, std::string(line(r)) + " --transport gloo --store file:store-" + run, run + "-" + std::to_string(r),
                     "RANK=" + std::to_string(r) + " WORLD_SIZE=" + std::to_string(ranks) + " LOCAL_RANK=" + std::to_string(r));
  return all;
}

/// Waits until a folder holds an entry of that name, 60 s at most.
[[nodiscard]] inline bool appears(const std::string& path) {
  for (int k = 0; k < 6000 && !fs::exists(path); ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return fs::exists(path);
}

}  // namespace hetsched::test
