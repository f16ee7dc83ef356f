// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/rank_failure.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/executor/detail/loss_gradient.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/stage_copy.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
#include <hetsched/runtime/layout/layer_shapes.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/detail/agreement.hpp>
#include <hetsched/runtime/trainer/detail/common_training.hpp>
#include <hetsched/runtime/trainer/detail/gathered_layers.hpp>
#include <hetsched/runtime/trainer/detail/gradient_norm.hpp>
#include <hetsched/runtime/trainer/detail/held_parameter.hpp>
#include <hetsched/runtime/trainer/detail/parameter_state.hpp>
#include <hetsched/runtime/trainer/detail/stage_on.hpp>
#include <hetsched/runtime/trainer/detail/told_losses.hpp>
#include <hetsched/runtime/trainer/gradient_exchange.hpp>
#include <hetsched/runtime/trainer/move_state.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// One rank of a training, a device of a group: its stages of one pipeline, trained as if one device had done all microbatches.
/// Stager: as the executor's. Backend: where it computes. On a device layers, loss and optimizer may enqueue their work, and sums
/// are made there; the host waits at the end of each pass, before ranks agree and, if gradients go by way of it, behind sums.
/// Requires: every rank constructs one, in a thread or process of its own, and calls step() as often as the others.
/// Determinism: gradients are added up over a stage's microbatches in gradient_order(), then as gradient_exchange does: in each
/// pipeline over the layers that share a parameter, directions, data, context and partial tensor ranks, then over pipelines; then
/// they are scaled by the number of samples. One device that does so gets the same bits. With one pipeline of one direction the
/// bits are the same for any number of stages and any schedule that takes microbatches in order. Norms and losses do not depend
/// on the cut either.
template <class Tensor, class Layer, class Communicator, class Optimizer, device_backend Backend = host_backend,
          class Stager = no_stager>
class pipeline_trainer {
  using queue = typename Backend::queue;
  static_assert((detail::require_layer<Layer, Tensor, queue>(), true));
  static_assert((detail::require_communicator<Communicator, Tensor>(), true));
  static_assert(optimizer<Optimizer, Tensor, queue>, "this is no optimizer for these tensors; see the concept's members");
  static_assert(std::copyable<Backend> && std::copy_constructible<Stager>, "backend and stager are handles that can be copied");
  using layers_type = layer_list<Tensor, Layer, queue>;
  using stage_type = typename detail::stage_on<Backend, Tensor, layers_type>::type;
  using executor_type = pipeline_executor<Tensor, stage_type, Communicator, Stager, Backend>;
  using exchange_type = gradient_exchange<Tensor, Communicator, queue>;
  using gathered_type = detail::gathered_layers<Tensor, Communicator, queue>;
  static constexpr bool times_layers = std::same_as<queue, host_queue> && std::same_as<stage_type, layers_type>;
  static constexpr bool has_factor = requires(Optimizer & o) { o.gradient_factor = 1.0; };

 public:
  /// What a layer knows of the devices of its stage.
  using group_type = stage_group<Tensor, Communicator>;

  /// `make_layer`: (layer, const group_type&) or (layer) -> Layer, called for the layers that this rank holds, once per stage
  /// with the layer; alike on every rank. The group stays where it is. Layers made without it know of no others: their groups
  /// have data ranks only. `shape_after`: (layer, microbatch_size) or (layer) -> tensor_shape of the layer's whole output for a
  /// microbatch of the rank's pipeline, or boundary_shape; or one tensor_shape for all. `comm`: has as many ranks as the layout;
  /// copies of it are ends of the same channels. Requires: all ranks construct at the same time. Throws: input_error on every
  /// rank, naming the ranks, where layouts, shapes, ties, optimizers or what else must agree do not; input_error on one rank for
  /// what only it finds, and communication_error on the others. Complexity: O(actions + parameters * (stages + ranks)); every
  /// parameter that several ranks hold is read once.
  template <class MakeLayer>
  pipeline_trainer(const training_layout& layout, MakeLayer&& make_layer, const layer_shapes& shape_after, Communicator comm,
                   Optimizer optimizer, trainer_options options = {}, Backend backend = {}, Stager stager = {})
      : backend_(std::move(backend)),
        queue_(backend_.compute_queue()),
        stager_(std::move(stager)),
        comm_(std::move(comm)),
        optimizer_(std::move(optimizer)),
        options_(std::move(options)),
        step_(options_.first_step) {
    guarded("at the start", [&] {
      common_ = detail::find_common(detail::shared_of(comm_), layout);
      construct(make_layer, shape_after);
    });
  }

