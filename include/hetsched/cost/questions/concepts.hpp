// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

namespace detail::cost_model {

// Hide what ordinary lookup would find, so that only members and argument-dependent lookup count.
void layer_count() = delete;
void placements() = delete;
void stage() = delete;
void layer() = delete;
void transfer() = delete;
void update() = delete;
void transfer_class() = delete;
void boundary_class() = delete;
void gradient_sync() = delete;
void overheads() = delete;
void copies() = delete;

struct layer_count_fn {
  template <class M>
  [[nodiscard]] constexpr int operator()(const M& model) const requires requires {
    { model.layer_count() } -> std::convertible_to<int>;
  } || requires {
    { layer_count(model) } -> std::convertible_to<int>;
  }
  {
    if constexpr (requires { model.layer_count(); })
      return model.layer_count();
    else
      return layer_count(model);
  }
};

struct placements_fn {
  template <class M>
  [[nodiscard]] constexpr std::vector<placement> operator()(const M& model, const submesh& mesh) const requires requires {
    { model.placements(mesh) } -> std::convertible_to<std::vector<placement>>;
  } || requires {
    { placements(model, mesh) } -> std::convertible_to<std::vector<placement>>;
  }
  {
    if constexpr (requires { model.placements(mesh); })
      return model.placements(mesh);
    else
      return placements(model, mesh);
  }
};

struct stage_fn {
  template <class M>
  [[nodiscard]] constexpr stage_cost operator()(const M& model, layer_range layers,
                                                const placement& where) const requires requires {
    { model.stage(layers, where) } -> std::convertible_to<stage_cost>;
  } || requires {
    { stage(model, layers, where) } -> std::convertible_to<stage_cost>;
  }
  {
    if constexpr (requires { model.stage(layers, where); })
      return model.stage(layers, where);
    else
      return stage(model, layers, where);
  }
};

struct layer_fn {
  template <class M>
  [[nodiscard]] constexpr stage_cost operator()(const M& model, int index, const placement& where) const requires requires {
    { model.layer(index, where) } -> std::convertible_to<stage_cost>;
  } || requires {
    { layer(model, index, where) } -> std::convertible_to<stage_cost>;
  }
  {
    if constexpr (requires { model.layer(index, where); })
      return model.layer(index, where);
    else
      return layer(model, index, where);
  }
};

struct transfer_fn {
  template <class M>
  [[nodiscard]] constexpr transfer_cost operator()(const M& model, int boundary, const placement& from, const placement& to,
                                                   proximity near = proximity::other_node) const requires requires {
    { model.transfer(boundary, from, to) } -> std::convertible_to<transfer_cost>;
  } || requires {
    { transfer(model, boundary, from, to) } -> std::convertible_to<transfer_cost>;
  }
  {
    if constexpr (requires { model.transfer(boundary, from, to, near); })
      return model.transfer(boundary, from, to, near);
    else if constexpr (requires { model.transfer(boundary, from, to); })
      return model.transfer(boundary, from, to);
    else if constexpr (requires { transfer(model, boundary, from, to, near); })
      return transfer(model, boundary, from, to, near);
    else
      return transfer(model, boundary, from, to);
  }
};

struct update_fn {
  template <class M>
  [[nodiscard]] constexpr double operator()(const M& model, layer_range layers, const placement& where) const {
    if constexpr (requires { model.update(layers, where); })
      return model.update(layers, where);
    else if constexpr (requires { update(model, layers, where); })
      return update(model, layers, where);
    else
      return 0;
  }
};

struct gradient_sync_fn {
  template <class M>
  [[nodiscard]] constexpr reduction_cost operator()(const M& model, layer_range layers,
                                                    std::span<const placement> holders) const {
    if constexpr (requires { model.gradient_sync(layers, holders); })
      return model.gradient_sync(layers, holders);
    else if constexpr (requires { gradient_sync(model, layers, holders); })
      return gradient_sync(model, layers, holders);
    else
      return {};
  }
};

struct overheads_fn {
  template <class M>
  [[nodiscard]] constexpr memory_overheads operator()(const M& model, const placement& where) const {
    if constexpr (requires { model.overheads(where); })
      return model.overheads(where);
    else if constexpr (requires { overheads(model, where); })
      return overheads(model, where);
    else
      return {};
  }
};

struct copies_fn {
  template <class M>
  [[nodiscard]] constexpr std::vector<parameter_copy> operator()(const M& model, const placement& where) const {
    if constexpr (requires { model.copies(where); })
      return model.copies(where);
    else if constexpr (requires { copies(model, where); })
      return copies(model, where);
    else
      return {};
  }
};

template <class M>
concept has_transfer_class = requires(const M& m, const placement& p) {
  { m.transfer_class(p) } -> std::convertible_to<std::int64_t>;
}
|| requires(const M& m, const placement& p) {
  { transfer_class(m, p) } -> std::convertible_to<std::int64_t>;
};

// Whether transfer prices may depend on the proximity of stages.
template <class M>
concept asks_proximity = requires(const M& m, const placement& p) {
  m.transfer(0, p, p, proximity::same_node);
}
|| requires(const M& m, const placement& p) { transfer(m, 0, p, p, proximity::same_node); };

struct transfer_class_fn {
  template <has_transfer_class M>
  [[nodiscard]] constexpr std::int64_t operator()(const M& model, const placement& where) const {
    if constexpr (requires { model.transfer_class(where); })
      return model.transfer_class(where);
    else
      return transfer_class(model, where);
  }
};

struct boundary_class_fn {
  template <class M>
  [[nodiscard]] constexpr std::int64_t operator()(const M& model, int boundary) const {
    if constexpr (requires { model.boundary_class(boundary); })
      return model.boundary_class(boundary);
    else if constexpr (requires { boundary_class(model, boundary); })
      return boundary_class(model, boundary);
    else
      return boundary;
  }
};

}  // namespace detail::cost_model

