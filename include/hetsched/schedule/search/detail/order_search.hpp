// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/search/auto_schedule_test.cpp.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/search/detail/order_problem.hpp>

namespace hetsched::detail {

/// Local search over words: a makespan is the length of a longest path, and only a change on one can shorten it. A move takes
/// a step of a critical block (steps of one rank that follow each other without idling) to the block's front or back; it is
/// judged by the longest path through the steps it touches, arrivals and tails of others as before, and the best one is made
/// even if it does not improve; a step just moved does not move back for some rounds (tabu). Where that leads nowhere, a few
/// random moves from the best words so far.
/// Determinism: the same on every machine.
/// Source: Balas and Vazacopoulos 1998, "Guided local search with shifting bottleneck for job shop scheduling" (the estimate).
class order_search {
 public:
  explicit order_search(const order_problem& p)
      : p_(&p),
        steps_(as_size(p.steps())),
        m_(as_size(p.microbatches)),
        index_(p.size() * steps_),
        before_(p.size() * steps_),
        start_(p.size() * steps_),
        input_(p.size() * steps_),
        tail_(p.size() * steps_ + 1),
        sent_tail_(p.size() * steps_),
        where_(p.size() * 3 * m_),
        forward_in_(p.size() * m_),
        gradient_in_(p.size() * m_),
        ranks_(p.size()),
        forbidden_(p.size() * 3 * m_ * 2, 0) {
    topological_.reserve(p.size() * steps_);
  }

  /// When an order ends; never_s if its ranks wait for each other.
  /// Complexity: O(steps of all ranks).
  [[nodiscard]] double makespan(const step_words& order) { return evaluate(order); }

  /// Improves `order` (sound, with this makespan) for at most `rounds` rounds, until `bound_s` is reached, or until
  /// go_on(best makespan so far) is false; the best words found replace it.
  /// Returns: their makespan.
  /// Complexity: O(rounds * steps of all ranks).
  template <class GoOn>
  double improve(step_words& order, double bound_s, int rounds, GoOn&& go_on) {
    step_words now = order;
    double best = evaluate(now);
    std::fill(forbidden_.begin(), forbidden_.end(), 0);
    random_source random(1);
    int idle = 0;
    for (int round = 1; round <= rounds && best > bound_s * (1 + tolerance::rounding) && go_on(best); ++round) {
      const bool moved = idle < patience && move(now, round, best);
      if (!moved) {
        now = order;
        kick(now, random);
        idle = 0;
      }
      const double makespan_s = evaluate(now);
      ++idle;
      if (makespan_s >= never_s) {  // ranks wait for each other: the estimate does not see it
        idle = patience;
        now = order;
        evaluate(now);
      } else if (makespan_s < best * (1 - tolerance::rounding)) {
        best = makespan_s;
        order = now;
        idle = 0;
      }
    }
    return best;
  }

 private:
  static constexpr int patience = 60;  // rounds without improvement before a kick

  struct rank {
    std::size_t at = 0;
    std::size_t done[3] = {0, 0, 0};
    double free_s = 0, down_free_s = 0, up_free_s = 0;  // the rank and its links
    bool listed = false;
  };

  [[nodiscard]] std::size_t slot(std::size_t i, step_kind a, std::size_t k) const { return (i * 3 + as_size(a)) * m_ + k; }

