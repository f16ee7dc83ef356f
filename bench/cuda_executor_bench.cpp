// SPDX-License-Identifier: Apache-2.0
// What a rank on a GPU costs the host, but for what CUDA's calls cost: 1F1B of 64 microbatches on 1 to 8 stages, a middle rank
// whose messages are always there, layers without kernels, as they are and captured as CUDA graphs, or all ranks in one graph,
// and a runtime whose calls do nothing. A transfer enqueues a copy on a queue of its own. host_us: time per action (computations,
// sends and receives).
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/step_graph.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

namespace {

using namespace hetsched;

constexpr int microbatches = 64;

/// One device that has done everything at once.
struct instant_cuda {
  using stream = void*;
  using event = void*;
  using pool = void*;
  using graph = void*;
  static int device_count(int& count) { return count = 1, 0; }
  static int get_device(int& device) { return device = 0, 0; }
  static int set_device(int) { return 0; }
  static int has_context(int, bool& has) {
    has = true;
    return 0;
  }
  static int create_stream(stream&) { return 0; }
  static int destroy_stream(stream) { return 0; }
  static int create_event(event&) { return 0; }
  static int create_timed_event(event&) { return 0; }
  static int destroy_event(event) { return 0; }
  static int elapsed(double& seconds, event, event) { return seconds = 0, 0; }
  static int record(event, stream) { return 0; }
  static int wait(stream, event) { return 0; }
  static int query(event) { return 0; }
  static int synchronize(stream) { return 0; }
  static int create_pool(int, pool&) { return 0; }
  static int destroy_pool(pool) { return 0; }
  static int allocate(void*& made, std::size_t, pool, stream) { return made = memory, 0; }
  static int free(void*, stream) { return 0; }
  static int allocate_pinned(void*& made, std::size_t) { return made = memory, 0; }
  static int free_pinned(void*) { return 0; }
  static int copy(void*, const void*, std::size_t, stream) { return 0; }
  static int copy_peer(void*, int, const void*, int, std::size_t, stream) { return 0; }
  static int copy_rows(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, stream) { return 0; }
  static int set_zero(void*, std::size_t, stream) { return 0; }
  static int share_pool(pool, int, int, bool& shared) {
    shared = true;
    return 0;
  }
  static int begin_capture(stream) { return 0; }
  static int end_capture(stream, graph&) { return 0; }
  static int end_update(stream, graph&, bool& updated) { return updated = true, 0; }
  static int launch(graph, stream) { return 0; }
  static int destroy_graph(graph) { return 0; }
  static void begin_range(const char*) {}
  static void end_range() {}
  static std::string error_text(int) { return {}; }
  alignas(64) static inline std::byte memory[4096];
};

using queue = cuda_queue<instant_cuda>;

struct tensor {
  tensor() = default;
  tensor(const tensor_shape&, const queue& q) : own(q, sizeof(float)) {}
  [[nodiscard]] static std::array<std::size_t, 1> shape() { return {1}; }
  cuda_buffer<instant_cuda>& buffer() { return own; }
  [[nodiscard]] const cuda_buffer<instant_cuda>& buffer() const { return own; }
  cuda_buffer<instant_cuda> own;
};

struct empty_layer {
  struct context {};
  static tensor forward(const tensor&, context&, const queue& q) { return {{1}, q}; }
  static tensor backward(const tensor&, context&, const queue& q) { return {{1}, q}; }
  std::array<tensor, 0>& parameters() { return none; }
  std::array<tensor, 0>& gradients() { return none; }
  std::array<tensor, 0> none;
};

}  // namespace

template <>
struct hetsched::tensor_traits<tensor> : hetsched::cuda_tensor_traits<tensor, float, instant_cuda> {
  static void add(tensor&, const tensor&, const queue&) {}
  static void scale(tensor&, double, const queue&) {}
};

