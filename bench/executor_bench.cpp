// SPDX-License-Identifier: Apache-2.0
// What following a schedule costs the host, with layers that do nothing: 1F1B of 64 microbatches on 1 to 8 stages.
// alone: a middle rank whose messages are always there, so nothing but the executor's own work. executor: all ranks, on threads.
// by_hand: the same computations and messages in a loop written for them, over mailboxes of a mutex and a condition variable.
// host_us: processor time per action (computations, sends and receives); wall_us: time per action of one rank.
// trainers: ranks that are threads of one process construct theirs, a chain of as many stages of one layer. Processor time of
// all, and what of the process is in memory then.
#include <benchmark/benchmark.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <condition_variable>
#include <cstddef>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

namespace {

using namespace hetsched;

constexpr int microbatches = 64, steps = 50;

/// One number, without memory of its own.
struct tensor {
  using value_type = double;
  tensor() = default;
  explicit tensor(const tensor_shape&) {}
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {1}; }
  double* data() { return &value; }
  const double* data() const { return &value; }
  double value = 0;
};

struct empty_layer {
  struct context {};
  tensor forward(const tensor& x, context&) { return x; }
  tensor backward(const tensor& dy, context&) { return dy; }
  std::array<tensor, 0>& parameters() { return none; }
  std::array<tensor, 0>& gradients() { return none; }
  std::array<tensor, 0> none;
};

/// Everything has ended when it is asked for.
struct ready_communicator {
  struct operation {
    double end_s = 0;
  };
  int own = 0, all = 1;
  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int ranks() const { return all; }
  [[nodiscard]] int open(const edge&) { return 0; }
  void post_send(int, const stamp&, tensor&, operation&) {}
  void post_receive(int, const stamp&, tensor&, operation&) {}
  [[nodiscard]] bool poll(operation&) { return true; }
  [[nodiscard]] wait_result wait(deadline_time, bool) { return wait_result::progress; }
  void abort(const std::string&) {}
  [[nodiscard]] std::string failure() const { return {}; }
  [[nodiscard]] wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) {
    return wait_result::progress;
  }
};

schedule one_f_one_b_of(int stages) {
  std::vector<int> counts;
  for (int s = 0; s < stages; ++s) counts.push_back(stages - s);
  return one_f_one_b(counts, microbatches);
}

double actions_of(const schedule& order, int first_rank, int last_rank) {
  double actions = 0;
  for (const auto& l : add_transfers(order).lanes)
    if (l.rank >= first_rank && l.rank < last_rank) actions += static_cast<double>(l.actions.size());
  return actions;
}

double processor_s() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto s = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return s(used.ru_utime) + s(used.ru_stime);
}

/// Times `steps` steps of every rank: make(rank) -> a function that does one.
template <class Make>
void measure(benchmark::State& state, int ranks, double actions, Make make) {
  double wall_s = 0, host_s = 0;
  for (auto _ : state) {
    std::barrier all(ranks);
    double began_s = 0, used_s = 0;
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
          make(r, [&](auto&& step) {
            for (int i = 0; i < 3; ++i) step();
            all.arrive_and_wait();
            if (r == 0) began_s = steady_now_s(), used_s = processor_s();
            all.arrive_and_wait();
            for (int i = 0; i < steps; ++i) step();
            all.arrive_and_wait();
            if (r == 0) began_s = steady_now_s() - began_s, used_s = processor_s() - used_s;
            all.arrive_and_wait();
          });
        });
    }
    state.SetIterationTime(began_s);
    wall_s += began_s;
    host_s += used_s;
  }
  const double done = static_cast<double>(state.iterations()) * steps * actions;
  state.counters["host_us"] = 1e6 * host_s / done;
  state.counters["wall_us"] = 1e6 * wall_s * ranks / done;
}

template <class Communicator, class Steps>
void run_executor(const schedule& order, Communicator end, Steps&& do_steps) {
  const std::vector<tensor> inputs(microbatches);
  const std::vector<int> targets(microbatches);
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(order.stages) - 1, tensor_shape{1});
  std::vector<empty_layer> stages(1);
  pipeline_executor<tensor, empty_layer, Communicator> executor(order, stages, boundaries, end);
  do_steps([&] {
    executor.step(std::span<const tensor>(inputs), std::span<const int>(targets), [](const tensor& y, int) {
      return loss_value<tensor>{y.value, y};
    });
  });
}

