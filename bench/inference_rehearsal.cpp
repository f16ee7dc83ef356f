// SPDX-License-Identifier: Apache-2.0
// What inference is predicted to do, beside what it does: the small GPT of the examples on 2 to 4 ranks, which are threads. Each
// plays a device so many times slower than this host (it waits for the rest of its time) behind rehearsed links. `placement` cuts
// the layers by what they take here, measured first. Prints a table of Markdown; no benchmark.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/evaluate/play_inference.hpp>
#include <hetsched/planners/placement.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/inference/inference_pipeline.hpp>

#include <gpt/inference.hpp>

namespace {

using namespace hetsched;
using tensor = gpt::tensor<float>;
using hetsched::link;

constexpr int prompt_tokens = 48, new_tokens = 24;

gpt::config small_gpt() { return {.layers = 12, .hidden = 96, .heads = 4, .sequence = prompt_tokens + new_tokens}; }

/// Seconds of every layer of the model on this host.
struct layer_seconds {
  std::vector<double> prompt_s, token_s;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

layer_seconds measure(const gpt::config& m) {
  auto stage = gpt::make_cached_stage<float>(m, 0, gpt::layer_count(m));
  auto& layers = stage.layers();
  constexpr int rounds = 20;
  std::vector<std::vector<double>> prompts(layers.size()), tokens(layers.size());
  for (int n = 0; n < rounds; ++n) {
    auto states = stage.make_state();
    for (int step = 0; step < new_tokens; ++step) {
      tensor x = gpt::encode<float>(std::string(step == 0 ? prompt_tokens : 1, 'a'));
      for (std::size_t l = 0; l < layers.size(); ++l) {
        const double start_s = steady_now_s();
        x = layers[l].infer(x, states[l]);
        (step == 0 ? prompts : tokens)[l].push_back(steady_now_s() - start_s);
      }
    }
  }
  layer_seconds all;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    all.prompt_s.push_back(median(prompts[l]));
    all.token_s.push_back(median(tokens[l]));
  }
  return all;
}

/// Devices that are so many times slower than this host, one to a subcluster.
struct rehearsed_costs {
  const layer_seconds* layers;
  std::vector<double> slow;
  const cluster* hardware;
  bytes_t token_bytes;

  [[nodiscard]] int layer_count() const { return static_cast<int>(layers->prompt_s.size()); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return {{.mesh = mesh}}; }
  [[nodiscard]] double sum(const std::vector<double>& of, layer_range r, const placement& where) const {
    double all = 0;
    for (int l = r.first; l < r.last; ++l) all += of[static_cast<std::size_t>(l)];
    return all * slow[static_cast<std::size_t>(where.mesh.subcluster)];
  }
  [[nodiscard]] double chunk_s(int, layer_range r, const placement& where) const { return sum(layers->prompt_s, r, where); }
  [[nodiscard]] double decoding_s(layer_range r, const placement& where) const {
    return (new_tokens - 1) * sum(layers->token_s, r, where);
  }
  [[nodiscard]] stage_cost layer(int l, const placement& where) const {
    return {.forward_s = chunk_s(0, {l, l + 1}, where) + decoding_s({l, l + 1}, where)};
  }
  [[nodiscard]] stage_cost stage(layer_range r, const placement& where) const { return sum_of_layers(*this, r, where); }
  [[nodiscard]] int output_tokens() const { return new_tokens; }
  [[nodiscard]] int chunk_count() const { return 1; }
  [[nodiscard]] double moved_s(int tokens, const placement& from, const placement& to) const {
    return boundary_cost(*hardware, from, to, proximity::other_node, tokens * token_bytes).forward_s;
  }
  [[nodiscard]] double chunk_transfer_s(int, int, const placement& from, const placement& to, proximity) const {
    return moved_s(prompt_tokens, from, to);
  }
  [[nodiscard]] double decoding_transfer_s(int, const placement& from, const placement& to, proximity) const {
    return (new_tokens - 1) * moved_s(1, from, to);
  }
  [[nodiscard]] transfer_cost transfer(int b, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return {chunk_transfer_s(0, b, from, to, near) + decoding_transfer_s(b, from, to, near), 0, 0, 0, "direct"};
  }
};
static_assert(inference_costs<rehearsed_costs>);

/// Layers of the GPT that take as long as on their device.
struct slow_stage {
  using state = gpt::cached_stage<float>::state;
  gpt::cached_stage<float> layers;
  double prompt_s, token_s;

