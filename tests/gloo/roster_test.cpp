// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/roster.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/gloo/elastic.hpp>
#include <hetsched/gloo/folder_store.hpp>

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

TEST_CASE("gloo: a roster in a folder that cannot be made is an error of the library") {
  const scratch_folder folder;
  std::ofstream(folder.path + "/file");
  try {
    const folder_store none(folder.path + "/file/roster");
    FAIL("it was made");
  } catch (const error& e) {
    CHECK(std::string(e.what()).starts_with(folder.path + "/file/roster cannot be made: "));
  }
  auto none = detail::open_roster("file:" + folder.path + "/file", "roster", "r3");
  try {
    (void)none.next({0, {"r3"}}, 0, in(1));
    FAIL("it was made");
  } catch (const error& e) {
    CHECK(e.what() == folder.path + "/file/roster is not there");
  }
  CHECK(!none.somebody_waits());
}

TEST_CASE("gloo: in a folder, a name is set once, and what there is of it is whole") {
  const scratch_folder folder;
  folder_store one(folder.path), other(folder.path);
  const std::vector<char> first{'a', '\n', '\0'};
  CHECK(!other.check("name"));
  one.set("name", first);
  CHECK(other.get("name") == first);
  CHECK_THROWS_AS(other.set("name", first), error);
  CHECK_THROWS_AS((void)other.get("another"), error);
  CHECK_THROWS_AS(other.wait({"name", "another"}, std::chrono::milliseconds(20)), error);
  std::thread late([&] { one.set("another", {}); });
  other.wait({"name", "another"}, std::chrono::seconds(20));
  late.join();
  other.set("stays", first);
  one.forget();
  CHECK(!other.check("name"));
  CHECK(other.check("stays"));
  std::vector<std::string> won(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < won.size(); ++i)
    threads.emplace_back([&, i] {
      folder_store own(folder.path);
      try {
        own.set("once", {static_cast<char>('0' + i)});
        won[i] = static_cast<char>('0' + i);
      } catch (const error&) {
      }
    });
  for (auto& t : threads) t.join();
  const auto value = one.get("once");
  CHECK(won[0] + won[1] + won[2] + won[3] == std::string(value.begin(), value.end()));
}

TEST_CASE("[threads] gloo: a roster settles who goes on, the same for all") {
  const scratch_folder folder;
  const auto process_store = make_process_store();
  bool in_folder = true;
  std::filesystem::create_directory(folder.path + "/here");
  const auto roster_of = [&](const std::string& name) {
    return in_folder ? detail::open_roster("file:" + folder.path, "here", name)
                     : roster([&] { return process_store; }, "here", name);
  };
  const generation first{0, {"r0", "r1", "r2"}};
  std::vector<generation> found(4);
  const auto on_threads = [&](const std::vector<std::function<void()>>& all) {
    std::vector<std::thread> threads;
    for (const auto& work : all) threads.emplace_back(work);
    for (auto& t : threads) t.join();
  };
  const auto member = [&](std::size_t i, const std::string& name, const generation& before) {
    return [&, i, name, before] { found[i] = roster_of(name).next(before, 0.2, in(20)); };
  };
  SUBCASE("all are ready: nothing is waited for, and ranks stay") {
    const auto began = std::chrono::steady_clock::now();
    on_threads({member(2, "r2", first), member(0, "r0", first), member(1, "r1", first)});
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
    for (int i = 0; i < 3; ++i) CHECK(text_of(found[static_cast<std::size_t>(i)]) == "1: r0 r1 r2");
    CHECK(!roster_of("r0").is_left_behind(found[0], in(0.05)));
  }
  const auto lost_and_back = [&] {
    on_threads({member(0, "r0", first), member(2, "r2", first)});
    CHECK(text_of(found[0]) == "1: r0 r2");
    CHECK(text_of(found[2]) == "1: r0 r2");
    CHECK(roster_of("r1").is_left_behind(first, in(0)));
    const auto second = found[0];
    on_threads({member(1, "r1", first), [&] { found[3] = roster_of("jx").wait(-1, in(20)); },
                [&] {
                  auto own = roster_of("r0");
                  while (!own.somebody_waits()) std::this_thread::yield();
                  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // both are there
                  found[0] = own.next(second, 0.2, in(20));
                },
                [&] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                  found[2] = roster_of("r2").next(second, 5, in(20));
                }});
    for (const auto& g : found) CHECK(g.number == 2);
    const auto members = text_of(found[0]);
    CHECK((members == "2: r0 r2 jx r1" || members == "2: r0 r2 r1 jx"));
    for (const auto& g : found) CHECK(text_of(g) == members);
    CHECK(found[1].rank_of("r1") >= 2);
    CHECK(found[1].rank_of("r9") == -1);
    CHECK(!roster_of("r0").somebody_waits());
  };
  SUBCASE("one is lost, and comes back for the generation behind; another one comes") { lost_and_back(); }
  SUBCASE("the same in a store without folders") {
    in_folder = false;
    lost_and_back();
  }
  SUBCASE("nobody takes it in") {
    CHECK_THROWS_AS((void)roster_of("jx").wait(-1, in(0.1)), error);
    CHECK(!roster_of("r0").somebody_waits());
  }
}

