// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/detail/meeting.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include "../../runtime/dense.hpp"

namespace {

namespace fs = std::filesystem;

fs::path fresh_folder() {
  const auto folder = fs::temp_directory_path() / ("hetsched-meeting-" + hetsched::detail::fresh_nonce());
  fs::create_directories(folder);
  return folder;
}

hetsched::process_place place_of(int rank, int ranks) {
  hetsched::process_place place;
  place.rank = rank;
  place.ranks = ranks;
  return place;
}

/// Runs a rank as a process of its own: 0 if it was connected with all others.
pid_t start_at(const std::string& rendezvous, const std::string& run, int rank, int ranks, double deadline_s) {
  const pid_t child = fork();
  if (child != 0) return child;
  int result = 1;
  try {
    const hetsched::gloo_communicator<hetsched::test::matrix<float>> comm(
        place_of(rank, ranks),
        {.rendezvous = rendezvous, .store = {}, .run = run, .interface = {}, .address = {}, .connect_deadline_s = deadline_s});
    result = 0;
  } catch (const std::exception&) {
  }
  _exit(result);
}

pid_t start(const fs::path& folder, int rank, int ranks, double deadline_s) {
  return start_at("file:" + folder.string(), "r", rank, ranks, deadline_s);
}

int result_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("a run meets in a folder that a failed run has left, in any order of arrival") {
  for (const bool zero_first : {true, false}) {
    CAPTURE(zero_first);
    const auto folder = fresh_folder();
    // Three ranks, of which the last never comes: the others fail and leave what they wrote.
    const pid_t a = start(folder, 0, 3, 0.3), b = start(folder, 1, 3, 0.3);
    CHECK(result_of(a) == 1);
    CHECK(result_of(b) == 1);
    CHECK_FALSE(fs::is_empty(folder));
    std::vector<pid_t> ranks;
    for (const int i : {0, 1, 2}) {
      ranks.push_back(start(folder, zero_first ? i : 2 - i, 3, 10));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (const pid_t rank : ranks) CHECK(result_of(rank) == 0);
    CHECK(fs::is_empty(folder));
    fs::remove_all(folder);
  }
}

TEST_CASE("gloo: ranks meet in a real Redis, where a name serves once") {
  if (std::system("command -v redis-server >/dev/null 2>&1") != 0) {
    MESSAGE("skipped: there is no redis-server");
    return;
  }
  const auto folder = fresh_folder();
  const std::string port = hetsched::detail::listen_on("127.0.0.1").at.port;  // free again at once
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(folder.c_str()) == 0)
      execlp("redis-server", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning",
             nullptr);
    _exit(127);
  }
  const std::string where = "redis://127.0.0.1:" + port;
  bool is_there = false;
  for (int k = 0; k < 500 && !is_there; ++k) {
    try {
      (void)hetsched::open_gloo_store(where);
      is_there = true;
    } catch (const hetsched::error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  REQUIRE(is_there);
  const auto meet = [&](const std::string& run, double deadline_s) {
    std::vector<pid_t> ranks;
    for (const int r : {2, 0, 1}) ranks.push_back(start_at(where, run, r, 3, deadline_s));
    int failed = 0;
    for (const pid_t rank : ranks) failed += result_of(rank) != 0;
    return failed;
  };
  CHECK(meet("one", 20) == 0);
  CHECK(meet("another", 20) == 0);
  CHECK(meet("one", 2) > 0);
  kill(server, SIGKILL);
  (void)result_of(server);
  CHECK_THROWS_AS((void)hetsched::open_gloo_store(where), hetsched::error);
  fs::remove_all(folder);
}

TEST_CASE("a meeting names all ranks that are missing") {
  const auto folder = fresh_folder();
  std::string said;
  try {
    (void)hetsched::detail::meet_in_folder(folder, place_of(0, 3), "r", 0.02, std::chrono::steady_clock::now());
  } catch (const hetsched::error& e) {
    said = e.what();
  }
  CHECK(said.starts_with("ranks 1, 2 have not come to run \"r\" in the rendezvous file:" + folder.string()));
  fs::remove_all(folder);
}

}  // namespace

TEST_CASE("a folder in which no run can meet is an error that names it") {
  const hetsched::process_place first{.rank = 0, .ranks = 2, .launcher = {}, .master = {}, .run = {}};
  CHECK_THROWS_WITH_AS((void)hetsched::detail::meet_in_folder("/proc", first, "run", 1, std::chrono::steady_clock::now()),
                       doctest::Contains("cannot make /proc/meeting-"), hetsched::error);
}