/// The questions put to a cost model: each calls its member of that name, else the free function that argument-dependent lookup
/// finds.
namespace cost_of {

/// Number of layers.
inline constexpr detail::cost_model::layer_count_fn layer_count{};
/// Ways to run a stage on a submesh that are worth trying; none if the shape may not be used.
inline constexpr detail::cost_model::placements_fn placements{};
/// Cost of a range of layers as one stage.
inline constexpr detail::cost_model::stage_fn stage{};
/// Cost of one layer inside a stage.
inline constexpr detail::cost_model::layer_fn layer{};
/// What it takes to move the output of layer `boundary` of one microbatch from stage to stage, and its gradient back: a
/// transfer_cost, or a plain number of seconds either way; infinity if it cannot be moved. A model whose prices depend on whether
/// stages of one subcluster share a node takes a fourth argument, their `proximity`.
inline constexpr detail::cost_model::transfer_fn transfer{};
/// Seconds after the last backward of an iteration: gradient reduction inside the stage and optimizer step. Default: 0.
inline constexpr detail::cost_model::update_fn update{};
/// What it takes to add up the gradients of layers that several stages hold, each of another pipeline. Default: nothing.
inline constexpr detail::cost_model::gradient_sync_fn gradient_sync{};
/// What a device of a stage holds besides its stage_cost. Default: nothing.
inline constexpr detail::cost_model::overheads_fn overheads{};
/// The parameters that layers share with others, as a stage of this placement holds them; those of every placement are of the
/// same layers in the same order. Default: none.
inline constexpr detail::cost_model::copies_fn copies{};
/// Placements of one subcluster with equal class have equal transfer prices to and from every other placement.
inline constexpr detail::cost_model::transfer_class_fn transfer_class{};
/// Boundaries with equal class have equal transfer prices between any two placements. Default: each its own.
inline constexpr detail::cost_model::boundary_class_fn boundary_class{};

}  // namespace cost_of

