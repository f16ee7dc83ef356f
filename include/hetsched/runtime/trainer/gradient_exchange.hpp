// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/layer/parameter.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>

namespace hetsched {

/// Adds up the gradients of parameters that several pipelines or tied layers hold; afterwards all holders have the sum. A
/// parameter's owner receives the terms that it lacks and sends the sum to the other holders. Two holders send each other
/// their terms instead, and both add. One channel per pair of ranks and direction takes all of them, terms first, then sums;
/// its edge's stage is 0. Buffers are made once: sum() allocates nothing.
/// Determinism: terms are added in the order of model_parameter::terms wherever they lie, so the sum has the same bits for
/// any cut of the model.
template <class Tensor, class Communicator>
class gradient_exchange {
  static_assert(communicator<Communicator, Tensor>);
  using operation = typename Communicator::operation;

 public:
  /// `parameters`: the same on every rank. `local`: (const gradient_term&) -> vector<Tensor*>, this rank's gradients that are
  /// this term (there may be those of two directions), at least one if the rank is one of the term's. They stay where they
  /// are.
  /// Complexity: O(parameters * terms).
  template <class Local>
  gradient_exchange(std::span<const model_parameter> parameters, Local&& local, Communicator comm) : comm_(std::move(comm)) {
    for (const auto& p : parameters)
      if (p.terms.size() > 1 && contains(p.ranks, comm_.rank())) add_parameter(p, local);
    std::size_t most = 0;
    for (const auto* list : {&terms_out_, &terms_in_, &sums_out_, &sums_in_}) most += list->size();
    operations_ = std::make_unique<operation[]>(most);
    std::size_t next = 0;
    for (auto* list : {&terms_out_, &terms_in_, &sums_out_, &sums_in_})
      for (auto& m : *list) m.done = &operations_[next++];
  }

  /// Makes one exchange; all ranks call it, for the same step.
  /// Throws: communication_error if others are late or have given up; gradients are then of no use. It does not abort: that
  /// is the caller's.
  void sum(std::int64_t step, deadline_time until) {
    step_ = step;
    if constexpr (requires { comm_.begin_group(); }) comm_.begin_group();
    for (auto& m : terms_in_) receive(m);
    for (auto& m : terms_out_) send(m, *m.gradients.front());
    if constexpr (requires { comm_.end_group(); }) comm_.end_group();
    for (auto& m : sums_in_) receive(m);
    for (auto& s : sums_) s.added = false;
    while (true) {
      const bool moved = add_what_is_there();
      const message* const missing = unfinished();
      if (!missing) return;
      if (moved) continue;
      const auto result = comm_.wait(until, true);
      if (result != wait_result::progress) give_up(result, *missing);
    }
  }

 private:
  struct message {
    edge where;      ///< with the layer, for errors and stamps
    int number = 0;  ///< of the parameter in its layer
    int channel = -1;
    Tensor buffer;
    std::vector<Tensor*> gradients;  ///< of a term that is sent: its first; of a sum that comes: all that become it
    operation* done = nullptr;
    bool posted = false, taken = false;
  };
  /// What this rank adds up.
  struct summation {
    parameter_id id;
    std::vector<std::pair<Tensor*, std::size_t>> terms;  ///< here, or in a message of terms_in_
    std::vector<Tensor*> gradients;                      ///< that become the sum
    std::size_t first_in = 0, last_in = 0;               ///< of terms_in_
    std::size_t first_out = 0, last_out = 0;             ///< of sums_out_
    bool added = false;
  };

  static bool contains(const std::vector<int>& ranks, int r) { return std::find(ranks.begin(), ranks.end(), r) != ranks.end(); }

  message make_message(int from, int to, const parameter_id& p, const tensor_shape& shape) {
    message m;
    m.where = {.from = from, .to = to, .what = payload::layer_gradient, .direction = 0, .stage = p.layer};
    m.number = p.number;
    edge pair = m.where;
    pair.stage = 0;
    for (const auto& [known, channel] : channels_)
      if (known == pair) m.channel = channel;
    if (m.channel < 0) channels_.emplace_back(pair, m.channel = comm_.open(pair));
    m.buffer = tensor_traits<Tensor>::make(shape);
    return m;
  }

