// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>

#include "../../sanitizer_share.hpp"
#include "../dense.hpp"
#include "../small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
static_assert(stager<thread_stager<tensor>, tensor>);
static_assert(stager<thread_stager<small_tensor>, small_tensor>);
static_assert(!stager<thread_stager<tensor>, small_tensor>);
static_assert(!stager<no_stager, tensor>);
static_assert(!stager<int, tensor>);

schedule named(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 1),
                         .weight_backward_s = std::vector<double>(n, 1)},
                        microbatches);
}

/// Every phase begins when the one before has ended, and phases of one kind follow each other in the order of their lane.
void check_phases(const schedule& order, const run_record& record) {
  using enum action_kind;
  std::map<std::tuple<bool, int, int, int>, std::vector<timed_action>> transfers;
  for (const auto& a : record.measured.actions)
    if (is_transfer(a.what.kind)) {
      const bool in = a.what.kind == h2d_activation || a.what.kind == h2d_gradient;
      transfers[{moves_gradient(a.what.kind), a.what.direction, in ? detail::peer_stage(a.what) : a.what.stage,
                 a.what.microbatch}]
          .push_back(a);
    }
  std::size_t staged = 0, listed = 0;
  for (const auto& [key, legs] : transfers) {
    if (legs.size() == 1) continue;
    ++staged;
    REQUIRE(legs.size() == 3);
    for (const auto& leg : legs) {
      CHECK(leg.end_s >= leg.start_s);
      CHECK(leg.peer == legs[0].peer);
    }
    const bool gradient = std::get<0>(key);
    CHECK(legs[0].what.kind == (gradient ? d2h_gradient : d2h_activation));
    CHECK(legs[1].what.kind == (gradient ? network_gradient : network_activation));
    CHECK(legs[2].what.kind == (gradient ? h2d_gradient : h2d_activation));
    CHECK(legs[1].start_s >= legs[0].end_s);
    CHECK(legs[2].start_s >= legs[1].end_s);
  }
  for (const auto& l : order.lanes) {
    std::map<action_kind, double> last;
    for (const auto& a : l.actions) {
      if (a.kind < d2h_activation || a.kind > h2d_gradient) continue;
      ++listed;
      const bool in = a.kind == h2d_activation || a.kind == h2d_gradient, gradient = moves_gradient(a.kind);
      const int sender = in ? detail::peer_stage(a) : a.stage;
      for (const auto& leg : transfers[{gradient, a.direction, sender, a.microbatch}]) {
        if (leg.what.kind != a.kind) continue;
        CHECK(leg.start_s >= last[a.kind]);
        last[a.kind] = leg.start_s;
      }
    }
  }
  CHECK(listed == 3 * staged);
}

template <class Real>
void check_staged(const schedule& order, std::uint64_t seed, const executor_options& options = {}) {
  const task<Real> t(seed, std::vector<int>(static_cast<std::size_t>(order.stages), 1), order.microbatches);
  const auto expected = reference(t, order);
  run_record record;
  CHECK(run_over<thread_stager<matrix<Real>>>(thread_communicator<matrix<Real>>::connect(order.ranks), t, order, options, 2,
                                              &record) == expected);
  check_phases(order, record);
  CHECK(run_on_threads(t, order, options, 2) == expected);
}

}  // namespace

TEST_CASE("[threads] thread_stager copies in order") {
  random_source random(1);
  std::vector<tensor> from, to;
  for (int i = 0; i < 20; ++i) {
    from.push_back(random_matrix<double>(random, 30, 20));
    to.emplace_back(30, 20);
  }
  const auto expected = from;
  std::vector<thread_stager<tensor>::operation> ops(from.size());
  thread_stager<tensor> first;
  auto copies = std::move(first);
  for (std::size_t i = 0; i < from.size(); ++i) copies.post_copy(from[i], to[i], ops[i]);
  while (!copies.poll(ops.back())) std::this_thread::yield();
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(copies.poll(ops[i]));
    CHECK(to[i] == expected[i]);
    CHECK(ops[i].end_s >= ops[i].start_s);
    if (i > 0) CHECK(ops[i].start_s >= ops[i - 1].end_s);
  }
  copies.post_copy(from[1], to[0], ops[0]);  // an operation may be used again, and ends before the stager, or never
}

TEST_CASE("[threads] staged transfers give the same bits, phase after phase") {
  int run = 0;
  for (const auto name : schedule_names())
    for (const int ranks : {2, 4, 6})
      for (const int microbatches : {1, 3, 8}) {
        schedule bare;
        try {
          bare = named(name, ranks, microbatches);
        } catch (const input_error&) {
          continue;  // numbers that the schedule is not made for
        }
        if (++run % sanitizer_share != 0) continue;
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        const auto staged =
            stage_transfers(add_transfers(bare), [](int from, int to) { return from / 2 != to / 2 || from == 0; });
        check_staged<float>(staged, 3);
        check_staged<double>(split_streams(staged), 4);
        check_staged<double>(group_transfers(staged), 5, {.deadline_s = 60, .semantics = send_semantics::rendezvous});
        // In chunks, with and without copies.
        const task<double> t(6, std::vector<int>(static_cast<std::size_t>(staged.stages), 1), staged.microbatches);
        for (const std::size_t chunk_bytes : {8, 24}) {
          const executor_options in_chunks{.staging_chunk_bytes = chunk_bytes};
          const auto connect = [&] { return thread_communicator<tensor>::connect(staged.ranks); };
          CHECK(run_over<thread_stager<tensor>>(connect(), t, split_streams(staged), in_chunks, 2) == reference(t, staged));
          CHECK(run_on_threads(t, staged, in_chunks, 2) == reference(t, staged));
        }
      }
}

