// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cuda/backend.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/executor/detail/issue_plan.hpp>
#include <hetsched/runtime/executor/detail/rank_program.hpp>
#include <hetsched/runtime/executor/detail/runnable.hpp>
#include <hetsched/runtime/layer/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/action_text.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched {

namespace detail {

/// The computations of all ranks in an order in which one thread can enqueue them: every rank's as listed, behind all that they
/// need.
/// Requires: order comes from runnable(). Complexity: O(actions * lanes) looks at what an action needs.
[[nodiscard]] inline std::vector<action> computations_in_one_order(const schedule& order) {
  const action_index index(order);
  const auto all = dependencies(order, index);
  std::vector<char> done(as_size(index.size()), 0);
  std::vector<std::size_t> next(order.lanes.size(), 0);
  std::vector<action> found;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t l = 0; l < order.lanes.size(); ++l)
      for (; next[l] < order.lanes[l].actions.size(); ++next[l], moved = true) {
        const auto k = as_size(index.lane_first[l]) + next[l];
        const auto needs = std::span(all.needs).subspan(as_size(all.first[k]), as_size(all.first[k + 1] - all.first[k]));
        if (!std::all_of(needs.begin(), needs.end(), [&](int n) { return at(done, n) != 0; })) break;
        done[k] = 1;
        if (const auto& a = order.lanes[l].actions[next[l]]; is_compute(a.kind)) found.push_back(a);
      }
  }
  return found;
}

struct no_update {
  template <class Stage, class Queue>
  void operator()(Stage&, const Queue&) const {}
};
/// Of a process that drives all ranks.
struct no_transfers {
  struct operation {};
};

/// What a rank enqueues in a step, in order: its groups of transfers by number, as they are issued, and each computation before
/// the first group that may depend on it. The orders of all ranks can be merged into one.
struct part_order {
  struct item {
    action what;
    int group = -1;
  };
  std::vector<item> items;
  std::vector<std::vector<action>> groups;
};
/// Requires: order comes from runnable(). Throws: input_error where ranks have no such order.
[[nodiscard]] inline part_order order_of_part(const schedule& order, int rank) {
  const std::vector<int> alike(order.rank_of.size(), 0);
  const auto program =
      compile_in_issue_order(order, rank, send_semantics::buffered, {.has_turns = true}, {.input = alike, .gradient = alike});
  part_order found;
  std::vector<char> done(program.ops.size(), 0);
  std::vector<std::size_t> front;
  for (const auto& l : program.lanes) front.push_back(l.first);
  const auto compute = [&] {
    for (bool moved = true; std::exchange(moved, false);)
      for (std::size_t l = 0; l + 1 < front.size(); ++l)  // the last one is of what is issued
        for (; front[l] < program.lanes[l].second; ++front[l], moved = true) {
          const auto k = front[l];
          const auto needs =
              std::span(program.needs).subspan(program.ops[k].needs, program.ops[k + 1].needs - program.ops[k].needs);
          if (!std::all_of(needs.begin(), needs.end(), [&](std::size_t n) { return done[n] != 0; })) break;
          done[k] = 1;
          if (const auto& a = program.ops[k].what; is_compute(a.kind)) found.items.push_back({a});
        }
  };
  compute();
  for (const auto& group : program.issued) {
    found.items.push_back({{}, static_cast<int>(found.groups.size())});
    found.groups.emplace_back();
    for (const auto k : group) {
      found.groups.back().push_back(program.ops[k].what);
      done[k] = 1;
    }
    compute();
  }
  return found;
}

}  // namespace detail