  [[nodiscard]] state make_state() { return layers.make_state(); }
  [[nodiscard]] tensor infer(const tensor& x, state& s) {
    const double start_s = steady_now_s();
    tensor y = layers.infer(x, s);
    const double end_s = start_s + (s.front().length == prompt_tokens ? prompt_s : token_s);
    // The host wakes late by up to 100 us.
    if (const double sleep_s = end_s - steady_now_s() - 1e-4; sleep_s > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(sleep_s));
    while (steady_now_s() < end_s) std::this_thread::yield();
    return y;
  }
};

struct served {
  double first_token_s = 0, token_s = 0, requests_per_s = 0;
};

/// One request by itself, then many.
served serve(const gpt::config& m, const rehearsed_costs& costs, const inference_plan& line) {
  const int ranks = static_cast<int>(line.stages.size());
  const auto in_flight = static_cast<std::size_t>(line.in_flight);
  std::vector<double> first_s, token_s, ends_s;
  const auto run = [&](int requests) {
    std::vector<thread_communicator<tensor>> plain = thread_communicator<tensor>::connect(ranks);
    std::vector<shaped_communicator<thread_communicator<tensor>>> ends;
    for (auto& c : plain)
      ends.emplace_back(c, [&](int from, int to) {
        const auto at = [&](int r) { return line.stages[static_cast<std::size_t>(r)].where(); };
        return *costs.hardware->between(at(from).mesh.subcluster, at(to).mesh.subcluster);
      });
    inference_queue<tensor> queue(static_cast<std::size_t>(requests));
    ends_s.clear();
    for (int n = 0; n < requests; ++n) {
      auto told = [&, count = 0, begun_s = 0.0](char) mutable {
        const double now_s = steady_now_s();
        if (count++ == 0) begun_s = now_s;
        if (count == new_tokens) {
          ends_s.push_back(now_s);
          token_s.push_back((now_s - begun_s) / (new_tokens - 1));
          first_s.push_back(begun_s);
        }
      };
      queue.submit(gpt::text_request<float>(m, std::string(prompt_tokens, 'a'), {.bytes = new_tokens, .temperature = 0}, told));
    }
    queue.close();
    double start_s = 0;
    run_on_threads(std::move(ends), [&](auto& comm) {
      const auto& stage = line.stages[static_cast<std::size_t>(comm.rank())];
      slow_stage own{gpt::make_cached_stage<float>(m, stage.layers.first, stage.layers.last),
                     costs.chunk_s(0, stage.layers, stage.where()),
                     costs.decoding_s(stage.layers, stage.where()) / (new_tokens - 1)};
      if (comm.rank() == 0) start_s = steady_now_s();
      const inference_limits limits{.most_in_flight = in_flight};
      comm.rank() == 0 ? lead_inference<tensor>(comm, own, queue, limits) : follow_inference<tensor>(comm, own, limits);
    });
    return start_s;
  };
  served got;
  std::vector<double> firsts, tokens;
  for (int n = 0; n < 5; ++n) {
    const double start_s = run(1);
    firsts.push_back(first_s.back() - start_s);
    tokens.push_back(token_s.back());
  }
  got.first_token_s = median(firsts);
  got.token_s = median(tokens);
  // Between the first and the last requests in flight all ranks are busy.
  const int requests = 10 * static_cast<int>(in_flight);
  run(requests);
  std::sort(ends_s.begin(), ends_s.end());
  const std::size_t from = in_flight - 1, to = ends_s.size() - 1 - in_flight;
  got.requests_per_s = static_cast<double>(to - from) / (ends_s[to] - ends_s[from]);
  return got;
}

struct pool {
  const char* name;
  std::vector<double> slow;
  link between;
  int in_flight;
};

cluster cluster_of(const pool& p) {
  cluster c;
  for (std::size_t d = 0; d < p.slow.size(); ++d) {
    c.subclusters.push_back(
        {.name = "d" + std::to_string(d),
         .device = {.name = "device", .peak_flops = {1e12, 0, 0, 0}, .memory_bytes = gib, .memory_bandwidth = 1e11}});
    for (std::size_t other = 0; other < d; ++other)
      c.links.push_back({.a = static_cast<int>(other), .b = static_cast<int>(d), .link = p.between});
  }
  return c;
}

}  // namespace

int main() {
  const auto m = small_gpt();
  const auto here = measure(m);
  std::printf("| devices, times slower | link | layers | in flight | | predicted | played | measured | predicted | played |\n");
  std::printf("| --- | --- | --- | --: | --- | --: | --: | --: | --: | --: |\n");
  for (const auto& p : {pool{"40, 80", {40, 80}, {.latency_s = 1e-4, .bandwidth = 1.25e8}, 4},
                        pool{"40, 40, 60", {40, 40, 60}, {.latency_s = 1e-4, .bandwidth = 1.25e8}, 6},
                        pool{"60, 30, 45, 90", {60, 30, 45, 90}, {.latency_s = 5e-4, .bandwidth = 2.5e7}, 8}}) {
    const auto hardware = cluster_of(p);
    const rehearsed_costs costs{&here, p.slow, &hardware, static_cast<bytes_t>(sizeof(float)) * m.hidden};
    const auto found = place_inference(
        hardware, costs, {.in_flight = p.in_flight, .use_all_devices = true, .objective = plan_objective::throughput});
    if (!found) {
      std::printf("%s\n", found.why_not().reason.c_str());
      return 1;
    }
    const auto& told = *found->predicted;
    const auto alone = [&] {
      auto one = *found;
      one.in_flight = 1;
      return play_inference(hardware, costs, one, 3);
    }();
    const auto many = play_inference(hardware, costs, *found, 10 * p.in_flight);
    const auto got = serve(m, costs, *found);
    std::string cut;
    for (const auto& s : found->stages) cut += (cut.empty() ? "" : ", ") + std::to_string(s.layers.size());
    const auto row = [&](const char* head, const char* what, double predicted, double played, double measured, const char* unit) {
      std::printf("| %s | %s, %s | %.3g | %.3g | %.3g | %+.1f %% | %+.1f %% |\n", head, what, unit, predicted, played, measured,
                  100 * (predicted / measured - 1), 100 * (played / measured - 1));
    };
    char head[200];
    std::snprintf(head, sizeof head, "%s | %.3g MB/s, %.2g ms | %s | %d", p.name, p.between.bandwidth / 1e6,
                  1e3 * p.between.latency_s, cut.c_str(), p.in_flight);
    row(head, "first token", 1e3 * told.first_token_s, 1e3 * alone.first_token_s, 1e3 * got.first_token_s, "ms");
    row("| | | ", "next token", 1e3 * told.token_s, 1e3 * alone.token_s, 1e3 * got.token_s, "ms");
    row("| | | ", "requests", told.requests_per_s, many.requests_per_s, got.requests_per_s, "per s");
  }
}
