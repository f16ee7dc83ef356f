// SPDX-License-Identifier: Apache-2.0
// This rank's part of a model, and of the batches that it is trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>
#include <gpt/optimizer.hpp>
#include <train/common_work.hpp>
#include <train/training.hpp>

namespace train {

[[nodiscard]] inline gpt::chosen_optimizer make_optimizer(const arguments& given) {
  if (given.optimizer == "sgd")
    return {hetsched::sgd{.learning_rate = given.learning_rate, .momentum = given.momentum, .weight_decay = given.weight_decay}};
  return {hetsched::adamw{.learning_rate = given.learning_rate, .weight_decay = given.weight_decay}};
}

/// The trainer of a rank, and what it is fed with. Job and rank are there for as long as it lives.
template <class Rank, class Communicator>
class rank_trainer {
  using tensor = typename Rank::tensor;
  using trainer_type = hetsched::pipeline_trainer<tensor, typename Rank::layer, Communicator, typename Rank::optimizer,
                                                  typename Rank::backend, typename Rank::stager>;
  using group_type = typename trainer_type::group_type;

 public:
  /// This rank's part of a batch, by microbatch.
  struct batch {
    std::vector<tensor> inputs, targets;
  };

  /// All ranks construct one. Throws: known_to_all where the trainer finds bad input.
  rank_trainer(const job& j, Communicator& comm, const Rank& here, const common_work& work)
      : job_(j),
        here_(here),
        half_boundaries_(work.half_boundaries),
        place_(work.layout.place_of(comm.rank())),
        recompute_(own_line(work).group(place_.group).recompute),
        microbatches_(own_line(work).order.microbatches),
        size_(own_line(work).microbatch_size),
        backend_(here.make_backend()),
        bound_(backend_.bind()),
        loss_(here.loss(static_cast<std::size_t>(size_) * static_cast<std::size_t>(j.config.sequence))) {
    for (int p = 0; const auto& line : work.layout.pipelines) {
      const int samples = line.order.microbatches * line.microbatch_size;
      if (p++ < place_.pipeline) first_sample_ += samples;
      samples_ += samples;
    }
    try {
      trainer_.emplace(work.layout, maker(), shapes(), comm, typename Rank::optimizer{make_optimizer(j.given)}, options(),
                       backend_, here.make_stager());
    } catch (const hetsched::input_error& e) {
      throw known_to_all(e.what());
    }
  }
  rank_trainer(const rank_trainer&) = delete;
  rank_trainer& operator=(const rank_trainer&) = delete;

  [[nodiscard]] trainer_type& operator*() { return *trainer_; }
  [[nodiscard]] trainer_type* operator->() { return &*trainer_; }

  /// The samples of a step, or of one of the batches that make it.
  [[nodiscard]] batch draw(const std::string& text, std::int64_t step, int batch_of_step = 0) {
    batch drawn;
    for (int m = 0; m < microbatches_; ++m) {
      auto part = gpt::draw<typename Rank::real>(text, job_.config.sequence,
                                                 {.seed = job_.given.model.seed,
                                                  .step = step,
                                                  .first_sample = batch_of_step * samples_ + first_sample_ + m * size_,
                                                  .samples = size_});
      drawn.inputs.push_back(own_rows(part.inputs));
      drawn.targets.push_back(own_rows(part.targets));
    }
    return drawn;
  }
  void accumulate(const batch& b) {
    trainer_->accumulate(std::span<const tensor>(b.inputs), std::span<const tensor>(b.targets), loss_);
  }
  [[nodiscard]] hetsched::step_report step(const batch& b) {
    return trainer_->step(std::span<const tensor>(b.inputs), std::span<const tensor>(b.targets), loss_);
  }
  /// The mean loss over the same samples each time, so that losses compare.
  [[nodiscard]] double validate() {
    double sum = 0;
    for (int b = 0; b < job_.given.validation_batches; ++b) {
      const auto drawn = draw(job_.validation, b);
      sum += trainer_->evaluate(std::span<const tensor>(drawn.inputs), std::span<const tensor>(drawn.targets), loss_);
    }
    return sum / job_.given.validation_batches;
  }
  /// Goes on under another layout: see pipeline_trainer.
  void move_layers(const hetsched::training_layout& layout) { trainer_->move_layers(layout, maker(), shapes()); }

 private:
  [[nodiscard]] const hetsched::pipeline_layout& own_line(const common_work& work) const {
    return work.layout.pipelines[static_cast<std::size_t>(place_.pipeline)];
  }
  [[nodiscard]] auto maker() const {
    return [this](int layer, const group_type& group) {
      return here_.make_layer(job_.config, layer, group, recompute_, half_boundaries_);
    };
  }
  [[nodiscard]] auto shapes() const {
    return [this](int layer, int samples) {
      auto shape = gpt::shape_after(job_.config, layer, samples);
      if (half_boundaries_ && layer + 1 < gpt::layer_count(job_.config)) shape.back() /= 2;  // counted in floats
      return shape;
    };
  }
  [[nodiscard]] hetsched::trainer_options options() const {
    const auto& given = job_.given;
    return {.deadline_s = given.place.deadline_s,
            .clip_norm = given.clip,
            .ties = gpt::ties(job_.config),
            .on_nonfinite = hetsched::nonfinite::fail,
            .sums_in_order = given.sums_in_order,
            .loss_in_parts = true,
            .boundary_layout = [this](const hetsched::tensor_shape& whole, const hetsched::degrees& d) {
              const std::int64_t sequence = job_.config.sequence;
              return hetsched::boundary_layout(d, static_cast<std::int64_t>(whole[0]) / sequence, sequence,
                                               static_cast<std::int64_t>(whole[1]));
            }};
  }
  [[nodiscard]] tensor own_rows(const gpt::tensor<typename Rank::real>& all) {
    const hetsched::stage_place place{.data = place_.data, .context = place_.context, .tensor = place_.tensor};
    return here_.put(gpt::rows_of(all, job_.config.sequence, trainer_->group(), place, trainer_->samples()));
  }

  const job& job_;
  const Rank& here_;
  bool half_boundaries_;
  hetsched::rank_place place_;
  hetsched::recomputation recompute_;
  int microbatches_, size_;             ///< of this rank's pipeline
  int first_sample_ = 0, samples_ = 0;  ///< of a batch: this rank's pipeline's first one, and how many all have
  typename Rank::backend backend_;
  decltype(std::declval<const typename Rank::backend&>().bind()) bound_;
  decltype(std::declval<const Rank&>().loss(std::size_t{})) loss_;
  std::optional<trainer_type> trainer_;
};

}  // namespace train