  /// Runs one iteration: forward, backward, exchange, update. `inputs`, `targets`: this rank's part of each microbatch of its
  /// pipeline (see samples()), empty for ranks without its first or last stage; targets are contiguous. `loss`: (const Tensor&
  /// output, const Target&) -> loss_value<Tensor>, as trainer_options::loss_in_parts says, or one that enqueues its work or has
  /// the output for its own, as the executor's. Parameters change only when all ranks have told that their gradients are whole.
  /// Nothing is allocated after the first step, if layers, loss, optimizer and communicator allocate nothing. Throws: as
  /// pipeline_executor::step; communication_error; agreed_error for what is not finite (if asked for) and for optimizers that are
  /// set differently. Parameters and optimizer are then as after the last committed step, and the communicator cannot be used
  /// again, but for checkpoints behind an agreed_error. An optimizer that throws leaves parameters half updated. Where a process
  /// is killed or cut off in the moment of agreement, others may be one step apart: committed_step() tells.
  template <class Targets, class Loss>
  step_report step(std::span<const Tensor> inputs, const Targets& targets, Loss&& loss) {
    guarded("", [&] {
      copies_.clear();
      exchange_->begin_step(step_);
    });
    pass(inputs, targets, loss, true);
    step_report report;
    guarded("", [&] {
      exchange_->sum(step_, deadline());
      for (auto& p : parameters_) p.free_gradient();
      factor_ = 1;
      scale_sums(1 / (samples_ * static_cast<double>(passes_) * options_.scaling.scale));
      report = agree();
    });
    if (report.updated)
      guarded("", [&] { update(report.gradient_norm); });
    else if (ordered_plane<Communicator> && any_sharded())
      guarded("", [&] { exchange_->spread(deadline()); });  // what was there before: the order has its place for it
    options_.scaling.follow(report.updated);
    passes_ = 0;
    ++step_;
    return report;
  }

  /// Forward and backward of one more batch for the next step(), which then takes the mean over all of them: as a step with the
  /// microbatches of all batches, one after the other. Arguments and exceptions: as step()'s. All ranks call it between the same
  /// steps.
  template <class Targets, class Loss>
  void accumulate(std::span<const Tensor> inputs, const Targets& targets, Loss&& loss) {
    pass(inputs, targets, loss, false);
  }

  /// The mean loss over a batch that is not trained on, the same on every rank: forwards alone, in the schedule's order.
  /// Parameters, gradients and the optimizer stay as they are; layers that act otherwise in training are to be told before and
  /// behind it (see layers()). Arguments: as step()'s, with as many microbatches; `loss` may return its value alone. All ranks
  /// call it between the same steps. Its buffers are made by the first call. Throws: as pipeline_executor::step.
  template <class Targets, class Loss>
  [[nodiscard]] double evaluate(std::span<const Tensor> inputs, const Targets& targets, Loss&& loss) {
    using target = std::remove_cvref_t<decltype(*std::data(targets))>;
    guarded("in an evaluation", [&] {
      if (evaluator_)
        evaluator_->take_order();
      else
        evaluator_ = executor_for(forwards_of(pipeline().order), 0, "evaluation");
      begin_gathers(*evaluator_);
    });
    evaluator_->step(inputs, std::span<const target>(targets), detail::loss_value_alone<Tensor, Loss, queue>{loss});
    double mean = 0;
    guarded("in an evaluation", [&] {
      mine_.clear();
      if (detail::has_last_stage(layout(), comm_.rank()))
        mine_.insert(mine_.end(), evaluator_->losses().begin(), evaluator_->losses().end());
      gather("in an evaluation");
      mean = mean_loss(0);
      executor_->take_order();
    });
    return mean;
  }

  /// The number of steps that all ranks have done, including those before the checkpoint that the training began with.
  [[nodiscard]] std::int64_t committed_step() const { return step_; }

  /// Sets the number of steps after a checkpoint has been loaded into state(); on all ranks, between steps.
  void set_committed_step(std::int64_t step) {
    if (step == step_) return;
    step_ = step;
    make_executor();
  }

  /// Works in other orders from the next step on; all ranks call it between the same steps, with the same. Throws, and nothing
  /// has changed: as with_schedules, or input_error on all ranks if they differ.
  void reschedule(const std::vector<schedule>& orders) {
    auto next = detail::find_common(detail::shared_of(comm_), with_schedules(layout(), orders));
    mine_ = {next->digests.back()};
    guarded("between steps", [&] { gather("between steps"); });
    constexpr std::string_view aspects[] = {"schedules"};
    if (const auto text = detail::disagreement(all_.all(), aspects); !text.empty()) throw input_error(text);
    common_ = std::move(next);
    make_executor();
  }

