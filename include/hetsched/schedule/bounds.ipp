// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/bounds.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>

namespace hetsched::detail {

/// What a schedule lists of every place, which is a stage of a direction, and of every rank.
struct listed_work {
  std::vector<int> forwards, weights;  ///< per place: forwards, and backward_weights
  std::vector<double> work_s;          ///< per rank: all computations
  std::vector<double> path_work_s;     ///< per rank: the same without weight gradients
  /// What a computation takes at least, as a share of its time: less than 1 if any are fused and fused_factor is.
  double shrink = 1;
  bool trains = false;  ///< else it is inference: nothing goes back
};

/// Least seconds of every place for one microbatch. f_k and d_k are those of a forward and of an input gradient (whole
/// backwards where none are split), a_k and g_k those of the ways over boundary k, 0 where both stages are on one rank.
struct least_times {
  std::vector<double> forward_s, input_s;  ///< f_s and d_s
  std::vector<double> there_s;             ///< before the forward: sum over k < s of f_k + a_k
  std::vector<double> back_s;              ///< behind the input gradient, to the first stage: sum over k < s of d_k + g_k
  std::size_t stages = 0;

  /// From the start of the forward of a place to the end of its input gradient, by way of the last stage.
  [[nodiscard]] double around_s(std::size_t k) const {
    const std::size_t last = k - k % stages + stages - 1;
    return there_s[last] - there_s[k] + forward_s[last] + input_s[last] + back_s[last] - back_s[k];
  }
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE double makespan_lower_bound(const pipeline& p, int microbatches) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  const double m = microbatches;
  double before_s = 0, bound_s = 0, slowest_step_s = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = as_size(i);
    bound_s = std::max(bound_s, before_s + m * p.compute_s(i));
    slowest_step_s = std::max({slowest_step_s, p.forward_s[k], p.backward_s[k]});
    before_s += p.compute_s(i);
    if (i + 1 == p.stages()) break;
    slowest_step_s = std::max(slowest_step_s, p.occupied_s(i));
    before_s += p.round_trip_s(i);
  }
  return std::max(bound_s, before_s + (m - 1) * slowest_step_s);
}

HETSCHED_INLINE double split_backward_lower_bound(const pipeline& p, int microbatches) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  const double m = microbatches;
  const auto weight_s = [&](std::size_t k) { return p.weight_backward_s.empty() ? 0.0 : p.weight_backward_s[k]; };
  double there_s = 0, bound_s = 0, slowest_step_s = 0;
  double back_s = weight_s(0);  // R_i: from the end of an input gradient on stage i
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = as_size(i);
    const double input_s = p.backward_s[k] - weight_s(k);
    back_s = std::max(back_s, weight_s(k));
    bound_s = std::max({bound_s, there_s + m * p.compute_s(i), there_s + m * (p.forward_s[k] + input_s) + back_s});
    slowest_step_s = std::max({slowest_step_s, p.forward_s[k], input_s});
    there_s += p.forward_s[k];
    back_s += input_s;
    if (i + 1 == p.stages()) break;
    slowest_step_s = std::max(slowest_step_s, p.occupied_s(i));
    there_s += p.activation_s(i);
    back_s += p.gradient_s(i);
  }
  return std::max(bound_s, there_s + back_s + (m - 1) * slowest_step_s);
}

}  // namespace hetsched

namespace hetsched::detail {

/// Throws: input_error for an action that the schedule cannot have.
[[nodiscard]] inline listed_work count_work(const workload& w, const schedule& order) {
  const auto ranks = as_size(order.ranks), places = w.work.size();
  listed_work sum{.forwards = std::vector<int>(places),
                  .weights = std::vector<int>(places),
                  .work_s = std::vector<double>(ranks),
                  .path_work_s = std::vector<double>(ranks)};
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto& actions = order.lanes[r].actions;
    for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
      double all_s = 0, path_s = 0;
      for (end = first; end == first || (end < actions.size() && actions[end].joined); ++end) {
        const action& a = actions[end];
        if (!fits(order, a)) throw input_error(misfit_text(order, order.lanes[r], a));
        if (!is_compute(a.kind)) continue;
        const std::size_t k = w.place(a.direction, a.stage);
        sum.forwards[k] += a.kind == action_kind::forward;
        sum.weights[k] += a.kind == action_kind::backward_weight;
        sum.trains = sum.trains || is_training(a.kind);
        const double own_s = seconds_of(w.work[k], a.kind);
        all_s += own_s;
        if (a.kind != action_kind::backward_weight) path_s += own_s;
      }
      const double factor = end - first > 1 && !is_transfer(actions[first].kind) ? w.fused_factor : 1;
      sum.shrink = std::min(sum.shrink, factor);
      sum.work_s[r] += factor * all_s;
      sum.path_work_s[r] += factor * path_s;
    }
  }
  return sum;
}

[[nodiscard]] inline bool on_one_rank(const schedule& order, int direction, int boundary) {
  return order.rank(direction, boundary) == order.rank(direction, boundary + 1);
}