void alone(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0)), rank = stages / 2;
  const auto order = one_f_one_b_of(stages);
  measure(state, 1, actions_of(order, rank, rank + 1), [&](int, auto&& do_steps) {
    run_executor(order, ready_communicator{rank, stages}, do_steps);
  });
}

void executor(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  const auto order = one_f_one_b_of(stages);
  const auto ends = thread_communicator<tensor>::connect(stages);
  measure(state, stages, actions_of(order, 0, stages),
          [&](int r, auto&& do_steps) { run_executor(order, ends[static_cast<std::size_t>(r)], do_steps); });
}

double resident_mb() {
  double all = 0, resident = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

/// A layer of one parameter.
struct weight_layer : empty_layer {
  std::array<tensor, 1>& parameters() { return weight; }
  std::array<tensor, 1>& gradients() { return gradient; }
  std::array<tensor, 1> weight, gradient;
};

void trainers(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  std::vector<int> counts;
  for (int s = 0; s < stages; ++s) counts.push_back(std::min(stages - s, 8));
  const auto layout = even_layout(stages, one_f_one_b(counts, 8));
  double host_s = 0, mb = 0;
  for (auto _ : state) {
    std::barrier all(stages);
    double made_s = steady_now_s(), used_s = processor_s();
    run_on_threads(thread_communicator<tensor>::connect(stages), [&](thread_communicator<tensor>& end) {
      const auto trainer = make_trainer<tensor>(layout, [](int) { return weight_layer(); }, {1}, end, sgd{}, {.deadline_s = 300});
      all.arrive_and_wait();
      if (end.rank() == 0) made_s = steady_now_s() - made_s, used_s = processor_s() - used_s, mb = resident_mb();
      all.arrive_and_wait();
    });
    state.SetIterationTime(made_s);
    host_s += used_s;
  }
  state.counters["host_s"] = host_s / static_cast<double>(state.iterations());
  state.counters["resident_mb"] = mb;
}

struct mailbox {
  std::mutex guard;
  std::condition_variable filled;
  std::array<tensor, microbatches> tensors;
  int first = 0, count = 0;
  void send(const tensor& t) {
    {
      const std::lock_guard lock(guard);
      tensors[static_cast<std::size_t>((first + count++) % microbatches)] = t;
    }
    filled.notify_one();
  }
  tensor receive() {
    std::unique_lock lock(guard);
    filled.wait(lock, [&] { return count > 0; });
    const tensor t = tensors[static_cast<std::size_t>(first)];
    first = (first + 1) % microbatches;
    --count;
    return t;
  }
};

void by_hand(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  const auto order = one_f_one_b_of(stages);
  std::vector<mailbox> down(static_cast<std::size_t>(stages)), up(static_cast<std::size_t>(stages));  // towards stage s
  measure(state, stages, actions_of(order, 0, stages), [&](int r, auto&& do_steps) {
    const auto s = static_cast<std::size_t>(r);
    const bool first = r == 0, last = r + 1 == stages;
    empty_layer layer;
    std::vector<empty_layer::context> contexts(microbatches);
    std::vector<tensor> inputs(microbatches), gradients(microbatches);
    do_steps([&] {
      const int warmup = std::min(stages - r, microbatches);
      for (int f = 0, b = 0; b < microbatches;) {
        if (f < microbatches && f - b < warmup) {
          const auto m = static_cast<std::size_t>(f++);
          if (!first) inputs[m] = down[s].receive();
          const tensor y = layer.forward(inputs[m], contexts[m]);
          if (last)
            gradients[m] = y;
          else
            down[s + 1].send(y);
        } else {
          const auto m = static_cast<std::size_t>(b++);
          if (!last) gradients[m] = up[s].receive();
          const tensor dx = layer.backward(gradients[m], contexts[m]);
          if (!first) up[s - 1].send(dx);
        }
      }
    });
  });
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const int stages : {1, 2, 4, 8}) b->Arg(stages);
  b->ArgName("stages")->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(alone)->Apply(sizes);
BENCHMARK(executor)->Apply(sizes);
BENCHMARK(by_hand)->Apply(sizes);
BENCHMARK(trainers)->Arg(128)->Arg(512)->ArgName("threads")->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