/// What a planner asks of costs: `layer_count()`, `placements(submesh)`, `stage(layers, placement)` and
/// `transfer(boundary, from, to)`, as members or as free functions that take the model first.
/// A model is made for one microbatch size, and for training or inference.
/// Optional: `update(layers, placement)`, `gradient_sync(layers, placements)` and `overheads(placement)`, whose defaults are 0;
/// `copies(placement)`, for layers that share parameters;
/// `transfer_class(placement)` and `boundary_class(boundary)`, which make searches faster; `slices()` and
/// `sliced_stage(layers, parts)` (stage_part.hpp), for stages whose tensor ranks are unlike.
/// Not checked: that the same question always gets the same answer, that costs are finite and not negative
/// (planners check this and throw input_error), and that `layer_count` is at least 1.
template <class M>
concept stage_cost_model = requires(const M& m, layer_range r, const placement& p, const submesh& s) {
  { cost_of::layer_count(m) } -> std::convertible_to<int>;
  { cost_of::placements(m, s) } -> std::convertible_to<std::vector<placement>>;
  { cost_of::stage(m, r, p) } -> std::convertible_to<stage_cost>;
  { cost_of::transfer(m, 0, p, p) } -> std::convertible_to<transfer_cost>;
};

namespace detail::cost_model {

template <class M>
concept answers_layer_count = requires(const M& m) {
  { cost_of::layer_count(m) } -> std::convertible_to<int>;
};
template <class M>
concept answers_placements = requires(const M& m, const submesh& s) {
  { cost_of::placements(m, s) } -> std::convertible_to<std::vector<placement>>;
};
template <class M>
concept answers_stage = requires(const M& m, layer_range r, const placement& p) {
  { cost_of::stage(m, r, p) } -> std::convertible_to<stage_cost>;
};
template <class M>
concept answers_transfer = requires(const M& m, const placement& p) {
  { cost_of::transfer(m, 0, p, p) } -> std::convertible_to<transfer_cost>;
};

/// What is meant as a cost model, and may lack something.
template <class M>
concept resembles_costs = answers_layer_count<M> || answers_placements<M> || answers_stage<M> || answers_transfer<M>;

/// Says what a cost model lacks.
template <class M>
consteval void require_answers() {
  static_assert(answers_layer_count<M>,
                "the cost model has no layer_count() const that returns a number, as a member or a free function of it");
  static_assert(answers_placements<M>,
                "the cost model has no placements(const submesh&) const that returns a std::vector<placement>");
  static_assert(answers_stage<M>, "the cost model has no stage(layer_range, const placement&) const that returns a stage_cost");
  static_assert(answers_transfer<M>,
                "the cost model has no transfer(int boundary, const placement& from, const placement& to) const that returns "
                "seconds or a transfer_cost");
}

}  // namespace detail::cost_model

/// A stage_cost_model with `layer(index, placement)`, whose stages cost the sum of their layers, less the copies of shared
/// parameters that lie within: planners take a faster path.
/// Not checked: that `stage` really is that sum.
template <class M>
concept additive_cost_model = stage_cost_model<M> && requires(const M& m, const placement& p) {
  { cost_of::layer(m, 0, p) } -> std::convertible_to<stage_cost>;
};

/// Costs of inference that tell apart what makes the first token and what the others: the times of `chunk`, counted from 0, are
/// of one piece of the prompt, those of `decoding` of all tokens behind the first together. They add up to stage's forward_s and
/// to transfer's.
template <class M>
concept inference_costs = stage_cost_model<M> && requires(const M& m, layer_range r, const placement& p, proximity near) {
  { m.output_tokens() } -> std::convertible_to<int>;
  { m.chunk_count() } -> std::convertible_to<int>;
  { m.chunk_s(0, r, p) } -> std::convertible_to<double>;
  { m.decoding_s(r, p) } -> std::convertible_to<double>;
  { m.chunk_transfer_s(0, 0, p, p, near) } -> std::convertible_to<double>;
  { m.decoding_transfer_s(0, p, p, near) } -> std::convertible_to<double>;
};

/// Sum of the layers of a range, where a copy counts unless its owner is among them: the `stage` of an additive model. O(layers).
template <class M>
[[nodiscard]] constexpr stage_cost sum_of_layers(const M& model, layer_range layers, const placement& where) {
  stage_cost sum;
  for (int l = layers.first; l < layers.last; ++l) sum += cost_of::layer(model, l, where);
  drop_copies(sum, layers, cost_of::copies(model, where));
  return sum;
}

}  // namespace hetsched
