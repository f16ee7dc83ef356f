// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/communicator.hpp>
#include <hetsched/runtime/layer.hpp>
#include <hetsched/runtime/rank_program.hpp>
#include <hetsched/runtime/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/channels.hpp>
#include <hetsched/schedule/text.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// What a loss returns: its value for a microbatch, and its gradient with respect to the last stage's output.
template <class Tensor>
struct loss_value {
  double value = 0;
  Tensor gradient;
};

struct executor_options {
  double deadline_s = 30;  ///< of a step, for what other ranks have to do
  /// Buffered: receives are posted early, sends hold up nobody. Rendezvous, to try a schedule: receives are posted when their
  /// turn comes, and a lane goes on when its send has been received.
  channels semantics = channels::buffered;
  double gradient_scale = 0;  ///< gradients are multiplied by it at the end of a step; 0: by 1 / microbatches, for their mean
};

/// One rank of a pipeline: does what the schedule lists for it, on layers that stay the caller's.
/// After step(), the gradients of all stages are those of the mean loss over all microbatches; a stage that exists in two
/// replicas has the same in both. They are added up in gradient_order(), then over replicas, then scaled, so one device that
/// does the same in this order gets the same bits. The executor allocates nothing after its first step.
/// Gathering, scattering, releasing and the optimizer have no effect here: parameters are whole, and updating them after step()
/// is the caller's. Every rank calls step() on a thread or process of its own, all for the same schedule.
template <class Tensor, class Stage, class Communicator>
class pipeline_executor {
  static_assert((detail::require_layer<Stage, Tensor>(), true));
  static_assert(communicator<Communicator, Tensor>, "this is no communicator for these tensors; see the concept's members");
  using operation = typename Communicator::operation;

 public:
  /// stages: those of stages_of_rank(order, comm.rank()), in its order. boundaries: the shape of each stage's output, without
  /// the last's. Throws input_error for a schedule that is not sound, or other numbers of stages or shapes.
  /// O(actions of all ranks).
  pipeline_executor(const schedule& order, std::span<Stage> stages, const std::vector<tensor_shape>& boundaries,
                    Communicator comm, const executor_options& options = {})
      : comm_(std::move(comm)), options_(options), microbatches_(order.microbatches), stages_(order.stages), ranks_(order.ranks) {
    if (boundaries.size() + 1 != static_cast<std::size_t>(std::max(order.stages, 1)))
      throw input_error("boundaries needs one shape per boundary (stages - 1)");
    const auto runnable = detail::runnable(order, options.semantics);
    if (comm_.rank() < 0 || comm_.rank() >= order.ranks)
      throw input_error("the schedule has no rank " + std::to_string(comm_.rank()));
    program_ = detail::rank_compiler(runnable, comm_.rank(), options.semantics).compile();
    if (stages.size() != program_.copies.size())
      throw input_error("rank " + std::to_string(comm_.rank()) + " has " + std::to_string(program_.copies.size()) +
                        " stages of the schedule, not " + std::to_string(stages.size()));
    const auto batches = static_cast<std::size_t>(microbatches_);
    for (std::size_t i = 0; i < stages.size(); ++i) make_stage(stages[i], i, boundaries);
    for (const auto& e : program_.edges) make_boundary(e, boundaries);
    for (std::size_t i = 0; i < copies_.size(); ++i)
      if (order.replicas == 2) make_exchange(runnable, i);
    done_.assign(program_.ops.size(), 0);
    begun_.assign(program_.ops.size(), 0);
    front_.assign(program_.lanes.size(), 0);
    losses_.assign(batches, 0);
    measured_.ranks = order.ranks;
    measured_.microbatches = order.microbatches;
    measured_.actions.reserve(2 * program_.ops.size());
  }