  /// Goes on under another layout from the next step on, of the same layers and ranks: other cuts, schedules, degrees or numbers
  /// of microbatches. Parameters, the optimizer's state and layers' buffers travel over the communicator from those that held
  /// them to those that hold them now; what else layers keep of a microbatch or a step ends with them, as all layers are made
  /// again, by the functions that the constructor gets. The training is then, bit for bit, one that began under the new layout
  /// with a checkpoint of this step. All ranks call it between the same steps, with the same. Holds this rank's share of the
  /// state in host memory meanwhile. Throws: input_error on all ranks, and nothing has changed, if they differ, or for a layout
  /// of other layers or ranks, or between accumulate() and step(); else as the constructor and move_state, and the trainer is of
  /// no more use.
  template <class MakeLayer>
  requires byte_plane<Communicator>
  void move_layers(const training_layout& next, MakeLayer&& make_layer, const layer_shapes& shape_after) {
    validate(next);
    if (next.layers != layout().layers || next.ranks() != layout().ranks())
      throw input_error("a training of " + std::to_string(layout().layers) + " layers on " + std::to_string(layout().ranks()) +
                        " ranks cannot go on with " + std::to_string(next.layers) + " on " + std::to_string(next.ranks()));
    if (passes_ > 0) throw input_error("layers move between steps, not behind a batch that is accumulated for the next one");
    auto common = detail::find_common(detail::shared_of(comm_), next);
    guarded("between steps", [&] { compare_plans(*common); });
    guarded("between steps", [&] {
      std::vector<std::byte> bytes;
      const auto owned = detail::copies_in(bytes, state(true));
      forget_layout();
      common_ = std::move(common);
      construct(make_layer, shape_after);
      auto wanted = state();
      move_state(comm_, std::span<const state_slice>(owned), std::span(wanted), options_.deadline_s);
      state_loaded();
    });
  }

  /// Parameters and the optimizer's state, as slices that view them, or copies of them in host memory where they are on a device
  /// (of a GPU: pinned, and kept for the next time); valid as long as no step runs. What has been written to slices counts from
  /// state_loaded() on. Names do not depend on who holds what. Parameter n of a layer has parameter.n, updates.n (how often it
  /// was updated) and <optimizer>.<state>.n; tied parameters go by the first of them. Buffer n of a layer is buffer.n. What a
  /// layer itself calls them, if it does, is beside it. `owned_only`: what this rank is to write, each element on exactly one
  /// rank; else everything that it holds, to be loaded, where an element may come more than once, and without elements what only
  /// others hold: load_checkpoint learns of all tensors of the training.
  [[nodiscard]] std::vector<state_slice> state(bool owned_only = false) {
    const auto bound = backend_.bind();
    copies_.clear();
    const auto seen = [&](Tensor& t) -> Tensor& { return copies_.of(t, backend_); };
    auto slices = detail::state_of_training(model_, std::span(parameters_), optimizer_, *exchange_, owned_state_, comm_.rank(),
                                            owned_only, seen);
    detail::add_buffers<Tensor>(slices, layers(), layout(), comm_.rank(), owned_only, seen);
    if (!owned_only)
      detail::add_held_elsewhere<Tensor>(slices, model_, detail::state_slice_names(optimizer_), common_model_->buffers);
    detail::name_slices(slices, common_model_->names);
    copies_.read(queue_);
    return slices;
  }
  /// Takes over what has been written to the slices of the last state(), such as a checkpoint; slices end with it.
  void state_loaded() {
    const auto bound = backend_.bind();
    copies_.write(queue_);
    tell_layers();
  }

  /// The optimizer, to change its learning rate between steps, on all ranks alike.
  [[nodiscard]] Optimizer& optimizer_settings() { return optimizer_; }
  /// The scaling of the loss as it is now, to be kept with a checkpoint and set again; on all ranks alike, between steps.
  [[nodiscard]] loss_scaling& scaling() { return options_.scaling; }
  /// This rank's layers with their numbers, stage by stage; of bidirectional schedules, both stages'. At ZeRO
  /// stage 3 parameters that they gather are empty: see state().
  [[nodiscard]] std::vector<std::pair<int, Layer*>> layers() {
    std::vector<std::pair<int, Layer*>> found;
    const auto numbers = detail::layers_of_rank(layout(), comm_.rank());
    for (auto& s : stages_)
      for (auto& l : detail::layers_of(s).layers()) found.emplace_back(numbers[found.size()], &l);
    return found;
  }

