// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/direction_exchange.hpp>
#include <hetsched/runtime/executor/detail/group_member.hpp>
#include <hetsched/runtime/executor/detail/held_stage.hpp>
#include <hetsched/runtime/executor/detail/issue_plan.hpp>
#include <hetsched/runtime/executor/detail/loss_gradient.hpp>
#include <hetsched/runtime/executor/detail/rank_edges.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/runtime/executor/executor_options.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/layer_error.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/send_semantics.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

namespace detail {

/// What pipeline_executor does, but for the types of its stages.
template <class Tensor, class Communicator, class Stager, class Backend>
class stage_executor {
  using queue = typename Backend::queue;
  static_assert((require_communicator<Communicator, Tensor>(), true));
  static_assert(std::same_as<Stager, no_stager> || stager<Stager, Tensor>,
                "this is no stager for these tensors; see the concept's members");

 public:
  using stage_list = std::vector<std::unique_ptr<held_stage<Tensor, queue>>>;
  /// Calls the loss of a microbatch, which gets the output for its own, keeps its value, and returns its gradient.
  using loss_call = function_ref<Tensor(Tensor&& output, std::size_t microbatch, double& value)>;

  stage_executor(const schedule& order, stage_list stages, const pipeline_groups& groups, Communicator comm,
                 const executor_options& options, Stager stager, Backend backend)
      : backend_(std::move(backend)),
        queue_(backend_.compute_queue()),
        common_(find_common(shared_of(comm), order, options.semantics)),
        forward_only_(common_->run.forward_only()),
        options_(options),
        microbatches_(order.microbatches),
        stages_(order.stages),
        step_(options.first_step),
        me_(find_group(order, groups, comm.rank(), comm.ranks(), options.first_rank)),
        calls_(calling_plane<Communicator> && at(groups.devices, me_.group) > 1),
        program_(program_for<Communicator>(common_->run, me_.group, options.semantics, calls_,
                                           shapes_of_stages(order, groups, me_, shapes_))),
        turns_(program_),
        edges_({.edges = program_.edges,
                .transfers = groups.boundaries,
                .stages = order.stages,
                .chunk_bytes = options.staging_chunk_bytes},
               me_, std::move(comm), std::move(stager), backend_.transfer_queue()) {
    const auto bound = backend_.bind();
    if (stages.size() != program_.copies.size())
      throw input_error("rank " + std::to_string(rank()) + " has " + std::to_string(program_.copies.size()) +
                        " stages of the schedule, not " + std::to_string(stages.size()));
    for (std::size_t i = 0; i < stages.size(); ++i) {
      auto& c = copies_.emplace_back();
      c.stage = std::move(stages[i]);
      c.stage->make_contexts(program_.slots[i]);
      c.gradients = c.stage->gradients();
    }
    for (const int n : program_.inputs) inputs_.push_back(make_tensor<Tensor>(at(shapes_, n), queue_));
    for (const int n : program_.gradients) gradients_.push_back(n < 0 ? Tensor{} : make_tensor<Tensor>(at(shapes_, n), queue_));
    if (order.directions == 2 && options.sums_directions && !forward_only_)
      for (std::size_t i = 0; i < copies_.size(); ++i) make_exchange(order, groups, i);
    ends_ = exchanges_.empty() ? stage_ends(program_) : std::vector<int>(program_.ops.size(), -1);
    done_ = begun_ = std::vector<char>(program_.ops.size(), 0);
    front_.assign(program_.lanes.size(), 0);
    losses_ = backend_.make_numbers(as_size(microbatches_));
    std::vector<std::string> names;
    for (const auto& op : program_.ops) names.push_back(is_compute(op.what.kind) ? to_text(op.what) : "");
    clock_ = backend_.make_clock(std::move(names));
    computed_.reserve(program_.ops.size() + 1);
    measured_.ranks = order.ranks;
    measured_.microbatches = order.microbatches;
    measured_.actions.reserve(2 * program_.ops.size());
    if constexpr (ordered_plane<Communicator>) {
      auto plan = plan_of(
          program_, edges_, exchanges_, [&](int c) { return at(copies_, c).exchange; }, step_);
      if (calls_ && !exchanges_.empty()) plan.emplace_back();  // for stage_listener::ended
      order_ = std::move(plan);
    }
    take_order();
    me_.first = {};
    if (!shared_of(edges_.comm())) common_.reset();
  }