  template <class Local>
  void add_parameter(const model_parameter& p, Local& local) {
    const int me = comm_.rank();
    const bool both = p.ranks.size() == 2;
    const auto adds = [&](int rank) { return both || rank == p.owner; };
    summation mine{.id = p.id, .terms = {}, .gradients = {}};
    mine.first_in = terms_in_.size();
    for (const auto& term : p.terms) {
      const bool have = contains(term.ranks, me);
      const int sender = term.ranks.front();
      std::vector<Tensor*> here;
      if (have) here = local(term);
      mine.gradients.insert(mine.gradients.end(), here.begin(), here.end());
      for (const int to : p.ranks) {
        if (!adds(to) || contains(term.ranks, to)) continue;
        if (me == sender) {
          terms_out_.push_back(make_message(me, to, term.what, p.shape));
          terms_out_.back().gradients = {here.front()};
        } else if (me == to) {
          mine.terms.emplace_back(nullptr, terms_in_.size());
          terms_in_.push_back(make_message(sender, me, term.what, p.shape));
        }
      }
      if (have) mine.terms.emplace_back(here.front(), 0);
    }
    mine.last_in = terms_in_.size();
    if (!adds(me)) {
      sums_in_.push_back(make_message(p.owner, me, p.id, p.shape));
      sums_in_.back().gradients = std::move(mine.gradients);
      return;
    }
    mine.first_out = sums_out_.size();
    for (const int to : p.ranks)
      if (!adds(to)) sums_out_.push_back(make_message(me, to, p.id, p.shape));
    mine.last_out = sums_out_.size();
    sums_.push_back(std::move(mine));
  }

  [[nodiscard]] stamp stamp_of(const message& m) const { return {step_, m.number, m.where.what, 0, m.where.stage}; }
  void receive(message& m) {
    m.posted = true;
    m.taken = false;
    comm_.post_receive(m.channel, stamp_of(m), m.buffer, *m.done);
  }
  void send(message& m, const Tensor& gradient) {
    m.posted = true;
    detail::assign(m.buffer, gradient);
    comm_.post_send(m.channel, stamp_of(m), m.buffer, *m.done);
  }

  /// Adds in the order of arrival. Sums that leave do so in the order of parameters, as the order of the channels is fixed.
  bool add_what_is_there() {
    bool moved = false, blocked = false;
    for (auto& s : sums_) {
      const bool leaves = s.first_out < s.last_out;
      if (s.added || (blocked && leaves)) continue;
      bool ready = true;
      for (std::size_t i = s.first_in; ready && i < s.last_in; ++i) ready = comm_.poll(*terms_in_[i].done);
      if (!ready) {
        blocked = blocked || leaves;
        continue;
      }
      add(s);
      moved = true;
    }
    for (auto& m : sums_in_) {
      if (m.taken || !comm_.poll(*m.done)) continue;
      for (Tensor* const g : m.gradients) detail::assign(*g, m.buffer);
      m.taken = moved = true;
    }
    return moved;
  }

  void add(summation& s) {
    const auto term = [&](std::size_t i) -> Tensor& {
      return s.terms[i].first ? *s.terms[i].first : terms_in_[s.terms[i].second].buffer;
    };
    Tensor& total = term(0);
    for (std::size_t i = 1; i < s.terms.size(); ++i) detail::add(total, term(i));
    for (Tensor* const g : s.gradients)
      if (g != &total) detail::assign(*g, total);
    for (std::size_t i = s.first_out; i < s.last_out; ++i) send(sums_out_[i], total);
    s.added = true;
  }

  /// What is still under way; null: all is done.
  [[nodiscard]] const message* unfinished() {
    // The first that is not added has terms to come: one without is added at once, or waits for one before it.
    for (auto& s : sums_) {
      if (s.added) continue;
      std::size_t i = s.first_in;
      while (i + 1 < s.last_in && comm_.poll(*terms_in_[i].done)) ++i;
      return &terms_in_[i];
    }
    for (auto& m : sums_in_)
      if (!m.taken) return &m;
    for (auto* list : {&terms_out_, &sums_out_})
      for (auto& m : *list)
        if (!m.posted || !comm_.poll(*m.done)) return &m;
    for (auto* list : {&terms_out_, &sums_out_})
      for (auto& m : *list) m.posted = false;
    return nullptr;
  }

  [[noreturn]] void give_up(wait_result why, const message& missing) {
    const bool incoming = missing.where.to == comm_.rank();
    const auto text = "rank " + std::to_string(comm_.rank()) + ", step " + std::to_string(step_) + ": the " +
                      to_text(missing.where) + ", parameter " + std::to_string(missing.number) +
                      (incoming ? ", has not come" : ", is not received");
    const action none{.kind = action_kind::reduce_gradients, .stage = missing.where.stage, .microbatch = no_microbatch};
    throw communication_error(
        why == wait_result::aborted ? text + "; ended, as " + std::string(comm_.failure()) : text + " in time", missing.where,
        no_microbatch, none);
  }

  Communicator comm_;
  std::vector<std::pair<edge, int>> channels_;
  std::vector<message> terms_out_, terms_in_, sums_out_, sums_in_;
  std::vector<summation> sums_;
  std::unique_ptr<operation[]> operations_;
  std::int64_t step_ = 0;
};

}  // namespace hetsched