  /// What this rank computed and received in the last step: see pipeline_executor::measured(). Ranks are those of its pipeline.
  [[nodiscard]] const timeline& measured() const { return executor_->measured(); }
  /// What this rank's layers took in the last step, of several passes in the last, in the order of layers(): the means over the
  /// microbatches. Empty where layers only enqueue their work.
  [[nodiscard]] const std::vector<layer_time>& layer_times() const { return layer_times_; }
  /// Valid until reschedule() or move_layers(), as is pipeline().
  [[nodiscard]] const training_layout& layout() const { return common_->layout; }
  /// The pipeline that this rank works in.
  [[nodiscard]] const pipeline_layout& pipeline() const { return layout().pipelines[pipeline_]; }
  /// Where this rank works, and the degrees of its group.
  [[nodiscard]] rank_place place() const { return layout().place_of(comm_.rank()); }
  [[nodiscard]] degrees group() const { return pipeline().degrees_of(place().group); }
  /// The samples of a microbatch that are this rank's, in its first and last stages.
  [[nodiscard]] interval samples() const { return pipeline().samples_of(place().group, place().data); }
  [[nodiscard]] training_bytes held() const {
    training_bytes found{.exchange = exchange_->bytes(), .pipeline = executor_->arena().total()};
    const auto bytes = [](const Tensor& t) { return detail::elements(t) * sizeof(typename tensor_traits<Tensor>::element); };
    for (const auto& p : parameters_) {
      if (!p.gathered) found.parameters += bytes(*p.value);
      if (!p.freed) found.gradients += bytes(*p.gradient);
      for (const auto& t : p.state) found.optimizer += bytes(t);
    }
    for (const auto& list : owned_state_)
      for (const auto& t : list) found.optimizer += bytes(t);
    return found;
  }
  /// The model's parameters, and who holds them.
  [[nodiscard]] const std::vector<model_parameter>& parameters() const { return common_model_->parameters; }

 private:
  [[nodiscard]] deadline_time deadline() const { return deadline_in(options_.deadline_s); }
  [[nodiscard]] std::string here(const std::string& when) const {
    return "rank " + std::to_string(comm_.rank()) + ", " + (when.empty() ? "step " + std::to_string(step_) : when);
  }

  template <class Targets, class Loss>
  void pass(std::span<const Tensor> inputs, const Targets& targets, Loss& loss, bool last) {
    using target = std::remove_cvref_t<decltype(*std::data(targets))>;
    guarded("", [&] {
      for (auto& s : stages_) detail::layers_of(s).begin_step(step_);
      for (auto& p : parameters_) p.make_gradient(queue_);
      begin_gathers(*executor_);
    });
    const double factor = loss_share_ * options_.scaling.scale;
    const accumulation here{.first = passes_ == 0, .last = last};
    if constexpr (times_layers)
      for (auto& s : stages_) detail::layers_of(s).begin_times();
    const auto ended = [&](std::size_t stage) { exchange_->begin(stage); };
    const auto progress = [&] { return exchange_->progress(); };
    const auto looks = [&] { return exchange_->waits_for_device(); };
    const auto all_issued = [&] { exchange_->begin_joint(); };
    executor_->step(inputs, std::span<const target>(targets), detail::scaled_loss<Tensor, Loss, queue>{loss, factor, queue_},
                    {.ended = ended, .progress = progress, .looks = looks, .all_issued = all_issued}, here);
    if constexpr (times_layers) tell_times();
    const auto own = executor_->losses();
    if (passes_++ == 0) losses_.assign(own.size(), 0);
    for (std::size_t m = 0; m < own.size(); ++m) losses_[m] += own[m];
  }