TEST_CASE("[threads] staged transfers over slow links") {
  const auto order = split_streams(stage_transfers(add_transfers(named("virtual_1f1b", 3, 5)), [](int, int) { return true; }));
  const task<double> t(9, {1, 2, 1}, 5);
  std::vector<shaped_communicator<thread_communicator<tensor>>> ends;
  for (auto& e : thread_communicator<tensor>::connect(3))
    ends.emplace_back(e, [](int, int) { return hetsched::link{5e-4, 1e6}; });
  run_record record;
  CHECK(run_over<thread_stager<tensor>>(ends, t, order, {}, 2, &record) == reference(t, order));
  check_phases(order, record);
}

namespace {

/// Copies end when they are asked for and something holds, so a test can make one wait for what others do.
struct held_stager {
  struct operation {
    double start_s = 0, end_s = 0;
    const small_tensor* from = nullptr;
    small_tensor* to = nullptr;
    std::size_t number = 0;
  };
  std::function<bool(std::size_t)> may_end = [](std::size_t) { return true; };  ///< the so-manieth copy of this rank
  std::size_t posted = 0;
  void post_copy(const small_tensor& from, small_tensor& to, operation& op) {
    op = {.start_s = steady_now_s(), .end_s = 0, .from = &from, .to = &to, .number = posted++};
  }
  bool poll(operation& op) const {
    if (!may_end(op.number)) return false;
    *op.to = *op.from;
    op.end_s = steady_now_s();
    return true;
  }
};

/// A step of virtual-1F1B on two ranks, whose warm-up counts are 3 and 1. Throws where a copy waits in vain.
void hold(const std::function<bool(int, std::size_t, int)>& may_end, double deadline_s) {
  const auto bare = virtual_1f1b({true}, 4);
  const auto order = split_streams(stage_transfers(add_transfers(bare), [](int, int) { return true; }));
  std::atomic<int> forwards[2] = {0, 0};
  run_on_threads(thread_communicator<small_tensor>::connect(2), [&](thread_communicator<small_tensor>& end) {
    const int r = end.rank();
    std::vector<small_layer> stages(1);
    stages[0].on_forward = [&, r] { ++forwards[r]; };
    const std::vector<small_tensor> inputs(4);
    const std::vector<int> targets(4);
    pipeline_executor<small_tensor, small_layer, thread_communicator<small_tensor>, held_stager> executor(
        order, stages, std::vector<tensor_shape>{{1}}, end, {.deadline_s = deadline_s},
        {.may_end = [&, r](std::size_t copy) { return may_end(r, copy, forwards[0].load()); }});
    executor.step(std::span<const small_tensor>(inputs), std::span<const int>(targets), [](const small_tensor& y, int) {
      return loss_value<small_tensor>{0, y};
    });
  });
}

}  // namespace

TEST_CASE("[threads] copies overlap with computation and with each other") {
  // The first copy to rank 0's host lasts until its third forward has begun.
  CHECK_NOTHROW(hold([](int rank, std::size_t copy, int forwards) { return rank != 0 || copy > 0 || forwards >= 3; }, 60));
  // The first copy from rank 1's host lasts until rank 0's third forward has begun.
  CHECK_NOTHROW(hold([](int rank, std::size_t copy, int forwards) { return rank != 1 || copy > 0 || forwards >= 3; }, 60));
  // Its fourth forward needs the first gradient, which needs that copy: this waits in vain, and says so.
  CHECK_THROWS_AS(hold([](int rank, std::size_t copy, int forwards) { return rank != 0 || copy > 0 || forwards >= 4; }, 0.1),
                  communication_error);
}

TEST_CASE("a boundary whose tensors go both ways needs no stager, and gets none") {
  auto order = stage_transfers(add_transfers(named("gpipe", 2, 2)), [](int, int) { return true; });
  for (auto& l : order.lanes)  // the second activation goes directly
    for (std::size_t k = l.actions.size(); k-- > 0;) {
      auto& a = l.actions[k];
      if (a.microbatch != 1) continue;
      if (a.kind == action_kind::d2h_activation) l.actions.erase(l.actions.begin() + static_cast<std::ptrdiff_t>(k));
      if (a.kind == action_kind::network_activation) a.kind = action_kind::send_activation;
      if (a.kind == action_kind::h2d_activation) a.kind = action_kind::receive_activation;
    }
  const task<double> t(2, {1, 1}, 2);
  CHECK(run_on_threads(t, order, {}, 1) == reference(t, order));
  CHECK_THROWS_AS(run_over<thread_stager<tensor>>(thread_communicator<tensor>::connect(2), t, order, {}, 1), input_error);
}
