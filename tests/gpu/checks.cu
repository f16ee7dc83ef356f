// SPDX-License-Identifier: Apache-2.0
// What needs a GPU: prints a table of checks and figures. Uses the tensor, kernels and layer of the example.
#define main example_main
#include "../../examples/cuda/own_layers.cu"
#undef main

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/stager.hpp>
#include <hetsched/cuda/step_graph.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#ifdef CHECKS_NCCL
#include <hetsched/cuda/nccl.hpp>
#include <hetsched/cuda/nccl_communicator.hpp>
#endif

#include "rows.hpp"

namespace {

using rows::number;
using rows::row;

struct outcome {
  std::vector<double> losses;                 // of the last step, by microbatch
  std::vector<std::vector<float>> gradients;  // by layer
  double seconds = 0;                         // of the steps behind the first, on the slowest rank
  std::vector<std::size_t> most_bytes;        // by GPU, behind the second and behind the last step
};

__global__ void spin(long long ns) {
  const auto now = [] {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  };
  for (const long long end = now() + ns; now() < end;) {
  }
}

std::vector<int> places_on(hetsched::cuda_devices<cuda>& gpus, const hetsched::schedule& order) {
  std::vector<int> places;
  for (int r = 0; r < order.ranks; ++r) places.push_back(r % gpus.count());
  return places;
}

auto summed_loss = [](tensor y, const tensor& wanted, const queue& on, double& value) {
  half_squares<<<1, 1, 0, on.stream()>>>(y.size(), y.data(), wanted.data(), &value);
  return y;
};

// A gate per stage, which takes its time besides.
struct slow_gate : gate {
  static inline long long forward_ns = 0, backward_ns = 0;
  tensor forward(const tensor& x, context& c, const queue& q) {
    spin<<<1, 1, 0, q.stream()>>>(forward_ns);
    return gate::forward(x, c, q);
  }
  tensor backward(const tensor& dy, context& c, const queue& q) {
    spin<<<1, 1, 0, q.stream()>>>(backward_ns);
    return gate::backward(dy, c, q);
  }
};
using graphed_gate = hetsched::cuda_graphed_stage<tensor, gate, cuda>;
template <class Stage>
gate& gate_of(Stage& stage) {
  if constexpr (requires { stage.stage(); })
    return stage.stage();
  else
    return stage;
}

// Steps of a schedule with a gate per stage. Staged: what it lists as copies goes by way of pinned memory.
template <bool Staged, class Stage = gate, class Channels, class Loss>
outcome run_over(hetsched::cuda_devices<cuda>& gpus, const std::vector<int>& places, std::vector<Channels> ends,
                 const hetsched::schedule& order, int width, int steps, const Loss& loss,
                 const hetsched::executor_options& options = {}) {
  using backend = hetsched::cuda_backend<cuda>;
  using stager = std::conditional_t<Staged, hetsched::cuda_stager<tensor, cuda>, hetsched::no_stager>;
  const std::size_t n = static_cast<std::size_t>(width);
  outcome all;
  all.losses.assign(order.microbatches, 0);
  all.gradients.resize(order.stages);
  std::vector<std::vector<double>> losses(order.ranks);
  std::vector<double> seconds(order.ranks);
  std::vector<std::size_t> early(order.ranks);
  hetsched::run_on_threads(std::move(ends), [&](Channels& channel) {
    const int rank = channel.rank();
    backend own(gpus, places[rank], "rank " + std::to_string(rank));
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = hetsched::stages_of_rank(order, rank);
    std::vector<Stage> stages;
    for (const auto& c : copies) stages.push_back(Stage{gate{{{n}, q, 1 + 0.05f * c.stage, 0.01f}, {{n}, q, 0, 0}}});
    std::vector<tensor> inputs, targets;
    for (int m = 0; m < order.microbatches; ++m) {
      inputs.emplace_back(hetsched::tensor_shape{n}, q, 0.1f * m, 0.02f);
      targets.emplace_back(hetsched::tensor_shape{n}, q, 0.5f, 0.0f);
    }
    const auto make_stager = [&] {
      if constexpr (Staged)
        return stager(gpus, places[rank], "rank " + std::to_string(rank));
      else
        return stager();
    };
    hetsched::pipeline_executor<tensor, Stage, Channels, stager, backend> executor(
        order, std::span(stages), std::vector<hetsched::tensor_shape>(order.stages - 1, {n}), channel, options, make_stager(),
        own);
    double begin_s = 0;
    for (int step = 0; step < steps; ++step) {
      if (step == 1) begin_s = hetsched::steady_now_s();
      executor.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), loss);
      if (step == 1) early[rank] = gpus.memory(places[rank]).most_bytes;
    }
    seconds[rank] = hetsched::steady_now_s() - begin_s;
    losses[rank].assign(executor.losses().begin(), executor.losses().end());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (copies[i].direction != 0) continue;
      auto& own_gradients = all.gradients[copies[i].stage];
      own_gradients.resize(n);
      q.finish();
      cudaMemcpy(own_gradients.data(), gate_of(stages[i]).gradient.data(), n * sizeof(float), cudaMemcpyDefault);
    }
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) all.losses[m] += part[m];
  all.seconds = *std::max_element(seconds.begin(), seconds.end());
  for (int d = 0; d < gpus.count(); ++d) {
    std::size_t then = 0;
    for (int r = 0; r < order.ranks; ++r)
      if (places[r] == d) then = std::max(then, early[r]);
    all.most_bytes.push_back(then);
    all.most_bytes.push_back(gpus.memory(d).most_bytes);
  }
  return all;
}