  /// One iteration. inputs, targets: one per microbatch; those are read that pass this rank's first and last stages, others may
  /// be missing from ranks without (empty spans). loss(const Tensor& output, const Target&) -> loss_value<Tensor>.
  /// Throws input_error for a wrong number of inputs or targets (before anything is sent), communication_error if other ranks
  /// fail or do not do their part in time, and what layers and loss throw; in all but the first case, the other ranks' steps end
  /// with an error, too, gradients are of no use, and the communicator cannot be used again. A layer that never returns holds
  /// its own rank only.
  template <class Target, class Loss>
  void step(std::span<const Tensor> inputs, std::span<const Target> targets, Loss&& loss) {
    const auto batches = static_cast<std::size_t>(microbatches_);
    for (const auto& c : program_.copies) {
      if (c.stage == 0 && inputs.size() != batches) throw input_error("a step needs one input per microbatch");
      if (c.stage + 1 == stages_ && targets.size() != batches) throw input_error("a step needs one target per microbatch");
    }
    inputs_ = inputs;
    try {
      run([&](const Tensor& output, std::size_t m) -> loss_value<Tensor> { return loss(output, targets[m]); });
    } catch (const communication_error& e) {
      comm_.abort(e.what());
      throw;
    } catch (const std::exception& e) {
      comm_.abort(where_now() + " failed: " + e.what());
      throw;
    } catch (...) {
      comm_.abort(where_now() + " failed");
      throw;
    }
    ++step_;
  }

  /// Of the last step, per microbatch; 0 for those whose last stage is on another rank.
  [[nodiscard]] std::span<const double> losses() const { return losses_; }

  /// This rank's computations and sends in the last step, in seconds on the steady clock.
  [[nodiscard]] const timeline& measured() const { return measured_; }

  [[nodiscard]] const std::vector<stage_copy>& stages() const { return program_.copies; }

 private:
  struct copy_state {
    Stage* stage = nullptr;
    std::vector<typename Stage::context> contexts;  ///< by slot
    std::vector<const Tensor*> inputs;              ///< by slot
    std::vector<Tensor> received;                   ///< by slot: inputs from another stage
    std::vector<Tensor> output_gradients;           ///< by slot
    std::vector<Tensor*> gradients;                 ///< of the parameters
    // Between two replicas, one per parameter; empty if there is one replica, or both are here.
    std::vector<Tensor> outgoing, incoming;
    std::unique_ptr<operation[]> sends, receives;
    edge to, from;
    int to_channel = -1, from_channel = -1;
    int twin = -1;         ///< the other replica, if it is here
    bool reduced = false;  ///< in this step
  };
  struct edge_state {
    int channel = -1;                                     ///< -1: within the rank
    std::vector<Tensor> leaving;                          ///< by place in the order of sends
    std::vector<Tensor> buffers;                          ///< of the receiving end
    std::vector<int> free;                                ///< of those
    std::vector<int> buffer_of;                           ///< by place; -1: none
    std::unique_ptr<operation[]> operations;              ///< by place
    std::vector<std::pair<double, std::size_t>> started;  ///< by place: when sent, by which op
    std::size_t posted = 0;
    std::size_t ended = 0;  ///< sends that have been received
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void make_stage(Stage& stage, std::size_t i, const std::vector<tensor_shape>& boundaries) {
    const auto& where = program_.copies[i];
    auto& c = copies_.emplace_back();
    c.stage = &stage;
    for (int k = 0; k < program_.slots[i]; ++k) {
      c.contexts.push_back(detail::make_context(stage));
      c.received.push_back(where.stage > 0 ? tensor_traits<Tensor>::make(boundaries[at(where.stage) - 1]) : Tensor{});
      c.output_gradients.push_back(where.stage + 1 < stages_ ? tensor_traits<Tensor>::make(boundaries[at(where.stage)])
                                                             : Tensor{});
    }
    c.inputs.assign(at(program_.slots[i]), nullptr);
    for (Tensor& g : stage.gradients()) c.gradients.push_back(&g);
  }

  void make_boundary(const detail::rank_edge& e, const std::vector<tensor_shape>& boundaries) {
    auto& state = edges_.emplace_back();
    const auto& shape = boundaries[at(e.where.what == payload::gradient ? e.where.stage - 1 : e.where.stage)];
    const std::size_t all = e.microbatches.size();
    if (e.where.from == comm_.rank()) state.leaving.resize(all);
    if (e.where.from == e.where.to) return;
    state.channel = comm_.open(e.where);
    for (int k = 0; k < e.buffers; ++k) state.buffers.push_back(tensor_traits<Tensor>::make(shape));
    state.free.reserve(state.buffers.size());
    state.buffer_of.assign(all, -1);
    state.started.resize(all);
    state.operations = std::make_unique<operation[]>(all);
  }

