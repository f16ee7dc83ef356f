// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/search/auto_schedule_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/search/detail/order_problem.hpp>

namespace hetsched::detail {

/// Seconds below which no order ends: per rank, Jackson's preemptive one-machine bound over all its steps, with heads and
/// tails that know the way through the other ranks and links, the work of the same rank that must come before or after, and
/// memory.
/// Complexity: O(ranks * microbatches).
class order_bound {
 public:
  explicit order_bound(const order_problem& p)
      : p_(&p), m_(p.microbatches), cells_(p.size() * 3 * count()), head_(cells_), tail_(cells_) {
    for (const auto& s : p.stages) limits_.push_back(limits_of(s));
  }

  [[nodiscard]] double seconds() {
    for (const auto& l : limits_)
      if (l.forwards < 1) return never_s;
    heads();
    tails();
    double bound = 0;
    for (std::size_t i = 0; i < p_->size(); ++i) bound = std::max(bound, one_machine(i));
    return bound;
  }

 private:
  /// F_k waits for B_{k - forwards} and W_{k - weights}: memory has no room for more microbatches that still hold something.
  struct limits {
    int forwards = 0, weights = 0;
  };

  [[nodiscard]] limits limits_of(const order_problem::stage& s) const {
    const auto room = [&](double each) {
      // Microbatches that hold `each` beside a new one.
      const double left = s.capacity - s.keeps[0];
      if (left < 0) return 0;
      return each > 0 && left / each < m_ ? static_cast<int>(left / each) + 1 : m_;
    };
    return {room(s.keeps[0]), p_->split ? room(s.keeps[0] + s.keeps[1]) : m_};
  }

  [[nodiscard]] std::size_t count() const { return as_size(m_); }
  double& at(std::vector<double>& of, std::size_t i, int kind, int k) {
    return of[(i * 3 + as_size(kind)) * count() + as_size(k)];
  }

  void heads() {
    const std::size_t n = p_->size();
    std::vector<double> down(n, 0.0), up(n, 0.0);
    std::vector<double> first(n, 0.0), first_gradient(n, 0.0);
    std::vector<int> early(n, 0);  // forwards that may start before the first gradient
    const auto busy = [&](std::size_t i, int forwards, int inputs, int weights) {
      const auto& c = p_->stages[i].cost;
      double t = first[i] + forwards * c[0] + inputs * c[1] + weights * c[2];
      if (inputs > 0 || forwards > early[i])
        t = std::max(t, first_gradient[i] + std::max(0, forwards - early[i]) * c[0] + inputs * c[1] + weights * c[2]);
      return t;
    };
    for (int k = 0; k < m_; ++k) {
      double arrival = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const auto& s = p_->stages[i];
        const int inputs = std::max(0, k + 1 - limits_[i].forwards), weights = std::max(0, k + 1 - limits_[i].weights);
        double r = arrival;
        if (k == 0)
          first[i] = r;
        else
          r = std::max({r, at(head_, i, 0, k - 1) + s.cost[0], busy(i, k, std::max(inputs, weights), weights)});
        if (inputs > 0) r = std::max(r, at(head_, i, 1, inputs - 1) + s.cost[1]);
        if (weights > 0) r = std::max(r, at(head_, i, 2, weights - 1) + s.cost[2]);
        at(head_, i, 0, k) = r;
        if (k == 0 || r < first_gradient[i]) early[i] = k + 1;
        down[i] = std::max(down[i], r + s.cost[0]) + s.down.occupied_s;
        arrival = down[i] + s.down.latency_s;
      }
      arrival = 0;
      for (std::size_t i = n; i-- > 0;) {
        const auto& s = p_->stages[i];
        const int weights = std::max(0, k + 1 - limits_[i].weights);
        double r = std::max(arrival, at(head_, i, 0, k) + s.cost[0]);
        if (k == 0)
          first_gradient[i] = r, early[i] = 1;
        else
          r = std::max({r, at(head_, i, 1, k - 1) + s.cost[1], busy(i, k + 1, k, weights)});
        at(head_, i, 1, k) = r;
        up[i] = std::max(up[i], r + s.cost[1]) + s.up.occupied_s;
        arrival = up[i] + s.up.latency_s;
        double w = r + s.cost[1];
        if (k > 0) w = std::max({w, at(head_, i, 2, k - 1) + s.cost[2], busy(i, k + 1, k + 1, k)});
        at(head_, i, 2, k) = w;
      }
    }
  }

