// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/schedule/pipeline.hpp>

namespace hetsched::detail {

enum class step_kind : std::uint8_t { forward, input, weight };  // the backward is split: input gradient, then weight gradient

/// What decides the best order of a chain of stages, one per rank, all microbatches alike. As these can be exchanged, every rank
/// may as well take its forwards, its input gradients and its weight gradients each in the order of microbatches: an order of a
/// rank is a word of steps, and a tensor's turn on its link is that of its microbatch.
struct order_problem {
  struct stage {
    double cost[3] = {0, 0, 0};   // seconds of a step
    double down_s = 0, up_s = 0;  // activation to the next stage, gradient to the one before
    double keeps[3] = {0, 0, 0};  // memory that a step takes, and gives back if negative
    double capacity = 0;
  };
  int microbatches = 0;
  bool split = false;  // the weight gradient is a step of its own; else its time and memory are in `input`
  std::vector<stage> stages;

  [[nodiscard]] std::size_t size() const { return stages.size(); }
  /// Microbatches that fit in a rank's memory, at most all.
  [[nodiscard]] int fitting(std::size_t i) const {
    const auto& s = stages[i];
    return s.capacity >= microbatches * s.keeps[0] ? microbatches : static_cast<int>(s.capacity / s.keeps[0]);
  }
  [[nodiscard]] int steps() const { return (split ? 3 : 2) * microbatches; }
};

/// Longer than any makespan: the answer for orders that never end.
inline constexpr double never_s = 1e300;

/// Words of all ranks in one array: rank i's are [i * steps, (i + 1) * steps).
using step_words = std::vector<step_kind>;

/// When a set of words ends; never_s for a deadlock. Buffers are kept between calls.
class order_clock {
 public:
  explicit order_clock(const order_problem& p)
      : p_(&p), forward_in_(p.size() * m(), 0.0), input_in_(p.size() * m(), 0.0), ranks_(p.size()), ready_(p.size()) {}

  /// O(steps of all ranks).
  double makespan(const step_words& order) {
    const std::size_t count = p_->size(), steps = static_cast<std::size_t>(p_->steps());
    for (auto& r : ranks_) r = {};
    std::size_t listed = 0;
    for (std::size_t i = count; i-- > 0;) ready_[listed++] = i, ranks_[i].listed = true;
    double end = 0;
    std::size_t finished = 0;
    while (listed > 0) {
      const std::size_t i = ready_[--listed];
      rank& r = ranks_[i];
      r.listed = false;
      const auto& s = p_->stages[i];
      const step_kind* const word = order.data() + i * steps;
      const std::size_t row = i * m();
      const bool last = i + 1 == count;
      const std::size_t arrived_forwards = i == 0 ? m() : ranks_[i - 1].done[0];
      const std::size_t arrived_gradients = last ? m() : ranks_[i + 1].done[1];
      const std::size_t before = r.at;
      double free_s = r.free_s, down_s = r.down_s, up_s = r.up_s;
      while (r.at < steps) {
        const step_kind a = word[r.at];
        if (a == step_kind::forward) {
          const std::size_t k = r.done[0];
          if (k >= arrived_forwards) break;
          free_s = std::max(free_s, i == 0 ? 0.0 : forward_in_[row + k]) + s.cost[0];
          down_s = std::max(down_s, free_s) + s.down_s;
          if (!last) forward_in_[row + m() + k] = down_s;
          ++r.done[0];
        } else if (a == step_kind::input) {
          const std::size_t k = r.done[1];
          if (k >= arrived_gradients || k >= r.done[0]) break;
          free_s = std::max(free_s, last ? 0.0 : input_in_[row + k]) + s.cost[1];
          up_s = std::max(up_s, free_s) + s.up_s;
          if (i > 0) input_in_[row - m() + k] = up_s;
          ++r.done[1];
        } else {
          free_s += s.cost[2];
          ++r.done[2];
        }
        ++r.at;
      }
      r.free_s = free_s, r.down_s = down_s, r.up_s = up_s;
      if (r.at == before) continue;
      if (r.at == steps) ++finished, end = std::max(end, free_s);
      if (i > 0 && !ranks_[i - 1].listed) ready_[listed++] = i - 1, ranks_[i - 1].listed = true;
      if (!last && !ranks_[i + 1].listed) ready_[listed++] = i + 1, ranks_[i + 1].listed = true;
    }
    return finished == count ? end : never_s;
  }

 private:
  struct rank {
    std::size_t at = 0;
    std::size_t done[3] = {0, 0, 0};
    double free_s = 0, down_s = 0, up_s = 0;
    bool listed = false;
  };
  [[nodiscard]] std::size_t m() const { return static_cast<std::size_t>(p_->microbatches); }

  const order_problem* p_;
  std::vector<double> forward_in_, input_in_;  // arrivals by rank and microbatch
  std::vector<rank> ranks_;
  std::vector<std::size_t> ready_;
};

}  // namespace hetsched::detail