  /// Starts of all steps, tails from each start to the end, and the step at which the makespan is reached.
  double evaluate(const step_words& order) {
    const std::size_t count = p_->size();
    topological_.clear();
    ready_.clear();
    for (auto& r : ranks_) r = {};
    for (std::size_t i = count; i-- > 0;) ready_.push_back(i), ranks_[i].listed = true;
    makespan_ = 0;
    while (!ready_.empty()) {
      const std::size_t i = ready_.back();
      ready_.pop_back();
      rank& r = ranks_[i];
      r.listed = false;
      const auto& s = p_->stages[i];
      const bool last = i + 1 == count;
      const std::size_t before = r.at;
      while (r.at < steps_) {
        const std::size_t n = i * steps_ + r.at;
        const step_kind a = order[n];
        const std::size_t k = at(r.done, a);
        double in = 0;
        if (a == step_kind::forward) {
          if (i > 0 && k >= ranks_[i - 1].done[0]) break;
          if (i > 0) in = forward_in_[i * m_ + k];
        } else if (a == step_kind::input) {
          if (!last && k >= ranks_[i + 1].done[1]) break;
          if (!last) in = gradient_in_[i * m_ + k];
        }
        index_[n] = static_cast<int>(k);
        before_[n] = {static_cast<int>(r.done[0]), static_cast<int>(r.done[1])};
        where_[slot(i, a, k)] = static_cast<int>(n);
        input_[n] = in;
        start_[n] = std::max(r.free_s, in);
        r.free_s = start_[n] + at(s.cost, a);
        if (a == step_kind::forward && !last) {
          r.down_free_s = std::max(r.down_free_s, r.free_s) + s.down.occupied_s;
          forward_in_[(i + 1) * m_ + k] = r.down_free_s + s.down.latency_s;
        } else if (a == step_kind::input && i > 0) {
          r.up_free_s = std::max(r.up_free_s, r.free_s) + s.up.occupied_s;
          gradient_in_[(i - 1) * m_ + k] = r.up_free_s + s.up.latency_s;
        }
        ++at(r.done, a);
        ++r.at;
        topological_.push_back(static_cast<int>(n));
      }
      if (r.at == before) continue;
      makespan_ = std::max(makespan_, r.free_s);
      if (i > 0 && !ranks_[i - 1].listed) ready_.push_back(i - 1), ranks_[i - 1].listed = true;
      if (!last && !ranks_[i + 1].listed) ready_.push_back(i + 1), ranks_[i + 1].listed = true;
    }
    if (topological_.size() != count * steps_) return never_s;
    tails(order);
    return makespan_;
  }

  void tails(const step_words& order) {
    for (std::size_t t = topological_.size(); t-- > 0;) {
      const auto n = as_size(topological_[t]);
      const std::size_t i = n / steps_;
      const auto& s = p_->stages[i];
      const step_kind a = order[n];
      const auto k = as_size(index_[n]);
      double sent = 0;
      if (a == step_kind::forward && i + 1 < p_->size()) {
        sent = s.down.latency_s + at(tail_, where_[slot(i + 1, a, k)]);
        if (k + 1 < m_) sent = std::max(sent, at(sent_tail_, where_[slot(i, a, k + 1)]));
        sent += s.down.occupied_s;
      } else if (a == step_kind::input && i > 0) {
        sent = s.up.latency_s + at(tail_, where_[slot(i - 1, a, k)]);
        if (k + 1 < m_) sent = std::max(sent, at(sent_tail_, where_[slot(i, a, k + 1)]));
        sent += s.up.occupied_s;
      }
      sent_tail_[n] = sent;
      const double next = n % steps_ + 1 < steps_ ? tail_[n + 1] : 0.0;
      tail_[n] = at(s.cost, a) + std::max(next, sent);
    }
  }

  [[nodiscard]] bool critical(std::size_t n) const { return start_[n] + tail_[n] >= makespan_ * (1 - 1e-10); }

  /// Estimated makespan after the step at `from` went to `to`, both of one rank and nothing but critical steps between them;
  /// infinity if the rank's word would not be legal. As steps of one kind stay in order, a kind's k-th tensor keeps its number:
  /// what changes is when the steps in between start.
  double estimate(const step_words& order, std::size_t i, std::size_t from, std::size_t to) {
    const std::size_t low = std::min(from, to), high = std::max(from, to);
    const auto& s = p_->stages[i];
    const auto [forwards, inputs] = before_[low];
    std::size_t done[3] = {as_size(forwards), as_size(inputs), 0};
    done[2] = low % steps_ - done[0] - done[1];
    double held = 0;
    for (int a = 0; a < 3; ++a) held += static_cast<double>(done[a]) * s.keeps[a];
    moved_.clear();
    const auto put = [&](std::size_t n) { moved_.push_back(order[n]); };
    if (from > to) put(from);
    for (std::size_t n = low; n <= high; ++n)
      if (n != from) put(n);
    if (from < to) put(from);
    double free_s = low % steps_ == 0 ? 0.0 : start_[low - 1] + at(s.cost, order[low - 1]);
    heads_.resize(moved_.size());
    sends_.resize(moved_.size());
    for (std::size_t x = 0; x < moved_.size(); ++x) {
      const auto a = as_size(moved_[x]);
      const std::size_t k = done[a]++;
      held += s.keeps[a];
      if (done[1] > done[0] || done[2] > done[1] || held > s.capacity) return never_s;
      const auto old = as_size(where_[slot(i, moved_[x], k)]);
      heads_[x] = std::max(free_s, input_[old]);
      free_s = heads_[x] + s.cost[a];
      sends_[x] = sent_tail_[old];
    }
    double next = (high + 1) % steps_ == 0 ? 0.0 : tail_[high + 1];
    double longest = 0;
    for (std::size_t x = moved_.size(); x-- > 0;) {
      next = at(s.cost, moved_[x]) + std::max(next, sends_[x]);
      longest = std::max(longest, heads_[x] + next);
    }
    return longest;
  }

