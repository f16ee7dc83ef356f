// SPDX-License-Identifier: Apache-2.0
// Compiled by itself, with contracts on.
#define HETSCHED_CONTRACTS
#include <hetsched/core/contract.hpp>

#include <csignal>
#include <cstdio>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

namespace {

struct death {
  bool aborted = false;
  std::string message;
};

// What `action` prints to standard error in a child process, and whether it ends in abort().
template <class Action>
death died(Action action) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    action();
    _exit(0);
  }
  close(ends[1]);
  death result;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) result.message.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  result.aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return result;
}

}  // namespace

TEST_CASE("a broken precondition names condition and place, then aborts") {
  const int layers = 0;
  const auto end = died([&] { HETSCHED_EXPECTS(layers > 0); });
  CHECK(end.aborted);
  CHECK(end.message.find("broken precondition: layers > 0") != std::string::npos);
  CHECK(end.message.find("contract_test.cpp:") != std::string::npos);
}

TEST_CASE("a kept precondition does nothing and evaluates its condition once") {
  int evaluations = 0;
  HETSCHED_EXPECTS(++evaluations == 1);
  CHECK(evaluations == 1);
  const auto end = died([] { HETSCHED_EXPECTS(1 + 1 == 2); });
  CHECK(!end.aborted);
  CHECK(end.message.empty());
}
