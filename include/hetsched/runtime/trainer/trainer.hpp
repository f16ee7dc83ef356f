// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/rank_program.hpp>
#include <hetsched/runtime/layer/layer_directory.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/runtime/layer/parameter.hpp>
#include <hetsched/runtime/layer/tensor.hpp>
#include <hetsched/runtime/trainer/agreement.hpp>
#include <hetsched/runtime/trainer/gradient_exchange.hpp>
#include <hetsched/runtime/trainer/gradient_norm.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/training_layout.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// What becomes of a step whose loss or gradients are not finite, on all ranks alike. skip: it counts, but parameters and the
/// optimizer's state stay as they are. fail: it ends with an error.
enum class nonfinite : std::uint8_t { skip, fail };

struct trainer_options {
  /// How long a rank waits without progress, in seconds: in the schedule, in the exchange of gradients, in the agreement to
  /// commit. Ranks of pipelines that end their schedules first wait for the others in the exchange; this has to be enough for
  /// it.
  double deadline_s = 30;
  double clip_norm = 0;                  ///< gradients are scaled down to this norm over all parameters; 0: they are not
  std::vector<parameter_tie> ties = {};  ///< they must begin with the same values
  std::int64_t first_step = 0;           ///< how many steps were committed before
  nonfinite on_nonfinite = nonfinite::skip;
  std::int64_t configuration_digest = 0;  ///< of whatever else has to be the same on all ranks, which is all it is used for
};

/// What a step has done; the same on every rank.
struct step_report {
  std::int64_t step = 0;     ///< its number, from 0
  double loss = 0;           ///< mean over all microbatches of all pipelines, weighted by their sizes
  double gradient_norm = 0;  ///< over all parameters, of the mean loss, before clipping
  bool updated = true;       ///< false: loss or gradients were not finite, and the step was skipped
};

/// One rank of a training: its stages of one pipeline, trained as if one device had done all microbatches.
/// Requires: every rank constructs one, in a thread or process of its own, and calls step() as often as the others.
/// Determinism: gradients are added up over a stage's microbatches in gradient_order(), then over the directions of a
/// bidirectional schedule, then over pipelines, and in each over the layers that share a parameter; then they are scaled by
/// the number of samples. One device that does so gets the same bits. With one pipeline of one direction the bits are the
/// same for any number of stages and any schedule that takes microbatches in order. Norms and losses do not depend on the cut
/// either.
template <class Tensor, class Layer, class Communicator, class Optimizer>
class pipeline_trainer {
  static_assert((detail::require_layer<Layer, Tensor>(), true));
  static_assert(communicator<Communicator, Tensor>, "this is no communicator for these tensors; see the concept's members");
  static_assert(optimizer<Optimizer, Tensor>, "this is no optimizer for these tensors; see the concept's members");
  using stage_type = layer_list<Tensor, Layer>;
  using executor_type = pipeline_executor<Tensor, stage_type, Communicator>;

 public:
  /// `make_layer`: (layer) -> Layer, called for the layers that this rank holds, once per stage with the layer; alike on
  /// every rank. `shape_after`: (layer, microbatch_size) or (layer) -> tensor_shape of the layer's output for a microbatch of
  /// the rank's pipeline. `comm`: has as many ranks as the layout; copies of it are ends of the same channels.
  /// Requires: all ranks construct at the same time.
  /// Throws: input_error on every rank, naming the ranks, where layouts, shapes, ties, optimizers or what else must agree do
  /// not; input_error on one rank for what only it finds, and communication_error on the others.
  /// Complexity: O(actions + parameters * (stages + ranks)); every parameter that several ranks hold is read once.
  template <class MakeLayer, class ShapeAfter>
  pipeline_trainer(training_layout layout, MakeLayer&& make_layer, ShapeAfter&& shape_after, Communicator comm,
                   Optimizer optimizer, trainer_options options = {})
      : layout_(std::move(layout)),
        comm_(std::move(comm)),
        optimizer_(std::move(optimizer)),
        options_(std::move(options)),
        step_(options_.first_step) {
    guarded("at the start", [&] { construct(make_layer, shape_after); });
  }