  bool move(step_words& order, int round, double best) {
    double best_estimate = never_s;
    std::size_t best_from = 0, best_to = 0;
    const auto consider = [&](std::size_t i, std::size_t from, std::size_t to) {
      if (order[from] == order[to]) return;
      const double e = estimate(order, i, from, to);
      if (e >= best_estimate) return;
      const std::size_t key = 2 * slot(i, order[from], as_size(index_[from])) + (from < to);
      if (forbidden_[key] > round && e >= best * (1 - tolerance::rounding)) return;
      best_estimate = e, best_from = from, best_to = to;
    };
    for (std::size_t i = 0; i < p_->size(); ++i) {
      for (std::size_t n = i * steps_; n < (i + 1) * steps_;) {
        if (!critical(n)) {
          ++n;
          continue;
        }
        std::size_t end = n + 1;
        while (end < (i + 1) * steps_ && critical(end) &&
               start_[end] <= start_[end - 1] + at(p_->stages[i].cost, order[end - 1]) + makespan_ * tolerance::rounding)
          ++end;
        block(i, n, end, consider);
        n = end;
      }
    }
    if (best_estimate >= never_s) return false;
    const std::size_t i = best_from / steps_;
    const std::size_t key = 2 * slot(i, order[best_from], as_size(index_[best_from])) + (best_from > best_to);
    const int tenure = 5 + static_cast<int>((as_size(round) * 7919 + best_from) % 9);
    forbidden_[key] = round + tenure;
    shift(order, best_from, best_to);
    return true;
  }

  /// A few random legal moves, critical or not. Leaves `order` as it is if they make ranks wait for each other.
  void kick(step_words& order, random_source& random) {
    const step_words before = order;
    evaluate(order);
    for (int k = random.integer(2, 6); k > 0; --k) {
      const auto i = as_size(random.integer(0, static_cast<int>(p_->size()) - 1));
      const int from = random.integer(0, static_cast<int>(steps_) - 1);
      const int to =
          std::clamp(from + random.integer(1, 6) * (random.integer(0, 1) == 0 ? -1 : 1), 0, static_cast<int>(steps_) - 1);
      const std::size_t a = i * steps_ + as_size(from), b = i * steps_ + as_size(to);
      if (a == b || estimate(order, i, a, b) >= never_s) continue;
      shift(order, a, b);
      if (evaluate(order) < never_s) continue;
      order = before;
      return;
    }
  }

  static void shift(step_words& order, std::size_t from, std::size_t to) {
    if (from < to)
      std::rotate(order.begin() + off(from), order.begin() + off(from) + 1, order.begin() + off(to) + 1);
    else
      std::rotate(order.begin() + off(to), order.begin() + off(from), order.begin() + off(from) + 1);
  }
  static std::ptrdiff_t off(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  /// Every step of the block [first, end) to its front and to its back.
  template <class Consider>
  static void block(std::size_t i, std::size_t first, std::size_t end, Consider& consider) {
    constexpr std::size_t most = 12;  // longer blocks: near their ends only
    for (std::size_t n = first; n < end; ++n) {
      if (n > first && n - first <= most) consider(i, n, first);
      if (n + 1 < end && end - 1 - n <= most && (n != first || end - first > 2)) consider(i, n, end - 1);
      if (n + 1 < end && n > first) consider(i, n, n + 1);
    }
  }

  const order_problem* p_;
  std::size_t steps_, m_;
  std::vector<int> index_;                   // per step: which of its kind on its rank
  std::vector<std::pair<int, int>> before_;  // forwards and input gradients before a step
  std::vector<double> start_, input_;
  std::vector<double> tail_;       // from a step's start to the end of everything behind it
  std::vector<double> sent_tail_;  // the part of it that goes over the link
  std::vector<int> where_;         // position of a rank's k-th step of a kind
  std::vector<double> forward_in_, gradient_in_;
  std::vector<rank> ranks_;
  std::vector<std::size_t> ready_;
  std::vector<int> topological_;
  std::vector<int> forbidden_;  // per step and direction: round before which it may not move so
  std::vector<step_kind> moved_;
  std::vector<double> heads_, sends_;
  double makespan_ = 0;
};

}  // namespace hetsched::detail
