// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/evaluate/evaluate_inference.hpp>
#include <hetsched/evaluate/play_inference.hpp>
#include <hetsched/plan/inference_plan.hpp>

namespace hetsched {

namespace detail {

/// Takes steps one after the other, in the order in which they come.
struct inference_station {
  std::vector<double> step_s{};  ///< how long pieces of the prompt, and then a token on average, are under way
  double occupied = 1;           ///< share of it until the next one can follow
  double free_s = 0;
};

/// How long a token is on its way back to the first stage: by its link, or else the way that it came.
[[nodiscard]] inline double token_back_s(const cluster& hardware, const std::vector<stage_plan>& stages) {
  constexpr bytes_t token_bytes = 8;
  const auto way_s = [&](const stage_plan& from, const stage_plan& to) {
    const auto near = proximity_of(from.devices, to.devices, subcluster_of(hardware, from.devices.front().mesh).devices_per_node);
    return boundary_cost(hardware, from.where(), to.where(), near, token_bytes).forward_s;
  };
  if (stages.size() == 1) return 0;
  if (const double direct_s = way_s(stages.back(), stages.front()); direct_s < longest_time_s) return direct_s;
  double sum = 0;
  for (std::size_t i = 1; i < stages.size(); ++i) sum += way_s(stages[i], stages[i - 1]);
  if (!(sum < longest_time_s)) throw input_error("no link leads from the last stage back to the first");
  return sum;
}

/// Stages and links in turn, the way back to the first stage last.
[[nodiscard]] inline std::vector<inference_station> inference_stations(const cluster& hardware, const any_cost_model& costs,
                                                                       const inference_plan& p) {
  const int pieces = costs.chunk_count(), others = std::max(1, costs.output_tokens() - 1);
  std::vector<inference_station> all;
  const auto add = [&](auto&& piece_s, double others_s, double occupied) {
    auto& station = all.emplace_back();
    for (int c = 0; c < pieces; ++c) station.step_s.push_back(piece_s(c));
    station.step_s.push_back(others_s / others);
    station.occupied = occupied;
  };
  for (std::size_t i = 0; i < p.stages.size(); ++i) {
    const auto& s = p.stages[i];
    add([&](int c) { return costs.chunk_s(c, s.layers, s.where()); }, costs.decoding_s(s.layers, s.where()), 1);
    if (i + 1 == p.stages.size()) break;
    const auto& next = p.stages[i + 1];
    const auto& b = p.boundaries[i];
    const auto near = proximity_of(s.devices, next.devices, subcluster_of(hardware, s.devices.front().mesh).devices_per_node);
    const int boundary = s.layers.last - 1;
    add([&](int c) { return costs.chunk_transfer_s(c, boundary, s.where(), next.where(), near); },
        costs.decoding_transfer_s(boundary, s.where(), next.where(), near),
        b.forward_s > 0 ? b.forward_occupied_s.value_or(b.forward_s) / b.forward_s : 1);
  }
  const double back_s = token_back_s(hardware, p.stages);
  add([&](int) { return back_s; }, back_s * others, 0);
  return all;
}

/// When a batch of requests begins, has its first token and ends.
struct request_times {
  double begun_s = 0, first_s = 0, end_s = 0;
};

/// What requests see whose times are known; those per second of the time in which as many as ever are in flight.
[[nodiscard]] inline played_inference seen_of(const std::vector<request_times>& all, int tokens, int in_flight, int batch_size) {
  const auto requests = static_cast<double>(all.size());
  played_inference seen;
  std::vector<double> ends_s;
  for (const auto& t : all) {
    seen.first_token_s += (t.first_s - t.begun_s) / requests;
    if (tokens > 1) seen.token_s += (t.end_s - t.first_s) / (tokens - 1) / requests;
    ends_s.push_back(t.end_s);
  }
  std::sort(ends_s.begin(), ends_s.end());
  const auto from = as_size(in_flight) - 1, to = all.size() - as_size(in_flight) - 1;
  if (ends_s[to] > ends_s[from]) seen.requests_per_s = static_cast<double>(to - from) * batch_size / (ends_s[to] - ends_s[from]);
  return seen;
}

}  // namespace detail

HETSCHED_INLINE played_inference play_inference(const cluster& hardware, const any_cost_model& costs, const inference_plan& p,
                                                int requests) {
  if (!costs.tells_tokens()) throw input_error("a play of inference needs costs that tell pieces of the prompt and tokens apart");
  validate(hardware, p, costs.layer_count());
  const int in_flight = p.in_flight;
  if (p.boundaries.size() + 1 != p.stages.size()) throw input_error("the plan tells no costs of its boundaries");
  for (const auto& b : p.boundaries) detail::expect_natural(b.forward_s, "forward_s of a boundary");
  if (requests < std::int64_t{3} * in_flight)
    throw input_error("a play of inference needs three times as many requests as are in flight");
  constexpr int most_requests = 100'000'000;  // whose times take some gigabytes
  detail::expect_count(requests, "requests", 1, most_requests);
  auto stations = detail::inference_stations(hardware, costs, p);
  const int pieces = costs.chunk_count(), tokens = costs.output_tokens();

  struct arrival {
    double time_s;
    std::int64_t number;  // of those at one time, the first goes first
    int request, step, station;
    bool operator>(const arrival& other) const { return std::tie(time_s, number) > std::tie(other.time_s, other.number); }
  };
  std::priority_queue<arrival, std::vector<arrival>, std::greater<>> coming;
  std::int64_t numbers = 0;
  std::vector<detail::request_times> told(as_size(requests));
  int begun = 0;
  const auto begin = [&](double now_s) {
    if (begun == requests) return;
    at(told, begun).begun_s = now_s;
    for (int c = 0; c < pieces; ++c) coming.push({now_s, numbers++, begun, c, 0});
    ++begun;
  };
  for (int n = 0; n < in_flight; ++n) begin(0);
  while (!coming.empty()) {
    const auto a = coming.top();
    coming.pop();
    auto& request = at(told, a.request);
    if (a.station == static_cast<int>(stations.size())) {
      if (a.step + 1 < pieces) continue;
      if (a.step + 1 == pieces) request.first_s = a.time_s;
      if (a.step + 1 < pieces + tokens - 1) {
        coming.push({a.time_s, numbers++, a.request, a.step + 1, 0});
      } else {
        request.end_s = a.time_s;
        begin(a.time_s);
      }
      continue;
    }
    auto& s = at(stations, a.station);
    const double start_s = std::max(a.time_s, s.free_s), takes_s = at(s.step_s, std::min(a.step, pieces));
    s.free_s = start_s + s.occupied * takes_s;
    coming.push({start_s + takes_s, numbers++, a.request, a.step, a.station + 1});
  }
  return detail::seen_of(told, tokens, in_flight, p.batch_size);
}

HETSCHED_INLINE played_inference play_inference(const cluster& hardware, const any_cost_model& costs, const inference_plan& p) {
  if (!costs.tells_tokens() || p.in_flight < 1) return play_inference(hardware, costs, p, 1);  // which says what is wrong
  constexpr std::int64_t steps_in_a_moment = 1'000'000;
  const auto steps = p.in_flight * std::max<std::int64_t>(1, std::int64_t{costs.output_tokens()} + costs.chunk_count());
  const auto rounds = std::clamp<std::int64_t>(steps_in_a_moment / steps, 3, 20);
  return play_inference(hardware, costs, p, static_cast<int>(std::min<std::int64_t>(p.in_flight * rounds, INT_MAX)));
}

}  // namespace hetsched
