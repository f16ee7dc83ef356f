// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../runtime/dense.hpp"
#include "../sanitizer_share.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using channel = gloo_communicator<tensor>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

schedule order_of(const std::string& name, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 0.1)},
                        8);
}

/// Steps without end; says when the first has been done. What ended them, and " | " and what does not belong in such an error.
std::string endless(const schedule& order, const process_place& place, const gloo_options& options, double deadline_s,
                    const std::function<void(const std::string&)>& say) {
  const int stages = order.stages;
  const task<double> t(1, std::vector<int>(static_cast<std::size_t>(stages), 1), order.microbatches);
  std::vector<dense_stage<double>> own;
  for (const auto& c : stages_of_rank(order, place.rank)) own.push_back(t.stage(c.stage));
  pipeline_executor<tensor, dense_stage<double>, channel> executor(order, own, t.boundaries(), channel(place, options),
                                                                   {.deadline_s = deadline_s});
  try {
    for (int step = 0;; ++step) {
      executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<double>::loss);
      if (step == 0) say("first step done");
    }
  } catch (const communication_error& e) {
    std::string text = e.what(), odd;
    if (e.where.from != place.rank && e.where.to != place.rank) odd += " edge of other ranks";
    if (e.where.from == e.where.to) odd += " no edge";
    if (e.microbatch < 0 || e.microbatch >= order.microbatches) odd += " no microbatch";
    if (e.waiting.stage < 0 || e.waiting.stage >= stages) odd += " no action";
    if (!contains(text, to_text(e.where))) odd += " edge is not in the text";
    if (!contains(text, "microbatch " + std::to_string(e.microbatch))) odd += " microbatch is not in the text";
    return text + " |" + odd;
  }
}

}  // namespace

TEST_CASE("gloo processes: kill -9 of a rank ends the step everywhere, at once and by name") {
  random_source random(7);
  for (int instance = 0; instance < 30 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const int ranks = instance == 0 ? 20 : random.integer(2, 4), victim = random.integer(0, ranks - 1);
    const std::string name = random.integer(0, 1) == 0 ? "1f1b" : "zb_h1";
    const double after_s = random.uniform(0, 0.1);
    CAPTURE(ranks);
    CAPTURE(victim);
    CAPTURE(name);
    const auto order = order_of(name, ranks);
    const scratch_folder folder;
    process_group processes(ranks, [&](int rank, const auto& say) {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      return endless(order, {.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options, 30, say);
    });
    for (int r = 0; r < ranks; ++r) REQUIRE(processes.hear(r) == "first step done");
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    const double killed_s = steady_now_s();
    processes.kill(victim);
    for (int r = 0; r < ranks; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      const auto last = processes.hear(r);
      CAPTURE(last);
      CHECK(last.ends_with(" |"));
      CHECK(contains(last, "; ended, as rank " + std::to_string(victim) + " was lost: "));
    }
    // Far from the deadline: that has not been waited for.
    CHECK(steady_now_s() - killed_s < 15);
  }
}

TEST_CASE("gloo processes: kill -9 while tensors of 32 MiB are on their way") {
  random_source random(8);
  for (int instance = 0; instance < 6 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const double after_s = random.uniform(0, 0.2);
    const scratch_folder folder;
    process_group processes(3, [&](int rank, const auto& say) {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      channel end({.rank = rank, .ranks = 3, .launcher = {}, .master = {}, .run = {}}, options);
      const int next = (rank + 1) % 3, before = (rank + 2) % 3;
      const int out = end.open({rank, next, payload::activation, 0, rank});
      const int in = end.open({before, rank, payload::activation, 0, before});
      std::vector<tensor> tensors(4, tensor(1024, 4096));
      std::vector<channel::operation> operations(4);
      say("begins");
      for (int m = 0;; m += 2) {
        for (std::size_t k : {0u, 1u}) {
          const stamp s{.microbatch = m + static_cast<int>(k)};
          end.post_receive(in, s, tensors[2 + k], operations[2 + k]);
          end.post_send(out, s, tensors[k], operations[k]);
        }
        for (auto& op : operations)
          while (!end.poll(op)) {
            const auto result = end.wait(std::chrono::steady_clock::now() + std::chrono::seconds(30), true);
            if (result == wait_result::deadline) return std::string("deadline");
            if (result == wait_result::aborted) {
              end.abort("");
              return end.failure();
            }
          }
      }
    });
    for (int r = 0; r < 3; ++r) REQUIRE(processes.hear(r) == "begins");
    std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    processes.kill(1);
    for (int r : {0, 2}) {
      const auto last = processes.hear(r, 25);
      CAPTURE(last);
      CHECK(contains(last, "rank 1 was lost"));
    }
  }
}

TEST_CASE(
    "gloo processes: a rank that is stopped ends the step at the deadline, and is named by those that wait for others, too") {
  const auto order = order_of("1f1b", 3);
  const scratch_folder folder;
  process_group processes(3, [&](int rank, const auto& say) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    return endless(order, {.rank = rank, .ranks = 3, .launcher = {}, .master = {}, .run = {}}, options, 1, say);
  });
  for (int r = 0; r < 3; ++r) REQUIRE(processes.hear(r) == "first step done");
  processes.stop(0);
  for (int r : {1, 2}) {
    const auto last = processes.hear(r, 30);
    CAPTURE(last);
    CHECK(contains(last, "; ended, as rank 0 has not answered for a second"));
  }
}