  /// Runs one iteration: forward, backward, exchange, update. `inputs`, `targets`: one per microbatch of the rank's pipeline,
  /// empty for ranks without its first or last stage; targets are contiguous. `loss`: (const Tensor& output, const Target&)
  /// -> loss_value<Tensor>, a mean over the microbatch's samples. Parameters change only when all ranks have told that their
  /// gradients are whole. Nothing is allocated after the first step, if layers, loss, optimizer and communicator allocate
  /// nothing.
  /// Throws: as pipeline_executor::step; communication_error; input_error for what is not finite (if asked for) and for
  /// optimizers that are set differently. Parameters and optimizer are then as after the last committed step, and the
  /// communicator cannot be used again. An optimizer that throws leaves parameters half updated. Where a process is killed or
  /// cut off in the moment of agreement, others may be one step apart: committed_step() tells.
  template <class Targets, class Loss>
  step_report step(std::span<const Tensor> inputs, const Targets& targets, Loss&& loss) {
    using target = std::remove_cvref_t<decltype(*std::data(targets))>;
    executor_->step(inputs, std::span<const target>(targets), loss);
    step_report report;
    guarded("", [&] {
      exchange_->sum(step_, deadline());
      const double scale = 1 / samples_;
      if (scale != 1)
        for (auto& p : parameters_) detail::scale(*p.gradient, scale);
      report = agree();
    });
    if (report.updated) guarded("", [&] { update(report.gradient_norm); });
    ++step_;
    return report;
  }

  /// The number of steps that all ranks have done, including those before the checkpoint that the training began with.
  [[nodiscard]] std::int64_t committed_step() const { return step_; }

  /// Sets the number of steps after a checkpoint has been loaded into state(); on all ranks, between steps.
  void set_committed_step(std::int64_t step) {
    if (step == step_) return;
    step_ = step;
    make_executor();
  }

  /// Parameters and the optimizer's state, as slices that view them and stay valid as long as no step runs. Names do not
  /// depend on who holds what. Parameter n of a layer has parameter.n, updates.n (how often it was updated) and
  /// <optimizer>.<state>.n; tied parameters go by the first of them. `owned_only`: what this rank is to write, each tensor on
  /// exactly one rank; else everything that it holds, to be loaded, where a name may come more than once.
  /// Requires: tensors in host memory.
  [[nodiscard]] std::vector<state_slice> state(bool owned_only = false) {
    std::vector<state_slice> slices;
    std::vector<char> listed(model_.size(), 0);
    for (auto& p : parameters_) {
      const auto& m = model_[p.model];
      if (owned_only && (m.owner != comm_.rank() || std::exchange(listed[p.model], char{1}))) continue;
      const auto number = "." + std::to_string(m.id.number);
      const auto add = [&](std::string name, Tensor& t) {
        slices.push_back({.layer = m.id.layer,
                          .name = std::move(name) + number,
                          .element = element_name(),
                          .shape = m.shape,
                          .first = 0,
                          .bytes = std::as_writable_bytes(std::span(tensor_traits<Tensor>::data(t), detail::elements(t)))});
      };
      add("parameter", *p.value);
      slices.push_back({.layer = m.id.layer,
                        .name = "updates" + number,
                        .element = "i64",
                        .shape = {1},
                        .first = 0,
                        .bytes = std::as_writable_bytes(std::span(&p.updates, 1))});
      std::size_t i = 0;
      for (const std::string_view name : optimizer_.state_names())
        add(std::string(optimizer_.name()) + "." + std::string(name), p.state[i++]);
    }
    return slices;
  }

  /// The optimizer, to change its learning rate between steps, on all ranks alike.
  [[nodiscard]] Optimizer& optimizer_settings() { return optimizer_; }

  /// This rank's layers with their numbers, stage by stage; of bidirectional schedules, both stages'.
  [[nodiscard]] std::vector<std::pair<int, Layer*>> layers() {
    std::vector<std::pair<int, Layer*>> found;
    const auto numbers = detail::layers_of_rank(layout_, comm_.rank());
    for (auto& s : stages_)
      for (auto& l : s.layers()) found.emplace_back(numbers[found.size()], &l);
    return found;
  }

  /// What this rank computed and received in the last step: see pipeline_executor::measured(). Ranks are those of its pipeline.
  [[nodiscard]] const timeline& measured() const { return executor_->measured(); }
  [[nodiscard]] const training_layout& layout() const { return layout_; }
  /// The pipeline that this rank works in.
  [[nodiscard]] const pipeline_layout& pipeline() const { return layout_.pipelines[pipeline_]; }
  /// The model's parameters, and who holds them.
  [[nodiscard]] const std::vector<model_parameter>& parameters() const { return model_; }

