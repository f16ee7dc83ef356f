// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "dense.hpp"
#include "small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = small_tensor;
using channel = thread_communicator<tensor>;
using executor_type = pipeline_executor<tensor, small_layer, channel>;

loss_value<tensor> mean_of(const tensor& output, int) { return {output.value, output}; }

/// What ended each rank's step, "" if nothing did; of communication errors the text.
struct ending {
  std::string text;
  bool communication = false;
  edge where;
  int microbatch = no_microbatch;
  action waiting;
};

ending ending_of(const std::exception_ptr& failure) {
  ending e;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const communication_error& error) {
    e = {error.what(), true, error.where, error.microbatch, error.waiting};
  } catch (const std::exception& error) {
    e.text = error.what();
  }
  return e;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// One step of every rank for which runs(rank) holds, on layers of a kind per rank; ranks that fail do so once.
template <class Runs, class Layer>
std::vector<ending> endings(const std::vector<schedule>& order_of_rank, double deadline_s, Runs runs, Layer layer) {
  const int ranks = order_of_rank.front().ranks;
  auto ends = channel::connect(ranks);
  std::vector<ending> result;
  const auto failures = on_ranks(ranks, [&](int r) {
    if (!runs(r)) return;
    const auto k = static_cast<std::size_t>(r);
    const auto& order = order_of_rank[k];
    std::vector<small_layer> layers(stages_of_rank(order, r).size(), layer(r));
    const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(order.stages) - 1, tensor_shape{1});
    executor_type executor(order, layers, boundaries, ends[k], {.deadline_s = deadline_s});
    const std::vector<tensor> inputs(static_cast<std::size_t>(order.microbatches));
    const std::vector<int> targets(inputs.size());
    executor.step(std::span<const tensor>(inputs), std::span<const int>(targets), mean_of);
  });
  for (const auto& f : failures) result.push_back(ending_of(f));
  return result;
}

schedule named(const char* name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 0.1)},
                        microbatches);
}

const auto everybody = [](int) { return true; };
const auto plain = [](int) { return small_layer{}; };

}  // namespace

TEST_CASE("[threads] a layer that throws ends the step everywhere") {
  for (const auto* name : {"1f1b", "zb_v", "chimera", "interleaved_1f1b"})
    for (int bad = 0; bad < 4; ++bad) {
      CAPTURE(name);
      CAPTURE(bad);
      const auto all = endings(std::vector<schedule>(4, named(name, 4, 8)), 20, everybody, [&](int r) {
        small_layer layer;
        if (r == bad)
          layer.on_forward = [calls = 0]() mutable {
            if (++calls == 3) throw std::runtime_error("no more");
          };
        return layer;
      });
      for (int r = 0; r < 4; ++r) {
        const auto& e = all[static_cast<std::size_t>(r)];
        CAPTURE(r);
        CAPTURE(e.text);
        CHECK(e.communication == (r != bad));
        CHECK(contains(e.text, (r == bad ? "rank " : "ended, as rank ") + std::to_string(bad) + ", step 0: "));
        CHECK(contains(e.text, ", forward of microbatch "));
        CHECK(contains(e.text, ") failed: no more"));
      }
    }
}

TEST_CASE("[threads] a rank that does nothing ends the step at the deadline") {
  for (int missing = 0; missing < 3; ++missing) {
    CAPTURE(missing);
    const double start_s = steady_now_s();
    const auto all = endings(
        std::vector<schedule>(3, named("1f1b", 3, 4)), 0.1, [&](int r) { return r != missing; }, plain);
    CHECK(steady_now_s() - start_s < 20);
    for (int r = 0; r < 3; ++r) {
      const auto& e = all[static_cast<std::size_t>(r)];
      CAPTURE(e.text);
      CHECK(e.communication == (r != missing));
      if (r == missing) continue;
      CHECK((e.where.from == r || e.where.to == r));
      CHECK(e.microbatch >= 0);
      CHECK(contains(e.text, "microbatch " + std::to_string(e.microbatch)));
      CHECK(e.waiting.stage == r);
    }
    if (missing == 2) {  // stage 1 has no gradient to go on with
      CHECK(all[1].where == edge{2, 1, payload::gradient, 0, 2});
      CHECK(all[1].microbatch == 0);
      CHECK(all[1].waiting == action{.kind = action_kind::backward, .stage = 1, .microbatch = 0});
    }
    if (missing == 0) CHECK(all[1].where == edge{0, 1, payload::activation, 0, 0});
  }
}

TEST_CASE("[threads] one rank's wrong input ends the step everywhere") {
  const auto order = named("1f1b", 3, 4);
  auto ends = channel::connect(5);
  std::vector<ending> all;
  for (const auto& f : on_ranks(3, [&](int r) {
         std::vector<small_layer> layers(1);
         const std::vector<tensor_shape> boundaries(2, tensor_shape{1});
         executor_type executor(order, layers, boundaries, ends[static_cast<std::size_t>(2 + r)],
                                {.deadline_s = 20, .first_rank = 2, .first_step = 7});
         const std::vector<tensor> inputs(4);
         const std::vector<int> targets(r == 2 ? 3 : 4);
         executor.step(std::span<const tensor>(inputs), std::span<const int>(targets), mean_of);
       }))
    all.push_back(ending_of(f));
  CHECK_FALSE(all[2].communication);
  CHECK(all[2].text == "a step needs one target per microbatch");
  for (int r = 0; r < 2; ++r) {
    const auto& e = all[static_cast<std::size_t>(r)];
    CAPTURE(e.text);
    CHECK(e.communication);
    CHECK(contains(e.text, "rank " + std::to_string(2 + r) + ", step 7: "));
    CHECK(contains(e.text, "ended, as rank 4, step 7 failed: a step needs one target per microbatch"));
    CHECK((e.where.from == 2 + r || e.where.to == 2 + r));
  }
}

