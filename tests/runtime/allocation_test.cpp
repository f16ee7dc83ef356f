// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

#include "dense.hpp"
#include "group/groups.hpp"
#include "small_layer.hpp"

namespace {

std::atomic<long> allocations{0}, held_bytes{0};

void* counted(std::size_t bytes) noexcept {
  void* const p = std::malloc(bytes == 0 ? 1 : bytes);
  ++allocations;
  held_bytes += static_cast<long>(malloc_usable_size(p));
  return p;
}
void give_back(void* p) noexcept {
  held_bytes -= static_cast<long>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

// Compiled by itself. Those of the whole program; not inlined, or g++ takes them for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* const p = counted(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
[[gnu::noinline]] void operator delete(void* p) noexcept { give_back(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { give_back(p); }

namespace {

using namespace hetsched;
using namespace hetsched::test;

/// Allocations of 20 steps behind the first one.
template <class Stager>
long allocations_of_steps(const schedule& order) {
  using tensor = small_tensor;
  using stage_type = layer_tuple<tensor, small_layer, small_layer>;
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(order.stages) - 1, tensor_shape{1});
  const std::vector<tensor> inputs(static_cast<std::size_t>(order.microbatches));
  const std::vector<double> targets(inputs.size());
  long before = 0, after = 0;
  std::barrier all(order.ranks);
  run_on_threads(thread_communicator<tensor>::connect(order.ranks), [&](thread_communicator<tensor>& end) {
    const int r = end.rank();
    std::vector<stage_type> stages(stages_of_rank(order, r).size(), stage_type(small_layer{}, small_layer{}));
    pipeline_executor<tensor, stage_type, thread_communicator<tensor>, Stager> executor(order, stages, boundaries, end);
    const auto step = [&] {
      executor.step(std::span<const tensor>(inputs), std::span<const double>(targets), [](const tensor& y, double) {
        return loss_value<tensor>{y.value, y};
      });
    };
    step();
    all.arrive_and_wait();
    if (r == 0) before = allocations;
    all.arrive_and_wait();
    for (int i = 0; i < 20; ++i) step();
    all.arrive_and_wait();
    if (r == 0) after = allocations;
    all.arrive_and_wait();
  });
  CHECK(before > 0);
  return after - before;
}

}  // namespace

TEST_CASE("[threads] nothing is allocated after the first step") {
  constexpr int ranks = 4, microbatches = 8;
  const pipeline p{.forward_s = std::vector<double>(ranks, 1),
                   .backward_s = std::vector<double>(ranks, 2),
                   .transfer_s = std::vector<double>(ranks - 1, 0.5)};
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto order = build_schedule(name, p, microbatches);
    CHECK(allocations_of_steps<no_stager>(order) == 0);
    const auto staged = split_streams(stage_transfers(add_transfers(order), [](int, int) { return true; }));
    CHECK(allocations_of_steps<thread_stager<small_tensor>>(staged) == 0);
  }
}

namespace {

/// Allocations of 20 times all collectives behind the first time.
template <class Communicator>
long allocations_of_collectives(std::vector<Communicator> ends) {
  using tensor = matrix<double>;
  const auto n = ends.size();
  long before = 0, after = 0;
  std::barrier all(static_cast<std::ptrdiff_t>(n));
  run_on_threads(std::move(ends), [&](Communicator& end) {
    std::vector<int> ranks;
    for (int r = 0; r < end.ranks(); ++r) ranks.push_back(r);
    const axis_group<tensor, Communicator> axis(end, ranks);
    std::vector<double> values(3000 * n), mine(3000), small(7);
    const std::vector<std::size_t> counts(n, 3000);
    std::vector<double> received(values.size());
    const auto step = [&] {
      axis.all_reduce(values);
      axis.all_reduce(small);
      axis.all_gather(mine, values);
      axis.reduce_scatter(values, mine, counts);
      axis.broadcast(mine, 1);
      axis.all_to_all(values, counts, received, counts);
    };
    step();
    all.arrive_and_wait();
    if (end.rank() == 0) before = allocations;
    all.arrive_and_wait();
    for (int i = 0; i < 20; ++i) step();
    all.arrive_and_wait();
    if (end.rank() == 0) after = allocations;
    all.arrive_and_wait();
  });
  CHECK(before > 0);
  return after - before;
}

}  // namespace

TEST_CASE("[threads] collectives allocate nothing after the first call of a size") {
  CHECK(allocations_of_collectives(thread_communicator<matrix<double>>::connect(3)) == 0);
  CHECK(allocations_of_collectives(plain(thread_communicator<matrix<double>>::connect(3))) == 0);
}

TEST_CASE("[threads] nor are slices that groups exchange") {
  using tensor = small_tensor;
  using channel = thread_communicator<tensor>;
  const layout two{.mesh = {2}, .dimensions = {{.extent = 1}}}, three{.mesh = {3}, .dimensions = {{.extent = 1}}};
  const auto order = gpipe(2, 6);
  for (const auto how : all_reshard_strategies) {
    const pipeline_groups groups{.devices = {2, 3}, .boundaries = {make_boundary_transfer(two, three, how)}};
    const std::vector<tensor> inputs(6);
    const std::vector<double> targets(6);
    long before = 0, after = 0;
    std::barrier all(5);
    run_on_threads(channel::connect(5), [&](channel& end) {
      std::vector<small_layer> stages(1);
      pipeline_executor<tensor, small_layer, channel> executor(order, stages, groups, end);
      const auto step = [&] {
        executor.step(std::span<const tensor>(inputs), std::span<const double>(targets), [](const tensor& y, double) {
          return loss_value<tensor>{y.value, y};
        });
      };
      step();
      all.arrive_and_wait();
      if (end.rank() == 0) before = allocations;
      all.arrive_and_wait();
      for (int i = 0; i < 20; ++i) step();
      all.arrive_and_wait();
      if (end.rank() == 0) after = allocations;
      all.arrive_and_wait();
    });
    CAPTURE(std::string(name_of(how)));
    CHECK(after == before);
  }
}

TEST_CASE(
    "a loss that takes the output for its own writes the gradient over it, in chunks: no further tensor, and the same bits") {
  using namespace hetsched;
  using namespace hetsched::test;
  using tensor = matrix<double>;
  using trainer_type = pipeline_trainer<tensor, linear<double>, thread_communicator<tensor>, sgd>;
  constexpr int layers = 3, microbatches = 5, steps = 4;
  constexpr std::size_t rows = 7, columns = 3, chunk = 2;
  random_source random(5);
  std::vector<tensor> inputs, targets;
  for (int m = 0; m < microbatches; ++m) {
    inputs.push_back(random_matrix<double>(random, rows, columns));
    targets.push_back(random_matrix<double>(random, rows, columns));
  }
  const auto plain = [](const tensor& y, const tensor& wanted) {
    loss_value<tensor> found{0, tensor(rows, columns)};
    for (std::size_t k = 0; k < rows * columns; ++k) {
      const double d = found.gradient.data()[k] = y.data()[k] - wanted.data()[k];
      found.value += d * d / 2;
    }
    return found;
  };
  const auto own = [](tensor&& y, const tensor& wanted) {
    double value = 0;
    for (std::size_t first = 0; first < y.rows(); first += chunk)
      for (std::size_t k = first * y.columns(); k < std::min(first + chunk, y.rows()) * y.columns(); ++k) {
        const double d = y.data()[k] -= wanted.data()[k];
        value += d * d / 2;
      }
    return loss_value<tensor>{value, std::move(y)};
  };
  struct found {
    std::vector<double> losses;
    long in_steps = 0, in_evaluation = 0;
  };
  const auto train = [&](const auto& loss) {
    found told;
    auto ends = thread_communicator<tensor>::connect(1);
    trainer_type trainer(
        even_layout(layers, gpipe(1, microbatches)),
        [](int l) {
          random_source first(static_cast<std::uint64_t>(l) + 1);
          return linear<double>(columns, columns, first);
        },
        [](int) {
          return tensor_shape{rows, columns};
        },
        ends[0], sgd{.learning_rate = 0.1}, {.scaling = {.scale = 8}});
    const auto step = [&] { told.losses.push_back(trainer.step(inputs, targets, loss).loss); };
    const auto evaluate = [&] { told.losses.push_back(trainer.evaluate(inputs, targets, loss)); };
    told.losses.reserve(2 * steps + 2);
    step(), evaluate();
    auto before = allocations.load();
    for (int i = 0; i < steps; ++i) step();
    told.in_steps = allocations - before;
    before = allocations;
    for (int i = 0; i < steps; ++i) evaluate();
    told.in_evaluation = allocations - before;
    return told;
  };
  const auto wanted = train(plain), without = train(own);
  CHECK(without.losses == wanted.losses);
  CHECK(without.losses.back() < without.losses.front());
  CHECK(wanted.in_steps - without.in_steps == steps * microbatches);
  CHECK(wanted.in_evaluation - without.in_evaluation == steps * microbatches);
}

TEST_CASE("[threads] a trainer allocates nothing after the first step") {
  using namespace hetsched;
  using namespace hetsched::test;
  using tensor = small_tensor;
  using trainer_type = pipeline_trainer<tensor, small_layer, thread_communicator<tensor>, adamw>;
  constexpr int layers = 8, microbatches = 4;
  std::vector<training_layout> parts;
  for (const int ranks : {1, 2, 2}) {
    const pipeline p{.forward_s = std::vector<double>(static_cast<std::size_t>(ranks), 1),
                     .backward_s = std::vector<double>(static_cast<std::size_t>(ranks), 2),
                     .transfer_s = std::vector<double>(static_cast<std::size_t>(ranks) - 1, 0.5)};
    parts.push_back(even_layout(layers, build_schedule(parts.size() == 2 ? "chimera" : "zb_v", p, microbatches)));
  }
  auto layout = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    layout.pipelines.push_back(parts[i].pipelines[0]);
    layout.pipelines.back().first_rank = layout.ranks() - parts[i].ranks();
  }
  for (const bool shards : {false, true}) {  // buckets of one element, as these tensors have
    auto ends = thread_communicator<tensor>::connect(layout.ranks());
    const std::vector<tensor> inputs(microbatches);
    const std::vector<double> targets(microbatches);
    long before = 0, after = 0;
    std::barrier all(layout.ranks());
    rethrow_first(on_ranks(layout.ranks(), [&](int r) {
      trainer_type trainer(
          layout, [](int) { return small_layer{}; }, [](int) { return tensor_shape{1}; }, ends[static_cast<std::size_t>(r)],
          adamw{}, {.clip_norm = 0.1, .ties = {{{0, 0}, {7, 0}}}, .shard_optimizer = shards, .bucket_bytes = sizeof(double)});
      const auto step = [&] {
        (void)trainer.step(std::span<const tensor>(inputs), std::span<const double>(targets), [](const tensor& y, double) {
          return loss_value<tensor>{y.value, y};
        });
      };
      step();
      all.arrive_and_wait();
      if (r == 0) before = allocations;
      all.arrive_and_wait();
      for (int i = 0; i < 20; ++i) step();
      all.arrive_and_wait();
      if (r == 0) after = allocations;
      all.arrive_and_wait();
    }));
    CHECK(before > 0);
    CHECK(after == before);
  }
}

namespace {

struct memory {
  long allocations = 0, bytes = 0;
};

/// What trainers, or executors alone, of a chain take until all of them are made: so many allocations, and bytes that are held.
memory memory_of_chain(int ranks, bool trains) {
  using tensor = small_tensor;
  using channel = thread_communicator<tensor>;
  constexpr int microbatches = 4;
  std::vector<int> counts;
  for (int s = 0; s < ranks; ++s) counts.push_back(std::min(ranks - s, microbatches));
  const auto layout = even_layout(ranks, one_f_one_b(counts, microbatches));
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(ranks) - 1, tensor_shape{1});
  memory found{allocations, held_bytes};
  std::barrier all(ranks);
  run_on_threads(channel::connect(ranks), [&](channel& end) {
    const auto tell = [&] {
      all.arrive_and_wait();
      if (end.rank() == 0) found = {allocations - found.allocations, held_bytes - found.bytes};
      all.arrive_and_wait();
    };
    if (trains) {
      const pipeline_trainer<tensor, small_layer, channel, adamw> trainer(
          layout, [](int) { return small_layer{}; }, tensor_shape{1}, end, adamw{});
      tell();
    } else {
      std::vector<small_layer> stages(1);
      const pipeline_executor<tensor, small_layer, channel> executor(layout.pipelines[0].order, stages, boundaries, end);
      tell();
    }
  });
  return found;
}

}  // namespace

TEST_CASE("[threads] what a rank holds and allocates does not grow with the number of ranks of its process") {
  for (const bool trains : {true, false}) {
    CAPTURE(trains);
    const auto few = memory_of_chain(16, trains), more = memory_of_chain(32, trains), most = memory_of_chain(64, trains);
    const auto each = [](long a, long b, int ranks) { return static_cast<double>(b - a) / ranks; };
    CHECK(each(few.allocations, more.allocations, 16) > 0);
    CHECK(each(more.allocations, most.allocations, 32) < 1.05 * each(few.allocations, more.allocations, 16));
    CHECK(each(more.bytes, most.bytes, 32) < 1.05 * each(few.bytes, more.bytes, 16));
  }
}