  /// Over an ordered_plane, tells it this executor's order, as the constructor does; all ranks call it, after another executor of
  /// theirs has used it. Throws: as set_plan.
  void take_order() {
    if constexpr (ordered_plane<Communicator>) edges_.comm().set_plan(order_);
  }

  /// The losses of the last pass, per microbatch; 0 for those whose last stage is on another rank.
  [[nodiscard]] std::span<const double> losses() const { return {losses_.begin(), losses_.end()}; }

  /// This rank's computations and transfers in the last step, in seconds on the steady clock, for merged(): one device of each
  /// group. Ranks are those of the schedule. The sender lists a transfer with the end that it believes. The receiver lists it as
  /// a receive_* whose peer is the sender and whose times are both its arrival. Copies are listed where they are made.
  [[nodiscard]] const timeline& measured() const { return measured_; }

  [[nodiscard]] const std::vector<stage_copy>& stages() const { return program_.copies; }

  /// Calls list(action_kind, the number of its stage in stages()) for all computations of a step, in their order.
  template <class List>
  void for_each_computation(List&& list) const {
    for (std::size_t k = 0; k + 1 < program_.ops.size(); ++k)  // the last one is none
      if (const auto& op = program_.ops[k]; is_compute(op.what.kind)) list(op.what.kind, as_size(op.copy));
  }

  [[nodiscard]] arena_bytes arena() const {
    const auto bytes = [](const std::vector<Tensor>& list, const std::vector<int>& made_for) {
      std::size_t sum = 0;
      for (std::size_t k = 0; k < list.size(); ++k)
        if (made_for[k] >= 0) sum += elements(list[k]) * sizeof(typename tensor_traits<Tensor>::element);
      return sum;
    };
    const auto moving = edges_.bytes();
    return {.inputs = bytes(inputs_, program_.inputs),
            .gradients = bytes(gradients_, program_.gradients),
            .sending = moving.sending,
            .receiving = moving.receiving,
            .staging = moving.staging};
  }

 protected:
  /// As pipeline_executor::step; `targets`: how many there are.
  void run_step(std::span<const Tensor> inputs, std::size_t targets, const loss_call& loss, const stage_listener& told,
                const accumulation& pass) {
    HETSCHED_EXPECTS((pass.first && pass.last) || exchanges_.empty());
    const auto bound = backend_.bind();
    callers_inputs_ = inputs;
    now_ = program_.ops.size();
    try {
      for (const auto& c : program_.copies) {
        if (c.stage == 0 && inputs.size() != as_size(microbatches_)) throw input_error("a step needs one input per microbatch");
        if (c.stage + 1 == stages_ && targets != as_size(microbatches_))
          throw input_error("a step needs one target per microbatch");
      }
      pass_ = pass;
      run(loss, told);
    } catch (const communication_error& e) {
      edges_.comm().abort(e.what());
      throw;
    } catch (const layer_error& e) {
      edges_.comm().abort(e.what());
      throw;
    } catch (...) {
      edges_.comm().abort(where_now() + " failed: " + text_of(std::current_exception()));
      throw;
    }
    if (pass.last) ++step_;
  }

  [[no_unique_address]] Backend backend_;
  [[no_unique_address]] queue queue_;              ///< of computations
  std::shared_ptr<const common_schedule> common_;  ///< kept for others that are still to be made; null: nobody shares it
  bool forward_only_;

 private:
  struct copy_state {
    std::unique_ptr<held_stage<Tensor, queue>> stage;
    std::vector<Tensor*> gradients;  ///< of the parameters
    int exchange = -1;               ///< with the other direction
  };

  [[nodiscard]] int rank() const { return edges_.comm().rank(); }