  void make_exchange(const schedule& order, std::size_t i) {
    auto& c = copies_[i];
    const auto [replica, stage] = program_.copies[i];
    const int peer = order.rank(1 - replica, stage);
    if (peer == comm_.rank()) {
      c.twin = static_cast<int>(std::find(program_.copies.begin(), program_.copies.end(), stage_copy{1 - replica, stage}) -
                                program_.copies.begin());
      return;
    }
    c.to = {comm_.rank(), peer, payload::reduction, replica, stage};
    c.from = {peer, comm_.rank(), payload::reduction, 1 - replica, stage};
    c.to_channel = comm_.open(c.to);
    c.from_channel = comm_.open(c.from);
    for (const Tensor* g : c.gradients) {
      c.outgoing.push_back(tensor_traits<Tensor>::make(detail::shape_of(*g)));
      c.incoming.push_back(tensor_traits<Tensor>::make(detail::shape_of(*g)));
    }
    c.sends = std::make_unique<operation[]>(c.gradients.size());
    c.receives = std::make_unique<operation[]>(c.gradients.size());
  }

  template <class Loss>
  void run(const Loss& loss) {
    until_ = std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(options_.deadline_s));
    std::fill(done_.begin(), done_.end(), char{0});
    std::fill(begun_.begin(), begun_.end(), char{0});
    std::fill(losses_.begin(), losses_.end(), 0.0);
    measured_.actions.clear();
    for (std::size_t l = 0; l < front_.size(); ++l) front_[l] = program_.lanes[l].first;
    for (auto& c : copies_) {
      c.reduced = false;
      for (Tensor* g : c.gradients) detail::zero(*g);
    }
    for (std::size_t e = 0; e < edges_.size(); ++e) {
      auto& state = edges_[e];
      state.posted = state.ended = 0;
      state.free.clear();
      for (std::size_t k = state.buffers.size(); k-- > 0;) state.free.push_back(static_cast<int>(k));
      std::fill(state.buffer_of.begin(), state.buffer_of.end(), -1);
      if (options_.semantics == channels::buffered) post_receives(e);
    }
    while (true) {
      bool moved = false, left = false;
      for (std::size_t l = 0; l < front_.size(); ++l) {
        if (front_[l] == program_.lanes[l].second) continue;
        moved = advance(l, loss) || moved;
        left = left || front_[l] < program_.lanes[l].second;
      }
      if (moved) continue;
      if (!left && sends_ended()) break;
      const auto result = comm_.wait(until_, !left || options_.semantics == channels::rendezvous);
      if (result != wait_result::progress) give_up(result);
    }
    const double scale = options_.gradient_scale != 0 ? options_.gradient_scale : 1.0 / microbatches_;
    for (auto& c : copies_)
      for (Tensor* g : c.gradients) detail::scale(*g, scale);
    record_sends();
    std::sort(measured_.actions.begin(), measured_.actions.end(), [](const timed_action& a, const timed_action& b) {
      return is_transfer(a.what.kind) != is_transfer(b.what.kind) ? is_transfer(b.what.kind) : a.start_s < b.start_s;
    });
  }

  /// Takes a lane as far as it goes; whether anything has been done.
  template <class Loss>
  bool advance(std::size_t l, const Loss& loss) {
    bool moved = false;
    while (front_[l] < program_.lanes[l].second) {
      const std::size_t first = front_[l], last = program_.ops[first].event_end;
      if (!begun_[first]) {
        for (std::size_t k = first; k < last; ++k)
          if (unmet(k) < program_.ops.size()) return moved;
        for (std::size_t k = first; k < last; ++k) {
          now_ = k;
          begin(k, loss);
        }
        begun_[first] = 1;
        moved = true;
      }
      for (std::size_t k = first; k < last; ++k)
        if (!done_[k] && !ended(k)) return moved;
      front_[l] = last;
      moved = true;
    }
    return moved;
  }

