// SPDX-License-Identifier: Apache-2.0
// Ranks of stages that are groups of processes are killed. bench/validation/group_faults.sh does so more often.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/json/plan_json.hpp>

#include "processes.hpp"
#include "workplace.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two stages of a GPT of two blocks.
std::string plan_of(const degrees& first, const degrees& second) {
  pipeline_plan line{.microbatches = 2, .microbatch_size = 2, .schedule = {.name = "gpipe"}};
  line.boundaries.push_back({});
  const int ahead = first.device_count(), behind = second.device_count();
  line.stages.push_back({.layers = {0, 2}, .devices = {{{.devices_per_node = ahead}, 0}}, .degrees = first});
  line.stages.push_back({.layers = {2, 4}, .devices = {{{.devices_per_node = behind}, ahead}}, .degrees = second});
  return to_json(plan{.pipelines = {line}}, {"local"}, {ahead + behind});
}

int newest_step(const workplace& w) {
  int newest = 0;
  for (const auto& e : fs::directory_iterator(w.path("state")))
    if (const auto name = e.path().filename().string(); name.starts_with("step-") && name.find('.') == std::string::npos)
      newest = std::max(newest, std::stoi(name.substr(5)));
  return newest;
}

}  // namespace

TEST_CASE("a rank that hangs before the first step is waited for no longer than the deadline") {
  const workplace w;
  // Rank 0 is stopped while it meets the others or times layers.
  const std::string run =
      "hetsched-train --layers 2 --hidden 384 --heads 4 --sequence 256 --microbatches 2 --steps 1 --deadline 1 "
      "--connect-deadline 5 ";
  auto all = start_ranks(w, 3, "hangs", [&](int) { return run; });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  all[0].signal(SIGSTOP);
  for (int r = 1; r < 3; ++r) {
    CAPTURE(r);
    const auto ended = all[static_cast<std::size_t>(r)].wait(30);
    CAPTURE(ended.errors);
    CHECK(ended.status == 3);
    CHECK(contains(ended.errors, "rank 0"));
  }
  all[0].signal(SIGKILL);
}

TEST_CASE("a rank that fails before all have met tells the others why, at once") {
  const workplace w;
  const std::string run = "hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --microbatches 2 --steps 1 ";
  REQUIRE(w.run(run + "--checkpoint old").status == 0);
  struct failing {
    int rank;
    std::string options, said;
  };
  for (const auto& [rank, options, said] : {failing{1, "--text none.txt", "none.txt"},
                                            failing{0, "--checkpoint old", "old holds step-000001: --resume goes on from it"}}) {
    CAPTURE(options);
    const auto start = std::chrono::steady_clock::now();
    auto all = start_ranks(w, 3, "fails-" + std::to_string(rank),
                           [&, rank = rank, options = options](int r) { return run + (r == rank ? options : ""); });
    for (int r = 0; r < 3; ++r) {
      const auto ended = all[static_cast<std::size_t>(r)].wait(30);
      CAPTURE(r);
      CAPTURE(ended.errors);
      CHECK(ended.status == (r == rank ? 2 : 3));
      CHECK(contains(ended.errors, said));
      if (r != rank) CHECK(contains(ended.errors, "rank " + std::to_string(rank) + " cannot come to "));
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  }
}

TEST_CASE("ranks that are suspended together for longer than the deadline go on, with the undisturbed losses") {
  const workplace w;
  const auto run = [](const std::string& losses) {
    return "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --steps 500 --deadline 1 --losses " + losses +
           " --plan plan.json";
  };
  w.put("plan.json", plan_of({1, 1, 1}, {1, 1, 2}));
  auto all = start_ranks(w, 3, "suspended", [&](int) { return run("suspended.csv"); });
  REQUIRE(appears(w.path("suspended.csv")));
  for (const auto& one : all) one.signal(SIGSTOP);
  const auto done = std::count_if(all.begin(), all.end(), [](auto& one) { return one.wait(0.6).status != 1000; });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  CHECK(done == 0);
  for (const auto& one : all) one.signal(SIGCONT);
  bool said = false;
  for (auto& one : all) {
    const auto ended = one.wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    said = said || contains(ended.errors, ": this process stood still for ");
  }
  CHECK(said);  // by those that waited for others
  auto calm = start_ranks(w, 3, "calm", [&](int) { return run("calm.csv"); });
  for (auto& one : calm) CHECK(one.wait(60).status == 0);
  CHECK(w.get("suspended.csv") == w.get("calm.csv"));
}

TEST_CASE("ranks that were given different options end with the first of them, on every rank") {
  struct pair {
    std::string ours, theirs, said;
  };
  const workplace w;
  for (const auto& [ours, theirs, said] :
       {pair{"--steps 3", "--steps 4", "--steps: 3 on rank 0, 4 on rank 1"},
        pair{"--steps 2 --checkpoint state --every 1", "--steps 2 --checkpoint state", "--every: 1 on rank 0, 0 on rank 1"},
        pair{"--steps 2", "--steps 2 --trace trace.json", "--trace or --report: not given on rank 0, given on rank 1"}}) {
    CAPTURE(said);
    auto all = start_ranks(w, 2, "differ", [&, ours = ours, theirs = theirs](int r) {
      return "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 2 " + (r == 0 ? ours : theirs);
    });
    for (auto& one : all) {
      const auto ended = one.wait(30);
      CAPTURE(ended.errors);
      CHECK(ended.status == 2);
      CHECK(contains(ended.errors, said));
    }
  }
}

TEST_CASE("what is not finite ends all ranks behind a checkpoint of the last step") {
  const workplace w;
  const std::string run = "hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --microbatches 2 ";
  const std::string wild = run + "--optimizer sgd --lr 1e6 --clip 0 --steps 50 --checkpoint state";
  auto all = start_ranks(w, 2, "wild", [&](int) { return wild; });
  int steps = 0;
  for (auto& one : all) {
    const auto ended = one.wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 3);
    CHECK(contains(ended.errors, " not finite; stopped after step "));
    const auto at = ended.errors.find("step ");
    REQUIRE(at != std::string::npos);
    steps = std::stoi(ended.errors.substr(at + 5));
  }
  CHECK(steps > 0);
  CHECK(newest_step(w) == steps);
  const auto resumed =
      w.run(run + "--optimizer sgd --lr 1e6 --clip 0 --steps " + std::to_string(steps) + " --checkpoint state --resume");
  CAPTURE(resumed.errors);
  CHECK(resumed.status == 0);
}