  void make_exchange(const schedule& order, const pipeline_groups& groups, std::size_t i) {
    auto& c = copies_[i];
    const auto [direction, stage] = program_.copies[i];
    const int other = order.rank(1 - direction, stage);
    if (other != me_.group) {
      if (at(groups.devices, other) != at(groups.devices, me_.group))
        throw input_error("stage " + std::to_string(stage) + " is on groups of " + std::to_string(at(groups.devices, me_.group)) +
                          " and " + std::to_string(at(groups.devices, other)) +
                          " devices in its two directions: they need to be equal");
      exchanges_.emplace_back(edges_.comm(), at(me_.first, other) + me_.index, direction, stage, c.gradients, queue_);
    } else {
      const auto twin = as_size(std::find(program_.copies.begin(), program_.copies.end(), stage_copy{1 - direction, stage}) -
                                program_.copies.begin());
      if (twin < i) {
        c.exchange = copies_[twin].exchange;
        return;
      }
      exchanges_.emplace_back(c.gradients, copies_[twin].gradients, queue_);
    }
    c.exchange = static_cast<int>(exchanges_.size()) - 1;
  }

  void require_contiguous_gradients(const copy_state& c) const {
    for (std::size_t n = 0; n < c.gradients.size(); ++n)
      if (!is_contiguous(*c.gradients[n]))
        refuse_strided("gradient " + std::to_string(n) + " of stage " +
                           std::to_string(at(program_.copies, &c - copies_.data()).stage) + " on rank " + std::to_string(rank()),
                       shape_of(*c.gradients[n]));
  }

  void scale_gradients(const copy_state& c) {
    require_contiguous_gradients(c);
    const double scale = options_.gradient_scale != 0 ? options_.gradient_scale : 1.0 / microbatches_;
    if (scale != 1)
      for (Tensor* g : c.gradients) detail::scale(*g, scale, queue_);
  }

  void begin_step() {
    std::fill(done_.begin(), done_.end(), char{0});
    std::fill(begun_.begin(), begun_.end(), char{0});
    std::fill(losses_.begin(), losses_.end(), 0.0);
    measured_.actions.clear();
    computed_.clear();
    for (std::size_t l = 0; l < front_.size(); ++l) front_[l] = program_.lanes[l].first;
    for (auto& c : copies_) {
      if (forward_only_ || !pass_.first) continue;
      require_contiguous_gradients(c);
      for (Tensor* g : c.gradients) zero(*g, queue_);
    }
    for (auto& x : exchanges_) x.begin_step();
    edges_.begin_step(step_);
    turns_.begin_step();
    for (std::size_t e = 0; e < program_.edges.size(); ++e)
      if (early(static_cast<int>(e))) edges_.post_receives(e);
  }

  /// Does what can be done, and waits for others, until all is.
  void play(deadline_time until, const loss_call& loss, const stage_listener& told) {
    bool fresh = false;  // there was progress since then
    while (true) {
      bool moved = edges_.advance([&](int e) { return early(e); }), left = false;
      if (told.progress) moved = told.progress() || moved;
      lacks_room_ = program_.ops.size();
      for (std::size_t l = 0; l < front_.size(); ++l) {
        if (front_[l] == program_.lanes[l].second) continue;
        moved = advance(l, loss, told) || moved;
        left = left || front_[l] < program_.lanes[l].second;
      }
      fresh = fresh || moved;
      if (moved) continue;
      if (!left && all_sent()) break;
      if (std::exchange(fresh, false)) until = deadline_in(options_.deadline_s);
      // Copies do not signal completion; poll.
      constexpr double copy_poll_s = 50e-6;
      const bool looks = edges_.copying() || (told.looks && told.looks());
      const auto next = looks ? std::min(until, deadline_in(copy_poll_s)) : until;
      const bool for_sends =
          !left || options_.semantics == send_semantics::rendezvous || lacks_room_ < program_.ops.size() || edges_.passing_on();
      const auto result = edges_.comm().wait(next, for_sends);
      if (result == wait_result::deadline && next < until) continue;
      if (result == wait_result::progress) continue;
      if (!left && all_sent()) break;  // what was missing has come meanwhile
      give_up(result);
    }
  }