namespace {

/// The other end is there when it is asked for; this end's copy is enqueued.
struct ready_communicator {
  struct operation {
    double end_s = 0;
  };
  int own = 0, all = 1;
  queue copies;
  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int ranks() const { return all; }
  [[nodiscard]] static int open(const edge&) { return 0; }
  void post_send(int, const stamp&, tensor& t, operation&) const {
    work_on(copies, {&t.own}, {}, [] {});
  }
  void post_receive(int, const stamp&, tensor& t, operation&) const {
    work_on(copies, {}, {&t.own}, [] {});
  }
  [[nodiscard]] static bool poll(operation&) { return true; }
  [[nodiscard]] static wait_result wait(deadline_time, bool) { return wait_result::progress; }
  static void abort(const std::string&) {}
  [[nodiscard]] static std::string failure() { return {}; }
  [[nodiscard]] static wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) {
    return wait_result::progress;
  }
};

template <class Stage>
void alone(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0)), rank = stages / 2;
  std::vector<int> warmups;
  for (int s = 0; s < stages; ++s) warmups.push_back(stages - s);
  const auto order = one_f_one_b(warmups, microbatches);
  const auto actions = static_cast<double>(add_transfers(order).lanes[static_cast<std::size_t>(rank)].actions.size());
  cuda_devices<instant_cuda> devices;
  const cuda_backend<instant_cuda> backend(devices, 0, "a rank");
  const std::vector<int> targets(microbatches);
  std::vector<tensor> inputs;
  for (int m = 0; m < microbatches; ++m) inputs.emplace_back(tensor_shape{1}, backend.compute_queue());
  std::vector<Stage> layers;
  layers.emplace_back(empty_layer());
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(stages) - 1, tensor_shape{1});
  pipeline_executor<tensor, Stage, ready_communicator, no_stager, cuda_backend<instant_cuda>> executor(
      order, std::span(layers), boundaries, ready_communicator{rank, stages, devices.make_queue(0, "copies")}, {}, {}, backend);
  const auto step = [&] {
    executor.step(std::span<const tensor>(inputs), std::span<const int>(targets),
                  [](const tensor&, int, const queue& q, double&) { return tensor({1}, q); });
  };
  for (int warm = 0; warm < 3; ++warm) step();
  double began_s = steady_now_s();
  std::size_t steps = 0;
  for (auto _ : state) step(), ++steps;
  state.counters["host_us"] = 1e6 * (steady_now_s() - began_s) / (static_cast<double>(steps) * actions);
}

/// All stages, driven by one thread.
void whole_step(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  std::vector<int> warmups;
  for (int s = 0; s < stages; ++s) warmups.push_back(stages - s);
  const auto order = one_f_one_b(warmups, microbatches);
  double actions = 0;
  for (const auto& l : add_transfers(order).lanes) actions += static_cast<double>(l.actions.size());
  cuda_devices<instant_cuda> devices;
  cuda_step_graph<tensor, empty_layer, instant_cuda> graph(devices, order, std::vector<int>(static_cast<std::size_t>(stages), 0),
                                                           [](int, const queue&) { return empty_layer(); });
  std::vector<tensor> inputs, targets;
  for (int m = 0; m < microbatches; ++m) {
    inputs.emplace_back(tensor_shape{1}, graph.queue_of(0, 0));
    targets.emplace_back(tensor_shape{1}, graph.queue_of(0, stages - 1));
  }
  const auto step = [&] {
    graph.step(inputs, targets, [](const tensor&, const tensor&, const queue& q, double&) { return tensor({1}, q); });
  };
  for (int warm = 0; warm < 3; ++warm) step();
  const double began_s = steady_now_s();
  std::size_t steps = 0;
  for (auto _ : state) step(), ++steps;
  state.counters["host_us"] = 1e6 * (steady_now_s() - began_s) / (static_cast<double>(steps) * actions);
}

using graphed_layer = cuda_graphed_stage<tensor, empty_layer, instant_cuda>;

BENCHMARK(alone<empty_layer>)->ArgName("stages")->Arg(1)->Arg(2)->Arg(4)->Arg(8);
BENCHMARK(alone<graphed_layer>)->ArgName("stages")->Arg(1)->Arg(2)->Arg(4)->Arg(8);
BENCHMARK(whole_step)->ArgName("stages")->Arg(1)->Arg(2)->Arg(4)->Arg(8);

}  // namespace