  /// The first op that this one waits for; the number of ops: none.
  [[nodiscard]] std::size_t unmet(std::size_t k) const {
    for (std::size_t i = program_.ops[k].needs; i < program_.ops[k + 1].needs; ++i)
      if (!done_[program_.needs[i]]) return program_.needs[i];
    return program_.ops.size();
  }

  template <class Loss>
  void begin(std::size_t k, const Loss& loss) {
    const auto& op = program_.ops[k];
    if (is_compute(op.what.kind)) {
      const double start_s = steady_now_s();
      compute(op, loss);
      measured_.actions.push_back({op.what, comm_.rank(), -1, start_s, steady_now_s()});
      done_[k] = 1;
    } else if (op.what.kind == action_kind::reduce_gradients) {
      begin_reduction(op);
    } else if (is_sending(op.what.kind)) {
      send(k);
      if (options_.semantics == channels::buffered) done_[k] = 1;
    } else if (is_transfer(op.what.kind) && op.in >= 0) {
      if (options_.semantics == channels::rendezvous) post_receives(at(op.in), place(op) + 1);
    } else {
      done_[k] = 1;
    }
  }

  /// Whether an op that has begun has ended.
  bool ended(std::size_t k) {
    const auto& op = program_.ops[k];
    if (op.what.kind == action_kind::reduce_gradients) {
      if (!end_reduction(copies_[at(op.copy)])) return false;
    } else {
      auto& state = edges_[at(op.in >= 0 ? op.in : op.out)];
      const auto p = place(op);
      if (p >= state.posted || !comm_.poll(state.operations[p])) return false;
    }
    done_[k] = 1;
    return true;
  }

  static bool is_sending(action_kind k) {
    return detail::is_send(k) || k == action_kind::network_activation || k == action_kind::network_gradient;
  }
  [[nodiscard]] std::size_t place(const detail::rank_op& op) const {
    return at(program_.edges[at(op.in >= 0 ? op.in : op.out)].place[at(op.what.microbatch)]);
  }
  [[nodiscard]] stamp stamp_of(const edge& e, int microbatch) const { return {step_, microbatch, e.what, e.replica, e.stage}; }

  void post_receives(std::size_t e, std::size_t most = std::numeric_limits<std::size_t>::max()) {
    auto& state = edges_[e];
    if (state.buffers.empty()) return;
    const auto& listed = program_.edges[e];
    while (state.posted < std::min(most, listed.microbatches.size()) && !state.free.empty()) {
      const std::size_t p = state.posted++;
      const int buffer = state.free.back();
      state.free.pop_back();
      state.buffer_of[p] = buffer;
      comm_.post_receive(state.channel, stamp_of(listed.where, listed.microbatches[p]), state.buffers[at(buffer)],
                         state.operations[p]);
    }
  }

  void send(std::size_t k) {
    const auto& op = program_.ops[k];
    auto& state = edges_[at(op.out)];
    const auto p = place(op);
    state.started[p] = {steady_now_s(), k};
    ++state.posted;
    comm_.post_send(state.channel, stamp_of(program_.edges[at(op.out)].where, op.what.microbatch), state.leaving[p],
                    state.operations[p]);
  }

  /// Takes the tensor that has come over an edge, in exchange for `old`.
  void take(int in, int microbatch, Tensor& old) {
    using std::swap;
    auto& state = edges_[at(in)];
    const auto p = at(program_.edges[at(in)].place[at(microbatch)]);
    if (state.channel < 0) {
      swap(old, state.leaving[p]);
      return;
    }
    const int buffer = std::exchange(state.buffer_of[p], -1);
    swap(old, state.buffers[at(buffer)]);
    state.free.push_back(buffer);
    if (options_.semantics == channels::buffered) post_receives(at(in));
  }