TEST_CASE("a snapshot that a rank cannot write costs no step") {
  const workplace w;
  const std::string training =
      "hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --microbatches 2 --steps 1500 --losses losses.csv ";
  auto all = start_ranks(w, 2, "snapshots", [&](int) { return training + "--snapshot-every 5 --elastic"; });
  REQUIRE(appears(w.path("losses.csv")));
  const struct rlimit tight = {.rlim_cur = 100, .rlim_max = 100};  // bytes of a file
  REQUIRE(::prlimit(all[1].id(), RLIMIT_FSIZE, &tight, nullptr) == 0);
  for (std::size_t r = 0; r < 2; ++r) {
    CAPTURE(r);
    const auto ended = all[r].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    if (r == 0) CHECK(contains(ended.errors, ", as rank 1 cannot write: "));
  }
  const auto losses = w.get("losses.csv");
  CHECK(std::count(losses.begin(), losses.end(), '\n') == 1501);
}

TEST_CASE("losses are in their file while the training goes on, and stay when it is killed") {
  const workplace w;
  w.put("losses.csv", "of another training\n");
  const process trains(w, "hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --steps 1000000 --losses losses.csv",
                       "trains");
  std::string text;
  for (int i = 0; i < 400 && std::count(text.begin(), text.end(), '\n') < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    text = w.get("losses.csv");
  }
  trains.signal(SIGKILL);
  CAPTURE(text);
  CHECK(text.starts_with("step,loss\n0,5."));
  CHECK(contains(text, "\n1,5."));
  CHECK(contains(text, "\n2,"));
}

TEST_CASE("kill -9 in a group of devices: the others end with the cause, and what goes on has the losses of the undisturbed") {
  random_source random(11);
  struct shape {
    degrees first, second;
    int from, to;  // ranks of the group
  };
  for (const auto& [first, second, from, to] :
       {shape{{1, 1, 2}, {1, 1, 1}, 0, 1}, shape{{1, 1, 1}, {1, 1, 2}, 1, 2}, shape{{2, 1, 2}, {1, 1, 1}, 0, 3}}) {
    const workplace w;
    w.put("plan.json", plan_of(first, second));
    const std::string run = "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --plan plan.json --every 2 ";
    if (contains(w.run(run + "--transport gloo --steps 0").errors, "built without Gloo")) {
      MESSAGE("skipped: hetsched-train is built without Gloo");
      return;
    }
    const int ranks = first.device_count() + second.device_count(), victim = random.integer(from, to);
    const double after_s = random.uniform(0, 0.3);
    CAPTURE(ranks);
    CAPTURE(victim);
    CAPTURE(after_s);
    auto all = start_ranks(w, ranks, "killed", [&](int) { return run + "--steps 1000000 --checkpoint state"; });
    REQUIRE(appears(w.path("state/step-000002")));
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    all[static_cast<std::size_t>(victim)].signal(SIGKILL);
    for (int r = 0; r < ranks; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      const auto ended = all[static_cast<std::size_t>(r)].wait(30);
      CAPTURE(ended.errors);
      CHECK(ended.status == 3);
      CHECK(contains(ended.errors, "rank " + std::to_string(victim) + " was lost"));
    }
    const int newest = newest_step(w);
    const auto end = "--steps " + std::to_string(newest + 3);
    const auto finish = [&](const std::string& name, const std::string& options) {
      auto ending = start_ranks(w, ranks, name, [&](int) { return run + options + end + " --losses " + name + ".csv"; });
      for (auto& p : ending) {
        const auto ended = p.wait();
        CAPTURE(ended.errors);
        CHECK(ended.status == 0);
      }
      const auto csv = w.get(name + ".csv");
      const auto at = csv.find('\n' + std::to_string(newest) + ',');
      REQUIRE(at != std::string::npos);
      return csv.substr(at);
    };
    const auto resumed = finish("resumed", "--checkpoint state --resume ");
    CHECK(std::count(resumed.begin(), resumed.end(), '\n') == 4);
    CHECK(resumed == finish("undisturbed", ""));
  }
}