  void end_step(const stage_listener& told) {
    if (!exchanges_.empty()) {
      for (std::size_t i = 0; i < copies_.size(); ++i) {
        scale_gradients(copies_[i]);
        if (told.ended) told.ended(i);
      }
      if constexpr (calling_plane<Communicator>)
        if (calls_) edges_.comm().end_calls();
    }
    if (told.all_issued && pass_.last && !forward_only_) told.all_issued();
    drain();
    clock_.read();
    for (std::size_t k = 0; k + 1 < program_.ops.size(); ++k)  // the last one is none
      if (const auto& what = program_.ops[k].what; is_compute(what.kind))
        measured_.actions.push_back({what, me_.group, -1, clock_.start_s(k), clock_.end_s(k)});
    edges_.record(program_, measured_.actions);
    std::sort(measured_.actions.begin(), measured_.actions.end(), [](const timed_action& a, const timed_action& b) {
      return is_transfer(a.what.kind) != is_transfer(b.what.kind) ? is_transfer(b.what.kind) : a.start_s < b.start_s;
    });
  }

  void run(const loss_call& loss, const stage_listener& told) {
    const auto until = deadline_in(options_.deadline_s);
    begin_step();
    play(until, loss, told);
    end_step(told);
  }

  /// Whether an edge's receives are posted as soon as there are buffers, and its sends hold up nobody.
  [[nodiscard]] bool early(int e) const {
    return options_.semantics == send_semantics::buffered || at(program_.edges, e).staged > 0 || edges_.in_slices(e);
  }

  /// Takes a lane as far as it goes, or through one event of computations. Returns whether anything has been done.
  bool advance(std::size_t l, const loss_call& loss, const stage_listener& told) {
    bool moved = false;
    while (front_[l] < program_.lanes[l].second) {
      const std::size_t first = front_[l], last = program_.ops[first].event_end;
      if (!begun_[first]) {
        if (!can_begin(first, last)) return moved;
        constexpr bool grouping = requires(Communicator & c) { c.begin_group(), c.end_group(); };
        const bool group = grouping && last - first > 1 && is_transfer(program_.ops[first].what.kind);
        if constexpr (grouping)
          if (group) edges_.comm().begin_group();
        for (std::size_t k = first; k < last; ++k) {
          now_ = k;
          begin(k, loss);
        }
        if constexpr (grouping)
          if (group) edges_.comm().end_group();
        begun_[first] = 1;
        if (!is_compute(program_.ops[first].what.kind)) turns_.end(edges_.comm(), first);
        moved = true;
      }
      for (std::size_t k = first; k < last; ++k)
        if (!done_[k]) {
          if (!ended(k)) return moved;
          moved = true;
        }
      front_[l] = last;
      moved = true;
      if (!is_compute(program_.ops[first].what.kind)) continue;
      for (std::size_t k = first; k < last; ++k)
        if (ends_[k] >= 0 && pass_.last) {
          scale_gradients(at(copies_, ends_[k]));
          if (told.ended) told.ended(as_size(ends_[k]));
        }
      turns_.end(edges_.comm(), first);
      // What it made leaves before the next computation begins.
      return true;
    }
    return moved;
  }

  [[nodiscard]] bool can_begin(std::size_t first, std::size_t last) {
    for (std::size_t k = first; k < last; ++k)
      if (unmet(k) < program_.ops.size()) return false;
    const auto kind = program_.ops[first].what.kind;
    if (!ordered_plane<Communicator> && is_compute(kind) && !edges_.all_posted()) return false;
    if ((!is_transfer(kind) || is_d2h(kind)) && !may_wait()) return false;
    for (std::size_t k = first; k < last; ++k) {
      const auto& op = program_.ops[k];
      if (!is_compute(op.what.kind) || op.out < 0) continue;
      std::size_t tensors = 1;  // of this event, up to this op, over its edge
      for (std::size_t i = first; i < k; ++i) tensors += program_.ops[i].out == op.out;
      if (edges_.has_room(op.out, tensors)) continue;
      lacks_room_ = k;
      return false;
    }
    return turns_.may_begin(edges_.comm(), first);
  }