/// A pipeline on the GPUs of this process, a GPU for each rank or some for several, that one thread drives: its first step is
/// enqueued call by call, the second is captured, on all GPUs together, and from then on a step is one launch of a CUDA graph.
/// Tensors go from device to device in it, so neither threads nor a communicator have a part in it.
/// Gradients are those of pipeline_executor, to the last bit: of the mean loss over all microbatches, in both directions.
/// Where arguments of kernels have changed, such as a number, or where tensors lie, a step is captured again, and the graph is
/// updated with them; where its work has another form it is made again.
/// Tensor: with traits that derive from cuda_tensor_traits.
/// With a `Communicator`, which is an nccl_communicator, it is the part of one rank: every rank makes one on a thread or in a
/// process of its own, with a graph of its own that holds its transfers. Each step the ranks agree whether to capture.
/// Requires: the layers' calls and the loss depend on nothing that changes from step to step but what tensors hold, or what
/// arguments_changed() tells; parameters and gradients stay where they are. Not checked. One thread at a time.
/// Source: CUDA C++ Programming Guide, CUDA Graphs, Cross-stream Dependencies and Events; NCCL, Using NCCL with CUDA Graphs.
template <class Tensor, class Stage, cuda_graph_api Api, class Communicator = detail::no_transfers>
class cuda_step_graph {
  using traits = tensor_traits<Tensor>;
  static constexpr bool is_part = !std::same_as<Communicator, detail::no_transfers>;

 public:
  using queue = cuda_queue<Api>;

  /// `places`: the GPU of each rank of the schedule. make_stage(stage, queue) -> Stage, on the rank's queue, for each stage of
  /// each direction. Transfers are as early as can be, whatever the schedule lists.
  /// Throws: input_error for a schedule that is not sound, and places that do not fit; cuda_error; what make_stage throws.
  /// Complexity: O(actions * ranks).
  template <class MakeStage>
  cuda_step_graph(cuda_devices<Api>& devices, const schedule& order, std::vector<int> places, MakeStage&& make_stage)
      : order_(detail::runnable(order, send_semantics::buffered)),
        places_(std::move(places)),
        forward_only_(is_forward_only(order_)) {
    for (const auto& a : detail::computations_in_one_order(order_)) items_.push_back({a});
    if (places_.size() != as_size(order_.ranks))
      throw input_error(std::to_string(places_.size()) + " places are not those of " + std::to_string(order_.ranks) + " ranks");
    for (int r = 0; r < order_.ranks; ++r) lend(devices, r, at(places_, r));
    make_stages(devices, make_stage);
  }
  /// The part of the rank of `comm`, on a GPU of this process. `boundaries`: the shape of each stage's output, without the
  /// last's. Takes the plan of `comm`, over which nothing else goes while a step is under way, and which is closed behind the end
  /// of this. All ranks make one.
  /// Throws: as above; input_error, also for a schedule that has no order in which all ranks can issue their transfers; as
  /// set_plan of `comm`.
  template <class MakeStage>
  cuda_step_graph(cuda_devices<Api>& devices, const schedule& order, Communicator comm, int place,
                  const std::vector<tensor_shape>& boundaries, MakeStage&& make_stage) requires(is_part)
      : comm_(std::move(comm)),
        order_(detail::runnable(order, send_semantics::buffered)),
        places_(as_size(order_.ranks), -1),
        forward_only_(is_forward_only(order_)),
        boundaries_(boundaries) {
    if (comm_.ranks() != order_.ranks)
      throw input_error(std::to_string(comm_.ranks()) + " ranks are not those of the schedule, " + std::to_string(order_.ranks));
    if (boundaries.size() + 1 != as_size(order_.stages))
      throw input_error(std::to_string(boundaries.size()) + " boundaries are not those of " + std::to_string(order_.stages) +
                        " stages");
    auto part = detail::order_of_part(order_, comm_.rank());
    items_ = std::move(part.items);
    at(places_, comm_.rank()) = place;
    queues_.resize(places_.size());
    lend(devices, comm_.rank(), place);
    const auto here = home().make_current();
    make_stages(devices, make_stage);
    communication_plan plan;
    for (const auto& group : part.groups) {
      groups_.emplace_back();
      for (const auto& a : group) add_transfer(a);
      plan.emplace_back();
      for (const auto& t : groups_.back()) plan.back().push_back({t.channel, t.sends, t.what, t.bytes});
      if (plan.back().empty()) plan.pop_back();  // an exchange within the rank
    }
    comm_.set_plan(plan);
  }
  cuda_step_graph(const cuda_step_graph&) = delete;
  cuda_step_graph& operator=(const cuda_step_graph&) = delete;
  ~cuda_step_graph() {
    for (const auto& q : queues_) try {
        q.finish();
      } catch (const std::exception&) {
        // The device has failed, and does nothing any more.
      }
    if constexpr (is_part) comm_.end_graph();
  }

