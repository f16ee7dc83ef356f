// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace hetsched {

namespace detail::cost_model {

/// The questions that a cost model answers, and what it is able to answer.
struct question_table {
  int (*layer_count)(const void*);
  std::vector<placement> (*placements)(const void*, const submesh&);
  stage_cost (*layer)(const void*, int, const placement&);
  stage_cost (*stage)(const void*, layer_range, const placement&);
  transfer_cost (*transfer)(const void*, int, const placement&, const placement&, proximity);
  double (*update)(const void*, layer_range, const placement&);
  reduction_cost (*gradient_sync)(const void*, layer_range, std::span<const placement>);
  memory_overheads (*overheads)(const void*, const placement&);
  int (*slices)(const void*);
  parts_cost (*sliced_stage)(const void*, layer_range, std::span<const stage_part>);
  std::int64_t (*transfer_class)(const void*, const placement&);
  std::int64_t (*boundary_class)(const void*, int);
  bool (*additive)(const void*);
  bool (*has_transfer_class)(const void*);
  bool (*asks_proximity)(const void*);
};

template <class M>
[[nodiscard]] const M& model_at(const void* m) {
  return *static_cast<const M*>(m);
}

template <stage_cost_model M>
inline constexpr question_table questions_of{
    .layer_count = [](const void* m) -> int { return cost_of::layer_count(model_at<M>(m)); },
    .placements = [](const void* m, const submesh& mesh) -> std::vector<placement> {
      return cost_of::placements(model_at<M>(m), mesh);
    },
    .layer = [](const void* m, int index, const placement& where) -> stage_cost {
      if constexpr (additive_cost_model<M>)
        return cost_of::layer(model_at<M>(m), index, where);
      else
        return cost_of::stage(model_at<M>(m), layer_range{index, index + 1}, where);
    },
    .stage = [](const void* m, layer_range layers, const placement& where) -> stage_cost {
      return cost_of::stage(model_at<M>(m), layers, where);
    },
    .transfer = [](const void* m, int boundary, const placement& from, const placement& to, proximity near) -> transfer_cost {
      return cost_of::transfer(model_at<M>(m), boundary, from, to, near);
    },
    .update = [](const void* m, layer_range layers, const placement& where) -> double {
      return cost_of::update(model_at<M>(m), layers, where);
    },
    .gradient_sync = [](const void* m, layer_range layers, std::span<const placement> holders) -> reduction_cost {
      return cost_of::gradient_sync(model_at<M>(m), layers, holders);
    },
    .overheads = [](const void* m, const placement& where) -> memory_overheads {
      return cost_of::overheads(model_at<M>(m), where);
    },
    .slices = [](const void* m) -> int { return cost_of::slices(model_at<M>(m)); },
    .sliced_stage = [](const void* m, layer_range layers, std::span<const stage_part> parts) -> parts_cost {
      return cost_of::sliced_stage(model_at<M>(m), layers, parts);
    },
    .transfer_class = [](const void* m, const placement& where) -> std::int64_t {
      if constexpr (has_transfer_class<M>)
        return cost_of::transfer_class(model_at<M>(m), where);
      else
        return 0;
    },
    .boundary_class = [](const void* m, int boundary) -> std::int64_t {
      return cost_of::boundary_class(model_at<M>(m), boundary);
    },
    .additive = [](const void* m) -> bool {
      if constexpr (requires {
                      { model_at<M>(m).additive() } -> std::convertible_to<bool>;
                    })
        return model_at<M>(m).additive();
      else
        return additive_cost_model<M>;
    },
    .has_transfer_class = [](const void* m) -> bool {
      if constexpr (requires {
                      { model_at<M>(m).has_transfer_class() } -> std::convertible_to<bool>;
                    })
        return model_at<M>(m).has_transfer_class();
      else
        return has_transfer_class<M>;
    },
    .asks_proximity = [](const void* m) -> bool {
      if constexpr (requires {
                      { model_at<M>(m).asks_proximity() } -> std::convertible_to<bool>;
                    })
        return model_at<M>(m).asks_proximity();
      else
        return asks_proximity<M>;
    },
};

}  // namespace detail::cost_model

/// Refers to a cost model of any type, which must outlive it: what planners and evaluate take, so that they are compiled once for
/// all models. Copies are cheap. A question costs a call through a pointer.
/// It answers all that a model may answer, where the model does not with the defaults of cost_of; what the model answers itself
/// is told by additive() and its neighbours. A model that forwards to another one may have members of these three names.
class any_cost_model {
 public:
  template <class M>
  requires(!std::same_as<M, any_cost_model> && stage_cost_model<M>) any_cost_model(const M& model)
      : model_(std::addressof(model)), ask_(&detail::cost_model::questions_of<M>) {}

  [[nodiscard]] int layer_count() const { return ask_->layer_count(model_); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return ask_->placements(model_, mesh); }
  /// Of a model that is not additive, a stage of one layer.
  [[nodiscard]] stage_cost layer(int index, const placement& where) const { return ask_->layer(model_, index, where); }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return ask_->stage(model_, layers, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return ask_->transfer(model_, boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return ask_->update(model_, layers, where); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return ask_->gradient_sync(model_, layers, holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return ask_->overheads(model_, where); }
  [[nodiscard]] int slices() const { return ask_->slices(model_); }
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    return ask_->sliced_stage(model_, layers, parts);
  }
  /// Requires: has_transfer_class().
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const { return ask_->transfer_class(model_, where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return ask_->boundary_class(model_, boundary); }

  /// Whether the model is an additive_cost_model.
  [[nodiscard]] bool additive() const { return ask_->additive(model_); }
  /// Whether it names the classes of its transfer prices.
  [[nodiscard]] bool has_transfer_class() const { return ask_->has_transfer_class(model_); }
  /// Whether its transfer prices may depend on the proximity of stages.
  [[nodiscard]] bool asks_proximity() const { return ask_->asks_proximity(model_); }

 private:
  const void* model_;
  const detail::cost_model::question_table* ask_;
};

/// The cost model for a microbatch size, as planners and evaluate ask for it: what it refers to, and the models that it returns,
/// outlive the call.
using costs_by_size = function_ref<any_cost_model(int microbatch_size)>;

}  // namespace hetsched
