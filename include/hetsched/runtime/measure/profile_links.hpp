// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

/// One way over a link: how long so many bytes took.
struct link_sample {
  bytes_t bytes = 0;
  measured_time took;
};

/// By how much, as a share of what was measured, a link's time is off the sample that it fits worst. O(samples).
[[nodiscard]] double largest_residual(const link& fitted, std::span<const link_sample> samples);

/// Above this share of a measured time, a latency and a bandwidth do not describe a link well.
inline constexpr double poor_link_fit = 0.25;

/// The latency and bandwidth that fit the medians best, in squares of relative errors; where these fit the largest message
/// poorly, those of the smallest and the largest one, since transfers between stages are large: some links let a burst pass, and
/// their rate shows behind it only. The latency is not negative. The bandwidth is at most 1e12 bytes/s, which stands for a link
/// that takes no time per byte.
/// Throws: input_error for fewer than two sizes, or times that are not positive.
/// Complexity: O(samples).
[[nodiscard]] link fit_link(std::span<const link_sample> samples);

struct link_options {
  std::vector<std::size_t> elements = {64, 1 << 12, 1 << 16, 1 << 18};  ///< of the tensors that are sent
  int warmup = 3;
  int repeats = 9;
  double deadline_s = 30;  ///< for each size
};

/// Times the way between two ranks: tensors of each size go there and back, and half of that counts. The other ranks wait
/// meanwhile, so that nothing disturbs. `call`: another number each time, as every call opens two channels of its own.
/// Requires: all ranks call it with the same arguments.
/// Returns: the same on all ranks.
/// Throws: communication_error if a rank fails or is late.
template <pipeline_tensor Tensor, communicator<Tensor> Communicator>
[[nodiscard]] std::vector<link_sample> profile_link(Communicator& comm, int a, int b, int call,
                                                    const link_options& options = {}) {
  using traits = tensor_traits<Tensor>;
  const auto until = [&] { return deadline_in(options.deadline_s); };
  const edge there{.from = a, .to = b, .what = payload::activation, .direction = 0, .stage = call};
  const edge back{.from = b, .to = a, .what = payload::activation, .direction = 0, .stage = call};
  const auto fail = [&](wait_result why, const edge& where) {
    const auto text =
        "rank " + std::to_string(comm.rank()) + ", while links are measured: " +
        (why == wait_result::aborted ? std::string(comm.failure())
                                     : "nothing has come within " + std::to_string(options.deadline_s) + " s: " + to_text(where));
    comm.abort(text);
    throw communication_error(text, where, no_microbatch, action{.kind = action_kind::receive_activation});
  };
  std::vector<double> mine;
  if (comm.rank() == a || comm.rank() == b) {
    const bool first = comm.rank() == a;
    const int out = comm.open(first ? there : back), in = comm.open(first ? back : there);
    for (const auto count : options.elements) {
      Tensor sent = traits::make({count, 1}), received = traits::make({count, 1});
      detail::zero(sent);
      const auto limit = until();
      std::vector<double> seconds;
      for (int run = 0; run < options.warmup + options.repeats; ++run) {
        typename Communicator::operation sending, receiving;
        const stamp tag{.step = run, .microbatch = 0, .what = payload::activation, .direction = 0, .stage = call};
        const auto finish = [&](typename Communicator::operation& op, const edge& where, bool sends) {
          while (!comm.poll(op))
            if (const auto r = comm.wait(limit, sends); r != wait_result::progress && !comm.poll(op)) fail(r, where);
        };
        const double start_s = steady_now_s();
        comm.post_receive(in, tag, received, receiving);
        if (!first) finish(receiving, there, false);
        comm.post_send(out, tag, sent, sending);
        if (first) finish(receiving, back, false);
        if (run >= options.warmup) seconds.push_back((steady_now_s() - start_s) / 2);
        finish(sending, first ? there : back, true);
      }
      const auto took = median_and_spread(std::move(seconds));
      mine.insert(mine.end(), {took.median_s, took.spread_s});
    }
  }
  std::vector<std::vector<double>> all;
  const auto limit = std::chrono::steady_clock::now() +
                     (until() - std::chrono::steady_clock::now()) * static_cast<int>(options.elements.size() + 1);
  if (const auto r = comm.gather(mine, all, limit); r != wait_result::progress) fail(r, there);
  std::vector<link_sample> samples;
  const auto& told = at(all, a);
  for (std::size_t i = 0; i < options.elements.size(); ++i)
    samples.push_back({.bytes = static_cast<bytes_t>(options.elements[i] * sizeof(typename traits::element)),
                       .took = {told[2 * i], told[2 * i + 1]}});
  return samples;
}

/// Not compiled: says what the tensor or the communicator lacks.
template <class Tensor, class Communicator>
requires(!(pipeline_tensor<Tensor> &&
           communicator<Communicator, Tensor>)) std::vector<link_sample> profile_link(Communicator&, int, int, int,
                                                                                      const link_options& = {}) {
  detail::require_tensor<Tensor>();
  if constexpr (pipeline_tensor<Tensor>) detail::require_communicator<Communicator, Tensor>();
  return {};
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/measure/profile_links.ipp>
#endif
