// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/detail/meeting.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include "../../runtime/dense.hpp"
#include "../any_store.hpp"

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

/// Until there is a file in the folder that is whole: behind a dot in its name it is not.
void wait_for_somebody(const fs::path& folder) {
  const auto is_whole = [](const auto& entry) { return !entry.path().has_extension(); };
  while (std::none_of(fs::directory_iterator(folder), fs::directory_iterator(), is_whole))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
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
  hetsched::test::check_failures_are_told(where, "fails");
  hetsched::test::check_ranks_come_and_go(where, "elastic");
  kill(server, SIGKILL);
  (void)result_of(server);
  CHECK_THROWS_AS((void)hetsched::open_gloo_store(where), hetsched::error);
  fs::remove_all(folder);
}

TEST_CASE("two processes of one rank are told to all, long before the deadline") {
  struct launch {
    std::vector<int> ranks;
    int of, twice;
  };
  for (const auto& [ranks, of, twice] : {launch{{0, 0}, 2, 0}, launch{{1, 1}, 3, 1}, launch{{0, 2, 2}, 4, 2}}) {
    CAPTURE(of);
    const auto folder = fresh_folder();
    // What a process left that was killed while it waited as this rank is no process.
    const auto meet = [&, of = of](int rank) {
      try {
        (void)hetsched::detail::meet_in_folder(folder, place_of(rank, of), "r", 30, hetsched::deadline_in(30));
      } catch (const hetsched::input_error& e) {
        return std::string(e.what());
      }
      return std::string("met");
    };
    const pid_t killed = fork();
    if (killed == 0) {
      (void)meet(twice);
      _exit(0);
    }
    wait_for_somebody(folder);
    kill(killed, SIGKILL);
    (void)result_of(killed);

    const double start_s = hetsched::steady_now_s();
    std::vector<std::string> said(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) threads.emplace_back([&, i] { said[i] = meet(ranks[i]); });
    for (auto& t : threads) t.join();
    CHECK(hetsched::steady_now_s() - start_s < 10);
    const std::string text = "two processes say that they are rank " + std::to_string(twice) + " of " + std::to_string(of) +
                             " in run \"r\" in the rendezvous file:" + folder.string() + ": process ";
    for (const auto& each : said) {
      CAPTURE(each);
      CHECK(each.starts_with(text));
      CHECK(each.find(" and process " + std::to_string(getpid()) + " on ") != std::string::npos);
    }
    for (const auto& left : fs::directory_iterator(folder)) CHECK(left.path().string().find("-here-") == std::string::npos);
    fs::remove_all(folder);
  }
}

TEST_CASE("a rank that cannot come tells all that wait, and those that come later; a killed one's word counts no more") {
  const auto folder = fresh_folder();
  const auto text_of = [](const auto& work) {
    try {
      work();
    } catch (const hetsched::error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto meet = [&](int rank) {
    return text_of(
        [&] { (void)hetsched::detail::meet_in_folder(folder, place_of(rank, 3), "r", 30, hetsched::deadline_in(30)); });
  };
  const auto tell = [&](const std::string& why) {
    hetsched::detail::tell_folder(folder, place_of(1, 3), "r", why, std::chrono::seconds(20));
  };
  const pid_t killed = fork();
  if (killed == 0) {
    tell("an old cause");
    _exit(0);
  }
  wait_for_somebody(folder);
  kill(killed, SIGKILL);
  (void)result_of(killed);

  const double start_s = hetsched::steady_now_s();
  std::string first, last;
  std::thread waits([&] { first = meet(0); });
  std::thread fails([&] { tell("no such file:\n\033[1mtext"); });
  waits.join();
  std::thread late([&] { last = meet(2); });
  late.join();
  fails.join();
  CHECK(hetsched::steady_now_s() - start_s < 10);
  for (const auto& each : {first, last}) {
    CAPTURE(each);
    CHECK(each.starts_with("rank 1 cannot come to run \"r\" in the rendezvous file:" + folder.string() + ": no such file:"));
    CHECK(each.find("[1mtext") != std::string::npos);
    CHECK(each.find('\033') == std::string::npos);
  }
  for (const auto& left : fs::directory_iterator(folder)) CHECK(left.path().string().find("-here-") == std::string::npos);
  fs::remove_all(folder);
}

TEST_CASE("a rank that fails while all find each other's addresses tells them, in a folder and in a store") {
  const auto folder = fresh_folder();
  for (const bool in_folder : {true, false}) {
    CAPTURE(in_folder);
    const auto store = in_folder ? nullptr : hetsched::make_process_store();
    std::vector<std::string> said(3);
    std::vector<std::thread> ranks;
    const double start_s = hetsched::steady_now_s();
    for (int r = 0; r < 3; ++r)
      ranks.emplace_back([&, r] {
        try {
          const hetsched::gloo_options options{.rendezvous = in_folder ? "file:" + folder.string() : "",
                                               .store = store,
                                               .run = "r",
                                               .interface = r == 1 ? "none0" : "",
                                               .address = {}};
          const hetsched::gloo_communicator<hetsched::test::matrix<float>> comm(place_of(r, 3), options);
        } catch (const std::exception& e) {
          said[static_cast<std::size_t>(r)] = e.what();
        }
      });
    for (auto& t : ranks) t.join();
    CHECK(hetsched::steady_now_s() - start_s < 10);
    CHECK(said[1] == "interface none0 cannot be used: it is not there, or has no address");
    for (const int r : {0, 2}) CHECK(said[static_cast<std::size_t>(r)] == "rank 1 cannot come to run \"r\": " + said[1]);
  }
  // One that fails before it meets anybody.
  hetsched::gloo_options options;
  options.store = hetsched::make_process_store();
  options.run = "r";
  hetsched::tell_failure(place_of(1, 2), options, "no text");
  CHECK_THROWS_WITH_AS((hetsched::gloo_communicator<hetsched::test::matrix<float>>(place_of(0, 2), options)),
                       "rank 1 cannot come to run \"r\": no text", hetsched::error);
  fs::remove_all(folder);
}

TEST_CASE("names of files are the same from every compiler: the beginning of SHA-256") {
  CHECK(hetsched::detail::name_hash("") == "e3b0c44298fc1c14");
  CHECK(hetsched::detail::name_hash("abc") == "ba7816bf8f01cfea");
}

TEST_CASE("a process whose place another one has taken is told so") {
  const auto folder = fresh_folder();
  std::string late;
  std::thread first([&] {
    try {
      (void)hetsched::detail::meet_in_folder(folder, place_of(1, 2), "r", 30, hetsched::deadline_in(30));
      late = "met";
    } catch (const hetsched::input_error& e) {
      late = e.what();
    }
  });
  // Rank 0 by hand: waits, has the first's answer, and then another's in its place.
  std::string prefix;
  while (prefix.empty()) {
    for (const auto& entry : fs::directory_iterator(folder))
      if (const auto name = entry.path().filename().string(); name.find("here-") != std::string::npos)
        prefix = name.substr(0, name.find("here-"));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::ofstream(folder / (prefix + "0")) << "word\n" << std::flush;
  while (!fs::exists(folder / (prefix + "1"))) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::ofstream(folder / (prefix + "part")) << "word 2 another\n" << std::flush;
  fs::rename(folder / (prefix + "part"), folder / (prefix + "0"));
  first.join();
  CHECK(late.starts_with("another process says that it is rank 1 of 2 in run \"r\""));
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
                       doctest::Contains("/proc/meeting-"), hetsched::error);
}