  void leave(const detail::rank_op& op, Tensor&& result) {
    if (op.out >= 0) edges_[at(op.out)].leaving[place_out(op)] = std::move(result);
  }
  [[nodiscard]] std::size_t place_out(const detail::rank_op& op) const {
    return at(program_.edges[at(op.out)].place[at(op.what.microbatch)]);
  }

  template <class Loss>
  void compute(const detail::rank_op& op, const Loss& loss) {
    auto& c = copies_[at(op.copy)];
    const auto slot = at(op.slot);
    auto& context = c.contexts[slot];
    auto& gradient = c.output_gradients[slot];
    const int m = op.what.microbatch;
    switch (op.what.kind) {
      case action_kind::forward: {
        if (op.in >= 0) {
          take(op.in, m, c.received[slot]);
          c.inputs[slot] = &c.received[slot];
        } else {
          c.inputs[slot] = &inputs_[at(m)];
        }
        Tensor output = c.stage->forward(*c.inputs[slot], context);
        if (op.what.stage + 1 < stages_) return leave(op, std::move(output));
        loss_value<Tensor> found = loss(std::as_const(output), at(m));
        losses_[at(m)] = found.value;
        gradient = std::move(found.gradient);
        break;
      }
      case action_kind::recompute: {
        [[maybe_unused]] const Tensor again = c.stage->forward(*c.inputs[slot], context);
        break;
      }
      case action_kind::backward:
        if (op.in >= 0) take(op.in, m, gradient);
        leave(op, c.stage->backward(gradient, context));
        break;
      case action_kind::backward_input:
        if (op.in >= 0) take(op.in, m, gradient);
        leave(op, detail::backward_input<Tensor>(*c.stage, gradient, context));
        break;
      default:  // backward_weight
        detail::backward_weight<Tensor>(*c.stage, gradient, context);
    }
  }

  void begin_reduction(const detail::rank_op& op) {
    auto& c = copies_[at(op.copy)];
    if (c.twin >= 0 && !c.reduced) {
      auto& other = copies_[at(c.twin)];
      for (std::size_t i = 0; i < c.gradients.size(); ++i) {
        detail::add(*c.gradients[i], *other.gradients[i]);
        detail::assign(*other.gradients[i], *c.gradients[i]);
      }
      c.reduced = other.reduced = true;
    }
    if (c.to_channel < 0) return;
    for (std::size_t i = 0; i < c.gradients.size(); ++i) {
      const int number = static_cast<int>(i);
      comm_.post_receive(c.from_channel, stamp_of(c.from, number), c.incoming[i], c.receives[i]);
      detail::assign(c.outgoing[i], *c.gradients[i]);
      comm_.post_send(c.to_channel, stamp_of(c.to, number), c.outgoing[i], c.sends[i]);
    }
  }

  /// The sum of two is the same on both sides: a + b is b + a to the last bit.
  bool end_reduction(copy_state& c) {
    if (c.to_channel < 0) return true;
    for (std::size_t i = 0; i < c.gradients.size(); ++i)
      if (!comm_.poll(c.receives[i])) return false;
    for (std::size_t i = 0; i < c.gradients.size(); ++i) detail::add(*c.gradients[i], c.incoming[i]);
    return true;
  }

  bool sends_ended() {
    for (auto& state : edges_)
      if (state.channel >= 0 && !state.leaving.empty())
        while (state.ended < state.posted) {
          if (!comm_.poll(state.operations[state.ended])) return false;
          ++state.ended;
        }
    for (auto& c : copies_)
      for (std::size_t i = 0; i < c.outgoing.size(); ++i)
        if (!comm_.poll(c.sends[i])) return false;
    return true;
  }

  void record_sends() {
    for (std::size_t e = 0; e < edges_.size(); ++e) {
      const auto& state = edges_[e];
      if (state.channel < 0 || state.leaving.empty()) continue;
      for (std::size_t p = 0; p < state.posted; ++p)
        measured_.actions.push_back({program_.ops[state.started[p].second].what, comm_.rank(), program_.edges[e].where.to,
                                     state.started[p].first, state.operations[p].end_s});
    }
  }

  [[nodiscard]] std::string where_now() const {
    return "rank " + std::to_string(comm_.rank()) + ", step " + std::to_string(step_) + ": " + to_text(program_.ops[now_].what);
  }