  /// Requires: the stage is of a rank that this drives; so for queue_of.
  [[nodiscard]] Stage& stage(int direction, int s) { return *stages_[number(direction, s)]; }
  /// On which its stage's parameters are updated: what is enqueued there is behind the step before, and before the next one.
  [[nodiscard]] const queue& queue_of(int direction, int s) const { return at(queues_, order_.rank(direction, s)); }

  /// Of the rank whose part this is, or of the first one.
  [[nodiscard]] const queue& home() const { return *lent_.front(); }

  /// Enqueues a step. `inputs`, `targets`: of each microbatch, on the device of the first, or the last, stage or in pinned
  /// memory; where they lie elsewhere than in the step before, arguments have changed. `loss`: (const Tensor& output, const
  /// Tensor& target, queue, double& value) -> Tensor, the gradient, which enqueues its work, or one that has the output for its
  /// own, as pipeline_executor::step's. `update`: (Stage&, queue), enqueues
  /// on the queue of each stage of each direction what follows when its gradients are there, such as an optimizer's work; what it
  /// writes is gradients, parameters and what it alone uses. Calls of both are those of the last step that was captured. Throws:
  /// input_error for wrong numbers of them, and for what waits for the host where it is captured; cuda_error; what layers, loss
  /// and update throw. Behind the last three it cannot be used again.
  template <class Loss, class Update = detail::no_update>
  void step(std::span<const Tensor> inputs, std::span<const Tensor> targets, const Loss& loss, const Update& update = {}) {
    const auto count = as_size(order_.microbatches);
    const auto fits = [&](std::span<const Tensor> given, int stage) {
      if (given.size() == count) return true;
      for (int c = 0; c < order_.directions; ++c)
        if (stages_[number(c, stage)]) return false;
      return true;
    };
    if (!fits(inputs, 0) || !fits(targets, order_.stages - 1))
      throw input_error("a step needs one input and one target per microbatch");
    inputs_ = inputs.data();
    targets_ = targets.data();
    std::vector<const void*> memory;
    for_each_shared([&](const Tensor& t, int) { memory.push_back(traits::buffer(t).data()); });
    if (memory != memory_) arguments_changed();
    memory_ = std::move(memory);
    if constexpr (!std::same_as<Update, detail::no_update>) updates_ = true;
    if constexpr (is_part) {
      const auto here = home().make_current();
      try {
        run(loss, update);
      } catch (const std::exception& e) {
        comm_.abort("rank " + std::to_string(comm_.rank()) + ": " + e.what());
        throw;
      }
    } else {
      run(loss, update);
    }
  }
  /// The next step is captured again, with the arguments that calls have then: the host's time is that of its first step once
  /// more. What changes in each step is better kept in tensors.
  void arguments_changed() { has_changed_ = true; }
  /// Of the last step, per microbatch, 0 where another rank has the last stage; waits for its end. Throws: cuda_error;
  /// communication_error where a rank has failed.
  [[nodiscard]] std::span<const double> losses() const {
    for (const auto& q : queues_) q.finish();
    if constexpr (is_part) expect_alive();
    return {losses_.begin(), losses_.end()};
  }
  /// Whether steps are launches by now.
  [[nodiscard]] bool is_captured() const { return graph_.has_value(); }