 private:
  /// A parameter of a layer that this rank holds.
  struct held_parameter {
    parameter_id what;
    std::size_t model = 0;  ///< number in model_
    Tensor* value = nullptr;
    Tensor* gradient = nullptr;
    std::vector<Tensor> state;
    std::int64_t updates = 0;
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] deadline_time deadline() const { return deadline_in(options_.deadline_s); }
  [[nodiscard]] std::string here(const std::string& when) const {
    return "rank " + std::to_string(comm_.rank()) + ", " + (when.empty() ? "step " + std::to_string(step_) : when);
  }

  /// Found by every rank from what all have told: they need no word of each other's failure.
  struct agreed_error : input_error {
    using input_error::input_error;
  };

  /// Runs a body; an exception that ends it ends the step on all ranks.
  template <class Body>
  void guarded(const std::string& when, Body&& body) {
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
    const auto result = comm_.gather(mine_, all_, deadline());
    if (result == wait_result::progress) return;
    const edge nowhere{.from = -1, .to = comm_.rank(), .what = payload::layer_gradient, .direction = 0, .stage = 0};
    const action none{.kind = action_kind::optimizer, .stage = 0, .microbatch = no_microbatch};
    const auto text = here(when) + ": not all ranks have come to agree";
    throw communication_error(result == wait_result::aborted ? text + "; ended, as " + std::string(comm_.failure())
                                                             : text + " within " + std::to_string(options_.deadline_s) + " s",
                              nowhere, no_microbatch, none);
  }

  template <class MakeLayer, class ShapeAfter>
  void construct(MakeLayer& make_layer, ShapeAfter& shape_after) {
    validate(layout_);
    if (layout_.ranks() != comm_.ranks())
      throw input_error("a training on " + std::to_string(layout_.ranks()) + " ranks, but the communicator has " +
                        std::to_string(comm_.ranks()));
    compare_plans();
    pipeline_ = at(layout_.pipeline_of(comm_.rank()));
    const auto& line = pipeline();
    for (std::size_t s = 0; s + 1 < line.stages.size(); ++s) {
      if constexpr (requires { shape_after(0, 0); })
        boundaries_.push_back(shape_after(line.stages[s].last - 1, line.microbatch_size));
      else
        boundaries_.push_back(shape_after(line.stages[s].last - 1));
    }
    for (const auto& copy : stages_of_rank(line.order, comm_.rank() - line.first_rank)) {
      std::vector<Layer> layers;
      for (int l = line.stages[at(copy.stage)].first; l < line.stages[at(copy.stage)].last; ++l) layers.push_back(make_layer(l));
      stages_.emplace_back(std::move(layers));
    }
    learn_parameters();
    count_samples();
    exchange_ = std::make_unique<gradient_exchange<Tensor, Communicator>>(
        model_,
        [&](const gradient_term& term) {
          std::vector<Tensor*> found;
          for (auto& p : parameters_)
            if (p.what == term.what && at(term.pipeline) == pipeline_) found.push_back(p.gradient);
          return found;
        },
        comm_);
    make_executor();
  }

  void compare_plans() {
    static constexpr std::string_view aspects[] = {
        "ranks and microbatches", "stages", "schedule", "optimizer", "ties", "clipping", "step", "configuration", "element type"};
    detail::digest of_optimizer, of_ties, of_options;
    of_optimizer.add(optimizer_.name());
    for (const std::string_view name : optimizer_.state_names()) of_optimizer.add(name);
    for (const auto& [a, b] : options_.ties)
      for (const int number : {a.layer, a.number, b.layer, b.number}) of_ties.add(std::int64_t{number});
    of_options.add(options_.clip_norm).add(static_cast<std::int64_t>(options_.on_nonfinite));
    mine_ = {detail::digest_of_ranks(layout_).number(),
             detail::digest_of_stages(layout_).number(),
             detail::digest_of_schedules(layout_).number(),
             of_optimizer.add(settings_digest()).number(),
             of_ties.number(),
             of_options.number(),
             detail::digest().add(options_.first_step).number(),
             detail::digest().add(options_.configuration_digest).number(),
             detail::digest().add(element_name()).number()};
    gather("at the start");
    if (const auto text = detail::disagreement(all_, aspects); !text.empty()) throw agreed_error(text);
  }