  /// Says what this rank waits for.
  [[noreturn]] void give_up(wait_result why) {
    std::size_t stuck = program_.ops.size();
    for (std::size_t l = 0; l < front_.size() && stuck == program_.ops.size(); ++l)
      if (front_[l] < program_.lanes[l].second) stuck = front_[l];
    edge where;
    action what;
    int microbatch = no_microbatch;
    std::string waiting;
    if (stuck < program_.ops.size()) {
      const std::size_t end = program_.ops[stuck].event_end;
      std::size_t cause = stuck;
      if (begun_[stuck])
        while (cause + 1 < end && done_[cause]) ++cause;
      what = program_.ops[cause].what;
      // From what the lane has come to, to what that needs, and so on: down to what another rank has to do.
      for (std::size_t k = stuck; !begun_[stuck] && k < end; ++k)
        if (unmet(k) < program_.ops.size()) {
          what = program_.ops[k].what;
          cause = unmet(k);
          break;
        }
      for (std::size_t next = unmet(cause), left = program_.ops.size(); next < program_.ops.size() && left-- > 0;
           next = unmet(cause))
        cause = next;
      const auto& op = program_.ops[cause];
      microbatch = op.what.microbatch;
      if (op.what.kind == action_kind::reduce_gradients)
        where = copies_[at(op.copy)].from;
      else if (op.in >= 0 || op.out >= 0)
        where = program_.edges[at(op.in >= 0 ? op.in : op.out)].where;
      waiting = to_text(what) + " waits for the " + to_text(where);
    } else {
      for (std::size_t e = 0; e < edges_.size(); ++e)
        if (edges_[e].channel >= 0 && !edges_[e].leaving.empty() && edges_[e].ended < edges_[e].posted) {
          where = program_.edges[e].where;
          what = program_.ops[edges_[e].started[edges_[e].ended].second].what;
          microbatch = what.microbatch;
          waiting = to_text(what) + " is not received: " + to_text(where);
          break;
        }
    }
    if (microbatch != no_microbatch) waiting += ", microbatch " + std::to_string(microbatch);
    const auto here = "rank " + std::to_string(comm_.rank()) + ", step " + std::to_string(step_) + ": ";
    if (why == wait_result::deadline)
      throw communication_error(here + waiting + ", for " + std::to_string(options_.deadline_s) + " s", where, microbatch, what);
    throw communication_error(here + waiting + "; ended, as " + std::string(comm_.failure()), where, microbatch, what);
  }

  Communicator comm_;
  executor_options options_;
  int microbatches_, stages_, ranks_;
  detail::rank_program program_;
  std::vector<copy_state> copies_;
  std::vector<edge_state> edges_;
  std::vector<char> done_, begun_;  ///< per op; begun: of the first of an event
  std::vector<std::size_t> front_;  ///< per lane
  std::vector<double> losses_;
  timeline measured_;
  std::span<const Tensor> inputs_;
  deadline_time until_;
  std::int64_t step_ = 0;
  std::size_t now_ = 0;  ///< op under way
};

/// The ranks' timelines of one step as one that begins at 0. Precondition: their clocks are one. O(actions * log(actions)).
[[nodiscard]] inline timeline merged(std::span<const timeline> parts) {
  timeline all;
  double first_s = std::numeric_limits<double>::infinity();
  for (const auto& part : parts) {
    all.ranks = part.ranks;
    all.microbatches = part.microbatches;
    for (const auto& a : part.actions) first_s = std::min(first_s, a.start_s);
    all.actions.insert(all.actions.end(), part.actions.begin(), part.actions.end());
  }
  for (auto& a : all.actions) {
    a.start_s -= first_s;
    a.end_s -= first_s;
  }
  std::stable_sort(all.actions.begin(), all.actions.end(), [](const timed_action& a, const timed_action& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (is_transfer(a.what.kind) != is_transfer(b.what.kind)) return is_transfer(b.what.kind);
    return a.start_s < b.start_s;
  });
  return all;
}

}  // namespace hetsched
