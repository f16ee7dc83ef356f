// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include <hetsched/schedule/named.hpp>

#include "dense.hpp"
#include "small_layer.hpp"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// Those of the whole program; not inlined, or g++ takes them for mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEST_CASE("[threads] nothing is allocated after the first step") {
  using namespace hetsched;
  using namespace hetsched::test;
  using tensor = small_tensor;
  using stage_type = layer_tuple<tensor, small_layer, small_layer>;
  constexpr int ranks = 4, microbatches = 8;
  const pipeline p{.forward_s = std::vector<double>(ranks, 1),
                   .backward_s = std::vector<double>(ranks, 2),
                   .transfer_s = std::vector<double>(ranks - 1, 0.5)};
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto order = build_schedule(name, p, microbatches);
    auto ends = thread_communicator<tensor>::connect(ranks);
    const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(order.stages) - 1, tensor_shape{1});
    const std::vector<tensor> inputs(microbatches);
    const std::vector<double> targets(microbatches);
    long before = 0, after = 0;
    std::barrier all(ranks);
    rethrow_first(on_ranks(ranks, [&](int r) {
      std::vector<stage_type> stages(stages_of_rank(order, r).size(), stage_type(small_layer{}, small_layer{}));
      pipeline_executor<tensor, stage_type, thread_communicator<tensor>> executor(order, stages, boundaries,
                                                                                  ends[static_cast<std::size_t>(r)]);
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
    }));
    CHECK(before > 0);
    CHECK(after == before);
  }
}
