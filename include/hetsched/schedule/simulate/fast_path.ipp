// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/simulate/fast_path.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<double> stage_ends(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  validate(p);
  validate_warmups(warmups, microbatches);
  if (warmups.size() != p.forward_s.size()) throw input_error("a pipeline needs one warm-up count per stage");
  return detail::unchecked::stage_ends(p, warmups, microbatches);
}

}  // namespace hetsched

namespace hetsched::detail::unchecked {

/// A pipeline of the 1F1B family, played stage by stage and then round by round.
class family_run {
 public:
  family_run(const pipeline& p, const std::vector<int>& warmups, int microbatches)
      : p_(p), warmups_(warmups), microbatches_(microbatches) {}

  /// `skips`: rounds that are as the one before are not played, which may change the last digits.
  [[nodiscard]] std::vector<double> run(bool skips) {
    warm_up();
    std::size_t first_forward = 0;  // first stage with forwards left: counts never grow downstream
    for (std::size_t round = 0; round < as_size(microbatches_); ++round) {
      run_backwards();
      while (first_forward < stages_.size() && round + capped(first_forward) >= as_size(microbatches_)) ++first_forward;
      if (first_forward < stages_.size()) run_forwards(first_forward);
      if (!skips || first_forward > 0 || !is_steady(round)) continue;
      const std::size_t alike = as_size(microbatches_) - capped(0) - 1 - round;  // rounds with a forward of every stage
      advance(static_cast<double>(alike) * period_s_);
      round += alike;
      skips = false;
    }
    std::vector<double> ends;
    for (const auto& s : stages_) ends.push_back(s.free_s);
    return ends;
  }

 private:
  // Links belong to the stage that sends over them; the missing ones at both ends take no time.
  struct way {
    double occupied_s = 0, latency_s = 0;
  };
  struct stage {
    double forward_s, backward_s;
    way activation, gradient;
    double free_s = 0, activation_free_s = 0, gradient_free_s = 0;
    std::size_t slot = 0, ring_first = 0, ring_last = 0;
  };

  [[nodiscard]] std::size_t capped(std::size_t i) const { return as_size(std::min(warmups_[i], microbatches_)); }

  // The forwards before the first backwards.
  void warm_up() {
    const auto count = warmups_.size();
    stages_.reserve(count);
    rings_.reserve(count + capped(0));
    std::vector<double> arrivals(capped(0), 0.0);
    for (std::size_t i = 0; i < count; ++i) {
      const auto k = static_cast<int>(i);
      const bool last = i + 1 == count;
      stage s{p_.forward_s[i], p_.backward_s[i], {}, {}};
      if (!last) s.activation = {p_.activation_occupied_s(k), p_.activation_s(k) - p_.activation_occupied_s(k)};
      if (i > 0) s.gradient = {p_.gradient_occupied_s(k - 1), p_.gradient_s(k - 1) - p_.gradient_occupied_s(k - 1)};
      for (std::size_t m = 0; m < capped(i); ++m) {
        s.free_s = std::max(s.free_s, arrivals[m]) + s.forward_s;
        s.activation_free_s = std::max(s.activation_free_s, s.free_s) + s.activation.occupied_s;
        arrivals[m] = s.activation_free_s + s.activation.latency_s;
      }
      s.slot = s.ring_first = rings_.size();
      rings_.push_back(0);
      if (!last)
        for (std::size_t m = capped(i + 1); m < capped(i); ++m) rings_.push_back(arrivals[m]);
      s.ring_last = rings_.size();
      stages_.push_back(s);
    }
  }

  // One of each stage, the last one first.
  void run_backwards() {
    double gradient = 0;
    for (std::size_t i = stages_.size(); i-- > 0;) {
      stage& s = stages_[i];
      s.free_s = std::max(s.free_s, gradient) + s.backward_s;
      s.gradient_free_s = std::max(s.gradient_free_s, s.free_s) + s.gradient.occupied_s;
      gradient = s.gradient_free_s + s.gradient.latency_s;
    }
  }

  // One of each stage from `first` on.
  void run_forwards(std::size_t first) {
    double activation = first == 0 ? 0.0 : take(stages_[first - 1]);
    for (std::size_t i = first; i < stages_.size(); ++i) {
      stage& s = stages_[i];
      s.free_s = std::max(s.free_s, activation) + s.forward_s;
      s.activation_free_s = std::max(s.activation_free_s, s.free_s) + s.activation.occupied_s;
      rings_[s.slot] = s.activation_free_s + s.activation.latency_s;
      activation = take(s);
    }
  }

  // Whether everything, also what is on its way, moved by one period in the last round. Looks now and then.
  [[nodiscard]] bool is_steady(std::size_t round) {
    if (before_.empty()) {
      for (const stage& s : stages_) longest_ring_ = std::max(longest_ring_, s.ring_last - s.ring_first);
      before_.resize(stages_.size());
    }
    const std::size_t pause = longest_ring_ + 2;
    if (same_ == 0 && round % pause > 1) return false;
    const std::size_t last = stages_.size() - 1;
    period_s_ = stages_[0].free_s - before_[0].free_s;
    const double most = 1e-13 * stages_[0].free_s;
    const auto moved = [&](double from, double to) { return std::abs(to - from - period_s_) <= most; };
    bool all = same_ > 0 || round % pause == 1;
    for (std::size_t i = 0; i < stages_.size() && all; ++i)
      all = moved(before_[i].free_s, stages_[i].free_s) &&
            (i == last || moved(before_[i].activation_s, stages_[i].activation_free_s)) &&
            (i == 0 || moved(before_[i].gradient_s, stages_[i].gradient_free_s));
    for (std::size_t i = 0; i < stages_.size(); ++i)
      before_[i] = {stages_[i].free_s, stages_[i].activation_free_s, stages_[i].gradient_free_s};
    same_ = all ? same_ + 1 : 0;
    return same_ > longest_ring_;
  }

  void advance(double seconds) {
    for (stage& s : stages_) {
      s.free_s += seconds;
      s.activation_free_s += seconds;
      s.gradient_free_s += seconds;
    }
    for (double& arrival : rings_) arrival += seconds;
  }

  // The oldest activation on its way from s; what s sent in this round is in its slot already.
  [[nodiscard]] double take(stage& s) {
    if (++s.slot == s.ring_last) s.slot = s.ring_first;
    return rings_[s.slot];
  }

  const pipeline& p_;
  const std::vector<int>& warmups_;
  int microbatches_;
  std::vector<stage> stages_;
  // When activations that are on their way reach the next stage: one ring per sender, with room for those that the next
  // stage has not taken after a full round and for one more.
  std::vector<double> rings_;
  struct times {
    double free_s = 0, activation_s = 0, gradient_s = 0;
  };
  std::vector<times> before_;  // the round before
  std::size_t longest_ring_ = 0, same_ = 0;
  double period_s_ = 0;
};

HETSCHED_INLINE std::vector<double> stage_ends(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return family_run(p, warmups, microbatches).run(false);
}

HETSCHED_INLINE double quick_makespan(const pipeline& p, const std::vector<int>& warmups, int microbatches) {
  return family_run(p, warmups, microbatches).run(true).front();
}

}  // namespace hetsched::detail::unchecked