TEST_CASE("[threads] a rank that is late ends with an error, too") {
  const auto all = endings(std::vector<schedule>(2, named("1f1b", 2, 2)), 0.1, everybody, [](int r) {
    small_layer layer;
    if (r == 1) layer.on_forward = [] { std::this_thread::sleep_for(std::chrono::milliseconds(400)); };
    return layer;
  });
  CHECK(contains(all[0].text, "for 0.1"));
  CHECK(all[0].communication);
  CHECK(all[1].communication);
  CHECK(contains(all[1].text, "rank 0, step 0"));
}

TEST_CASE("[threads] ranks that run other schedules notice") {
  auto reversed = named("gpipe", 2, 3);
  for (auto& l : reversed.lanes)
    for (auto& a : l.actions) a.microbatch = 2 - a.microbatch;
  const auto all = endings({named("gpipe", 2, 3), reversed}, 20, everybody, plain);
  for (const auto& e : all) {
    CAPTURE(e.text);
    CHECK(e.communication);
    CHECK(contains(e.text, "sent is step 0, microbatch 0, activation of stage 0, expected is step 0, microbatch 2"));
  }
}

TEST_CASE("[threads] a tensor of another shape than its boundary ends the step everywhere") {
  const task<double> t(1, {1, 1}, 2);
  auto shapes = t.boundaries();
  ++shapes[0][1];
  const auto order = gpipe(2, 2);
  auto ends = thread_communicator<matrix<double>>::connect(2);
  const auto failures = on_ranks(2, [&](int r) {
    std::vector<dense_stage<double>> stages;
    stages.push_back(t.stage(r));
    pipeline_executor<matrix<double>, dense_stage<double>, thread_communicator<matrix<double>>> executor(
        order, stages, shapes, ends[static_cast<std::size_t>(r)]);
    executor.step(std::span<const matrix<double>>(t.inputs), std::span<const matrix<double>>(t.targets), task<double>::loss);
  });
  for (const auto& f : failures) {
    const auto e = ending_of(f);
    CAPTURE(e.text);
    CHECK(e.communication == (&f != &failures[0]));
    CHECK(contains(e.text,
                   "rank 0, step 0: 0F0 (stage 0, layer 1, forward of microbatch 0) failed: the output is of the shape 2 x " +
                       std::to_string(shapes[0][1] - 1) + ", expected is 2 x " + std::to_string(shapes[0][1])));
  }
}

TEST_CASE("[threads] thread_communicator: order, rendezvous, deadline and abort") {
  auto ends = channel::connect(2);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = ends[0].open(e), in = ends[1].open(e);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); };
  std::vector<tensor> sent(3), taken(3);
  std::vector<channel::operation> sends(3), receives(3);
  for (int i = 0; i < 3; ++i) {
    sent[static_cast<std::size_t>(i)].value = 10 + i;
    ends[0].post_send(out, {.microbatch = i}, sent[static_cast<std::size_t>(i)], sends[static_cast<std::size_t>(i)]);
  }
  CHECK(ends[0].wait(soon(), true) == wait_result::deadline);
  CHECK_FALSE(ends[0].poll(sends[0]));
  for (int i = 0; i < 2; ++i)
    ends[1].post_receive(in, {.microbatch = i}, taken[static_cast<std::size_t>(i)], receives[static_cast<std::size_t>(i)]);
  CHECK(ends[0].wait(soon(), true) == wait_result::progress);
  CHECK(ends[0].wait(soon(), true) == wait_result::deadline);
  CHECK(ends[1].poll(receives[1]));
  CHECK(ends[0].poll(sends[1]));
  CHECK_FALSE(ends[0].poll(sends[2]));
  CHECK(taken[0].value == 10);
  CHECK(taken[1].value == 11);
  CHECK(sends[0].end_s == receives[0].end_s);

  std::jthread late(
      [&] { CHECK(ends[1].wait(std::chrono::steady_clock::now() + std::chrono::seconds(20), false) == wait_result::aborted); });
  ends[0].abort("enough");
  ends[0].abort("and more");
  late.join();
  CHECK(ends[1].failure() == "enough");
  ends[1].post_receive(in, {.microbatch = 2}, taken[2], receives[2]);
  CHECK_FALSE(ends[1].poll(receives[2]));
  CHECK(ends[0].wait(soon(), true) == wait_result::aborted);
}

TEST_CASE("a tensor of 32 MiB travels without a copy") {
  using large = matrix<double>;
  auto ends = thread_communicator<large>::connect(2);
  const edge e{1, 0, payload::gradient, 0, 1};
  const int out = ends[1].open(e), in = ends[0].open(e);
  large sent(1024, 4096), taken(1024, 4096);
  const auto* const from = sent.data();
  const auto* const to = taken.data();
  thread_communicator<large>::operation send, receive;
  ends[0].post_receive(in, {}, taken, receive);
  CHECK_FALSE(ends[0].poll(receive));
  ends[1].post_send(out, {}, sent, send);
  CHECK(ends[0].poll(receive));
  CHECK(ends[1].poll(send));
  CHECK(taken.data() == from);
  CHECK(sent.data() == to);
}