  /// Shapes and first values of all ranks' layers, and from them who holds what.
  void learn_parameters() {
    detail::digest of_boundaries;
    for (const auto& shape : boundaries_) {
      of_boundaries.add(static_cast<std::int64_t>(shape.size()));
      for (const auto extent : shape) of_boundaries.add(static_cast<std::int64_t>(extent));
    }
    bool shared = layout_.pipelines.size() > 1 || !options_.ties.empty();
    for (const auto& p : layout_.pipelines) shared = shared || p.order.directions > 1;
    mine_ = {of_boundaries.number()};
    for (const auto& [number, layer] : layers()) detail::tell_layer<Tensor>(mine_, *layer, shared);
    gather("at the start");
    for (int r = 0; r < comm_.ranks(); ++r) {
      const int first = layout_.pipelines[at(layout_.pipeline_of(r))].first_rank;
      if (all_[at(r)].front() != all_[at(first)].front())
        throw agreed_error("ranks " + std::to_string(first) + " and " + std::to_string(r) +
                           " expect tensors of other shapes between their pipeline's stages");
    }
    try {
      model_ = model_parameters(layout_, detail::parameter_shapes(layout_, all_, 1, options_.ties), options_.ties);
    } catch (const input_error& e) {
      throw agreed_error(e.what());
    }

    for (const auto& [number, layer] : layers()) {
      const std::size_t first = parameters_.size();
      for (Tensor& t : layer->parameters()) {
        auto& p = parameters_.emplace_back();
        p.what = {number, static_cast<int>(parameters_.size() - 1 - first)};
        p.value = &t;
      }
      std::size_t next = first;
      for (Tensor& g : layer->gradients())
        if (next++ < parameters_.size()) parameters_[next - 1].gradient = &g;
      for (std::size_t i = first; i < std::max(next, parameters_.size()); ++i)
        if (i >= parameters_.size() || !parameters_[i].gradient ||
            !detail::same_shape(*parameters_[i].value, *parameters_[i].gradient))
          throw input_error("layer " + std::to_string(number) + " does not have a gradient of the same shape per parameter");
    }
    for (std::size_t m = 0; m < model_.size(); ++m)
      for (const auto& term : model_[m].terms)
        for (auto& p : parameters_)
          if (p.what == term.what) p.model = m;
    first_held_.assign(model_.size(), nullptr);
    for (auto& p : parameters_) {
      if (!first_held_[p.model]) first_held_[p.model] = p.gradient;
      for ([[maybe_unused]] const auto& name : optimizer_.state_names()) {
        p.state.push_back(tensor_traits<Tensor>::make(model_[p.model].shape));
        detail::zero(p.state.back());
      }
    }
  }

  void count_samples() {
    equal_sizes_ = true;
    for (const auto& p : layout_.pipelines)
      equal_sizes_ = equal_sizes_ && p.microbatch_size == layout_.pipelines.front().microbatch_size;
    for (const auto& p : layout_.pipelines) samples_ += p.order.microbatches * weight_of(p);
  }
  /// Of a microbatch in the mean.
  [[nodiscard]] double weight_of(const pipeline_layout& p) const { return equal_sizes_ ? 1 : p.microbatch_size; }

  void make_executor() {
    const auto& line = pipeline();
    executor_ = std::make_unique<executor_type>(line.order, std::span<stage_type>(stages_), boundaries_, comm_,
                                                executor_options{.deadline_s = options_.deadline_s,
                                                                 .gradient_scale = weight_of(line),
                                                                 .first_rank = line.first_rank,
                                                                 .first_step = step_});
  }

  [[nodiscard]] double settings_digest() const {
    detail::digest d;
    if constexpr (requires { optimizer_.settings(); })
      for (const double number : optimizer_.settings()) d.add(number);
    return d.number();
  }
  [[nodiscard]] static bool has_last_stage(const pipeline_layout& p, int rank) {
    for (int c = 0; c < p.order.directions; ++c)
      if (p.first_rank + p.order.rank(c, p.order.stages - 1) == rank) return true;
    return false;
  }

