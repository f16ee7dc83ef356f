// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched {

namespace detail {

/// Whether the tables below would take far more memory than the lists: no schedule that runs is like that.
[[nodiscard]] inline bool is_sparse(const schedule& order, std::size_t actions) {
  return static_cast<double>(order.rank_of.size()) * order.microbatches > 64.0 * static_cast<double>(actions) + (1 << 20);
}

}  // namespace detail

/// Where every action of a schedule is listed. Actions are numbered lane by lane: those of lane l are
/// [lane_first[l], lane_first[l + 1]).
class action_index {
 public:
  /// Throws input_error for an action whose kind, stage, microbatch or replica the schedule does not have, and for a schedule
  /// that lists next to nothing of its microbatches. Of actions listed twice, the first counts.
  /// O(actions + kinds in use * replicas * stages * microbatches).
  explicit action_index(const schedule& order) : order_(&order) {
    lane_first.push_back(0);
    slots_per_kind_ = static_cast<std::size_t>(order.replicas) * static_cast<std::size_t>(order.stages) *
                      static_cast<std::size_t>(order.microbatches);
    for (auto& t : table_of_) t = -1;
    int tables = 0;
    std::size_t actions = 0;
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions) {
        auto& t = table_of_[static_cast<std::size_t>(a.kind)];
        if (t < 0) t = tables++;
        ++actions;
      }
    if (detail::is_sparse(order, actions))
      throw input_error("a schedule of " + std::to_string(order.microbatches) + " microbatches on " +
                        std::to_string(order.stages) + " stages lists " + std::to_string(actions) + " actions only");
    positions_.assign(static_cast<std::size_t>(tables) * slots_per_kind_, -1);
    int number = 0;
    for (const auto& l : order.lanes) {
      for (const auto& a : l.actions) {
        int& position = positions_[slot(a)];
        if (position < 0) position = number;
        ++number;
      }
      lane_first.push_back(number);
    }
  }

  std::vector<int> lane_first;

  [[nodiscard]] int size() const { return lane_first.back(); }
  [[nodiscard]] bool lists(action_kind kind) const { return table_of_[static_cast<std::size_t>(kind)] >= 0; }
  /// Number of the action of this kind for a replica, stage and microbatch (0 for kinds without one); -1: not listed.
  [[nodiscard]] int find(action_kind kind, int replica, int stage, int microbatch) const {
    const int table = table_of_[static_cast<std::size_t>(kind)];
    if (table < 0) return -1;
    return positions_[static_cast<std::size_t>(table) * slots_per_kind_ + cell(replica, stage, microbatch)];
  }

 private:
  [[nodiscard]] std::size_t cell(int replica, int stage, int microbatch) const {
    const auto stages = static_cast<std::size_t>(order_->stages);
    return (static_cast<std::size_t>(replica) * stages + static_cast<std::size_t>(stage)) *
               static_cast<std::size_t>(order_->microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  [[nodiscard]] std::size_t slot(const action& a) const {
    const bool whole = is_parameter(a.kind);
    const bool fits = a.replica >= 0 && a.replica < order_->replicas && a.stage >= 0 && a.stage < order_->stages &&
                      (whole ? a.microbatch == no_microbatch : a.microbatch >= 0 && a.microbatch < order_->microbatches);
    if (!fits)
      throw input_error(to_text(a) + " is not in a schedule of " + std::to_string(order_->stages) + " stages, " +
                        std::to_string(order_->replicas) + " replicas and " + std::to_string(order_->microbatches) +
                        " microbatches");
    return static_cast<std::size_t>(table_of_[static_cast<std::size_t>(a.kind)]) * slots_per_kind_ +
           cell(a.replica, a.stage, whole ? 0 : a.microbatch);
  }

  const schedule* order_;
  std::size_t slots_per_kind_ = 0;
  int table_of_[action_kinds];
  std::vector<int> positions_;
};

namespace detail {

/// Calls need(number) for every listed action, other than by its lane's order, that must have ended before `a` starts; and
/// need(-1) where something it needs is not listed.
template <class Need>
void for_each_need(const schedule& order, const action_index& index, const action& a, Need need) {
  using enum action_kind;
  const int c = a.replica, s = a.stage, m = a.microbatch;
  const auto first_of = [&](int stage, auto... kinds) {
    int found = -1;
    ((found = found >= 0 ? found : index.find(kinds, c, stage, m)), ...);
    return found;
  };
  const auto gathered = [&] {
    if (const int g = index.find(all_gather, c, s, 0); g >= 0) need(g);
  };
  const auto gradient_in = [&] {
    if (s + 1 == order.stages) return;
    if (order.rank(c, s) == order.rank(c, s + 1))
      need(first_of(s + 1, backward, backward_input));
    else
      need(first_of(s, receive_gradient, h2d_gradient) >= 0 ? first_of(s, receive_gradient, h2d_gradient)
                                                            : first_of(s + 1, backward, backward_input));
  };
  switch (a.kind) {
    case forward:
      gathered();
      if (s == 0) break;
      if (order.rank(c, s) == order.rank(c, s - 1))
        need(index.find(forward, c, s - 1, m));
      else
        need(first_of(s, receive_activation, h2d_activation) >= 0 ? first_of(s, receive_activation, h2d_activation)
                                                                  : index.find(forward, c, s - 1, m));
      break;
    case backward:
    case backward_input:
      gathered();
      need(first_of(s, recompute, forward));
      gradient_in();
      break;
    case backward_weight:
      need(index.find(backward_input, c, s, m));
      break;
    case recompute:
      need(index.find(forward, c, s, m));
      break;
    case send_activation:
    case d2h_activation:
      need(index.find(forward, c, s, m));
      break;
    case network_activation:
      need(first_of(s, d2h_activation, forward));
      break;
    case receive_activation:
      need(s == 0 ? -1 : index.find(send_activation, c, s - 1, m));
      break;
    case h2d_activation:
      need(s == 0 ? -1 : index.find(network_activation, c, s - 1, m));
      break;
    case send_gradient:
    case d2h_gradient:
      need(first_of(s, backward, backward_input));
      break;
    case network_gradient:
      need(first_of(s, d2h_gradient, backward, backward_input));
      break;
    case receive_gradient:
      need(s + 1 == order.stages ? -1 : index.find(send_gradient, c, s + 1, m));
      break;
    case h2d_gradient:
      need(s + 1 == order.stages ? -1 : index.find(network_gradient, c, s + 1, m));
      break;
    case all_gather:
    case release:
      break;
    case reduce_scatter:
    case reduce_gradients:
    case optimizer:
      // The optimizer of one replica needs the gradients of all, through the reduction; all need the stage's own gradients.
      if (a.kind != reduce_scatter && index.find(reduce_scatter, c, s, 0) >= 0) need(index.find(reduce_scatter, c, s, 0));
      if (a.kind == optimizer && index.find(reduce_gradients, c, s, 0) >= 0) need(index.find(reduce_gradients, c, s, 0));
      for (int k = order.microbatches; k-- > 0;)  // the last first: who waits for them one by one waits once or twice
        for (const auto kind : {backward, backward_weight})
          if (const int n = index.find(kind, c, s, k); n >= 0) need(n);
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
/// recompute) and the gradient; backward_weight its backward_input; reductions and the optimizer all gradients of the stage.
/// Throws input_error where an action needs one that is not listed. O(actions + stages * microbatches).
[[nodiscard]] inline action_needs dependencies(const schedule& order, const action_index& index) {
  action_needs result;
  const auto count = static_cast<std::size_t>(index.size());
  result.first.reserve(count + 1);
  result.needs.reserve(2 * count);
  result.first.push_back(0);
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions) {
      detail::for_each_need(order, index, a, [&](int n) {
        if (n < 0) throw input_error("the schedule does not list what " + to_text(a) + " needs");
        result.needs.push_back(n);
      });
      result.first.push_back(static_cast<int>(result.needs.size()));
    }
  return result;
}

}  // namespace hetsched