  /// For this rank's device.
  [[nodiscard]] bool may_wait() const { return detail::may_wait<Communicator>(program_, front_, begun_, edges_); }
  /// The first op that this one waits for; the number of ops if there is none.
  [[nodiscard]] std::size_t unmet(std::size_t k) const {
    for (std::size_t i = program_.ops[k].needs; i < program_.ops[k + 1].needs; ++i)
      if (!done_[program_.needs[i]]) return program_.needs[i];
    return program_.ops.size();
  }

  [[nodiscard]] static int edge_of(const rank_op& op) { return op.in >= 0 ? op.in : op.out; }

  void begin(std::size_t k, const loss_call& loss) {
    using enum action_kind;
    const auto& op = program_.ops[k];
    const int m = op.what.microbatch;
    done_[k] = 1;
    if (is_compute(op.what.kind)) {
      compute(op, k, loss);
      clock_.end(k);
    } else if (op.what.kind == reduce_gradients) {
      const int exchange = at(copies_, op.copy).exchange;
      if (exchange >= 0) at(exchanges_, exchange).begin(edges_.comm(), step_);
      done_[k] = exchange < 0;
    } else if (is_d2h(op.what.kind)) {
      edges_.begin_copy_out(op.out, edges_.place(op.out, m), k);
      done_[k] = 0;
    } else if (is_transfer(op.what.kind) && op.in < 0) {
      edges_.send(op.out, edges_.place(op.out, m), m, k);
      done_[k] = early(op.out);
    } else if (is_transfer(op.what.kind)) {
      if (!early(op.in)) edges_.post_receives(as_size(op.in), edges_.place(op.in, m) + 1);
      done_[k] = 0;
    }
  }

  /// Whether an op that has begun has ended.
  bool ended(std::size_t k) {
    using enum action_kind;
    const auto& op = program_.ops[k];
    const auto kind = op.what.kind;
    const auto p = [&] { return edges_.place(edge_of(op), op.what.microbatch); };
    if ((kind == reduce_gradients || is_h2d(kind)) && !may_wait()) return false;
    const bool has = kind == reduce_gradients ? at(exchanges_, at(copies_, op.copy).exchange).end(edges_.comm())
                     : is_d2h(kind)           ? edges_.copied_out(op.out, p())
                     : is_h2d(kind)           ? edges_.copied_in(op.in, p(), k, early(op.in))
                                              : edges_.transferred(edge_of(op), p());
    done_[k] = has;
    return has;
  }

  void take(const rank_op& op, Tensor& old) {
    if (op.in >= 0) edges_.take(op.in, edges_.place(op.in, op.what.microbatch), old, early(op.in));
  }
  void leave(const rank_op& op, Tensor&& result) {
    edges_.leave(op.out, edges_.place(op.out, op.what.microbatch), std::move(result));
  }

  void compute(const rank_op& op, std::size_t k, const loss_call& loss) {
    using enum action_kind;
    auto& stage = *at(copies_, op.copy).stage;
    const auto m = as_size(op.what.microbatch);
    const bool back = op.what.kind != forward && op.what.kind != recompute;
    if (op.what.kind == forward && op.in >= 0) take(op, at(inputs_, op.input));
    if (makes_gradient(op.what.kind)) take(op, at(gradients_, op.gradient));
    const Tensor& x = op.input >= 0 ? at(inputs_, op.input) : callers_inputs_[m];
    const Tensor& dy = back ? at(gradients_, op.gradient) : x;
    begin_read(x, queue_);
    if (back) begin_read(dy, queue_);
    clock_.begin(k);  // not while it waits for its input
    const auto end_reads = [&] {
      const auto end = queue_.record();
      end_read(x, queue_, end);
      if (back) end_read(dy, queue_, end);
      return end;
    };
    Tensor made;
    bool in_loss = false;
    try {
      made = stage.compute(op.what.kind, x, dy, op.slot, queue_);
      if (op.what.kind == forward && op.what.stage + 1 == stages_) {
        require_contiguous(made, "the output");
        in_loss = true;
        Tensor gradient = loss(std::move(made), m, losses_.data()[m]);
        if (op.gradient >= 0) at(gradients_, op.gradient) = std::move(gradient);
      }
      if (op.out >= 0) require_handed_over(made, edges_.shape_of(op.out), back ? "the input's gradient" : "the output");
    } catch (...) {
      if constexpr (requires { clock_.abandon(); }) clock_.abandon();
      try {
        (void)end_reads();  // what has been enqueued still reads
      } catch (const std::exception&) {
        // The device has failed too, and does nothing any more.
      }
      explain_failure(op.what, in_loss ? no_layer : stage.layer_under_way(), in_loss);
    }
    const auto end = end_reads();
    computed_.push_back(end);
    if (op.out < 0) return;
    end_write(made, queue_, end);
    leave(op, std::move(made));
  }