outcome run(hetsched::cuda_devices<cuda>& gpus, const hetsched::schedule& order, int width, int steps) {
  const auto places = places_on(gpus, order);
  return run_over<false>(gpus, places, hetsched::cuda_local_communicator<tensor, cuda>::connect(gpus, places), order, width,
                         steps, summed_loss);
}

bool in_order(const hetsched::schedule& order) {
  for (int s = 0; s < order.stages; ++s) {
    const auto microbatches = hetsched::gradient_order(order, 0, s);
    if (!std::is_sorted(microbatches.begin(), microbatches.end())) return false;
  }
  return order.directions == 1;
}

// All schedules of the library against one rank: losses to the last bit; gradients, too, where they are added up in the order of
// the microbatches.
void schedules(hetsched::cuda_devices<cuda>& gpus) {
  const int microbatches = 8, width = 4096;
  int exact = 0, others = 0;
  bool good = true;
  std::string wrong;
  for (const auto name : hetsched::schedule_names()) {
    const hetsched::pipeline times{.forward_s = {1, 1, 1, 1}, .backward_s = {2, 2, 2, 2}, .transfer_s = {0.5, 0.5, 0.5}};
    const auto order = hetsched::build_schedule(name, times, microbatches);
    const auto piped = run(gpus, order, width, 2);
    // One rank with all stages, microbatch after microbatch.
    auto alone_order = hetsched::make_schedule(1, microbatches, std::vector<int>(order.stages, 0));
    hetsched::lane one{.rank = 0};
    for (int m = 0; m < microbatches; ++m) {
      for (int s = 0; s < order.stages; ++s)
        one.actions.push_back({.kind = hetsched::action_kind::forward, .stage = s, .microbatch = m});
      for (int s = order.stages; s-- > 0;)
        one.actions.push_back({.kind = hetsched::action_kind::backward, .stage = s, .microbatch = m});
    }
    alone_order.lanes = {one};
    const auto alone = run(gpus, alone_order, width, 2);
    bool same = piped.losses == alone.losses;
    const bool bits = in_order(order);
    for (int s = 0; s < order.stages; ++s)
      for (int i = 0; i < width; ++i) {
        const double a = piped.gradients[s][i], b = alone.gradients[s][i];
        same = same && (bits ? a == b : std::abs(a - b) <= 1e-5 * (1 + std::abs(b)));
      }
    (bits ? exact : others) += same;
    if (!same) good = false, wrong += " " + std::string(name);
  }
  row("schedules: bits of one rank", good,
      std::to_string(exact) + " to the last bit, " + std::to_string(others) + " to five digits" +
          (wrong.empty() ? "" : ", wrong:" + wrong));
}