TEST_CASE("gloo processes: ranks that are busy answer, and those that do not come to a meeting are all named") {
  for (const auto& [ranks, names] : {std::pair(4, "ranks 1, 3"), std::pair(18, "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17")}) {
    const scratch_folder folder;
    process_group processes(ranks, [&, count = ranks](int rank, const auto& say) -> std::string {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      channel comm({.rank = rank, .ranks = count, .launcher = {}, .master = {}, .run = {}}, options);
      std::vector<std::vector<double>> all;
      const bool comes = rank % 2 == 0;
      std::string text = "busy";
      if (comes) {
        CHECK(comm.gather({}, all, deadline_in(0.5)) == wait_result::deadline);
        text = comm.failure();
        if (comm.ask() != wait_result::deadline) text = "not all answer";
      }
      say(text);
      std::this_thread::sleep_for(std::chrono::seconds(2));
      comm.abort("done");
      return "done";
    });
    for (int r = 0; r < ranks; ++r)
      CHECK(processes.hear(r) == (r % 2 == 0 ? names + std::string(" have not answered in time") : "busy"));
  }
}

namespace {

// A chain: each rank hears of the one before, the first of nobody. Returns how many files this process has then.
int pass_along(channel& comm) {
  const int rank = comm.rank();
  tensor t(1, 1);
  const auto pass = [&](bool sends, int from) {
    channel::operation op;
    const int number = comm.open({from, from + 1, payload::activation, 0, from});
    sends ? comm.post_send(number, {}, t, op) : comm.post_receive(number, {}, t, op);
    while (!comm.poll(op))
      if (comm.wait(deadline_in(60), true) != wait_result::progress) throw error(comm.failure());
  };
  if (rank > 0) pass(false, rank - 1);
  t(0, 0) += rank;
  if (rank + 1 < comm.ranks()) pass(true, rank);
  if (t(0, 0) != rank * (rank + 1) / 2) throw error("the ranks before have not been heard of");
  int files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++files;
  return files;
}

}  // namespace

