// SPDX-License-Identifier: Apache-2.0
// What a pipeline of inference costs the host, with layers that do nothing: requests of ten steps each on 1 to 4 ranks, which are
// threads, with 1 to 64 requests in flight. host_us: processor time per step of a request and stage; wall_us: time per step of a
// request, which passes all stages while those of other requests do the same.
#include <benchmark/benchmark.h>

#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/inference/inference_pipeline.hpp>

namespace {

using namespace hetsched;

constexpr int requests = 500, steps = 10;

/// One number, without memory of its own.
struct number {
  using value_type = double;
  number() = default;
  explicit number(const tensor_shape&) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {1}; }
  double* data() { return &value; }
  const double* data() const { return &value; }
  double value = 0;
};

struct empty_stage {
  struct state {};
  number infer(const number& x, state&) { return x; }
};

double processor_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void steps_of_requests(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const auto in_flight = static_cast<std::size_t>(state.range(1));
  double cpu_s = 0, wall_s = 0;
  std::int64_t done = 0;
  for (auto _ : state) {
    inference_queue<number> queue(requests);
    for (int r = 0; r < requests; ++r)
      queue.submit({.input = number{}, .next = [left = steps - 1](number x) mutable -> std::optional<inference_input<number>> {
                      if (left-- == 0) return std::nullopt;
                      return inference_input<number>{std::move(x)};
                    }});
    queue.close();
    const double cpu_before_s = processor_s(), before_s = steady_now_s();
    run_on_threads(thread_communicator<number>::connect(ranks), [&](auto& comm) {
      empty_stage stage;
      const inference_limits limits{.most_in_flight = in_flight};
      comm.rank() == 0 ? lead_inference<number>(comm, stage, queue, limits) : follow_inference<number>(comm, stage, limits);
    });
    cpu_s += processor_s() - cpu_before_s;
    wall_s += steady_now_s() - before_s;
    done += requests * steps;
  }
  state.counters["host_us"] = 1e6 * cpu_s / (static_cast<double>(done) * ranks);
  state.counters["wall_us"] = 1e6 * wall_s / static_cast<double>(done);
}
BENCHMARK(steps_of_requests)
    ->ArgsProduct({{1, 2, 4}, {1, 8, 64}})
    ->ArgNames({"ranks", "in_flight"})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