void growth(hetsched::cuda_devices<cuda>& gpus) {
  const auto order = hetsched::one_f_one_b({2, 1}, 4);
  std::size_t before = 0, after = 0, total = 0;
  (void)run(gpus, order, 256, 100);
  cudaMemGetInfo(&before, &total);
  const auto long_run = run(gpus, order, 256, 10'000);
  cudaMemGetInfo(&after, &total);
  const auto grown = static_cast<double>(before) - static_cast<double>(after);
  std::size_t early = 0, late = 0;
  for (std::size_t d = 0; d < long_run.most_bytes.size(); d += 2) {
    early = std::max(early, long_run.most_bytes[d]);
    late = std::max(late, long_run.most_bytes[d + 1]);
  }
  // How far the ranks are from each other is chance, so a few buffers more may be in use at once.
  constexpr std::size_t buffers = 32 * 256 * sizeof(float);
  row("10,000 steps without growth", grown <= 1 << 20 && late <= early + buffers,
      number("%.1f s,", long_run.seconds) + number(" %.0f bytes of the GPU more,", grown) +
          number(" buffers %.0f bytes at most", static_cast<double>(early)) + number(" and %.0f", static_cast<double>(late)));
}

// Steps of next to no work: what is left is the host, the launches and the threads.
void host_time(hetsched::cuda_devices<cuda>& gpus) {
  const int microbatches = 64, steps = 50;
  for (const int ranks : {1, 2}) {
    std::vector<int> warmups;
    for (int r = 0; r < ranks; ++r) warmups.push_back(ranks - r);
    const auto order = hetsched::one_f_one_b(warmups, microbatches);
    const auto found = run(gpus, order, 32, steps + 1);
    const double per_action = found.seconds / steps / (2 * microbatches);
    row("a step of small kernels, " + std::to_string(ranks) + " rank(s)", true,
        number("%.2f us per computation", per_action * 1e6));
  }
}

__global__ void differences(int n, const float* y, const float* wanted, float* gradient) {
  EACH(i) gradient[i] = y[i] - wanted[i];
}
// A loss of which nothing is wanted but its gradient: the one above takes its time.
auto no_loss = [](const tensor& y, const tensor& wanted, const queue& on, double& value) {
  tensor gradient(y.shape(), on);
  each(differences, on, y.size(), y.data(), wanted.data(), gradient.data());
  value = 0;  // nobody else writes it
  return gradient;
};

// Copies by way of pinned memory against none.
void staged(hetsched::cuda_devices<cuda>& gpus) {
  using network = hetsched::thread_communicator<tensor>;
  constexpr int width = 1 << 24, steps = 6;  // 64 MiB
  const auto plain = hetsched::one_f_one_b({1, 1}, 1);
  const auto order =
      hetsched::split_streams(hetsched::stage_transfers(hetsched::add_transfers(plain), [](int, int) { return true; }));
  const auto places = places_on(gpus, order);
  const auto by_host = run_over<true>(gpus, places, network::connect(order.ranks), order, width, steps, no_loss);
  const auto direct = run_over<false>(gpus, places, hetsched::cuda_local_communicator<tensor, cuda>::connect(gpus, places), plain,
                                      width, steps, no_loss);
  row("64 MiB by way of the host", by_host.gradients == direct.gradients,
      number("%.2f ms a step,", by_host.seconds / (steps - 1) * 1e3) +
          number(" without %.2f ms", direct.seconds / (steps - 1) * 1e3));
}

// Transfers that take a share of the longest computation, on a link that is made that slow, against the simulator.
void overlap(hetsched::cuda_devices<cuda>& gpus) {
  using network = hetsched::shaped_communicator<hetsched::thread_communicator<tensor>>;
  constexpr int width = 1 << 16, microbatches = 16, steps = 6, ranks = 2;
  constexpr double forward_s = 8e-3, backward_s = 16e-3;
  slow_gate::forward_ns = static_cast<long long>(forward_s * 1e9);
  slow_gate::backward_ns = static_cast<long long>(backward_s * 1e9);
  for (const double share : {0.25, 0.5, 1.0}) {
    const double transfer_s = share * (forward_s + backward_s);
    const hetsched::pipeline times{
        .forward_s = {forward_s, forward_s}, .backward_s = {backward_s, backward_s}, .transfer_s = {transfer_s}};
    const auto plain = hetsched::one_f_one_b({4, 1}, microbatches);
    const double wanted_s = hetsched::simulate(times, plain).makespan_s;
    const auto order =
        hetsched::split_streams(hetsched::stage_transfers(hetsched::add_transfers(plain), [](int, int) { return true; }));
    std::vector<network> ends;
    for (auto& end : hetsched::thread_communicator<tensor>::connect(ranks))
      ends.emplace_back(std::move(end), [&](int, int) {
        return hetsched::link{.latency_s = 0, .bandwidth = width * sizeof(float) / transfer_s};
      });
    const auto found = run_over<true, slow_gate>(gpus, places_on(gpus, order), std::move(ends), order, width, steps, no_loss);
    const double took_s = found.seconds / (steps - 1);
    row("overlap, transfers of " + number("%.2f", share), std::abs(took_s / wanted_s - 1) <= 0.05,
        number("%.1f ms a step,", 1e3 * took_s) + number(" simulated %.1f ms", 1e3 * wanted_s));
  }
}

// A rank that fails in the midst of a step, and one that does not come: the others end with one error, and the GPUs go on.
template <class Connect>
void lost_ranks(hetsched::cuda_devices<cuda>& gpus, const char* over, int ranks, const Connect& connect) {
  std::vector<int> warmups;
  for (int r = 0; r < ranks; ++r) warmups.push_back(ranks - r);
  const auto order = hetsched::one_f_one_b(warmups, 6);
  const auto places = places_on(gpus, order);
  const auto wanted = run_over<false>(gpus, places, connect(), order, 4096, 2, summed_loss);
  const auto failing = [calls = std::make_shared<int>(0)](tensor y, const tensor& t, const queue& on, double& value) {
    if (++*calls == 9) throw std::runtime_error("the loss has failed");
    return summed_loss(std::move(y), t, on, value);
  };
  std::string text;
  const double begin_s = hetsched::steady_now_s();
  try {
    (void)run_over<false>(gpus, places, connect(), order, 4096, 5, failing, {.deadline_s = 10});
  } catch (const std::exception& e) {
    text = e.what();
  }
  const double took_s = hetsched::steady_now_s() - begin_s;
  row(std::string(over) + ": a rank that fails ends all", text.find("has failed") != std::string::npos && took_s < 9,
      number("%.2f s", took_s));
  const auto again = run_over<false>(gpus, places, connect(), order, 4096, 2, summed_loss);
  row(std::string(over) + ": the next training", again.losses == wanted.losses, "bits of the first");
}

void graphs(hetsched::cuda_devices<cuda>& gpus) {
  const auto order = hetsched::one_f_one_b({2, 1}, 64);
  const auto places = places_on(gpus, order);
  const auto with = [&](auto stage) {
    return run_over<false, typename decltype(stage)::type>(
        gpus, places, hetsched::cuda_local_communicator<tensor, cuda>::connect(gpus, places), order, 32, 51, summed_loss);
  };
  const auto plain = with(std::type_identity<gate>()), launched = with(std::type_identity<graphed_gate>());
  row("CUDA graphs: bits of launches", plain.gradients == launched.gradients && plain.losses == launched.losses,
      number("%.2f us per computation", 1e6 * launched.seconds / 50 / 128));
}

// The whole step as one graph.
void captured_steps(hetsched::cuda_devices<cuda>& gpus) {
  constexpr int width = 32, microbatches = 64, steps = 50;
  constexpr std::size_t n = width;
  const auto order = hetsched::one_f_one_b({2, 1}, microbatches);
  const auto places = places_on(gpus, order);
  const auto plain = run(gpus, order, width, steps + 1);
  hetsched::cuda_step_graph<tensor, gate, cuda> graph(gpus, order, places, [&](int s, const queue& q) {
    return gate{{{n}, q, 1 + 0.05f * s, 0.01f}, {{n}, q, 0, 0}};
  });
  std::vector<tensor> inputs, targets;
  for (int m = 0; m < microbatches; ++m) {
    const auto put = [&](const queue& q, float first, float step) {
      const auto here = q.make_current();
      return tensor(hetsched::tensor_shape{n}, q, first, step);
    };
    inputs.push_back(put(graph.queue_of(0, 0), 0.1f * m, 0.02f));
    targets.push_back(put(graph.queue_of(0, 1), 0.5f, 0.0f));
  }
  for (int step = 0; step < 3; ++step) {
    graph.step(inputs, targets, summed_loss);
    (void)graph.losses();
  }
  const double begin_s = hetsched::steady_now_s();
  double host_s = 0;
  for (int step = 0; step < steps; ++step) {
    const double call_s = hetsched::steady_now_s();
    graph.step(inputs, targets, summed_loss);
    host_s += hetsched::steady_now_s() - call_s;
    (void)graph.losses();
  }
  const double all_s = hetsched::steady_now_s() - begin_s;
  const auto losses = graph.losses();
  bool same = std::equal(losses.begin(), losses.end(), plain.losses.begin(), plain.losses.end());
  for (int s = 0; s < 2; ++s) {
    std::vector<float> found(n);
    cudaMemcpy(found.data(), graph.stage(0, s).gradient.data(), n * sizeof(float), cudaMemcpyDefault);
    same = same && found == plain.gradients[s];
  }
  std::vector<tensor> others;  // of the same numbers, elsewhere
  for (int m = 0; m < microbatches; ++m) {
    const auto here = graph.queue_of(0, 0).make_current();
    others.emplace_back(hetsched::tensor_shape{n}, graph.queue_of(0, 0), 0.1f * m, 0.02f);
  }
  const double update_s = hetsched::steady_now_s();
  graph.step(others, targets, summed_loss);
  const double updated_s = hetsched::steady_now_s() - update_s;
  const auto again = graph.losses();
  row("a whole step that is captured again, and its graph updated", std::equal(again.begin(), again.end(), plain.losses.begin()),
      number("%.3f us of the host per action", 1e6 * updated_s / (4 * microbatches)));
  const double per_action = 1e6 / steps / (4 * microbatches);
  row("whole steps as CUDA graphs: bits of launches", same,
      number("%.3f us of the host per action,", host_s * per_action) + number(" %.3f us in all", all_s * per_action));
}

// Collectives of three ranks of this process: whole numbers, so that sums have one value.
void collectives(hetsched::cuda_devices<cuda>& gpus) {
  using channels = hetsched::cuda_local_communicator<tensor, cuda>;
  constexpr int ranks = 3;
  constexpr std::size_t n = 1 << 20;
  std::vector<int> places;
  for (int r = 0; r < ranks; ++r) places.push_back(r % gpus.count());
  std::vector<char> good(ranks, 0);
  hetsched::run_on_threads(channels::connect(gpus, places), [&](channels& end) {
    const int rank = end.rank();
    const auto q = gpus.make_queue(places[rank], "collectives");
    const auto here = q.make_current();
    const channels::axis axis(end, {0, 1, 2});
    tensor own({ranks * n}, q, static_cast<float>(rank), 1), part({n}, q, 0, 0), all({ranks * n}, q, 0, 0);
    axis.reduce_scatter(own, part, q);
    axis.all_gather(part, all, q);
    axis.all_reduce(own, q);
    std::vector<float> gathered(ranks * n), reduced(ranks * n);
    q.finish();
    cudaMemcpy(gathered.data(), all.data(), gathered.size() * sizeof(float), cudaMemcpyDefault);
    cudaMemcpy(reduced.data(), own.data(), reduced.size() * sizeof(float), cudaMemcpyDefault);
    good[rank] = gathered == reduced;
    for (std::size_t i = 0; i < reduced.size(); i += 4097) good[rank] = good[rank] && reduced[i] == 3 + 3.0f * (i % 7);
  });
  row("collectives of ranks of one process", good == std::vector<char>(ranks, 1), "");
}

// Every schedule over NCCL against copies inside the process, to the last bit.
#ifdef CHECKS_NCCL
void nccl(hetsched::cuda_devices<cuda>& gpus) {
  using control = hetsched::thread_communicator<tensor>;
  using channels = hetsched::nccl_communicator<tensor, cuda, hetsched::nccl_runtime, control>;
  const int ranks = std::min(gpus.count(), 4), microbatches = 8, width = 4096;
  if (ranks < 2) return row("NCCL", true, "needs two GPUs: not checked");
  std::string wrong;
  int same = 0;
  for (const auto name : hetsched::schedule_names()) {
    const std::vector<double> one(ranks, 1), between(ranks - 1, 0.5);
    const auto order = hetsched::build_schedule(name, {.forward_s = one, .backward_s = one, .transfer_s = between}, microbatches);
    const auto places = places_on(gpus, order);
    std::vector<channels> ends;
    for (auto& end : control::connect(ranks)) {
      const int device = places[end.rank()];
      ends.emplace_back(gpus, device, std::move(end));
    }
    const auto over = run_over<false>(gpus, places, std::move(ends), order, width, 2, summed_loss);
    const auto local = run(gpus, order, width, 2);
    const bool good = over.losses == local.losses && over.gradients == local.gradients;
    same += good;
    if (!good) wrong += " " + std::string(name);
  }
  lost_ranks(gpus, "NCCL", ranks, [&] {
    const auto places = places_on(gpus, hetsched::one_f_one_b(std::vector<int>(ranks, 1), 1));
    std::vector<channels> ends;
    for (auto& end : control::connect(ranks)) {
      const int device = places[end.rank()];
      ends.emplace_back(gpus, device, std::move(end), hetsched::nccl_runtime(), hetsched::nccl_options{.deadline_s = 10});
    }
    return ends;
  });
  row("schedules over NCCL: bits of copies", wrong.empty(), std::to_string(same) + (wrong.empty() ? "" : ", wrong:" + wrong));
}

// Each rank's step as a graph that holds its transfers.
void captured_nccl(hetsched::cuda_devices<cuda>& gpus) {
  using control = hetsched::thread_communicator<tensor>;
  using channels = hetsched::nccl_communicator<tensor, cuda, hetsched::nccl_runtime, control>;
  constexpr int width = 32, microbatches = 16, steps = 50;
  constexpr std::size_t n = width;
  if (gpus.count() < 2) return row("steps as CUDA graphs over NCCL", true, "needs two GPUs: not checked");
  const auto order = hetsched::one_f_one_b({2, 1}, microbatches);
  const auto places = places_on(gpus, order);
  const auto plain = run(gpus, order, width, 2);
  std::vector<channels> ends;
  for (auto& end : control::connect(2)) {
    const int device = places[end.rank()];
    ends.emplace_back(gpus, device, std::move(end));
  }
  std::vector<char> same(2, 0);
  std::vector<double> each_s(2, 0);
  hetsched::run_on_threads(std::move(ends), [&](channels& end) {
    const int rank = end.rank();
    {
      hetsched::cuda_step_graph<tensor, gate, cuda, channels> part(gpus, order, end, places[rank], {hetsched::tensor_shape{n}},
                                                                   [&](int s, const queue& q) {
                                                                     return gate{{{n}, q, 1 + 0.05f * s, 0.01f}, {{n}, q, 0, 0}};
                                                                   });
      const auto& q = part.home();
      const auto here = q.make_current();
      std::vector<tensor> inputs, targets;
      for (int m = 0; m < microbatches; ++m) {
        inputs.emplace_back(hetsched::tensor_shape{n}, q, 0.1f * m, 0.02f);
        targets.emplace_back(hetsched::tensor_shape{n}, q, 0.5f, 0.0f);
      }
      double begin_s = 0;
      for (int step = -3; step < steps; ++step) {
        if (step == 0) (void)part.losses(), begin_s = hetsched::steady_now_s();
        part.step(inputs, targets, summed_loss);
      }
      const auto losses = part.losses();
      each_s[rank] = (hetsched::steady_now_s() - begin_s) / steps;
      std::vector<float> found(n);
      cudaMemcpy(found.data(), part.stage(0, rank).gradient.data(), n * sizeof(float), cudaMemcpyDefault);
      same[rank] = part.is_captured() && found == plain.gradients[rank] &&
                   (rank == 0 || std::equal(losses.begin(), losses.end(), plain.losses.begin(), plain.losses.end()));
    }
    end.close();
  });
  row("steps as CUDA graphs over NCCL: bits of copies", same[0] && same[1],
      number("%.1f us each", 1e6 * std::max(each_s[0], each_s[1])));
}

struct counted_nccl : hetsched::nccl_runtime {
  static inline std::atomic<int> splits = 0;
  static int split(communicator parent, int colour, int key, communicator& made, const hetsched::nccl_link& link) {
    ++splits;
    return hetsched::nccl_runtime::split(parent, colour, key, made, link);
  }
};
// Ranks that transfer and have a group, too: both are split off one communicator; and made by themselves.
void split_nccl(hetsched::cuda_devices<cuda>& gpus) {
  using control = hetsched::thread_communicator<tensor>;
  using channels = hetsched::nccl_communicator<tensor, cuda, counted_nccl, control>;
  constexpr std::size_t n = 1 << 20, bytes = n * sizeof(float);
  if (gpus.count() < 2) return row("sets and groups that are split off", true, "needs two GPUs: not checked");
  double connect_s[2] = {};
  bool good = true;
  for (const bool splits : {false, true}) {
    std::vector<channels> ends;
    for (auto& end : control::connect(2)) {
      const int device = end.rank();
      ends.emplace_back(gpus, device, std::move(end), counted_nccl(), hetsched::nccl_options{.splits = splits});
    }
    std::vector<char> same(2, 0);
    hetsched::run_on_threads(std::move(ends), [&](channels& end) {
      const int rank = end.rank();
      const auto q = gpus.make_queue(rank, "tensors");
      const auto here = q.make_current();
      {
        const channels::axis axis(end, {0, 1});
        const int there = end.open({.from = rank, .to = 1 - rank}), back = end.open({.from = 1 - rank, .to = rank});
        const double begin_s = hetsched::steady_now_s();
        end.set_plan(hetsched::communication_plan(1, {{there, true, {}, bytes}, {back, false, {}, bytes}}));
        if (rank == 0) connect_s[splits] = hetsched::steady_now_s() - begin_s;
        tensor own({n}, q, static_cast<float>(rank), 1), other({n}, q, 0, 0);
        own.buffer().end_write(q, q.record());
        other.buffer().end_write(q, q.record());
        channels::operation sent, received;
        end.post_send(there, {}, own, sent);
        end.post_receive(back, {}, other, received);
        while (!end.poll(sent) || !end.poll(received))
          if (!end.failure().empty()) throw std::runtime_error(end.failure());
        axis.all_reduce(own, q);
        std::vector<float> came(n), sum(n);
        other.buffer().begin_read(q);
        q.finish();
        cudaMemcpy(came.data(), other.data(), bytes, cudaMemcpyDefault);
        cudaMemcpy(sum.data(), own.data(), bytes, cudaMemcpyDefault);
        same[rank] = true;
        for (std::size_t i = 0; i < n; i += 4097) {
          const auto each = static_cast<float>(i % 7);
          same[rank] = same[rank] && came[i] == static_cast<float>(1 - rank) + each && sum[i] == 1 + 2 * each;
        }
      }
      end.close();
    });
    good = good && same[0] && same[1] && counted_nccl::splits == (splits ? 4 : 0);
  }
  row("sets and groups that are split off", good,
      number("connected in %.2f s, ", connect_s[1]) + number("%.2f s where each is made by itself", connect_s[0]));
}
#else
void split_nccl(hetsched::cuda_devices<cuda>&) { row("NCCL, splits", true, "not there: not checked"); }
void nccl(hetsched::cuda_devices<cuda>&) { row("NCCL", true, "not there: not checked"); }
void captured_nccl(hetsched::cuda_devices<cuda>& gpus) { nccl(gpus); }
#endif

}  // namespace

int main(int argc, char** argv) {
  const auto on_gpus = [](void (*run)(hetsched::cuda_devices<cuda>&)) {
    return [run] {
      hetsched::cuda_devices<cuda> gpus;
      run(gpus);
    };
  };
  return rows::main(argc, argv,
                    {{"example", [] { row("example: four ranks against one", example_main() == 0, ""); }},
                     {"schedules", on_gpus(schedules)},
                     {"host_time", on_gpus(host_time)},
                     {"graphs", on_gpus(graphs)},
                     {"captured_steps", on_gpus(captured_steps)},
                     {"collectives", on_gpus(collectives)},
                     {"lost_ranks", on_gpus([](hetsched::cuda_devices<cuda>& gpus) {
                        lost_ranks(gpus, "copies", 2, [&] {
                          return hetsched::cuda_local_communicator<tensor, cuda>::connect(gpus, {0, 1 % gpus.count()});
                        });
                      })},
                     {"overlap", on_gpus(overlap)},
                     {"staged", on_gpus(staged)},
                     {"growth", on_gpus(growth)},
                     {"nccl", on_gpus(nccl)},
                     {"split_nccl", on_gpus(split_nccl)},
                     {"captured_nccl", on_gpus(captured_nccl)}});
}
