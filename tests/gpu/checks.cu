// SPDX-License-Identifier: Apache-2.0
// What needs a GPU: prints a table of checks and figures. Uses the tensor, kernels and layer of the example.
#define main example_main
#include "../../examples/cuda/own_layers.cu"
#undef main

#include <algorithm>
#include <cmath>

#include <hetsched/schedule/builders/named.hpp>

namespace {

int failed = 0;

void row(const char* what, bool good, const std::string& figure) {
  failed += !good;
  std::printf("%-44s %-6s %s\n", what, good ? "ok" : "FAILED", figure.c_str());
  std::fflush(stdout);
}

std::string number(const char* format, double x) {
  char text[64];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

struct outcome {
  std::vector<double> losses;                 // of the last step, by microbatch
  std::vector<std::vector<float>> gradients;  // by layer
  double seconds = 0;                         // of the steps behind the first, on the slowest rank
  std::vector<std::size_t> most_bytes;        // by GPU, behind the second and behind the last step
};

// Steps of a schedule with a gate per stage.
outcome run(hetsched::cuda_devices<cuda>& gpus, const hetsched::schedule& order, int width, int steps) {
  using channels = hetsched::cuda_local_communicator<tensor, cuda>;
  using backend = hetsched::cuda_backend<cuda>;
  const std::size_t n = static_cast<std::size_t>(width);
  outcome all;
  all.losses.assign(order.microbatches, 0);
  all.gradients.resize(order.stages);
  std::vector<int> places;
  for (int r = 0; r < order.ranks; ++r) places.push_back(r % gpus.count());
  std::vector<std::vector<double>> losses(order.ranks);
  std::vector<double> seconds(order.ranks);
  std::vector<std::size_t> early(order.ranks);
  hetsched::run_on_threads(channels::connect(gpus, places), [&](channels& channel) {
    const int rank = channel.rank();
    backend own(gpus, places[rank], "rank " + std::to_string(rank));
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = hetsched::stages_of_rank(order, rank);
    std::vector<gate> stages;
    for (const auto& c : copies) stages.push_back({{{n}, q, 1 + 0.05f * c.stage, 0.01f}, {{n}, q, 0, 0}});
    std::vector<tensor> inputs, targets;
    for (int m = 0; m < order.microbatches; ++m) {
      inputs.emplace_back(hetsched::tensor_shape{n}, q, 0.1f * m, 0.02f);
      targets.emplace_back(hetsched::tensor_shape{n}, q, 0.5f, 0.0f);
    }
    hetsched::pipeline_executor<tensor, gate, channels, hetsched::no_stager, backend> executor(
        order, std::span(stages), std::vector<hetsched::tensor_shape>(order.stages - 1, {n}), channel, {}, {}, own);
    const auto loss = [](const tensor& y, const tensor& wanted, const queue& on, double& value) {
      tensor gradient(y.shape(), on);
      half_squares<<<1, 1, 0, on.stream()>>>(y.size(), y.data(), wanted.data(), gradient.data(), &value);
      return gradient;
    };
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
      cudaMemcpy(own_gradients.data(), stages[i].gradient.data(), n * sizeof(float), cudaMemcpyDefault);
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
  bool good = before - std::min(before, after) <= (1u << 20);
  for (std::size_t d = 0; d < long_run.most_bytes.size(); d += 2)
    good = good && long_run.most_bytes[d] == long_run.most_bytes[d + 1];
  row("10,000 steps without growth", good, number("%.1f s", long_run.seconds));
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
    row(("a step of small kernels, " + std::to_string(ranks) + " rank(s)").c_str(), true,
        number("%.2f us per computation", per_action * 1e6));
  }
}

}  // namespace

int main() try {
  hetsched::cuda_devices<cuda> gpus;
  row("GPUs", true, std::to_string(gpus.count()));
  row("example: four ranks against one", example_main() == 0, "");
  schedules(gpus);
  growth(gpus);
  host_time(gpus);
  return failed > 0;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 2;
}