  /// Returns once all ranks have come here with whole gradients. Rank r tells its optimizer's settings, its losses if it has
  /// a last stage, and the squares of the gradients that it owns.
  [[nodiscard]] step_report agree() {
    const int me = comm_.rank();
    mine_.assign(1, settings_digest());
    if (has_last_stage(pipeline(), me)) mine_.insert(mine_.end(), executor_->losses().begin(), executor_->losses().end());
    for (std::size_t m = 0; m < model_.size(); ++m)
      if (model_[m].owner == me) mine_.push_back(detail::sum_of_squares(*first_held_[m]));
    gather("");
    for (int r = 0; r < comm_.ranks(); ++r)
      if (all_[at(r)].front() != all_[0].front())
        throw agreed_error("step " + std::to_string(step_) + ": the optimizers of ranks 0 and " + std::to_string(r) +
                           " are set differently");
    next_.assign(at(comm_.ranks()), 1);
    step_report report{.step = step_, .loss = 0, .gradient_norm = 0, .updated = true};
    for (const auto& p : layout_.pipelines) {
      for (int m = 0; m < p.order.microbatches; ++m) {
        double loss = 0;
        for (int r = p.first_rank; r < p.first_rank + p.order.ranks; ++r)
          if (has_last_stage(p, r)) loss += all_[at(r)][next_[at(r)]++];
        report.loss += weight_of(p) * loss;
      }
    }
    report.loss /= samples_;
    double squares = 0;
    for (const auto& m : model_) squares += all_[at(m.owner)][next_[at(m.owner)]++];
    report.gradient_norm = std::sqrt(squares);
    if (!std::isfinite(report.loss) || !std::isfinite(squares)) {
      if (options_.on_nonfinite == nonfinite::fail)
        throw agreed_error("step " + std::to_string(step_) + ": the " +
                           (std::isfinite(report.loss) ? "gradients are" : "loss is") + " not finite");
      report.updated = false;
    }
    return report;
  }

  void update(double norm) {
    const bool clips = options_.clip_norm > 0 && norm > options_.clip_norm;
    for (auto& p : parameters_) {
      if (clips) detail::scale(*p.gradient, options_.clip_norm / norm);
      optimizer_.update(*p.value, *p.gradient, std::span<Tensor>(p.state), model_[p.model].id, ++p.updates);
    }
  }

  [[nodiscard]] static std::string element_name() {
    using element = typename tensor_traits<Tensor>::element;
    const char kind = std::is_floating_point_v<element> ? 'f'
                      : std::is_signed_v<element>       ? 'i'
                      : std::is_unsigned_v<element>     ? 'u'
                                                        : 'b';
    return kind + std::to_string(8 * sizeof(element));
  }

  training_layout layout_;
  Communicator comm_;
  Optimizer optimizer_;
  trainer_options options_;
  std::size_t pipeline_ = 0;
  std::vector<tensor_shape> boundaries_;
  std::vector<stage_type> stages_;
  std::vector<model_parameter> model_;
  std::vector<held_parameter> parameters_;
  std::vector<const Tensor*> first_held_;  ///< per model parameter: a gradient of it that is here
  std::unique_ptr<gradient_exchange<Tensor, Communicator>> exchange_;
  std::unique_ptr<executor_type> executor_;
  std::vector<double> mine_;              ///< what this rank tells
  std::vector<std::vector<double>> all_;  ///< what all have told
  std::vector<std::size_t> next_;
  std::int64_t step_;
  double samples_ = 0;  ///< of a step; microbatches where they are equally large
  bool equal_sizes_ = true;
};

/// The trainer of what make_layer(int) makes; arguments are those of pipeline_trainer's constructor.
/// Example:
///   run_on_threads(thread_communicator<Tensor>::connect(layout.ranks()), [&](auto& comm) {
///     auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///     for (int step = 0; step < steps; ++step) trainer.step(inputs, targets, loss);
///   });
template <pipeline_tensor Tensor, class MakeLayer, class ShapeAfter, class Communicator, class Optimizer>
[[nodiscard]] auto make_trainer(training_layout layout, MakeLayer&& make_layer, ShapeAfter&& shape_after, Communicator comm,
                                Optimizer optimizer, trainer_options options = {}) {
  using made = std::remove_cvref_t<decltype(make_layer(0))>;
  return pipeline_trainer<Tensor, made, Communicator, Optimizer>(std::move(layout), make_layer, shape_after, std::move(comm),
                                                                 std::move(optimizer), std::move(options));
}

}  // namespace hetsched