  void tails() {
    const std::size_t n = p_->size();
    std::vector<double> down(n, 0.0), up(n, 0.0), last_gradient(n, 0.0);
    std::vector<int> late(n, 0);  // weight gradients that may end later than the last input gradient
    const auto busy = [&](std::size_t i, int forwards, int inputs, int weights) {
      const auto& c = p_->stages[i].cost;
      double t = forwards * c[0] + inputs * c[1] + weights * c[2];
      if (inputs > 0) t = std::max(t, last_gradient[i] + forwards * c[0] + inputs * c[1] + std::max(0, weights - late[i]) * c[2]);
      return t;
    };
    for (int k = m_ - 1; k >= 0; --k) {
      const int behind = m_ - 1 - k;
      for (std::size_t i = 0; i < n; ++i) {
        const auto& s = p_->stages[i];
        double w = 0;
        const int after_weight = std::max(0, m_ - k - limits_[i].weights),
                  after_input = std::max(0, m_ - k - limits_[i].forwards);
        if (k + 1 < m_) w = std::max(at(tail_, i, 2, k + 1) + s.cost[2], busy(i, after_weight, after_weight, behind));
        if (after_weight > 0) w = std::max(w, at(tail_, i, 0, k + limits_[i].weights) + s.cost[0]);
        at(tail_, i, 2, k) = w;
        if (k + 1 == m_ || w < last_gradient[i]) late[i] = m_ - k;
        double b = w + s.cost[2];
        if (i > 0) {
          up[i] = std::max(up[i], s.up.latency_s + at(tail_, i - 1, 1, k) + p_->stages[i - 1].cost[1]) + s.up.occupied_s;
          b = std::max(b, up[i]);
        }
        if (k + 1 < m_)
          b = std::max({b, at(tail_, i, 1, k + 1) + s.cost[1], busy(i, after_input, behind, behind + 1)});
        else
          last_gradient[i] = b;
        if (after_input > 0) b = std::max(b, at(tail_, i, 0, k + limits_[i].forwards) + s.cost[0]);
        at(tail_, i, 1, k) = b;
      }
      for (std::size_t i = n; i-- > 0;) {
        const auto& s = p_->stages[i];
        double f = at(tail_, i, 1, k) + s.cost[1];
        if (i + 1 < n) {
          down[i] = std::max(down[i], s.down.latency_s + at(tail_, i + 1, 0, k) + p_->stages[i + 1].cost[0]) + s.down.occupied_s;
          f = std::max(f, down[i]);
        }
        if (k + 1 < m_) f = std::max({f, at(tail_, i, 0, k + 1) + s.cost[0], busy(i, behind, behind + 1, behind + 1)});
        at(tail_, i, 0, k) = f;
      }
    }
  }

  /// Jackson: at any time the available step with the longest tail. A kind's steps come in order of heads and tails alike.
  double one_machine(std::size_t i) {
    const auto& s = p_->stages[i];
    const int kinds = p_->split ? 3 : 2;
    int next[3] = {0, 0, 0};
    double left[3] = {s.cost[0], s.cost[1], s.cost[2]};
    double now = 0, bound = 0;
    for (;;) {
      int best = -1;
      double wake = never_s, longest = -1;
      for (int a = 0; a < kinds; ++a) {
        if (next[a] == m_) continue;
        const double r = at(head_, i, a, next[a]);
        if (r > now)
          wake = std::min(wake, r);
        else if (at(tail_, i, a, next[a]) > longest)
          best = a, longest = at(tail_, i, a, next[a]);
      }
      if (best < 0) {
        if (wake >= never_s) return bound;
        now = wake;
        continue;
      }
      // An arrival may be preferred: look again then.
      const double run = std::min(left[best], wake - now);
      left[best] -= run;
      if (run < wake - now || left[best] <= 0) {
        now += run;
        left[best] = s.cost[best];
        ++next[best];
        bound = std::max(bound, now + longest);
      } else {
        now = wake;
      }
    }
  }

  const order_problem* p_;
  int m_;
  std::size_t cells_;
  std::vector<double> head_, tail_;  // by rank, kind and microbatch: time before its start, time after its end
  std::vector<limits> limits_;
};

}  // namespace hetsched::detail
