// SPDX-License-Identifier: Apache-2.0
// What collectives of threads take beside as many threads that each copy as many bytes: bytes of a rank's larger span per second.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/group/axis_group.hpp>

namespace {

using namespace hetsched;

struct tensor {
  using value_type = float;
  tensor() = default;
  explicit tensor(const tensor_shape& s) : numbers(s.at(0)) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {numbers.size()}; }
  float* data() { return numbers.data(); }
  [[nodiscard]] const float* data() const { return numbers.data(); }
  friend void swap(tensor& a, tensor& b) noexcept { a.numbers.swap(b.numbers); }
  std::vector<float> numbers;
};

using threads = thread_communicator<tensor>;

/// Without groups: sends and receives.
struct sends_only : threads {
  explicit sends_only(threads inner) : threads(std::move(inner)) {}
  void open_group() = delete;
};

template <class Communicator>
axis_group<tensor, Communicator> open(benchmark::State& state) {
  static std::vector<std::vector<threads>> ends = [] {
    std::vector<std::vector<threads>> all;
    for (int n = 0; n <= 8; ++n) all.push_back(threads::connect(n));
    return all;
  }();
  std::vector<int> ranks(static_cast<std::size_t>(state.threads()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {Communicator(ends[ranks.size()][static_cast<std::size_t>(state.thread_index())]), std::move(ranks)};
}

/// Calls body(axis, values, counts), counts: of even parts of the values.
template <class Communicator, class Body>
void measure(benchmark::State& state, Body body) {
  const auto axis = open<Communicator>(state);
  const auto parts = static_cast<std::size_t>(axis.size()), n = static_cast<std::size_t>(state.range(0)) / sizeof(float) / parts;
  const std::vector<std::size_t> counts(parts, n);
  std::vector<float> values(n * parts, 1.0F);
  for (auto _ : state) body(axis, values, counts);
  // Of all threads together, as the library adds them up.
  state.SetBytesProcessed(static_cast<std::int64_t>(values.size() * sizeof(float)) * state.iterations());
}

void copies(benchmark::State& state) {
  std::vector<char> from(static_cast<std::size_t>(state.range(0)), 1), to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.range(0) * state.iterations());
}
template <class Communicator>
void all_reduce(benchmark::State& state) {
  measure<Communicator>(state, [](const auto& axis, auto& values, const auto&) { axis.all_reduce(values); });
}
template <class Communicator>
void all_gather(benchmark::State& state) {
  std::vector<float> mine;
  measure<Communicator>(state, [&](const auto& axis, auto& values, const auto& counts) {
    mine.resize(counts[0], 1.0F);
    axis.all_gather(mine, values, counts);
  });
}
template <class Communicator>
void reduce_scatter(benchmark::State& state) {
  std::vector<float> mine;
  measure<Communicator>(state, [&](const auto& axis, auto& values, const auto& counts) {
    mine.resize(counts[0]);
    axis.reduce_scatter(values, mine, counts);
  });
}
template <class Communicator>
void broadcast(benchmark::State& state) {
  measure<Communicator>(state, [](const auto& axis, auto& values, const auto&) { axis.broadcast(values, 0); });
}
template <class Communicator>
void all_to_all(benchmark::State& state) {
  std::vector<float> received;
  measure<Communicator>(state, [&](const auto& axis, auto& values, const auto& counts) {
    received.resize(values.size());
    axis.all_to_all(values, counts, received, counts);
  });
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const int bytes : {1 << 10, 1 << 16, 1 << 20, 1 << 24}) b->Arg(bytes);
  b->ArgName("bytes")->Threads(2)->Threads(4)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(copies)->Apply(sizes);
BENCHMARK(all_reduce<threads>)->Apply(sizes);
BENCHMARK(all_gather<threads>)->Apply(sizes);
BENCHMARK(reduce_scatter<threads>)->Apply(sizes);
BENCHMARK(broadcast<threads>)->Apply(sizes);
BENCHMARK(all_to_all<threads>)->Apply(sizes);
BENCHMARK(all_reduce<sends_only>)->Apply(sizes);
BENCHMARK(all_gather<sends_only>)->Apply(sizes);

}  // namespace