  /// Throws the exception under way, with the place where it happened; as it is if other ranks are its cause.
  [[noreturn]] void explain_failure(const action& doing, int layer, bool in_loss) {
    if (is_communication_error(std::current_exception())) throw;
    throw_layer_error(here(), rank(), layer, in_loss, doing);
  }

  /// Waits for what this rank has enqueued: for each computation as long as for others that make no progress.
  void drain() {
    computed_.push_back(queue_.record());
    for (const auto& end : computed_)
      for (const auto until = deadline_in(options_.deadline_s); !end.reached();) {
        constexpr double look_s = 20e-6;
        const auto result = edges_.comm().wait(deadline_in(look_s), false);
        const bool is_late = std::chrono::steady_clock::now() >= until;
        if (result != wait_result::aborted && !is_late) continue;
        std::string what = "its device has not done what was enqueued";
        if constexpr (requires { edges_.comm().under_way(); }) what += edges_.comm().under_way();
        give_up(result == wait_result::aborted ? result : wait_result::deadline, what);
      }
    // Over an ordered plane it is right only if nothing has failed.
    if (ordered_plane<Communicator> && edges_.comm().wait(deadline_time(), false) == wait_result::aborted)
      give_up(wait_result::aborted, "its transfers have not been done");
  }

  bool all_sent() {
    if (!edges_.all_sent()) return false;
    for (auto& x : exchanges_)
      if (!x.all_sent(edges_.comm())) return false;
    return true;
  }

  [[nodiscard]] std::string here() const {
    return "rank " + std::to_string(rank()) + ", " + std::string(options_.counted) + " " + std::to_string(step_);
  }
  [[nodiscard]] std::string where_now() const {
    return here() + (now_ < program_.ops.size() ? ": " + to_text(program_.ops[now_].what) : "");
  }

  /// Says what this rank waits for.
  /// `waiting`: for what, if no action does.
  [[noreturn]] void give_up(wait_result why, std::string waiting = "a sum of gradients is not received") {
    why = with_blame(edges_.comm(), why);
    std::size_t stuck = program_.ops.size();
    for (std::size_t l = 0; l < front_.size() && stuck == program_.ops.size(); ++l)
      if (front_[l] < program_.lanes[l].second) stuck = front_[l];
    edge where;
    action what;
    int microbatch = no_microbatch;
    const bool gathers = stuck < program_.ops.size() && is_compute(program_.ops[stuck].what.kind) &&
                         unmet(stuck) == program_.ops.size() && !edges_.all_posted();
    if (stuck < program_.ops.size() && lacks_room_ == program_.ops.size() && !gathers) {
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
        where = at(exchanges_, at(copies_, op.copy).exchange).from();
      else if (edge_of(op) >= 0)
        where = edges_.channel_of(edge_of(op), edges_.place(edge_of(op), microbatch));
      const bool local = edge_of(op) < 0 && op.what.kind != action_kind::reduce_gradients;
      waiting = to_text(what) + " waits for " + (local ? to_text(op.what) : "the " + to_text(where));
      if constexpr (calling_plane<Communicator>)
        if (cause == stuck && is_compute(op.what.kind)) waiting = to_text(what) + " has not its turn" + edges_.comm().under_way();
    } else if (const auto unsent = edges_.first_unsent(program_)) {
      where = unsent->where;
      what = unsent->what;
      microbatch = what.microbatch;
      waiting = to_text(what) + " is not received: " + to_text(where);
    } else if (lacks_room_ < program_.ops.size()) {
      what = program_.ops[lacks_room_].what;
      where = edges_.channel_of(program_.ops[lacks_room_].out,
                                edges_.place(program_.ops[lacks_room_].out, program_.ops[lacks_room_].what.microbatch));
      microbatch = what.microbatch;
      waiting = to_text(what) + " finds no room for the " + to_text(where);
    }
    if (microbatch != no_microbatch) waiting += ", microbatch " + std::to_string(microbatch);
    if (why == wait_result::deadline)
      throw communication_error(here() + ": " + waiting + ", for " + std::to_string(options_.deadline_s) + " s", where,
                                microbatch, what);
    throw communication_error(here() + ": " + waiting + "; ended, as " + std::string(edges_.comm().failure()), where, microbatch,
                              what);
  }