 private:
  struct flight {  ///< of a microbatch at a stage
    Tensor input, gradient;
    Tensor leaving[2];  ///< for another rank's part: the activation, the gradient
    int context = -1;
    bool again = false;  ///< its forward is done twice
  };
  struct context_list {
    std::vector<std::unique_ptr<typename Stage::context>> all;
    std::vector<int> idle;
  };
  /// Between this rank and another.
  struct transfer {
    action where;  ///< that lists it
    bool sends = false;
    int channel = -1;
    stamp what;
    std::size_t bytes = 0;
    typename Communicator::operation operation = {};
  };

  [[nodiscard]] std::size_t number(int direction, int s) const { return as_size(direction * order_.stages + s); }
  [[nodiscard]] flight& flight_of(int direction, int s, int m) {
    return flights_[number(direction, s) * as_size(order_.microbatches) + as_size(m)];
  }
  [[nodiscard]] flight& flight_of(const action& a) { return flight_of(a.direction, a.stage, a.microbatch); }
  [[nodiscard]] std::optional<queue>& arrivals(int from, int to) { return at(arrivals_, from * order_.ranks + to); }

  void lend(cuda_devices<Api>& devices, int rank, int place) {
    const auto name = "rank " + std::to_string(rank);
    if (place < 0) throw input_error(name + " is on the host, and a CUDA graph is of GPUs");
    lent_.push_back(devices.lend_queue(place, name + "'s computations"));
    queues_.resize(std::max(queues_.size(), as_size(rank) + 1));
    at(queues_, rank) = *lent_.back();
  }
  /// Whether this drives the rank.
  [[nodiscard]] bool drives(int rank) const { return at(places_, rank) >= 0; }
  template <class MakeStage>
  void make_stages(cuda_devices<Api>& devices, MakeStage&& make_stage) {
    arrivals_.resize(as_size(order_.ranks * order_.ranks));
    stages_.reserve(order_.rank_of.size());  // gradients may be members
    for (int c = 0; c < order_.directions; ++c)
      for (int s = 0; s < order_.stages; ++s) {
        auto& made = stages_.emplace_back();
        auto& list = gradients_.emplace_back();
        if (!drives(order_.rank(c, s))) continue;
        const auto& q = queue_of(c, s);
        const auto here = q.make_current();
        made.emplace(make_stage(s, q));
        for (Tensor& g : made->gradients()) list.push_back(&g);
        if constexpr (!is_part) {  // else transfers take them there
          for (const int to : {s - 1, s + 1})
            if (to >= 0 && to < order_.stages) open(devices, order_.rank(c, s), order_.rank(c, to));
          if (c > 0) open(devices, order_.rank(1, s), order_.rank(0, s)), open(devices, order_.rank(0, s), order_.rank(1, s));
        }
      }
    contexts_.resize(stages_.size());
    flights_.resize(stages_.size() * as_size(order_.microbatches));
    directions_.resize(as_size(order_.microbatches));
    for (const auto& l : order_.lanes)
      for (const auto& a : l.actions) {
        if (!is_compute(a.kind)) continue;
        at(directions_, a.microbatch) = a.direction;
        if (a.kind == action_kind::recompute) flight_of(a).again = true;
      }
    losses_ = typename cuda_backend<Api>::numbers(lent_.front(), as_size(order_.microbatches));
  }
  /// To the last group: what an action of the schedule stands for.
  void add_transfer(const action& a) {
    using enum action_kind;
    const int me = comm_.rank();
    const auto add = [&](bool sends, int peer, payload what, int direction, int stage, int m, std::size_t bytes) {
      const edge e{sends ? me : peer, sends ? peer : me, what, direction, stage};
      groups_.back().push_back({.where = a,
                                .sends = sends,
                                .channel = comm_.open(e),
                                .what = {0, m, what, direction, stage},
                                .bytes = bytes * sizeof(typename traits::element)});
    };
    const int c = a.direction, s = a.stage;
    if (is_transfer(a.kind)) {
      const bool sends = detail::is_send(a.kind), forth = a.kind == send_activation || a.kind == receive_activation;
      const int next = sends == forth ? s + 1 : s - 1, from = sends ? s : next;
      add(sends, order_.rank(c, next), forth ? payload::activation : payload::gradient, c, from, a.microbatch,
          elements(at(boundaries_, std::min(s, next))));
    } else if (a.kind == reduce_gradients && order_.rank(1 - c, s) != me) {
      const auto& list = gradients_[number(c, s)];
      for (std::size_t i = 0; i < list.size(); ++i)
        for (const bool sends : {false, true})
          add(sends, order_.rank(1 - c, s), payload::reduction, sends ? c : 1 - c, s, static_cast<int>(i),
              detail::elements(std::as_const(*list[i])));
    }
  }
  static std::size_t elements(const tensor_shape& shape) {
    std::size_t n = 1;
    for (const auto d : shape) n *= d;
    return n;
  }

