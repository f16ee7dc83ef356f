// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/detail/shape.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched {

namespace detail {

/// Whether the tables below would take far more memory than the lists: no schedule that runs is like that.
[[nodiscard]] inline bool is_sparse(const schedule& order, std::size_t actions) {
  return static_cast<double>(order.directions) * order.stages * order.microbatches >
         64.0 * static_cast<double>(actions) + (1 << 20);
}

[[nodiscard]] inline std::string sparse_text(const schedule& order, std::size_t actions) {
  return "the schedule lists " + std::to_string(actions) + " actions only, for " + std::to_string(order.microbatches) +
         " microbatches";
}

/// Whether the schedule has the kind, stage, direction and microbatch of an action.
[[nodiscard]] inline bool fits(const schedule& order, const action& a) {
  return static_cast<int>(a.kind) < action_kinds && a.stage >= 0 && a.stage < order.stages && a.direction >= 0 &&
         a.direction < order.directions &&
         (takes_microbatch(a.kind) ? a.microbatch >= 0 && a.microbatch < order.microbatches : a.microbatch == no_microbatch);
}

/// Says that every action of a schedule fits, and that it is not sparse.
struct known_to_fit {};

/// Which of them it does not have, as a sentence.
/// Requires: !fits(order, a).
[[nodiscard]] std::string misfit_text(const schedule& order, const lane& l, const action& a);

}  // namespace detail

/// Where every action of a schedule is listed. Actions are numbered lane by lane: those of lane l are
/// [lane_first[l], lane_first[l + 1]).
class action_index {
 public:
  /// Indexes the schedule, which must outlive the index. Of actions listed twice, the first counts.
  /// Throws: input_error for an action whose kind, stage, microbatch or direction the schedule does not have, and for a
  /// schedule that lists next to nothing of its microbatches.
  /// Complexity: O(actions + kinds in use * directions * stages * microbatches).
  explicit action_index(const schedule& order) : action_index(order, fitting(order)) {}
  /// The same, of which it is known that it does not throw.
  action_index(const schedule& order, detail::known_to_fit);

  std::vector<int> lane_first;

  [[nodiscard]] int size() const { return lane_first.back(); }
  /// Whether it is the index of this very schedule.
  [[nodiscard]] bool is_of(const schedule& order) const { return order_ == &order; }
  /// Whether any action is listed more than once.
  [[nodiscard]] bool repeats() const { return repeats_; }
  [[nodiscard]] bool lists(action_kind kind) const { return at(table_of_, kind) >= 0; }
  /// Number of the action of this kind for a direction, stage and microbatch (0 for kinds without one); -1: not listed.
  [[nodiscard]] int find(action_kind kind, int direction, int stage, int microbatch) const {
    return find(kind, cell(direction, stage, microbatch));
  }
  /// The same by cell, for who looks for several kinds.
  [[nodiscard]] int find(action_kind kind, std::size_t cell) const {
    const int table = at(table_of_, kind);
    if (table < 0) return -1;
    return positions_[as_size(table) * slots_per_kind_ + cell];
  }
  [[nodiscard]] std::size_t cell(int direction, int stage, int microbatch) const {
    const auto stages = as_size(order_->stages);
    return (as_size(direction) * stages + as_size(stage)) * as_size(order_->microbatches) + as_size(microbatch);
  }

 private:
  static detail::known_to_fit fitting(const schedule& order);
  [[nodiscard]] std::size_t slot(const action& a) const {
    return as_size(at(table_of_, a.kind)) * slots_per_kind_ +
           cell(a.direction, a.stage, takes_microbatch(a.kind) ? a.microbatch : 0);
  }

  const schedule* order_;
  std::size_t slots_per_kind_ = 0;
  int table_of_[action_kinds];
  std::vector<int> positions_;
  bool repeats_ = false;
};