  executor_options options_;
  int microbatches_, stages_;
  std::int64_t step_;
  accumulation pass_;
  group_member me_;
  bool calls_;                        ///< whether layers may call collectives of a calling_plane
  communication_plan order_;          ///< over an ordered_plane
  std::vector<tensor_shape> shapes_;  ///< what stage_shapes count
  rank_program program_;
  turns turns_;
  rank_edges<Tensor, Communicator, Stager, queue> edges_;
  std::vector<copy_state> copies_;
  std::vector<Tensor> inputs_, gradients_;  ///< kept by the order of the schedule
  std::vector<direction_exchange<Tensor, Communicator, queue>> exchanges_;
  std::vector<char> done_, begun_;  ///< per op; begun: of the first of an event
  std::vector<int> ends_;           ///< per op: the stage whose gradients are final behind it, or -1
  std::vector<std::size_t> front_;  ///< per lane
  decltype(std::declval<Backend&>().make_numbers(1)) losses_;
  decltype(std::declval<Backend&>().make_clock({})) clock_;  ///< by op
  std::vector<typename queue::moment> computed_;             ///< ends of the step's computations on the device
  timeline measured_;
  std::span<const Tensor> callers_inputs_;
  std::size_t now_ = 0;         ///< op under way
  std::size_t lacks_room_ = 0;  ///< computation that waits for a tensor to leave before it; the number of ops: none
};

}  // namespace detail

/// One device of a pipeline: does what the schedule lists for its group, a rank of the schedule, with layers that stay the
/// caller's. After step(), the gradients of all stages are those of the mean loss over all microbatches, or this device's share
/// of them; a stage that exists in two directions has the same in both. A schedule without backwards (forward_schedule,
/// forwards_of) is run for its losses: gradients stay as they are. A microbatch that the schedule recomputes has no context
/// between its forward and its recompute. Parameters stay whole: gathering, scattering and releasing have no effect here, and
/// updating parameters after step() is the caller's. Nothing is allocated after the first step.
/// The devices of a group run the same actions in the same order, and layers may wait for each other in it: no device begins a
/// computation before it has passed on everything that others of its group, or of a neighbouring one, need to begin theirs.
/// Requires: every device calls step() on a thread or process of its own, all for the same schedule and boundaries.
/// Determinism: gradients are added up in gradient_order(), then over directions, then scaled. One device that does the same
/// in this order gets the same bits.
template <class Tensor, class Stage, class Communicator, class Stager = no_stager, device_backend Backend = host_backend>
class pipeline_executor : public detail::stage_executor<Tensor, Communicator, Stager, Backend> {
  using queue = typename Backend::queue;
  using base = detail::stage_executor<Tensor, Communicator, Stager, Backend>;
  static_assert((detail::require_layer<Stage, Tensor, queue>(), true));