TEST_CASE("[threads] gloo: who wakes or comes behind the end of a run finds that it has ended, and leaves nothing") {
  const scratch_folder folder;
  const std::string where = "file:" + folder.path;
  const auto id = detail::roster_prefix("run") + "1";
  auto first = detail::make_roster(where, "run", id, "r0");
  auto asleep = detail::open_roster(where, id, "r1"), fresh = detail::open_roster(where, id, "r2");
  auto late = detail::open_roster(where, detail::find_roster(where, "run"), "jx");
  CHECK(!asleep.has_ended());
  std::string told;
  std::thread joins([&] {
    try {
      (void)late.wait(-1, in(30));
    } catch (const error& e) {
      told = e.what();
    }
  });
  while (!first.somebody_waits()) std::this_thread::yield();
  detail::remove_roster(where, first, true);
  joins.join();
  CHECK(told == "member jx: the run has ended that met in " + id);
  for (auto* const r : {&asleep, &fresh}) CHECK_THROWS_AS((void)r->next({3, {"r0", "r1", "r2"}}, 0, in(30)), error);
  for (auto* const r : {&late, &fresh}) CHECK_THROWS_AS((void)r->wait(-1, in(-1)), error);
  CHECK(std::filesystem::is_empty(folder.path));
  CHECK_THROWS_WITH_AS((void)detail::find_roster(where, "run"), (folder.path + ": expected one run to join, found 0").c_str(),
                       input_error);
  // The same in a store that keeps what was set.
  const auto kept = make_process_store();
  const auto member = [&](const std::string& name) { return roster([&] { return kept; }, "here", name); };
  const generation before{0, {"r0", "r1"}};
  member("r0").end();
  CHECK(member("r1").has_ended());
  CHECK_THROWS_WITH_AS((void)member("r1").next(before, 0, in(30)), "member r1: the run has ended that met in here", error);
  CHECK_THROWS_WITH_AS((void)member("jx").wait(-1, in(30)), "member jx: the run has ended that met in here", error);
  CHECK(!member("r0").is_left_behind(before, in(0)));
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

TEST_CASE("[threads] gloo: a rank that stood still while the others went on is taken in again, by whatever error it finds so") {
  const scratch_folder folder;
  enum class first_rank { stands_still, fails, leaves };  // leaves: as all throw together
  std::atomic<int> gone_on = 0;
  std::vector<std::string> told(3);
  const auto rank = [&](int number, first_rank does) {
    auto& said = told[static_cast<std::size_t>(number)];
    const bool stands_still = does == first_rank::stands_still;
    int rounds = 0;
    try {
      run_elastically<tensor>(
          {.rank = number, .ranks = 3, .launcher = {}, .master = {}, .run = {}}, options_in(folder), {.settle_s = 1.5, .say = {}},
          [&](channel& comm, const elastic_place& here) {
            said += std::to_string(here.generation) + ": " + std::to_string(here.place.rank) + "; ";
            gone_on += here.generation == 1;
            const bool begins = here.generation == 0;
            if (begins && number == 0) {
              for (const auto until = in(30); stands_still && gone_on < 2 && std::chrono::steady_clock::now() < until;)
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
              if (does != first_rank::leaves) throw error("the folder is not there");
              for (const auto until = in(30); comm.ask() != wait_result::aborted && std::chrono::steady_clock::now() < until;)
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
              throw leaves_run("its disk is full");
            }
            if (begins && does == first_rank::leaves)
              throw communication_error("rank 0: its disk is full", {}, no_microbatch, {});
            for (const auto until = in(30); std::chrono::steady_clock::now() < until;) {
              std::vector<std::vector<double>> all;
              const double lets_in = here.place.rank == 0 && here.somebody_waits() ? 1 : 0;
              const double deadline_s = begins && stands_still ? 0.5 : 20;  // else they are told
              if (comm.gather(std::vector<double>{lets_in}, all, in(deadline_s)) != wait_result::progress)
                throw communication_error(comm.failure(), {}, no_microbatch, {});
              if (all[0][0] != 0) return false;
              if ((here.generation == 2 || !stands_still) && ++rounds == 3) return true;
            }
            return true;
          });
      said += "done";
    } catch (const error& e) {
      said += e.what();
    }
  };
  const auto on_threads = [&](first_rank does) {
    gone_on = 0;
    for (auto& text : told) text.clear();
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < 3; ++r) ranks.emplace_back([&, r] { rank(r, does); });
    }
    return told[0] + " | " + told[1] + " | " + told[2];
  };
  SUBCASE("it stands still") {
    CHECK(on_threads(first_rank::stands_still) == "0: 0; 2: 2; done | 0: 1; 1: 0; 2: 0; done | 0: 2; 1: 1; 2: 1; done");
  }
  SUBCASE("it fails") {
    CHECK(on_threads(first_rank::fails) == "0: 0; the folder is not there | 0: 1; 1: 0; done | 0: 2; 1: 1; done");
  }
  SUBCASE("all know that it fails, and throw together") {
    CHECK(on_threads(first_rank::leaves) == "0: 0; its disk is full | 0: 1; 1: 0; done | 0: 2; 1: 1; done");
  }
}
