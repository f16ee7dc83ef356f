// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/structure.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched::detail {

[[nodiscard]] inline bool stream_takes(stream s, action_kind k) {
  if (s == stream::compute) return true;
  return s == stream::collective ? is_parameter(k) && k != action_kind::optimizer
                                 : is_transfer(k) && stream_of(traits_of(k).leg) == s;
}

/// Why an action does not belong where it is listed.
enum class misplaced { no, other_rank, other_stream, joined_to_nothing, joined_to_others, no_boundary, same_rank, other_peer };

/// Requires: fits(order, a), an element of l.actions.
[[nodiscard]] inline misplaced misplacement(const schedule& order, const lane& l, const action& a) {
  if (order.rank(a.direction, a.stage) != l.rank) return misplaced::other_rank;
  if (!stream_takes(l.stream, a.kind)) return misplaced::other_stream;
  if (a.joined) {
    if (&a == l.actions.data()) return misplaced::joined_to_nothing;
    const action& before = *(&a - 1);
    if (is_mark(a.kind) || (fits(order, before) && (is_mark(before.kind) || is_own_work(a.kind) != is_own_work(before.kind))))
      return misplaced::joined_to_others;
  }
  if (!is_transfer(a.kind)) return misplaced::no;
  const int stage = peer_stage(a);
  if (stage < 0 || stage >= order.stages) return misplaced::no_boundary;
  const int peer = order.rank(a.direction, stage);
  return peer == l.rank ? misplaced::same_rank : l.peer >= 0 && l.peer != peer ? misplaced::other_peer : misplaced::no;
}

/// The same as a sentence.
/// Requires: it is misplaced.
[[nodiscard]] inline std::string misplacement_text(const schedule& order, const lane& l, const action& a, misplaced why) {
  const auto name = rank_text(l.rank) + " " + to_text(a) + " ";
  switch (why) {
    case misplaced::no:
      break;
    case misplaced::other_rank:
      return name + "belongs to rank " + std::to_string(order.rank(a.direction, a.stage));
    case misplaced::other_stream:
      return name + "does not belong to a " + std::string(at(stream_names, l.stream)) + " stream";
    case misplaced::joined_to_nothing:
      return name + "is joined to nothing";
    case misplaced::joined_to_others:
      return name + "cannot be one event with " + to_text(*(&a - 1));
    case misplaced::no_boundary:
      return name + "crosses no boundary between stages";
    case misplaced::same_rank:
      return name + "stays on its rank";
    case misplaced::other_peer:
      return name + "is listed in the lane for rank " + std::to_string(l.peer) + ", but goes to or comes from rank " +
             std::to_string(peer_rank(order, a));
  }
  return {};
}

/// Actions that the schedule cannot have, or not in that lane, or far too few.
inline void action_findings(const schedule& order, finding_list& findings) {
  std::size_t actions = 0;
  for (const auto& l : order.lanes) {
    actions += l.actions.size();
    for (const auto& a : l.actions)
      if (!fits(order, a))
        findings.add(misfit_text(order, l, a));
      else if (const auto why = misplacement(order, l, a); why != misplaced::no)
        findings.add(misplacement_text(order, l, a, why));
  }
  if (is_sparse(order, actions)) findings.add(sparse_text(order, actions));
}

/// The kinds that move a payload.
struct payload_legs {
  action_kind send, receive, d2h, network, h2d;
  explicit constexpr payload_legs(action_payload p)
      : send(transfer_kind(p, transfer_leg::send)),
        receive(transfer_kind(p, transfer_leg::receive)),
        d2h(transfer_kind(p, transfer_leg::d2h)),
        network(transfer_kind(p, transfer_leg::network)),
        h2d(transfer_kind(p, transfer_leg::h2d)) {}
};

/// What keeps a schedule from listing everything that its microbatches need, once.
class completeness_check {
 public:
  completeness_check(const schedule& order, const action_index& index, finding_list& findings)
      : order_(order), index_(index), findings_(findings) {
    for (const auto& t : kind_traits) {
      lists_transfers_ = lists_transfers_ || (is_transfer(t.kind) && index.lists(t.kind));
      trains_ = trains_ || (is_training(t.kind) && index.lists(t.kind));
    }
    if (index.repeats()) repeats();
    constexpr payload_legs activation_legs(action_payload::activation), gradient_legs(action_payload::gradient);
    for (m_ = 0; m_ < order.microbatches && !findings.full(); ++m_) {
      own_ = own_direction();
      for (int c = 0; c < order.directions; ++c)
        for (int s = 0; s < order.stages; ++s) c == own_ ? computations(at(c, s)) : strangers(at(c, s));
      for (int c = 0; c < order.directions && lists_transfers_; ++c)
        for (int s = 0; s + 1 < order.stages; ++s) {
          if (order.rank(c, s) == order.rank(c, s + 1)) continue;
          const place before = at(c, s), behind = at(c, s + 1);
          crossing(activation_legs, before, behind);
          if (trains_) crossing(gradient_legs, behind, before);
        }
    }
    if (index.lists(action_kind::reduce_gradients)) reductions();
    marks();
  }

 private:
  /// A stage of a direction, with the microbatch at hand.
  struct place {
    int direction, stage;
    std::size_t cell;
  };
  [[nodiscard]] place at(int direction, int stage) const { return {direction, stage, index_.cell(direction, stage, m_)}; }
  [[nodiscard]] bool listed(action_kind kind, const place& p) const { return index_.find(kind, p.cell) >= 0; }
  [[nodiscard]] std::string name(action_kind kind, const place& p) const {
    return to_text({.kind = kind, .direction = static_cast<std::int16_t>(p.direction), .stage = p.stage, .microbatch = m_});
  }
  void require(action_kind kind, const place& p) {
    if (!listed(kind, p)) findings_.add(name(kind, p) + " is missing");
  }