TEST_CASE(
    "ranks are lost and come while a training goes on in the same processes, with the losses of one that was never disturbed") {
  const workplace w;
  // 4 ranks, 3 of them behind a kill, 4 again when one has joined.
  const std::string training =
      "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 --precision fp64 --steps 100 ";
  const std::string elastic = training + "--checkpoint state --every 5 --losses losses.csv --elastic --settle 1.5 --deadline 20";
  auto all = start_ranks(w, 4, "elastic", [&](int) { return elastic; });
  REQUIRE(appears(w.path("state/step-000010")));
  // The first one, which writes the losses and holds the checkpoints' lock.
  all[0].signal(SIGKILL);
  CHECK(all[0].wait().status == 128 + SIGKILL);
  REQUIRE(appears(w.path("state/step-000030")));
  // They pause until the new one is there, however fast steps are.
  for (int r = 1; r < 4; ++r) all[static_cast<std::size_t>(r)].signal(SIGSTOP);
  process late(w, elastic + " --join --transport gloo --store file:store-elastic", "late", "");
  const auto somebody_waits = [&] {
    for (const auto& e : fs::recursive_directory_iterator(w.path("store-elastic")))
      if (contains(e.path().filename().string(), ".waits.")) return true;
    return false;
  };
  for (int k = 0; k < 1000 && !somebody_waits(); ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(somebody_waits());
  for (int r = 1; r < 4; ++r) all[static_cast<std::size_t>(r)].signal(SIGCONT);
  const auto joined = late.wait(100);
  CAPTURE(joined.errors);
  CHECK(joined.status == 0);
  for (int r = 1; r < 4; ++r) {
    CAPTURE(r);
    const auto ended = all[static_cast<std::size_t>(r)].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    CHECK(contains(ended.errors, "rank 0 was lost"));
    CHECK(contains(ended.errors, "generation 1: rank " + std::to_string(r - 1) + " of 3"));
    CHECK(contains(ended.errors, "generation 2: rank " + std::to_string(r - 1) + " of 4"));
  }
  REQUIRE(w.run(training + "--ranks 1 --losses one.csv").status == 0);
  CHECK(w.get("losses.csv") == w.get("one.csv"));
}

TEST_CASE("an elastic training goes on where its first rank, which holds the checkpoints' folder, is stopped") {
  const workplace w;
  const std::string training =
      "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 --precision fp64 --steps 60 ";
  const std::string elastic = training + "--checkpoint state --every 5 --losses losses.csv --elastic --settle 0.5 --deadline 1";
  auto all = start_ranks(w, 3, "stopped", [&](int) { return elastic; });
  REQUIRE(appears(w.path("state/step-000010")));
  all[0].signal(SIGSTOP);
  for (const std::size_t r : {std::size_t{1}, std::size_t{2}}) {
    const auto ended = all[r].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    CHECK(contains(ended.errors, "generation 1: rank " + std::to_string(r - 1) + " of 2"));
  }
  CHECK(w.get("state/step-000060/manifest.json").size() > 0);
  all[0].signal(SIGKILL);
  REQUIRE(w.run(training + "--ranks 1 --losses one.csv").status == 0);
  CHECK(w.get("losses.csv") == w.get("one.csv"));
}

TEST_CASE("a rank is lost while a training has its state in memory only: the others go on from there, with the same losses") {
  const workplace w;
  const std::string training =
      "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 --precision fp64 --steps 60 ";
  const std::string elastic = training + "--snapshot-every 5 --losses losses.csv --elastic --settle 1.5 --deadline 20";
  auto all = start_ranks(w, 3, "memory", [&](int) { return elastic; });
  const auto steps = [&] {
    const auto text = fs::exists(w.path("losses.csv")) ? w.get("losses.csv") : std::string();
    return std::count(text.begin(), text.end(), '\n');
  };
  for (int k = 0; k < 6000 && steps() < 12; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(steps() >= 12);
  all[1].signal(SIGKILL);
  CHECK(all[1].wait().status == 128 + SIGKILL);
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    const auto ended = all[r].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    CHECK(contains(ended.errors, "rank 1 was lost"));
    if (r == 0) CHECK(contains(ended.errors, "goes on from the snapshot in memory of step "));
  }
  REQUIRE(w.run(training + "--ranks 1 --losses one.csv").status == 0);
  CHECK(w.get("losses.csv") == w.get("one.csv"));
}