TEST_CASE("gloo processes: 256 in a chain have at most 40 files each") {
  constexpr int ranks = 256 / (sanitizer_share > 1 ? 8 : 1);
  const scratch_folder folder;
  const auto start = std::chrono::steady_clock::now();
  process_group processes(ranks, [&](int rank, const auto&) -> std::string {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    options.connect_deadline_s = 100;
    channel comm({.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options);
    const std::chrono::duration<double> met_s = std::chrono::steady_clock::now() - start;
    const int files = pass_along(comm);
    std::vector<std::vector<double>> all;
    const double worked_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    if (comm.gather(std::vector<double>{static_cast<double>(files), met_s.count(), worked_s}, all, deadline_in(100)) !=
        wait_result::progress)
      throw error(comm.failure());
    double most_files = 0, last_s = 0, all_s = 0;
    for (const auto& one : all) most_files = std::max(most_files, one[0]), last_s = std::max(last_s, one[1]), all_s += one[2];
    if (rank == 0)
      std::printf("%d processes have met %.1f s after the first was started, with at most %.0f files, and worked %.1f s\n", ranks,
                  last_s, most_files, all_s),
          std::fflush(stdout);
    return most_files <= 40 ? "came" : "one has " + std::to_string(most_files) + " files";
  });
  for (int r = 0; r < ranks; ++r) CHECK(processes.hear(r) == "came");
}

TEST_CASE("gloo processes: of many, a rank that is stopped is named, and not those that are told of through it") {
  constexpr int ranks = 24;
  const scratch_folder folder;
  process_group processes(ranks, [&](int rank, const auto& say) -> std::string {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    channel comm({.rank = rank, .ranks = ranks, .launcher = {}, .master = {}, .run = {}}, options);
    (void)pass_along(comm);
    say("came");
    std::vector<std::vector<double>> all;
    for (;;)
      if (comm.gather({}, all, deadline_in(2)) != wait_result::progress) {
        (void)comm.ask();
        return comm.failure();
      }
  });
  for (int r = 0; r < ranks; ++r) CHECK(processes.hear(r) == "came");
  processes.stop(1);
  for (int r = 0; r < ranks; ++r)
    if (r != 1) CHECK(processes.hear(r, 40) == "rank 1 has not answered for a second");
}

TEST_CASE("gloo processes: a rank with another schedule, and one with another shape") {
  for (const bool other_shape : {false, true}) {
    CAPTURE(other_shape);
    const scratch_folder folder;
    process_group processes(3, [&](int rank, const auto&) {
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      auto order = order_of("gpipe", 3);
      if (rank == 1 && !other_shape)
        for (auto& l : order.lanes)
          for (auto& a : l.actions) a.microbatch = 7 - a.microbatch;
      const task<double> t(1, {1, 1, 1}, 8);
      auto shapes = t.boundaries();
      if (rank == 1 && other_shape) shapes[0][0] += 1000;
      std::vector<dense_stage<double>> own;
      own.push_back(t.stage(rank));
      pipeline_executor<tensor, dense_stage<double>, channel> executor(
          order, own, shapes, channel({.rank = rank, .ranks = 3, .launcher = {}, .master = {}, .run = {}}, options),
          {.deadline_s = 30});
      executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<double>::loss);
      return std::string("no error");
    });
    for (int r = 0; r < 3; ++r) {
      CAPTURE(r);
      const auto last = processes.hear(r, 25);
      CAPTURE(last);
      CHECK(contains(last, "activation of stage 0 from rank 0 to rank 1"));
      if (other_shape)
        CHECK(contains(last, "or of another shape"));
      else
        CHECK(contains(last, "sent is step 0, microbatch 0, activation of stage 0, expected is step 0, microbatch 7"));
    }
  }
}

TEST_CASE("gloo processes: an exception in a layer reaches the other ranks with its text") {
  const scratch_folder folder;
  process_group processes(2, [&](int rank, const auto&) {
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    const auto order = order_of("1f1b", 2);
    const task<double> t(1, {1, 1}, 8);
    std::vector<dense_stage<double>> own;
    own.push_back(t.stage(rank));
    pipeline_executor<tensor, dense_stage<double>, channel> executor(
        order, own, t.boundaries(), channel({.rank = rank, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, options),
        {.deadline_s = 30});
    int calls = 0;
    executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets),
                  [&](const tensor& output, const tensor& target) {
                    if (++calls == 3) throw std::runtime_error("no more");
                    return task<double>::loss(output, target);
                  });
    return std::string("no error");
  });
  CHECK(contains(processes.hear(1, 25), "(stage 1, the loss of microbatch 2) failed: no more"));
  const auto told = processes.hear(0, 25);
  CAPTURE(told);
  CHECK(contains(told, "ended, as rank 1, step 0: "));
  CHECK(contains(told, " failed: no more"));
}