  /// Where tensors of one rank arrive at another, if that is on another device.
  void open(cuda_devices<Api>& devices, int from, int to) {
    auto& q = arrivals(from, to);
    if (q || at(places_, from) == at(places_, to)) return;
    lent_.push_back(
        devices.lend_queue(at(places_, to), "the way from rank " + std::to_string(from) + " to rank " + std::to_string(to)));
    q = *lent_.back();
  }
  template <class Body>
  void for_each_shared(Body&& body) {  ///< with what others use, too: (tensor, the queue that reads it)
    for (std::size_t m = 0; m < directions_.size(); ++m) {
      const int first = order_.rank(directions_[m], 0), last = order_.rank(directions_[m], order_.stages - 1);
      if (drives(first)) body(inputs_[m], first);
      if (drives(last)) body(targets_[m], last);
    }
  }

  template <class Loss, class Update>
  void run(const Loss& loss, const Update& update) {
    if (steps_++ == 0) {
      enqueue(loss, update);
      return mark_end();
    }
    bool captures = std::exchange(has_changed_, false) || !graph_;
    if constexpr (is_part) {
      captures = any_rank(captures);
      if (captures) comm_.capture([&] { capture(loss, update); }, [this] { graph_->end(); });
      comm_.launch([&] { launch(); });
    } else {
      if (captures) capture(loss, update);
      launch();
    }
  }
  void expect_alive() const {
    if (const std::string reason = comm_.failure(); !reason.empty())
      throw communication_error("rank " + std::to_string(comm_.rank()) + ": a step; ended, as " + reason, {.to = comm_.rank()},
                                no_microbatch, {});
  }
  /// Whether any rank says so.
  [[nodiscard]] bool any_rank(bool mine) {
    std::vector<std::vector<double>> all;
    const double own = mine ? 1 : 0;
    const auto found = comm_.gather(std::span(&own, 1), all, deadline_in(comm_.step_deadline_s()));
    if (found == wait_result::progress) return std::any_of(all.begin(), all.end(), [](const auto& r) { return r.at(0) != 0; });
    expect_alive();
    throw communication_error("rank " + std::to_string(comm_.rank()) + ": the others do not come to the step, for " +
                                  std::to_string(comm_.step_deadline_s()) + " s",
                              {.to = comm_.rank()}, no_microbatch, {});
  }