namespace detail {

/// Where an action is listed of which one is given but for its kind, -1: nowhere; of several kinds, the first that is listed.
template <class... Kinds>
[[nodiscard]] int find_like(const action_index& index, const action& a, Kinds... kinds) {
  int found = -1;
  ((found = found >= 0 ? found : index.find(kinds, a.direction, a.stage, a.microbatch)), ...);
  return found;
}

/// The computation of the stage and microbatch of an action that makes a payload, -1: not listed.
[[nodiscard]] inline int find_maker(const action_index& index, const action& a, action_payload payload) {
  return payload == action_payload::gradient ? find_like(index, a, action_kind::backward, action_kind::backward_input)
                                             : find_like(index, a, action_kind::forward);
}

/// The mark that lets a send, receive or reduction begin, -1: not listed, it begins in its turn.
[[nodiscard]] inline int find_post(const action_index& index, const action& a) {
  const int m = takes_microbatch(a.kind) ? a.microbatch : 0;
  return traits_of(a.kind).leg <= transfer_leg::receive ? index.find(post_of(a.kind), a.direction, a.stage, m) : -1;
}

/// for_each_need of a transfer: what arrives needs what sets out at the other end; what sets out its copy to the host, if that
/// is listed, or else the computation.
template <class Need>
void for_transfer_need(const schedule& order, const action_index& index, const action& a, Need need) {
  if (!is_outgoing(a.kind)) {
    const action sent = other_end(a);
    need(sent.stage < 0 || sent.stage == order.stages ? -1 : find_like(index, sent, sent.kind));
    return;
  }
  const auto payload = traits_of(a.kind).payload;
  const int copied = is_network(a.kind) ? find_like(index, a, transfer_kind(payload, transfer_leg::d2h)) : -1;
  need(copied >= 0 ? copied : find_maker(index, a, payload));
  if (const int post = find_post(index, a); post >= 0) need(post);
}

/// Calls need(number) for every listed action, other than by its lane's order, that must have ended before `a` starts; and
/// need(-1) where something it needs is not listed.
template <class Need>
void for_each_need(const schedule& order, const action_index& index, const action& a, Need need) {
  using enum action_kind;
  if (is_transfer(a.kind)) return for_transfer_need(order, index, a, need);
  if (is_mark(a.kind)) {
    if (traits_of(a.kind).role == action_role::wait)
      need(index.find(marked_kind(a.kind), a.direction, a.stage, takes_microbatch(a.kind) ? a.microbatch : 0));
    return;
  }
  const int c = a.direction, s = a.stage, m = a.microbatch;
  const auto gathered = [&] {
    if (const int g = index.find(all_gather, c, s, 0); g >= 0) need(g);
  };
  // From the stage that lies there: what has arrived where that is listed, or else the computation.
  const auto tensor_from = [&](int stage, action_payload payload) {
    if (stage < 0 || stage == order.stages) return;
    action there = a;
    there.stage = stage;
    const int arrival =
        order.rank(c, s) == order.rank(c, stage)
            ? -1
            : find_like(index, a, transfer_kind(payload, transfer_leg::receive), transfer_kind(payload, transfer_leg::h2d));
    need(arrival >= 0 ? arrival : find_maker(index, there, payload));
  };
  switch (a.kind) {
    case forward:
      gathered();
      tensor_from(s - 1, action_payload::activation);
      break;
    case backward:
    case backward_input:
      gathered();
      need(find_like(index, a, recompute, forward));
      tensor_from(s + 1, action_payload::gradient);
      break;
    case backward_weight:
      need(index.find(backward_input, c, s, m));
      break;
    case recompute:
      need(index.find(forward, c, s, m));
      break;
    case reduce_scatter:
    case reduce_gradients:
    case optimizer:
      // The optimizer of one direction needs the gradients of all, through the reduction; all need the stage's own gradients.
      if (a.kind != reduce_scatter && index.find(reduce_scatter, c, s, 0) >= 0) need(index.find(reduce_scatter, c, s, 0));
      if (a.kind == optimizer && index.find(reduce_gradients, c, s, 0) >= 0) need(index.find(reduce_gradients, c, s, 0));
      for (int k = order.microbatches; k-- > 0;)  // the last first: who waits for them one by one waits once or twice
        for (const auto kind : {backward, backward_weight})
          if (const int n = index.find(kind, c, s, k); n >= 0) need(n);
      if (const int post = a.kind == reduce_gradients ? find_post(index, a) : -1; post >= 0) need(post);
      break;
    default:  // gathering and releasing parameters
      break;
  }
}

}  // namespace detail

/// What every action needs besides the order of its lane: the numbers of the actions of other lanes, or of its own, whose
/// results it takes. needs[first[n] ... first[n + 1]) are those of action n.
struct action_needs {
  std::vector<int> first;
  std::vector<int> needs;
};

/// The dependencies of a schedule (derived, never listed). A send needs its computation, a receive its send, a forward the
/// receive, or where none is listed the forward of the stage before; a whole backward or a backward_input its forward (or
/// recompute) and the gradient; backward_weight its backward_input; reductions and the optimizer all gradients of the stage;
/// what is posted its post, and a wait what it waits for.
/// Throws: input_error where an action needs one that is not listed, for an index of another schedule, and for sizes, a stage map
/// or lanes that do not make a schedule. Requires: the schedule has not changed since it was indexed. Complexity: O(actions +
/// stages * microbatches).
[[nodiscard]] action_needs dependencies(const schedule& order, const action_index& index);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/dependencies.ipp>
#endif