  /// Parameters may be gathered and released as often as one likes.
  void repeats() {
    int number = 0;
    for (const auto& l : order_.lanes)
      for (const auto& a : l.actions) {
        const bool often = a.kind == action_kind::all_gather || a.kind == action_kind::release;
        const int m = takes_microbatch(a.kind) ? a.microbatch : 0;
        if (!often && index_.find(a.kind, a.direction, a.stage, m) != number) findings_.add(to_text(a) + " is listed twice");
        ++number;
      }
  }

  /// A microbatch belongs to the direction that starts it, or else to the first that has any part of it.
  [[nodiscard]] int own_direction() {
    using enum action_kind;
    int own = -1;
    for (int c = 0; c < order_.directions; ++c) {
      if (!listed(forward, at(c, 0))) continue;
      if (own >= 0)
        findings_.add("microbatch " + std::to_string(m_) + " runs through directions " + std::to_string(own) + " and " +
                      std::to_string(c));
      else
        own = c;
    }
    for (int c = 0; c < order_.directions && own < 0; ++c)
      for (int s = 0; s < order_.stages && own < 0; ++s)
        for (const auto k : {forward, backward, backward_input, backward_weight})
          if (listed(k, at(c, s))) own = c;
    return std::max(own, 0);
  }

  /// Of a stage in the microbatch's own direction.
  void computations(const place& p) {
    using enum action_kind;
    require(forward, p);
    if (!trains_) return;
    const bool whole = listed(backward, p), input = listed(backward_input, p), weight = listed(backward_weight, p);
    if (whole && (input || weight))
      findings_.add(name(backward, p) + " is listed whole and in parts");
    else if (!whole && !input && !weight)
      require(backward, p);
    else if (!whole) {
      require(backward_input, p);
      require(backward_weight, p);
    }
  }

  /// Of a stage in another direction.
  void strangers(const place& p) {
    using enum action_kind;
    for (const auto k : {forward, backward, backward_input, backward_weight, recompute})
      if (listed(k, p)) findings_.add(name(k, p) + " is of a microbatch that runs through direction " + std::to_string(own_));
  }

  /// Once any transfer is listed, all are, with every leg.
  void crossing(const payload_legs& by, const place& from, const place& to) {
    const bool one_leg = listed(by.send, from) || listed(by.receive, to);
    const bool three_legs = listed(by.d2h, from) || listed(by.network, from) || listed(by.h2d, to);
    if (one_leg && three_legs)
      findings_.add(name(action_kind::forward, from) + ": what it sends to stage " + std::to_string(to.stage) +
                    " is listed in one leg and in three");
    if (from.direction != own_) {
      if (one_leg || three_legs)
        findings_.add("microbatch " + std::to_string(m_) + " runs through direction " + std::to_string(own_) +
                      ", but is sent to stage " + std::to_string(to.stage) + " of direction " + std::to_string(to.direction));
    } else if (three_legs) {
      require(by.d2h, from);
      require(by.network, from);
      require(by.h2d, to);
    } else {
      require(by.send, from);
      require(by.receive, to);
    }
  }

  /// What is posted or waited for is listed.
  void marks() {
    if (std::none_of(std::begin(kind_traits), std::end(kind_traits),
                     [&](const action_traits& t) { return is_mark(t.kind) && index_.lists(t.kind); }))
      return;
    for (const auto& l : order_.lanes)
      for (const auto& a : l.actions) {
        if (!is_mark(a.kind)) continue;
        action what = a;
        what.kind = marked_kind(a.kind);
        if (index_.find(what.kind, what.direction, what.stage, takes_microbatch(what.kind) ? what.microbatch : 0) < 0)
          findings_.add(rank_text(l.rank) + " " + to_text(a) + " is listed, but not " + to_text(what));
      }
  }

  /// A stage's gradients are reduced by its copies in all directions, or by none.
  void reductions() {
    for (int s = 0; s < order_.stages; ++s) {
      int count = 0;
      for (int c = 0; c < order_.directions; ++c) count += index_.find(action_kind::reduce_gradients, c, s, 0) >= 0;
      if (count != 0 && count != order_.directions)
        findings_.add(std::to_string(s) + "REDUCE_GRAD is listed for " + std::to_string(count) + " of " +
                      std::to_string(order_.directions) + " directions");
    }
  }

  const schedule& order_;
  const action_index& index_;
  finding_list& findings_;
  bool lists_transfers_ = false;
  bool trains_ = false;  ///< else it is inference
  int m_ = 0, own_ = 0;
};

HETSCHED_INLINE std::optional<action_index> structure_findings(const schedule& order, finding_list& findings) {
  shape_findings(order, findings);
  if (findings.empty()) action_findings(order, findings);
  if (!findings.empty()) return std::nullopt;
  std::optional<action_index> index(std::in_place, order, known_to_fit{});
  completeness_check(order, *index, findings);
  if (!findings.empty()) index.reset();
  return index;
}

HETSCHED_INLINE action_index sound_index(const schedule& order) {
  finding_list findings(1);
  auto index = structure_findings(order, findings);
  if (!index) throw input_error(findings.first());
  return *std::move(index);
}

HETSCHED_INLINE void validate_actions(const schedule& order) {
  finding_list findings(1);
  shape_findings(order, findings);
  if (findings.empty()) action_findings(order, findings);
  if (!findings.empty()) throw input_error(findings.first());
}

}  // namespace hetsched::detail