  template <class Loss, class Update>
  void capture(const Loss& loss, const Update& update) {
    std::vector<queue> all;
    for (const auto& q : lent_) all.push_back(*q);
    if constexpr (is_part) all.push_back(comm_.transfer_queue());
    for (const auto& q : all) q.finish();
    hops_.clear();
    const queue host(home().devices());
    for_each_shared([&](const Tensor& t, int) { detail::begin_read(t, host); });
    for_each_own([&](Tensor& g, int) { traits::buffer(g).begin_write(host); });
    try {
      const auto body = [&] { enqueue(loss, update); };
      graph_ ? (void)graph_->update(body) : (void)graph_.emplace(std::move(all), body);
    } catch (...) {
      graph_.reset();  // what it does is part of a step
      try {
        mark_end();
      } catch (const std::exception&) {
        // The device has failed too, and does nothing any more.
      }
      throw;
    }
    mark_end();  // whoever uses these next is not to wait for what was captured
  }
  template <class Body>
  void for_each_own(Body&& body) {  ///< of stages, that a step writes; with its rank
    if (forward_only_) return;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      for (Tensor* g : gradients_[i]) body(*g, order_.rank_of[i]);
      if (updates_ && stages_[i])
        for (Tensor& p : stages_[i]->parameters()) body(p, order_.rank_of[i]);
    }
  }
  /// What has been enqueued up to here reads what is shared, and writes what is the stages' own.
  void mark_end() {
    ends_.clear();
    for (const auto& q : queues_) ends_.push_back(q.record());
    for (Tensor& hop : hops_) traits::buffer(hop).end_write(home(), ends_.front());  // all queues have ended when it does
    for_each_shared([&](const Tensor& t, int rank) { detail::end_read(t, at(queues_, rank), at(ends_, rank)); });
    for_each_own([&](Tensor& g, int rank) { detail::end_write(g, at(queues_, rank), at(ends_, rank)); });
  }
  void launch() {
    const auto& first = home();
    for_each_shared([&](const Tensor& t, int) { detail::begin_read(t, first); });
    for_each_own([&](Tensor& g, int) { traits::buffer(g).begin_write(first); });
    for (const auto& q : queues_) first.wait(q.record());
    if constexpr (is_part) {
      first.wait(comm_.transfer_queue().record());
      expect_alive();  // a record may have waited, and seen that another rank is lost: then the graph has ended
    }
    graph_->launch();
    const auto end = first.record();
    for (const auto& q : queues_)
      if (!q.on_host()) q.wait(end);
    if constexpr (is_part) comm_.transfer_queue().wait(end);
    mark_end();
  }

  template <class Loss, class Update>
  void enqueue(const Loss& loss, const Update& update) {
    for (std::size_t i = 0; i < stages_.size() && !forward_only_; ++i)
      for (Tensor* g : gradients_[i]) detail::zero(*g, at(queues_, order_.rank_of[i]));
    for (const auto& i : items_) i.group < 0 ? compute(i.what, loss) : pass_on(i.group);
    if (forward_only_) return;
    if (order_.directions == 2)
      for (int s = 0; s < order_.stages; ++s)
        if (drives(order_.rank(0, s)) && drives(order_.rank(1, s))) add_directions(s);
    for (std::size_t i = 0; i < stages_.size(); ++i)
      for (Tensor* g : gradients_[i])
        if (order_.microbatches > 1) detail::scale(*g, 1.0 / order_.microbatches, at(queues_, order_.rank_of[i]));
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (!stages_[i]) continue;
      const auto& q = at(queues_, order_.rank_of[i]);
      const auto here = q.make_current();
      update(*stages_[i], q);
    }
  }

  /// A group of transfers with other ranks.
  void pass_on([[maybe_unused]] int number_of_group) {
    if constexpr (is_part) {
      auto& group = at(groups_, number_of_group);
      std::deque<Tensor> terms;  // of the other direction's gradients
      const auto& q = home();
      const auto& way = comm_.transfer_queue();
      for (auto& t : group) {
        if (t.what.what == payload::reduction) {
          Tensor& g = *gradients_[number(t.where.direction, t.where.stage)][as_size(t.what.microbatch)];
          if (t.sends) detail::end_write(g, q, q.record());  // by layers, which leave no marks
          Tensor& moved = t.sends ? g : terms.emplace_back(detail::make_tensor<Tensor>(detail::shape_of(std::as_const(g)), way));
          post(t, moved);
          continue;
        }
        auto& f = flight_of(t.where);
        const bool back = t.what.what == payload::gradient;
        if (t.sends) {
          post(t, f.leaving[back]);
        } else {
          auto& to = back ? f.gradient : f.input;
          to = detail::make_tensor<Tensor>(at(boundaries_, t.what.stage - back), way);
          post(t, to);
        }
      }
      for (auto& t : group) finish(t);
      auto term = terms.begin();
      for (auto& t : group) {
        if (t.what.what == payload::reduction && !t.sends) {
          Tensor& g = *gradients_[number(t.where.direction, t.where.stage)][as_size(t.what.microbatch)];
          detail::add(g, *term++, q);
        } else if (t.what.what != payload::reduction && t.sends) {
          flight_of(t.where).leaving[t.what.what == payload::gradient] = {};
        }
      }
    }
  }
  void post(transfer& t, Tensor& moved) {
    t.sends ? comm_.post_send(t.channel, t.what, moved, t.operation) : comm_.post_receive(t.channel, t.what, moved, t.operation);
  }
  /// Waits until it is enqueued.
  void finish(transfer& t) {
    const auto until = deadline_in(comm_.deadline_s());
    while (!comm_.poll(t.operation)) {
      expect_alive();
      if (comm_.wait(until, true) != wait_result::deadline) continue;
      throw communication_error("rank " + std::to_string(comm_.rank()) + ": " + to_text(t.where) + " is not enqueued, for " +
                                    std::to_string(comm_.deadline_s()) + " s",
                                {.to = comm_.rank()}, t.what.microbatch, t.where);
    }
  }

  template <class Loss>
  void compute(const action& a, const Loss& loss) {
    using enum action_kind;
    auto& stage = *stages_[number(a.direction, a.stage)];
    const auto& q = queue_of(a.direction, a.stage);
    const auto here = q.make_current();
    auto& f = flight_of(a);
    const bool back = a.kind != forward && a.kind != recompute;
    if (f.context < 0) f.context = take_context(a);
    auto& context = *at(contexts_[number(a.direction, a.stage)].all, f.context);
    const Tensor& x = a.stage == 0 ? inputs_[a.microbatch] : f.input;
    detail::begin_read(x, q);
    if (back) detail::begin_read(f.gradient, q);
    Tensor made;
    if (!back)
      made = detail::forward<Tensor>(stage, x, context, q);
    else if (a.kind == backward)
      made = detail::backward<Tensor>(stage, f.gradient, context, q);
    else if (a.kind == backward_input)
      made = detail::backward_input<Tensor>(stage, f.gradient, context, q);
    else
      detail::backward_weight<Tensor>(stage, f.gradient, context, q);
    if (a.kind == forward && a.stage + 1 == order_.stages) {
      const auto& target = targets_[a.microbatch];
      detail::begin_read(target, q);
      auto gradient = loss(std::move(made), target, q, losses_.data()[a.microbatch]);
      detail::end_read(target, q, q.record());
      if (!forward_only_) f.gradient = std::move(gradient);
    }
    const auto end = q.record();
    detail::end_read(x, q, end);
    if (back) detail::end_read(f.gradient, q, end);
    if (a.kind == forward && a.stage + 1 < order_.stages) {
      detail::end_write(made, q, end);
      send(std::move(made), a, 1, flight_of(a.direction, a.stage + 1, a.microbatch).input);
    }
    if ((a.kind == backward || a.kind == backward_input) && a.stage > 0) {
      detail::end_write(made, q, end);
      send(std::move(made), a, -1, flight_of(a.direction, a.stage - 1, a.microbatch).gradient);
    }
    const bool is_over = a.kind == backward || a.kind == backward_weight || (forward_only_ && a.kind == forward);
    if (is_over || (a.kind == forward && f.again)) {
      contexts_[number(a.direction, a.stage)].idle.push_back(std::exchange(f.context, -1));
      if (is_over) f.input = {}, f.gradient = {};
    }
  }
  /// To the stage next to it.
  void send(Tensor made, const action& a, int way, Tensor& there) {
    if (!drives(order_.rank(a.direction, a.stage + way))) {
      flight_of(a).leaving[way < 0] = std::move(made);
      return;
    }
    const auto& q = arrivals(order_.rank(a.direction, a.stage), order_.rank(a.direction, a.stage + way));
    there = q ? copied(*q, made, queue_of(a.direction, a.stage)) : std::move(made);
  }
  /// `home`: of what is copied.
  [[nodiscard]] Tensor copied(const queue& q, const Tensor& from, const queue& home) {
    Tensor to = detail::make_tensor<Tensor>(detail::shape_of(from), q);
    copy(to, from, q, home);
    return to;
  }
  /// A graph cannot hold a copy between devices that do not share memory: it goes by way of the host.
  void copy(Tensor& to, const Tensor& from, const queue& q, const queue& home) {
    if (q.devices().share(q.device(), home.device())) return detail::assign(to, from, q);
    auto& hop = hops_.emplace_back(detail::make_tensor<Tensor>(detail::shape_of(from), queue(q.devices())));
    {
      const auto here = home.make_current();
      detail::assign(hop, from, home);
    }
    const auto there = q.make_current();
    detail::assign(to, std::as_const(hop), q);
  }
  [[nodiscard]] int take_context(const action& a) {
    const auto i = number(a.direction, a.stage);
    auto& [all, idle] = contexts_[i];
    if (idle.empty()) {
      all.push_back(std::make_unique<typename Stage::context>(detail::make_context(*stages_[i])));
      return static_cast<int>(all.size()) - 1;
    }
    const int found = idle.back();
    idle.pop_back();
    return found;
  }
  /// Both get direction 0's gradients plus direction 1's.
  void add_directions(int s) {
    const auto there = number(0, s), back = number(1, s);
    const auto& q = queue_of(0, s);
    const auto& way = arrivals(order_.rank(1, s), order_.rank(0, s));
    const auto& home = queue_of(1, s);
    for (std::size_t i = 0; i < gradients_[there].size(); ++i) {
      Tensor& sum = *gradients_[there][i];
      Tensor& other = *gradients_[back][i];
      detail::end_write(other, home, home.record());  // by layers, which leave no marks
      if (way) {
        const auto term = copied(*way, other, home);
        detail::add(sum, term, q);
      } else {
        detail::add(sum, other, q);
      }
      copy(other, sum, home, q);
    }
  }

  [[no_unique_address]] Communicator comm_;
  schedule order_;
  std::vector<int> places_;  ///< by rank; -1: another process or thread drives it
  std::vector<detail::part_order::item> items_;
  bool forward_only_;
  std::vector<tensor_shape> boundaries_;
  std::vector<std::vector<transfer>> groups_;
  std::vector<std::shared_ptr<const queue>> lent_;  ///< of which the next two are
  std::vector<queue> queues_;                       ///< by rank
  std::vector<std::optional<queue>> arrivals_;      ///< from each rank at each
  std::optional<detail::cuda_graph<Api>> graph_;    ///< ends behind what is in its memory
  std::vector<std::optional<Stage>> stages_;        ///< by direction and stage, as are the next two
  std::vector<std::vector<Tensor*>> gradients_;
  std::vector<context_list> contexts_;
  std::vector<flight> flights_;  ///< by direction, stage and microbatch
  std::vector<int> directions_;  ///< of microbatches
  std::deque<Tensor> hops_;      ///< pinned, of copies by way of the host; of the first step, and of the graph
  const Tensor* inputs_ = nullptr;
  const Tensor* targets_ = nullptr;
  typename cuda_backend<Api>::numbers losses_;
  std::vector<typename queue::moment> ends_;  ///< of the last step, by rank
  std::vector<const void*> memory_;           ///< of inputs and targets
  int steps_ = 0;
  bool has_changed_ = false, updates_ = false;
};

}  // namespace hetsched
