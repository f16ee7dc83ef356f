// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/workload.hpp>

namespace hetsched {

/// Seconds below which no schedule of the microbatches on these stages and links can end, whatever its order and memory, if
/// it keeps every backward whole. With the round trip r_k over boundary k in place of 2c_k, the largest of
///   sum over k < i of (t_k + r_k) + M t_i             stage i cannot start before its first input, works M t_i, and its last
///                                                     gradient still has to reach the first stage;
///   sum of all t_k and r_k + (M - 1) x                x a forward, backward, activation or gradient transfer: M of them go
///                                                     one by one, and the first and the last microbatch pass everything else.
/// It does not hold for split backwards (split_backward_lower_bound does) nor for several virtual stages per rank.
/// Throws input_error for an invalid pipeline or microbatches < 1. O(S).
[[nodiscard]] inline double makespan_lower_bound(const pipeline& p, int microbatches) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  const double m = microbatches;
  double before_s = 0, bound_s = 0, slowest_step_s = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    bound_s = std::max(bound_s, before_s + m * p.compute_s(i));
    slowest_step_s = std::max({slowest_step_s, p.forward_s[k], p.backward_s[k]});
    before_s += p.compute_s(i);
    if (i + 1 == p.stages()) break;
    slowest_step_s = std::max(slowest_step_s, p.slower_way_s(i));
    before_s += p.round_trip_s(i);
  }
  return std::max(bound_s, before_s + (m - 1) * slowest_step_s);
}

/// The same for schedules that may split any backward, whole ones included. With w_i the weight gradient, d_i the rest of the
/// backward, a_i and g_i the ways over boundary i, and A_i = sum over k < i of (f_k + a_k), the largest of
///   A_i + M t_i                                  stage i works M t_i from its first input on; weight gradients may come last;
///   A_i + M (f_i + d_i) + R_i                    its last input gradient still has to go back, R_i seconds: to the first stage,
///                                                or to any on the way, which has that microbatch's weight gradient before it;
///   sum of all f_k, d_k, a_k and g_k + w_0 + (M - 1) x   x as above, with d_k for a backward; R_i in full in place of w_0.
/// Equal to makespan_lower_bound where no weight_backward_s are given. Throws and costs as that.
[[nodiscard]] inline double split_backward_lower_bound(const pipeline& p, int microbatches) {
  validate(p);
  if (microbatches < 1) throw input_error("a schedule needs at least one microbatch");
  const double m = microbatches;
  const auto weight_s = [&](std::size_t k) { return p.weight_backward_s.empty() ? 0.0 : p.weight_backward_s[k]; };
  double there_s = 0, bound_s = 0, slowest_step_s = 0;
  double back_s = weight_s(0);  // R_i: from the end of an input gradient on stage i
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const double input_s = p.backward_s[k] - weight_s(k);
    back_s = std::max(back_s, weight_s(k));
    bound_s = std::max({bound_s, there_s + m * p.compute_s(i), there_s + m * (p.forward_s[k] + input_s) + back_s});
    slowest_step_s = std::max({slowest_step_s, p.forward_s[k], input_s});
    there_s += p.forward_s[k];
    back_s += input_s;
    if (i + 1 == p.stages()) break;
    slowest_step_s = std::max(slowest_step_s, p.slower_way_s(i));
    there_s += p.activation_s(i);
    back_s += p.gradient_s(i);
  }
  return std::max(bound_s, there_s + back_s + (m - 1) * slowest_step_s);
}

