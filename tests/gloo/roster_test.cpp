// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/roster.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/gloo/elastic.hpp>

#include "../runtime/dense.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<float>;
using channel = gloo_communicator<tensor>;

std::chrono::steady_clock::time_point in(double seconds) { return deadline_in(seconds); }

std::string text_of(const generation& g) {
  std::string text = std::to_string(g.number) + ":";
  for (const auto& m : g.members) text += ' ' + m;
  return text;
}

gloo_options options_in(const scratch_folder& folder) {
  gloo_options options;
  options.rendezvous = "file:" + folder.path;
  options.run = "elastic";
  options.connect_deadline_s = 10;
  return options;
}

}  // namespace

TEST_CASE("gloo: a roster in a folder that cannot be made is an error of the library, with the member's name") {
  const scratch_folder folder;
  std::ofstream(folder.path + "/file");
  try {
    const roster none(folder.path + "/file/roster", "r3");
    FAIL("it was made");
  } catch (const error& e) {
    const std::string text = e.what();
    CHECK(text.starts_with("member r3: " + folder.path + "/file/roster cannot be used: "));
  }
}

TEST_CASE("[threads] gloo: a roster settles who goes on, the same for all") {
  const scratch_folder folder;
  const generation first{0, {"r0", "r1", "r2"}};
  std::vector<generation> found(4);
  const auto on_threads = [&](const std::vector<std::function<void()>>& all) {
    std::vector<std::thread> threads;
    for (const auto& work : all) threads.emplace_back(work);
    for (auto& t : threads) t.join();
  };
  const auto member = [&](std::size_t i, const std::string& name, const generation& before) {
    return [&, i, name, before] { found[i] = roster(folder.path, name).next(before, 0.2, in(20)); };
  };
  SUBCASE("all are ready: nothing is waited for, and ranks stay") {
    const auto began = std::chrono::steady_clock::now();
    on_threads({member(2, "r2", first), member(0, "r0", first), member(1, "r1", first)});
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
    for (int i = 0; i < 3; ++i) CHECK(text_of(found[static_cast<std::size_t>(i)]) == "1: r0 r1 r2");
  }
  SUBCASE("one is lost, and comes back for the generation behind; another one comes") {
    on_threads({member(0, "r0", first), member(2, "r2", first)});
    CHECK(text_of(found[0]) == "1: r0 r2");
    CHECK(text_of(found[2]) == "1: r0 r2");
    const auto second = found[0];
    on_threads({member(1, "r1", first), [&] { found[3] = roster(folder.path, "jx").wait(-1, in(20)); },
                [&] {
                  const roster own(folder.path, "r0");
                  while (!own.somebody_waits()) std::this_thread::yield();
                  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // both are there
                  found[0] = own.next(second, 0.2, in(20));
                },
                [&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  found[2] = roster(folder.path, "r2").next(second, 5, in(20));
                }});
    for (const auto& g : found) CHECK(text_of(g) == "2: r0 r2 jx r1");
    CHECK(found[1].rank_of("r1") == 3);
    CHECK(found[1].rank_of("r9") == -1);
    CHECK(!roster(folder.path, "r0").somebody_waits());
  }
  SUBCASE("nobody takes it in") {
    CHECK_THROWS_AS((void)roster(folder.path, "jx").wait(-1, in(0.1)), error);
    CHECK(!roster(folder.path, "r0").somebody_waits());
  }
}

TEST_CASE("gloo processes: a run goes on without ranks that are killed, and with those that join") {
  const scratch_folder folder;
  // Each generation gathers the names that ranks had when they began, until the last one has gone three times around.
  const auto rank = [&](int number, bool joins, const auto& say) {
    int rounds = 0;
    run_elastically<tensor>({.rank = number, .ranks = 4, .launcher = {}, .master = {}, .run = {}}, options_in(folder),
                            {.joins = joins, .settle_s = 1.5, .say = {}}, [&](channel& comm, const elastic_place& here) {
                              bool told = false;
                              while (true) {
                                std::vector<std::vector<double>> all;
                                const double lets_in = here.place.rank == 0 && here.somebody_waits() ? 1 : 0;
                                if (comm.gather(std::vector<double>{1.0 * number, lets_in}, all, in(20)) != wait_result::progress)
                                  throw communication_error(comm.failure(), {}, no_microbatch, {});
                                if (!told) {
                                  std::string names = std::to_string(here.generation) + ":";
                                  for (const auto& a : all) names += ' ' + std::to_string(static_cast<int>(a[0]));
                                  say(names);
                                  told = true;
                                }
                                if (all[0][1] != 0) return false;
                                if (here.generation == 3 && ++rounds == 3) return true;
                                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                              }
                            });
    return std::string("done");
  };
  process_group begin(4, [&](int number, const auto& say) { return rank(number, false, say); });
  for (int r = 0; r < 4; ++r) CHECK(begin.hear(r, 30) == "0: 0 1 2 3");
  begin.kill(0);
  for (int r = 1; r < 4; ++r) CHECK(begin.hear(r, 30) == "1: 1 2 3");
  begin.kill(2);
  for (const int r : {1, 3}) CHECK(begin.hear(r, 30) == "2: 1 3");
  process_group late(1, [&](int, const auto& say) { return rank(7, true, say); });
  CHECK(late.hear(0, 30) == "3: 1 3 7");
  for (const int r : {1, 3}) CHECK(begin.hear(r, 30) == "3: 1 3 7");
  for (const int r : {1, 3}) CHECK(begin.hear(r, 30) == "done");
  CHECK(late.hear(0, 30) == "done");
  // Nothing is left behind but the folder.
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("gloo processes: a generation that fails again and again, without a loss, ends the run; one that is alone, too") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const scratch_folder folder;
    process_group processes(ranks, [&](int number, const auto&) {
      int calls = 0;
      try {
        run_elastically<tensor>({.rank = number, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options_in(folder),
                                {.settle_s = 0.3, .failures = 2, .say = {}}, [&](channel&, const elastic_place&) -> bool {
                                  ++calls;
                                  throw communication_error("never fits", {}, no_microbatch, {});
                                });
      } catch (const communication_error& e) {
        return std::to_string(calls) + " times: " + e.what();
      }
      return std::string("no error");
    });
    for (int r = 0; r < ranks; ++r) CHECK(processes.hear(r, 30) == std::to_string(ranks == 1 ? 1 : 3) + " times: never fits");
  }
}