[[nodiscard]] inline least_times times_of(const workload& w, const schedule& order, const listed_work& listed) {
  const std::size_t places = w.work.size();
  least_times t{.forward_s = std::vector<double>(places),
                .input_s = std::vector<double>(places),
                .there_s = std::vector<double>(places),
                .back_s = std::vector<double>(places),
                .stages = as_size(order.stages)};
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s < order.stages; ++s) {
      const std::size_t k = w.place(c, s);
      const stage_work& work = w.work[k];
      t.forward_s[k] = listed.shrink * work.forward_s;
      if (listed.trains) t.input_s[k] = listed.shrink * (work.backward_s - (listed.weights[k] > 0 ? work.weight_backward_s : 0));
      if (s == 0) continue;
      const bool stays = on_one_rank(order, c, s - 1);
      t.there_s[k] = t.there_s[k - 1] + t.forward_s[k - 1] + (stays ? 0 : way_s(w.activation(c, s - 1)));
      t.back_s[k] = t.back_s[k - 1] + t.input_s[k - 1] + (stays || !listed.trains ? 0 : way_s(w.gradient(c, s - 1)));
    }
  return t;
}

/// A microbatch passes all stages, there and back: in the slowest direction that is used, with S the last stage,
///   there_S + f_S + d_S + back_S.
[[nodiscard]] inline double microbatch_bound(const schedule& order, const listed_work& listed, const least_times& t) {
  double bound_s = 0;
  for (std::size_t k = t.stages - 1; k < order.rank_of.size(); k += t.stages)
    if (listed.forwards[k] > 0) bound_s = std::max(bound_s, t.there_s[k] + t.forward_s[k] + t.input_s[k] + t.back_s[k]);
  return bound_s;
}

/// What a rank or a wire has to do, between the shortest ways to and from it.
struct bounded_load {
  static constexpr double never_s = infinity;
  double before_s = never_s, busy_s = 0, after_s = never_s;
  void add(double before, double busy, double after) {
    before_s = std::min(before_s, before);
    busy_s += busy;
    after_s = std::min(after_s, after);
  }
};

/// A rank waits for its first forward, does all its work, and its last input gradient goes back to the first stage; weight
/// gradients may come after that. Over ranks, with the least there_s and back_s of its stages, the largest of
///   there_s + work_s   and   there_s + path_work_s + back_s.
[[nodiscard]] inline double rank_bound(const schedule& order, const listed_work& listed, const least_times& t) {
  std::vector<bounded_load> ranks(listed.work_s.size());
  for (std::size_t k = 0; k < order.rank_of.size(); ++k)
    if (listed.forwards[k] > 0) at(ranks, order.rank_of[k]).add(t.there_s[k], 0, t.back_s[k]);
  double bound_s = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].before_s < bounded_load::never_s)
      bound_s =
          std::max({bound_s, ranks[r].before_s + listed.work_s[r], ranks[r].before_s + listed.path_work_s[r] + ranks[r].after_s});
  return bound_s;
}

/// A wire waits for its first tensor, carries all of them, `capacity` at a time, and the last arrives latency_s later and goes on
/// to the first stage; legs of one transfer over other wires are left out. Over wires,
///   least time before + sum of occupied_s / capacity + least time after.
[[nodiscard]] inline double wire_bound(const workload& w, const schedule& order, const listed_work& listed,
                                       const least_times& t) {
  std::vector<bounded_load> wires(w.wires.size());
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      const std::size_t k = w.place(c, s);
      if (listed.forwards[k] == 0 || on_one_rank(order, c, s)) continue;
      const auto carry = [&](const hop& leg, double before, double after) {
        for (const int wire : leg.wires)
          if (wire >= 0) at(wires, wire).add(before, listed.forwards[k] * leg.occupied_s, leg.latency_s + after);
      };
      const auto cross = [&](const tensor_path& path, double before, double after) {
        if (path.staged) carry(path.d2h, before, after);
        carry(path.network, before, after);
        if (path.staged) carry(path.h2d, before, after);
      };
      cross(w.activation(c, s), t.there_s[k] + t.forward_s[k], t.around_s(k + 1) + t.back_s[k + 1]);
      if (listed.trains) cross(w.gradient(c, s), t.there_s[k + 1] + t.around_s(k + 1), t.input_s[k] + t.back_s[k]);
    }
  double bound_s = 0;
  for (std::size_t k = 0; k < wires.size(); ++k)
    if (wires[k].busy_s > 0)
      bound_s = std::max(bound_s, wires[k].before_s + wires[k].busy_s / w.wires[k].capacity + wires[k].after_s);
  return bound_s;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE double makespan_lower_bound(const workload& w, const schedule& order) {
  validate(w);
  detail::validate_shape(order);
  detail::validate_fit(w, order);
  const auto listed = detail::count_work(w, order);
  const auto times = detail::times_of(w, order, listed);
  return std::max({detail::microbatch_bound(order, listed, times), detail::rank_bound(order, listed, times),
                   detail::wire_bound(w, order, listed, times)});
}

HETSCHED_INLINE double makespan_lower_bound(const pipeline& p, const workload& work, const schedule& order) {
  validate(p);
  detail::validate_shape(order);
  detail::validate_fit(work, order);
  if (p.stages() != order.ranks)
    throw input_error("a schedule of " + std::to_string(order.ranks) + " ranks does not fit a pipeline of " +
                      std::to_string(p.stages()) + " stages");
  if (!one_stage_per_rank(order)) return makespan_lower_bound(work, order);
  if (is_forward_only(order)) return makespan_lower_bound(forward_part(p), order.microbatches);
  if (!lists(order, action_kind::backward_weight)) return makespan_lower_bound(p, order.microbatches);
  return std::max(split_backward_lower_bound(p, order.microbatches), makespan_lower_bound(work, order));
}

}  // namespace hetsched