/// Seconds below which no schedule can end that lists the same computations on the same ranks, in whatever order: for any
/// placement, split backwards and workload. The largest, over ranks, of the least time before its first forward, all its work
/// and the least time from its last input gradient to the first stage, the last without its weight gradients or with them and
/// without the way back; over wires, of all that they carry between the shortest ways to and from them; and over microbatches,
/// of their way. Parameters are left out. With fused computations every time on a way counts only fused_factor, if that is less.
/// Throws input_error for an invalid workload or one that does not fit the schedule. O(actions + wires).
[[nodiscard]] inline double makespan_lower_bound(const workload& w, const schedule& order) {
  using enum action_kind;
  validate(w);
  detail::validate_shape(order);
  if (w.ranks != order.ranks || w.stages != order.stages || w.replicas != order.replicas)
    throw input_error("the schedule does not fit the workload");
  const auto stages = static_cast<std::size_t>(order.stages);
  const std::size_t places = static_cast<std::size_t>(order.replicas) * stages;
  const auto place = [&](const action& a) {
    return static_cast<std::size_t>(a.replica) * stages + static_cast<std::size_t>(a.stage);
  };

  std::vector<int> forwards(places), splits(places);
  std::vector<double> work_s(static_cast<std::size_t>(order.ranks)), path_work_s(work_s);  // the latter without weight gradients
  double shrink = 1;
  for (std::size_t r = 0; r < work_s.size(); ++r) {
    const auto& actions = order.lanes[r].actions;
    for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
      double all_s = 0, path_s = 0;
      for (end = first; end == first || (end < actions.size() && actions[end].joined); ++end) {
        const action& a = actions[end];
        if (a.replica < 0 || a.replica >= order.replicas || a.stage < 0 || a.stage >= order.stages)
          throw input_error("the schedule lists an action of a stage or replica that it does not have");
        const auto& s = w.work[place(a)];
        forwards[place(a)] += a.kind == forward;
        splits[place(a)] += a.kind == backward_weight;
        const double own_s = a.kind == forward           ? s.forward_s
                             : a.kind == backward        ? s.backward_s
                             : a.kind == backward_input  ? s.backward_s - s.weight_backward_s
                             : a.kind == backward_weight ? s.weight_backward_s
                             : a.kind == recompute       ? s.recompute_s
                                                         : 0;
        all_s += own_s;
        if (a.kind != backward_weight) path_s += own_s;
      }
      const double factor = end - first > 1 && !is_transfer(actions[first].kind) ? w.fused_factor : 1;
      shrink = std::min(shrink, factor);
      work_s[r] += factor * all_s;
      path_work_s[r] += factor * path_s;
    }
  }

  // Least times of each place: before its forward, and from the end of its input gradient.
  const auto leg_s = [](const hop& h) { return h.occupied_s + h.latency_s; };
  const auto way_s = [&](const route& r) { return r.staged ? leg_s(r.d2h) + leg_s(r.network) + leg_s(r.h2d) : leg_s(r.network); };
  const auto same_rank = [&](int c, int s) { return order.rank(c, s) == order.rank(c, s + 1); };
  std::vector<double> there_s(places), back_s(places), input_s(places);
  double bound_s = 0;
  for (int c = 0; c < order.replicas; ++c)
    for (int s = 0; s < order.stages; ++s) {
      const std::size_t k = static_cast<std::size_t>(c) * stages + static_cast<std::size_t>(s);
      const auto& work = w.work[k];
      input_s[k] = shrink * (work.backward_s - (splits[k] > 0 ? work.weight_backward_s : 0));
      if (s > 0) {
        const bool stays = same_rank(c, s - 1);
        there_s[k] = there_s[k - 1] + shrink * w.work[k - 1].forward_s + (stays ? 0 : way_s(w.activation(c, s - 1)));
        back_s[k] = back_s[k - 1] + input_s[k - 1] + (stays ? 0 : way_s(w.gradient(c, s - 1)));
      }
      if (s + 1 == order.stages && forwards[k] > 0)
        bound_s = std::max(bound_s, there_s[k] + shrink * work.forward_s + input_s[k] + back_s[k]);
    }
  const auto way_around_s = [&](int c, int s) {  // from the start of the forward to the end of the input gradient
    const std::size_t k = static_cast<std::size_t>(c) * stages + static_cast<std::size_t>(s);
    const std::size_t last = static_cast<std::size_t>(c) * stages + stages - 1;
    return there_s[last] - there_s[k] + shrink * w.work[last].forward_s + input_s[last] + back_s[last] - back_s[k];
  };

  constexpr double never = std::numeric_limits<double>::infinity();
  struct load {
    double before_s = never, busy_s = 0, after_s = never;
  };
  std::vector<load> ranks(work_s.size()), wires(w.wires.size());
  for (int c = 0; c < order.replicas; ++c)
    for (int s = 0; s < order.stages; ++s) {
      const std::size_t k = static_cast<std::size_t>(c) * stages + static_cast<std::size_t>(s);
      if (forwards[k] == 0) continue;
      auto& at = ranks[static_cast<std::size_t>(order.rank(c, s))];
      at.before_s = std::min(at.before_s, there_s[k]);
      at.after_s = std::min(at.after_s, back_s[k]);
      if (s + 1 == order.stages || same_rank(c, s)) continue;
      const auto carry = [&](const route& r, double before, double after) {
        const hop* const legs[] = {&r.d2h, &r.network, &r.h2d};
        for (int l = 0; l < 3; ++l) {
          if (!r.staged && l != 1) continue;
          for (const int wire : legs[l]->wires) {
            if (wire < 0) continue;
            auto& by = wires[static_cast<std::size_t>(wire)];
            by.before_s = std::min(by.before_s, before);
            by.busy_s += forwards[k] * legs[l]->occupied_s;
            by.after_s = std::min(by.after_s, after);  // the other legs are left out
          }
        }
      };
      const double forward_s = shrink * w.work[k].forward_s;
      carry(w.activation(c, s), there_s[k] + forward_s, way_around_s(c, s + 1) + back_s[k + 1]);
      carry(w.gradient(c, s), there_s[k + 1] + way_around_s(c, s + 1), input_s[k] + back_s[k]);
    }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].before_s < never)
      bound_s = std::max({bound_s, ranks[r].before_s + work_s[r], ranks[r].before_s + path_work_s[r] + ranks[r].after_s});
  for (std::size_t k = 0; k < wires.size(); ++k)
    if (wires[k].busy_s > 0)
      bound_s = std::max(bound_s, wires[k].before_s + wires[k].busy_s / w.wires[k].capacity + wires[k].after_s);
  return bound_s;
}

}  // namespace hetsched
