// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/group/any_communicator.hpp>

#include <doctest/doctest.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include "../set_groups.hpp"
#include "../training.hpp"
#include "groups.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using threads = thread_communicator<tensor>;
using any = any_communicator<tensor>;

static_assert(communicator<any, tensor> && byte_plane<any> && asking_plane<any>);
static_assert(!ordered_plane<any> && !has_groups<any, tensor>);
static_assert(std::constructible_from<any, threads>);

/// Counts what it sends, and tells whom it would blame.
struct counting : plain_byte_plane<threads> {
  using plain_byte_plane<threads>::plain_byte_plane;
  [[nodiscard]] std::uint64_t bytes_sent() const { return 42; }
  [[nodiscard]] wait_result ask() { return wait_result::aborted; }
};

/// Losses, and the parameters of all layers, of three steps on so many threads.
template <class Wrap>
trained<double> train_with(const toy<double>& t, const training_layout& layout, Wrap wrap) {
  trained<double> found;
  found.parameters.resize(static_cast<std::size_t>(t.layers));
  std::mutex guard;
  run_on_threads(threads::connect(layout.ranks()), [&](threads& ends) {
    auto comm = wrap(ends);
    auto trainer = make_trainer<tensor>(
        layout, [&](int l) { return t.make(l); },
        [](int, int rows) {
          return tensor_shape{static_cast<std::size_t>(rows), toy<double>::width};
        },
        comm, sgd{.learning_rate = 0.1}, {.clip_norm = 0.5});
    for (int step = 0; step < 3; ++step) {
      std::vector<tensor> inputs, targets;
      for (int m = 0; m < layout.pipelines[0].order.microbatches; ++m) {
        const auto [input, target] = t.batch(layout, step, 0, m);
        const auto rows = trainer.samples();
        tensor in(static_cast<std::size_t>(rows.size()), input.columns()),
            out(static_cast<std::size_t>(rows.size()), target.columns());
        for (std::size_t i = 0; i < in.rows(); ++i) {
          for (std::size_t k = 0; k < in.columns(); ++k) in(i, k) = input(static_cast<std::size_t>(rows.first) + i, k);
          for (std::size_t k = 0; k < out.columns(); ++k) out(i, k) = target(static_cast<std::size_t>(rows.first) + i, k);
        }
        inputs.push_back(std::move(in));
        targets.push_back(std::move(out));
      }
      const auto done = trainer.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), toy<double>::loss);
      const std::lock_guard lock(guard);
      if (comm.rank() == 0) found.losses.push_back(done.loss);
    }
    const std::lock_guard lock(guard);
    for (const auto& [number, layer] : trainer.layers())
      found.parameters[static_cast<std::size_t>(number)] = copies_of<double>(layer->parameters());
  });
  return found;
}

}  // namespace

TEST_CASE("[threads] a training over any communicator is that over the one that it holds") {
  const toy<double> t{.layers = 6};
  for (const auto* name : {"1f1b", "zb_v"}) {
    auto layout = even_layout(t.layers, schedule_of(name, 2, 4), 6);
    set_groups(layout.pipelines[0], &group_layout::degrees, {{.data = 2}, {.data = 3}});
    const auto wanted = train_with(t, layout, [](threads& c) { return c; });
    const auto by_threads = train_with(t, layout, [](threads& c) { return any(c); });
    const auto by_sends = train_with(t, layout, [](threads& c) { return any(counting(c)); });
    for (const auto* got : {&by_threads, &by_sends}) {
      CHECK(got->losses == wanted.losses);
      CHECK(got->parameters == wanted.parameters);
    }
  }
}

TEST_CASE("[threads] a copy is an end of the same rank, and what the communicator counts and whom it blames is told") {
  auto ends = threads::connect(2);
  any counts{counting(ends[0])}, plain{ends[1]};
  CHECK(counts.bytes_sent() == 42u);
  CHECK(!plain.bytes_sent());
  CHECK(counts.ask() == wait_result::aborted);
  CHECK(plain.ask() == wait_result::deadline);
  any copy(plain);
  copy = plain;
  CHECK(copy.rank() == 1);
  CHECK(copy.ranks() == 2);

  const edge where{.from = 0, .to = 1};
  const stamp what{.microbatch = 3};
  const int from = counts.open(where), to = copy.open(where);
  std::array<double, 2> sent{1, 2}, taken{};
  any::operation sending, receiving;
  CHECK(!copy.poll(receiving));
  for (int round = 0; round < 2; ++round) {
    counts.post_send_bytes(from, what, std::as_bytes(std::span(sent)), sending);
    CHECK(!counts.poll(sending));
    copy.post_receive_bytes(to, what, std::as_writable_bytes(std::span(taken)), receiving);
    CHECK(counts.poll(sending));
    CHECK(copy.poll(receiving));
    CHECK(receiving.end_s > 0);
    CHECK(taken == sent);
    sent[0] += 1;
  }
  copy.abort("enough");
  CHECK(counts.failure() == "enough");
  std::vector<std::vector<double>> all;
  CHECK(plain.gather({}, all, deadline_in(1)) == wait_result::aborted);
}