 public:
  /// Every rank of the schedule is one device. `stages`: those of stages_of_rank(order, comm.rank() - first_rank), in its order.
  /// `boundaries`: the shape of each stage's output, without the last's. `stager`: copies what the schedule lists as d2h and
  /// h2d.
  /// Throws: input_error for a schedule that is not sound, or wrong numbers of stages or shapes.
  /// Complexity: O(actions of all ranks).
  pipeline_executor(const schedule& order, std::span<Stage> stages, const std::vector<tensor_shape>& boundaries,
                    Communicator comm, const executor_options& options = {}, Stager stager = {}, Backend backend = {})
      : pipeline_executor(order, stages, detail::find_common(detail::shared_of(comm), order, boundaries), comm, options,
                          std::move(stager), std::move(backend)) {}

  /// `stages`: those of stages_of_rank(order, rank of the schedule), on this device's share of the microbatch: they take and make
  /// the slices of their boundaries' layouts.
  /// Throws: as above; input_error on every device for boundaries that are not for the groups' numbers of devices; and on those
  /// whom it concerns, while others wait for them until their deadline, for transfer plans that cannot be run, a tensor that
  /// stays but is laid out in two ways, and stages that exist in two directions on groups that are not equally large.
  pipeline_executor(const schedule& order, std::span<Stage> stages, const pipeline_groups& groups, Communicator comm,
                    const executor_options& options = {}, Stager stager = {}, Backend backend = {})
      : base(order, held(stages), groups, std::move(comm), options, std::move(stager), std::move(backend)) {}

  /// Runs one iteration. `inputs`, `targets`: this device's share of each microbatch; only this rank's first and last stages read
  /// them, so ranks without may pass empty spans. `loss`: (const Tensor& output, const Target&) -> loss_value<Tensor>, or one
  /// that enqueues its work: (const Tensor& output, const Target&, queue, double& value) -> Tensor, the gradient; without
  /// backwards it may return its value alone. A loss that takes Tensor or Tensor&& has the output for its own: it may write the
  /// gradient over it, if no context of a layer looks at it, and return it. `told`: of stages that have ended in the last pass of
  /// an accumulation; all passes have the number of one step. A layer that never returns holds up its own rank, and those that
  /// wait for it. Requires: passes that are not last only where directions are not summed here
  /// (executor_options::sums_directions). Throws: input_error for a wrong number of inputs or targets, or parameters' gradients
  /// that are not contiguous; layer_error, with rank, stage, layer and microbatch, for what layers and loss throw, and for
  /// outputs, inputs' gradients and the loss's gradient that are not contiguous or not of their shape; communication_error if
  /// other ranks fail or are late, or this rank's device is late; and what queues throw. Then the other ranks' steps end with an
  /// error too, gradients are of no use, and the communicator cannot be used again.
  template <class Target, class Loss>
  void step(std::span<const Tensor> inputs, std::span<const Target> targets, Loss&& loss, const stage_listener& told = {},
            const accumulation& pass = {}) {
    const auto call = [&](Tensor&& output, std::size_t m, double& value) {
      return detail::gradient_of(loss, std::move(output), targets[m], value, this->forward_only_, this->queue_, output_shape_);
    };
    this->run_step(inputs, targets.size(), call, told, pass);
  }

 private:
  pipeline_executor(const schedule& order, std::span<Stage> stages, std::shared_ptr<const detail::common_devices> common,
                    const Communicator& comm, const executor_options& options, Stager stager, Backend backend)
      : base(order, held(stages), common->groups, comm, options, std::move(stager), std::move(backend)) {
    if (detail::shared_of(comm)) devices_ = std::move(common);
  }

  [[nodiscard]] static typename base::stage_list held(std::span<Stage> stages) {
    typename base::stage_list found;
    for (auto& s : stages) found.push_back(std::make_unique<detail::stage_of<Tensor, queue, Stage>>(s));
    return found;
  }

  std::shared_ptr<const detail::common_devices> devices_;  ///< kept for others that are still to be made; null: nobody shares it
  tensor_shape output_shape_;                              ///< that a loss has got
};

}  // namespace hetsched