  void tell_times() {
    layer_times_.clear();
    const auto& order = pipeline().order;
    const auto& copies = executor_->stages();
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      auto number = at(pipeline().stages, copies[s].stage).layers.first;
      const auto took = detail::layers_of(stages_[s]).took();
      double microbatches = 0, forwards_s = 0, rest_s = 0;
      for (const auto& a : executor_->measured().actions)
        if (a.what.kind == action_kind::forward && a.what.stage == copies[s].stage && a.what.direction == copies[s].direction) {
          ++microbatches;
          forwards_s += a.end_s - a.start_s;
        }
      if (microbatches == 0) continue;  // of another direction
      for (const auto& l : took) rest_s += l.forward_s;
      rest_s = copies[s].stage + 1 == order.stages ? std::max(0.0, forwards_s - rest_s) : 0;  // the loss
      for (std::size_t i = 0; i < took.size(); ++i)
        layer_times_.push_back({.layer = number++,
                                .forward_s = (took[i].forward_s + (i + 1 == took.size() ? rest_s : 0)) / microbatches,
                                .backward_s = took[i].backward_s / microbatches});
    }
  }

  /// Runs a body; an exception that ends it ends the step on all ranks.
  template <class Body>
  void guarded(const std::string& when, Body&& body) {
    const auto bound = backend_.bind();
    try {
      body();
    } catch (const agreed_error&) {
      throw;
    } catch (const communication_error& e) {
      comm_.abort(e.what());
      throw;
    } catch (const std::exception& e) {
      comm_.abort(here(when) + " failed: " + e.what());
      throw;
    } catch (...) {
      comm_.abort(here(when) + " failed");
      throw;
    }
  }

  void gather(const std::string& when) {
    auto result = all_.gather(comm_, mine_, deadline());
    if (result == wait_result::progress) return;
    result = detail::with_blame(comm_, result);
    const edge nowhere{.from = -1, .to = comm_.rank(), .what = payload::layer_gradient, .direction = 0, .stage = 0};
    const action none{.kind = action_kind::optimizer, .stage = 0, .microbatch = no_microbatch};
    auto text = here(when) + ": not all ranks have come to agree";
    if (result == wait_result::deadline) text += " within " + std::to_string(options_.deadline_s) + " s";
    if (const std::string why = comm_.failure(); !why.empty())
      text += (result == wait_result::aborted ? "; ended, as " : "; ") + why;
    throw communication_error(text, nowhere, no_microbatch, none);
  }

  /// Before construct(), for another layout.
  void forget_layout() {
    copies_.clear();
    executor_.reset();
    evaluator_.reset();
    gathered_.reset();
    exchange_.reset();
    parameters_.clear();
    owned_state_.clear();
    model_ = {};
    common_model_.reset();
    transfers_.reset();
    stages_.clear();
    groups_.clear();
    loss_share_ = 1;
    samples_ = 0;
  }

  template <class MakeLayer>
  void construct(MakeLayer& make_layer, const layer_shapes& shape_after) {
    constexpr bool takes_group = std::is_invocable_v<MakeLayer&, int, const group_type&>;  // nvcc fails for a requires here
    const auto make = [&](int layer, [[maybe_unused]] const group_type& group) -> Layer {
      if constexpr (takes_group)
        return make_layer(layer, group);
      else
        return make_layer(layer);
    };
    construct_of(make, takes_group, shape_after);
  }
  void construct_of(function_ref<Layer(int, const group_type&)> make_layer, bool takes_group, const layer_shapes& shape_after) {
    validate(options_.scaling);
    if (layout().ranks() != comm_.ranks())
      throw input_error("a training on " + std::to_string(layout().ranks()) + " ranks, but the communicator has " +
                        std::to_string(comm_.ranks()));
    compare_plans(*common_);
    pipeline_ = as_size(layout().pipeline_of(comm_.rank()));
    transfers_ = detail::find_common(detail::shared_of(comm_), common_, pipeline_, shape_after, options_.boundary_layout);
    make_stages(make_layer, takes_group, shape_after);
    learn_parameters();
    count_samples();
    make_exchange();
    for (auto& p : parameters_) p.free_gradient();
    gather_layers();
    make_executor();
  }

  /// The stages that this rank computes, of the user's layers.
  void make_stages(function_ref<Layer(int, const group_type&)> make_layer, bool takes_group, const layer_shapes& shape_after) {
    const auto& line = pipeline();
    const int schedule_rank = place().group;
    const auto& here = line.group(schedule_rank);
    const auto& degrees_here = here.degrees;
    std::vector<int> ranks;
    for (int i = 0; i < degrees_here.device_count(); ++i) ranks.push_back(line.first_of_group(schedule_rank) + i);
    if (!options_.loss_in_parts) loss_share_ = line.share_of(schedule_rank, place().data);
    for (const auto& copy : stages_of_rank(line.order, schedule_rank)) {
      const stage_group_options how{copy.stage, copy.direction, here.tensor_shares, options_.deadline_s};
      const auto& group = ranks.size() == 1 ? groups_.emplace_back() : groups_.emplace_back(comm_, ranks, degrees_here, how);
      std::vector<Layer> layers;
      const auto range = at(line.stages, copy.stage).layers;
      for (int l = range.first; l < range.last; ++l) {
        if (!takes_group && (degrees_here.context > 1 || degrees_here.tensor > 1 || degrees_here.expert > 1))
          throw input_error("stage " + std::to_string(copy.stage) + " is on " + std::to_string(degrees_here.context) + " x " +
                            std::to_string(degrees_here.tensor) +
                            " context and tensor ranks, or shares out experts, but its layers are made without the group");
        layers.push_back(make_layer(l, group));
      }
      layer_list_options how_to_run{.recomputes = here.recompute == recomputation::full, .first = range.first, .shapes = {}};
      // Of several devices, what is between the layers of a stage is the layers' own.
      for (int l = range.first; l + 1 < range.last && ranks.size() == 1; ++l)
        how_to_run.shapes.push_back(shape_after(l, line.microbatch_size).output);
      layers_type list(std::move(layers), std::move(how_to_run));
      if constexpr (std::same_as<stage_type, layers_type>)
        stages_.push_back(std::move(list));
      else
        stages_.push_back(backend_.template make_stage<Tensor>(std::move(list)));
    }
  }

  /// The exchange of gradients, and the optimizer's state of what this rank updates.
  void make_exchange() {
    exchange_ = std::make_unique<exchange_type>(
        model_,
        [&](const parameter_holder& h) {
          const auto p = std::find_if(parameters_.begin(), parameters_.end(),
                                      [&](const auto& own) { return own.what == h.what && own.direction == h.direction; });
          return local_parameter<Tensor>{p->value, p->gradient, p->stage};
        },
        detail::another(comm_),
        exchange_options{.bucket_bytes = options_.bucket_bytes,
                         .frees_buffers = pipeline().group(place().group).zero >= 2,
                         .room = room_of_ranks(layout()),
                         .waves = detail::exchange_waves(layout()),
                         .joint_bytes = options_.sums_in_order ? 0 : options_.joint_bytes},
        queue_, backend_.memory_queue(), backend_.transfer_queue());
    for (std::size_t k = 0; k < exchange_->owned_count(); ++k) {
      auto& state = owned_state_.emplace_back();
      for ([[maybe_unused]] const auto& name : optimizer_.state_names()) {
        state.push_back(detail::make_tensor<Tensor>(detail::shape_of(exchange_->owned(k).value), queue_));
        detail::zero(state.back(), queue_);
      }
    }
  }

  /// Takes their parameters from layers that are to gather them.
  void gather_layers() {
    if (std::none_of(parameters_.begin(), parameters_.end(), [](const auto& p) { return p.gathered; })) return;
    if constexpr (requires { tensor_traits<Tensor>::is_handle; })
      throw input_error("a stage asks for ZeRO stage 3, but layers share these tensors with others, who would keep old values");
    std::vector<layer_range> ranges;
    for (const auto& c : stages_of_rank(pipeline().order, place().group)) ranges.push_back(at(pipeline().stages, c.stage).layers);
    gathered_ =
        std::make_unique<gathered_type>(ranges, model_, parameters_, *exchange_, comm_,
                                        axis_options{.name = "ranks that gather parameters",
                                                     .number = stage_group<Tensor, Communicator>::axes * pipeline().order.stages,
                                                     .deadline_s = options_.deadline_s},
                                        queue_, backend_.transfer_queue());
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      auto& list = detail::layers_of(stages_[s]);
      const int first = ranges[s].first;
      list.around({.before =
                       [g = gathered_.get(), q = queue_, first, layers = list.layers().data()](std::size_t i) {
                         if (g->gather(first + static_cast<int>(i))) detail::parameters_changed(layers[i], q);
                       },
                   .after = [g = gathered_.get(), first](std::size_t i) { g->release(first + static_cast<int>(i)); }});
    }
    gathered_->release();
  }

  void begin_gathers(const executor_type& e) {
    if (gathered_) gathered_->begin_pass([&](auto&& list) { e.for_each_computation(list); });
  }

  void compare_plans(const detail::common_layout& common) {
    mine_ = detail::digests_of_training(common.digests, optimizer_, has_factor, options_, detail::element_name<Tensor>());
    gather("at the start");
    if (const auto text = detail::disagreement(all_.all(), detail::training_aspects); !text.empty()) throw agreed_error(text);
  }

  /// Shapes and first values of all ranks' layers, and from them who holds what.
  void learn_parameters() {
    bool shared = layout().pipelines.size() > 1 || !options_.ties.empty();
    for (const auto& p : layout().pipelines) shared = shared || p.order.directions > 1 || p.ranks() > p.order.ranks;
    mine_ = {transfers_->digest};
    const auto seen = [&](Tensor& t, auto&& body) { detail::host_copies<Tensor>::show(t, backend_, body); };
    for (const auto& [number, layer] : layers()) detail::tell_layer<Tensor>(mine_, number, *layer, shared, seen);
    gather("at the start");
    common_model_ = detail::find_common(detail::shared_of(comm_), common_, all_, options_.ties, options_.shard_optimizer);
    model_ = common_model_->parameters;

    const auto copies = stages_of_rank(pipeline().order, place().group);
    for (std::size_t s = 0; s < stages_.size(); ++s)
      detail::list_parameters(parameters_, std::span<Layer>(detail::layers_of(stages_[s]).layers()),
                              at(pipeline().stages, copies[s].stage).layers.first, s, copies[s].direction);
    for (std::size_t m = 0; m < model_.size(); ++m)
      for (const auto& h : model_[m].holders)
        for (auto& p : parameters_)
          if (h.has(comm_.rank()) && h.what == p.what && h.direction == p.direction) {
            p.model = m;
            p.pieces = held_pieces(h, model_[m].shape, comm_.rank());
          }
    std::size_t last_model = first_model_ = parameters_.empty() ? 0 : parameters_.front().model;
    for (const auto& p : parameters_) first_model_ = std::min(first_model_, p.model), last_model = std::max(last_model, p.model);
    updates_.assign(last_model + 1 - first_model_, 0);
    for (auto& p : parameters_) {
      const auto& chunks = model_[p.model].chunks;
      for (const auto& held : p.pieces)
        for (std::size_t c = 0; c < chunks.size(); ++c)
          if (model_[p.model].owners[c] == comm_.rank() && contains(held.part, chunks[c].part))
            for (const auto& r : runs_of(held.array, chunks[c].part, chunks[c].part, 0, element_count(chunks[c].part)))
              p.owned.push_back(r);
      p.sharded = model_[p.model].sharded && !chunks.empty() && chunks.front().terms.size() > 1;
      p.lean = p.sharded && pipeline().group(place().group).zero >= 2;
      p.gathered = p.sharded && model_[p.model].gathered;
      if constexpr (requires { backend_.captures(); })
        if (p.lean && backend_.captures())
          throw input_error("from ZeRO stage 2 on gradients are freed in between, so that stages cannot be captured");
      if (p.sharded) continue;
      for ([[maybe_unused]] const auto& name : optimizer_.state_names()) {
        p.state.push_back(detail::make_tensor<Tensor>(detail::shape_of(*p.value), queue_));
        detail::zero(p.state.back(), queue_);
      }
    }
  }

  void count_samples() {
    equal_sizes_ = true;
    for (const auto& p : layout().pipelines)
      equal_sizes_ = equal_sizes_ && p.microbatch_size == layout().pipelines.front().microbatch_size;
    for (const auto& p : layout().pipelines) samples_ += p.order.microbatches * weight_of(p);
  }
  /// Of a microbatch in the mean.
  [[nodiscard]] double weight_of(const pipeline_layout& p) const { return equal_sizes_ ? 1 : p.microbatch_size; }

  void make_executor() { evaluator_.reset(), executor_ = executor_for(pipeline().order, step_, "step"); }
  [[nodiscard]] std::unique_ptr<executor_type> executor_for(const schedule& order, std::int64_t first, std::string_view counted) {
    const auto& line = pipeline();
    return std::make_unique<executor_type>(order, std::span<stage_type>(stages_), transfers_->groups, comm_,
                                           executor_options{.deadline_s = options_.deadline_s,
                                                            .gradient_scale = weight_of(line),
                                                            .first_rank = line.first_rank,
                                                            .first_step = first,
                                                            .counted = counted,
                                                            .sums_directions = false},
                                           stager_, backend_);
  }

  void scale_sums(double factor) {
    if (factor == 1) return;
    if constexpr (has_factor) {
      factor_ *= factor;
      return;
    }
    for (auto& p : parameters_)
      if (!p.sharded) detail::scale(*p.gradient, factor, queue_);
    for (std::size_t k = 0; k < exchange_->owned_count(); ++k) detail::scale(exchange_->owned(k).gradient, factor, queue_);
  }

  /// Of the gradients that this rank owns.
  [[nodiscard]] const detail::square_sum& sum_squares() {
    squares_.begin();
    listed_.assign(updates_.size(), 0);
    for (const auto& p : parameters_) {
      if (p.sharded || std::exchange(listed_[p.model - first_model_], char{1})) continue;
      for (const auto& r : p.owned) squares_.add(backend_, queue_, *p.gradient, r);
    }
    for (std::size_t k = 0; k < exchange_->owned_count(); ++k) {
      const auto& o = exchange_->owned(k);
      squares_.add(backend_, queue_, o.gradient, {.length = o.last - o.first});
    }
    return squares_.end(queue_);
  }

  /// Of what ranks have told from number `first` on.
  [[nodiscard]] double mean_loss(std::size_t first) {
    const auto weight = [&](const pipeline_layout& p) { return weight_of(p); };
    return detail::sum_of_losses(layout(), all_.all(), first, options_.loss_in_parts, weight) / samples_;
  }

  /// Returns once all ranks have come here with whole gradients. Rank r tells its optimizer's settings, its losses if it has
  /// a last stage, and the squares of the gradients that it owns.
  [[nodiscard]] step_report agree() {
    const int me = comm_.rank();
    mine_.assign(1, detail::settings_digest(optimizer_));
    if (detail::has_last_stage(layout(), me)) mine_.insert(mine_.end(), losses_.begin(), losses_.end());
    sum_squares().append(mine_);
    gather("");
    for (int r = 0; r < comm_.ranks(); ++r)
      if (at(all_.all(), r).front() != all_.all()[0].front())
        throw agreed_error("step " + std::to_string(step_) + ": the optimizers of ranks 0 and " + std::to_string(r) +
                           " are set differently");
    step_report report{.step = step_,
                       .loss = mean_loss(1) / static_cast<double>(passes_),
                       .gradient_norm = 0,
                       .updated = true,
                       .loss_scale = options_.scaling.scale};
    detail::square_sum all_squares;
    for (const auto& told : all_.all())
      all_squares.add(detail::square_sum::read(std::span(told).template last<detail::square_sum::told>()));
    const double squares = all_squares.value() * factor_ * factor_;
    report.gradient_norm = std::sqrt(squares);
    if (!std::isfinite(report.loss) || !std::isfinite(squares)) {
      if (options_.on_nonfinite == nonfinite::fail)
        throw agreed_error("step " + std::to_string(step_) + ": the " +
                           (std::isfinite(report.loss) ? "gradients are" : "loss is") + " not finite");
      report.updated = false;
    }
    return report;
  }

  [[nodiscard]] bool any_sharded() const {
    return std::any_of(model_.begin(), model_.end(), [](const model_parameter& m) { return m.sharded; });
  }

  void update(double norm) {
    if (options_.clip_norm > 0 && norm > options_.clip_norm) scale_sums(options_.clip_norm / norm);
    if constexpr (has_factor) optimizer_.gradient_factor = factor_;
    to_update_.clear();
    for (auto& p : parameters_) {
      updates_[p.model - first_model_] = ++p.updates;
      if (!p.sharded) to_update_.push_back({p.value, p.gradient, p.state, model_[p.model].id, p.updates});
    }
    for (std::size_t k = 0; any_sharded() && k < exchange_->owned_count(); ++k) {
      auto& o = exchange_->owned(k);
      to_update_.push_back(
          {&o.value, &o.gradient, owned_state_[k], model_[o.parameter].id, updates_[o.parameter - first_model_]});
    }
    detail::update(optimizer_, std::span<const parameter_update<Tensor>>(to_update_), queue_);
    if (any_sharded()) exchange_->spread(deadline());
    tell_layers();
  }

  /// Parameters have changed; layers that gather theirs learn of it then.
  void tell_layers() {
    if (!gathered_) {
      for (auto& s : stages_) detail::layers_of(s).parameters_changed(queue_);
      return;
    }
    for (const auto& [number, layer] : layers())
      if (!gathered_->mark(number)) detail::parameters_changed(*layer, queue_);
  }

  [[no_unique_address]] Backend backend_;
  [[no_unique_address]] queue queue_;
  [[no_unique_address]] Stager stager_;
  std::shared_ptr<const detail::common_layout> common_;
  Communicator comm_;
  Optimizer optimizer_;
  trainer_options options_;
  std::size_t pipeline_ = 0;
  std::shared_ptr<const detail::common_boundaries> transfers_;
  double loss_share_ = 1;
  std::deque<group_type> groups_;  ///< of stages_
  std::vector<stage_type> stages_;
  std::shared_ptr<const detail::common_model> common_model_;
  std::span<const model_parameter> model_;  ///< of common_model_
  std::vector<detail::held_parameter<Tensor>> parameters_;
  std::size_t first_model_ = 0;                      ///< of the model's parameters the first that this rank has
  std::vector<char> listed_;                         ///< per model parameter from there to the last that it has
  std::vector<std::int64_t> updates_;                ///< the same
  std::vector<parameter_update<Tensor>> to_update_;  ///< room for what a step hands the optimizer
  std::vector<std::vector<Tensor>> owned_state_;     ///< per owned piece of the exchange
  std::unique_ptr<exchange_type> exchange_;
  std::unique_ptr<gathered_type> gathered_;  ///< null: no layer gathers its parameters
  detail::squares_on_queue<Tensor, Backend> squares_;
  detail::host_copies<Tensor> copies_;  ///< that slices view
  std::unique_ptr<executor_type> executor_;
  std::unique_ptr<executor_type> evaluator_;  ///< from the first evaluate() on
  std::vector<double> mine_;                  ///< what this rank tells
  detail::told_numbers all_;                  ///< what all have told
  std::int64_t step_;
  double samples_ = 0;          ///< of a batch; microbatches where they are equally large
  std::int64_t passes_ = 0;     ///< since the last step
  std::vector<double> losses_;  ///< by microbatch, of all passes
  std::vector<layer_time> layer_times_;
  double factor_ = 1;  ///< that gradients are still to be multiplied by, if the optimizer does so
  bool equal_sizes_ = true;
};

}  // namespace hetsched
