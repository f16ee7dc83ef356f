// SPDX-License-Identifier: Apache-2.0
// What commands do while they work: they listen to Ctrl-C and show progress.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "../../examples/commands/command.hpp"
#include "workplace.hpp"

using hetsched::test::workplace;

namespace {

/// What a child process ends with: its status, or 128 + signal.
int ending(void (*work)()) {
  const auto child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("the first signal is noted, the second one ends the process, of whatever kind") {
  CHECK(ending([] {
          command::listen_to_signals();
          command::listen_to_signals();
          if (command::interrupted()) ::_exit(1);
          (void)std::raise(SIGINT);
          ::_exit(command::interrupted() && command::interruption == SIGINT ? 7 : 2);
        }) == 7);
  CHECK(ending([] {
          command::listen_to_signals();
          std::signal(SIGTERM, SIG_DFL);
          command::listen_to_signals();
          (void)std::raise(SIGTERM);
          command::listen_to_signals();
          (void)std::raise(SIGTERM);
        }) == 128 + SIGTERM);
  CHECK(ending([] {
          command::listen_to_signals();
          (void)std::raise(SIGTERM);
          (void)std::raise(SIGINT);
        }) == 128 + SIGINT);
}

TEST_CASE("progress is shown after a second, with the time that has passed") {
  const workplace w;
  const int errors = ::dup(2), file = ::open(w.path("errors").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(errors >= 0);
  REQUIRE(file >= 0);
  std::fflush(stderr);
  ::dup2(file, 2);
  {
    command::progress_line progress;
    progress.show(0.1, "too early");
    std::this_thread::sleep_for(std::chrono::milliseconds(1020));
    progress.show(0.5, "half");
    progress.show(0.6, "too soon");
  }
  ::dup2(errors, 2);
  ::close(errors);
  ::close(file);
  CHECK(w.get("errors") == "1 s: half\n");
}
