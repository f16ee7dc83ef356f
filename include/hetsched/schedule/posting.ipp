// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/posting.hpp>

namespace hetsched::detail {

/// The kinds that are posted and waited for.
[[nodiscard]] constexpr bool is_posted(action_kind k) {
  return is_send(k) || is_receive(k) || k == action_kind::reduce_gradients;
}

HETSCHED_INLINE bool waits_in_compute_lanes(const schedule& order) {
  bool waits = false, posted = false;
  for (const auto& l : order.lanes) {
    if (l.stream != stream::compute) continue;
    for (const auto& a : l.actions) {
      waits = waits || traits_of(a.kind).role == action_role::wait;
      posted = posted || is_posted(a.kind);
      if (!is_send(a.kind) && !is_receive(a.kind)) continue;
      const int peer = peer_stage(a);
      if (peer < 0 || peer >= order.stages || order.rank(a.direction, peer) == l.rank) return false;
    }
  }
  return waits && posted;
}

}  // namespace hetsched::detail

namespace hetsched::detail::unchecked {

HETSCHED_INLINE schedule post_transfers(const schedule& order) {
  schedule result = order;
  for (std::size_t i = 0; i < order.lanes.size(); ++i) {
    const auto& from = order.lanes[i];
    if (from.stream != stream::compute) continue;
    for (std::size_t k = 0; k < from.actions.size(); ++k) {
      action a = from.actions[k];
      if (!detail::is_posted(a.kind)) continue;
      auto& mark = result.lanes[i].actions[k];
      mark.kind = post_of(a.kind);
      mark.joined = a.joined = false;
      const auto s = is_transfer(a.kind) ? detail::stream_of(traits_of(a.kind).leg) : stream::collective;
      const int peer = is_transfer(a.kind) ? detail::peer_rank(order, a) : -1;
      auto to = std::find_if(result.lanes.begin() + order.ranks, result.lanes.end(),
                             [&](const lane& l) { return l.rank == from.rank && l.stream == s && l.peer == peer; });
      if (to == result.lanes.end()) to = result.lanes.insert(to, {.rank = from.rank, .stream = s, .peer = peer, .actions = {}});
      to->actions.push_back(a);
    }
  }
  std::stable_sort(result.lanes.begin() + order.ranks, result.lanes.end(), [](const lane& a, const lane& b) {
    return std::tie(a.rank, a.stream, a.peer) < std::tie(b.rank, b.stream, b.peer);
  });
  return result;
}

}  // namespace hetsched::detail::unchecked

namespace hetsched {

HETSCHED_INLINE schedule post_transfers(const schedule& order) {
  detail::validate_actions(order);
  return detail::unchecked::post_transfers(order);
}

namespace detail {

// What torch has no words for is refused.
inline void require_torch_words(const schedule& order) {
  using enum action_kind;
  const auto refuse = [](const lane& l, const std::string& what) {
    throw input_error("torch has no words for rank " + std::to_string(l.rank) + " " + what);
  };
  if (order.directions != 1)
    throw input_error("torch has no words for stages of " + std::to_string(order.directions) + " directions");
  bool posts = false;
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      if (a.kind == recompute || a.kind == reduce_scatter || a.kind == optimizer || is_staged(a.kind)) refuse(l, to_text(a));
      posts = posts || traits_of(a.kind).role == action_role::post;
    }
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (l.stream != stream::compute && !posts)
        refuse(l, to_text(a) + " in a lane of its own (" + std::string(at(stream_names, l.stream)) + ") that nothing posts");
}

// A rank's actions with the waits, and the reductions unless the schedule lists some, that torch wants.
[[nodiscard]] inline std::vector<action> torch_lane(const lane& l, const schedule& order, const action_index& index,
                                                    bool reductions) {
  using enum action_kind;
  std::vector<int> gradients_left(as_size(order.stages), order.microbatches);
  std::vector<char> open(as_size(order.stages) * as_size(order.microbatches), 0);
  std::vector<action> out, behind, reduced, at_end;  // behind the event at hand; behind that and its sends
  const auto add = [](std::vector<action>& to, const action& like, action_kind kind) {
    to.push_back(like);
    to.back().kind = kind;
    to.back().joined = false;
    if (!takes_microbatch(kind)) to.back().microbatch = no_microbatch;
  };
  for (std::size_t k = 0; k < l.actions.size(); ++k) {
    const auto& a = l.actions[k];
    out.push_back(a);
    if (a.kind == reduce_gradients && index.find(wait_reduction, 0, a.stage, 0) < 0) add(behind, a, wait_reduction);
    if (is_send(a.kind) && index.find(wait_of(a.kind), 0, a.stage, a.microbatch) < 0) {
      add(at_end, a, wait_of(a.kind));
      if (a.kind == send_activation) open[index.cell(0, a.stage, a.microbatch)] = 1;
    }
    if (makes_gradient(a.kind) && std::exchange(open[index.cell(0, a.stage, a.microbatch)], char{0}) != 0)
      add(behind, a, wait_send_activation);
    if (!reductions && (a.kind == backward || a.kind == backward_weight) && --at(gradients_left, a.stage) == 0) {
      add(reduced, a, reduce_gradients);
      add(reduced, a, wait_reduction);
    }
    if (k + 1 < l.actions.size() && l.actions[k + 1].joined) continue;
    out.insert(out.end(), behind.begin(), behind.end());
    behind.clear();
    if (k + 1 < l.actions.size() && is_send(l.actions[k + 1].kind)) continue;
    out.insert(out.end(), reduced.begin(), reduced.end());
    reduced.clear();
  }
  for (const auto& wait : at_end)
    if (wait.kind == wait_send_gradient || open[index.cell(0, wait.stage, wait.microbatch)]) out.push_back(wait);
  return out;
}

}  // namespace detail

HETSCHED_INLINE schedule torch_order(const schedule& order) {
  using enum action_kind;
  detail::validate_actions(order);
  detail::require_torch_words(order);
  const bool transfers = std::any_of(order.lanes.begin(), order.lanes.end(), [](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) { return is_transfer(a.kind); });
  });
  schedule result = order;
  result.lanes.resize(as_size(order.ranks));
  if (!transfers) result = add_transfers(without_marks(std::move(result)));
  bool reductions = false;
  for (auto& l : result.lanes)
    for (auto& a : l.actions) {
      if (traits_of(a.kind).role == action_role::post) a.kind = marked_kind(a.kind);
      if (is_transfer(a.kind)) a.joined = false;
      reductions = reductions || a.kind == reduce_gradients;
    }
  for (auto& l : result.lanes)  // torch waits for receives by itself
    std::erase_if(l.actions,
                  [](const action& a) { return a.kind == wait_receive_activation || a.kind == wait_receive_gradient; });
  const action_index index(result);
  for (auto& l : result.lanes) l.actions = detail::torch_lane(l, order, index, reductions);
  return result;
}

}  // namespace hetsched
