// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/search/auto_schedule_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/search/detail/order_problem.hpp>

namespace hetsched::detail {

/// How a rank that is free chooses its next step.
struct list_rule {
  std::vector<int> in_flight;  ///< microbatches between forward and input gradient that a rank strives for
  double patience = 0;         ///< a weight gradient waits if it would delay a known arrival by more than 1 - patience of itself
  bool beyond = false;         ///< forwards beyond in_flight rather than weight gradients or idling
  bool make_room = false;      ///< weight gradients rather than input gradients where a wanted forward lacks memory
};

/// Builds words in order of time: each rank, when it is free, takes the best step that can start now.
/// Complexity: O(steps log ranks).
class list_scheduler {
 public:
  explicit list_scheduler(const order_problem& p)
      : p_(&p), forward_in_(p.size() * m()), input_in_(p.size() * m()), ranks_(p.size()) {}

  /// The makespan; the words are in `order`. never_s if stuck for want of memory.
  double run(const list_rule& rule, step_words& order) {
    const std::size_t count = p_->size(), steps = as_size(p_->steps());
    order.resize(count * steps);
    events_.clear();
    for (std::size_t i = 0; i < count; ++i) ranks_[i] = {};
    std::fill_n(forward_in_.begin(), m(), 0.0);
    wake(0, 0.0);
    double end = 0;
    std::size_t finished = 0;
    while (!events_.empty()) {
      std::pop_heap(events_.begin(), events_.end(), later);
      const auto [now, i] = events_.back();
      events_.pop_back();
      rank& r = ranks_[i];
      if (r.free_s > now || r.at == steps) continue;
      const auto& s = p_->stages[i];
      const bool last = i + 1 == count;
      const std::size_t row = i * m();
      const std::size_t forwards = i == 0 ? m() : ranks_[i - 1].done[0];
      const std::size_t gradients = last ? r.done[0] : std::min(r.done[0], ranks_[i + 1].done[1]);
      const double next_forward = r.done[0] < forwards ? forward_in_[row + r.done[0]] : never_s;
      const double next_gradient = r.done[1] < gradients ? (last ? 0.0 : input_in_[row + r.done[1]]) : never_s;
      const double held = static_cast<double>(r.done[0] + 1) * s.keeps[0] + static_cast<double>(r.done[1]) * s.keeps[1] +
                          static_cast<double>(r.done[2]) * s.keeps[2];
      const bool room = held <= s.capacity;
      const auto in_flight = static_cast<int>(r.done[0] - r.done[1]);
      const bool wanted = in_flight < rule.in_flight[i];
      const bool forward = next_forward <= now && room && (wanted || rule.beyond);
      const bool gradient = next_gradient <= now;
      const bool weight = p_->split && r.done[2] < r.done[1];
      step_kind take;
      if (forward && (wanted || !gradient)) {
        take = step_kind::forward;
      } else if (weight && rule.make_room && wanted && !room && next_forward <= now) {
        take = step_kind::weight;
      } else if (gradient) {
        take = step_kind::input;
      } else if (weight) {
        take = step_kind::weight;
        double next = next_gradient;
        if (room && wanted) next = std::min(next, next_forward);
        if (next < now + rule.patience * s.cost[2]) continue;  // the arrival wakes the rank
      } else {
        continue;
      }
      order[i * steps + r.at++] = take;
      const auto k = at(r.done, take)++;
      r.free_s = now + at(s.cost, take);
      if (r.at == steps) {
        ++finished;
        end = std::max(end, r.free_s);
      } else {
        wake(i, r.free_s);
      }
      if (take == step_kind::forward && !last) {
        r.down_free_s = std::max(r.down_free_s, r.free_s) + s.down.occupied_s;
        wake(i + 1, forward_in_[row + m() + k] = r.down_free_s + s.down.latency_s);
      } else if (take == step_kind::input && i > 0) {
        r.up_free_s = std::max(r.up_free_s, r.free_s) + s.up.occupied_s;
        wake(i - 1, input_in_[row - m() + k] = r.up_free_s + s.up.latency_s);
      }
    }
    return finished == count ? end : never_s;
  }

 private:
  struct rank {
    std::size_t at = 0;
    std::size_t done[3] = {0, 0, 0};
    double free_s = 0, down_free_s = 0, up_free_s = 0;  // the rank and its links
  };
  using event = std::pair<double, std::size_t>;
  static bool later(const event& a, const event& b) { return a > b; }
  void wake(std::size_t i, double when) {
    events_.emplace_back(when, i);
    std::push_heap(events_.begin(), events_.end(), later);
  }
  [[nodiscard]] std::size_t m() const { return as_size(p_->microbatches); }

  const order_problem* p_;
  std::vector<double> forward_in_, input_in_;
  std::vector<rank> ranks_;
  std::vector<event> events_;
};

}  // namespace hetsched::detail
