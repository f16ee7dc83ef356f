// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/cost/questions/stage_part.hpp>

namespace hetsched {

namespace detail::cost_model {

// Whether a model that forwards to another one says at run time what it is able to answer.
template <class M>
concept says_additive = requires(const M& m) {
  { m.additive() } -> std::convertible_to<bool>;
};
template <class M>
concept says_has_transfer_class = requires(const M& m) {
  { m.has_transfer_class() } -> std::convertible_to<bool>;
};
template <class M>
concept says_asks_proximity = requires(const M& m) {
  { m.asks_proximity() } -> std::convertible_to<bool>;
};

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
  std::vector<parameter_copy> (*copies)(const void*, const placement&);
  int (*slices)(const void*);
  parts_cost (*sliced_stage)(const void*, layer_range, std::span<const stage_part>);
  std::int64_t (*transfer_class)(const void*, const placement&);
  std::int64_t (*boundary_class)(const void*, int);
  bool (*additive)(const void*);
  bool (*has_transfer_class)(const void*);
  bool (*asks_proximity)(const void*);
  // Of inference_costs; null for other models.
  int (*output_tokens)(const void*) = nullptr;
  int (*chunk_count)(const void*) = nullptr;
  double (*chunk_s)(const void*, int, layer_range, const placement&) = nullptr;
  double (*decoding_s)(const void*, layer_range, const placement&) = nullptr;
  double (*chunk_transfer_s)(const void*, int, int, const placement&, const placement&, proximity) = nullptr;
  double (*decoding_transfer_s)(const void*, int, const placement&, const placement&, proximity) = nullptr;
};

template <class M>
[[nodiscard]] const M& model_at(const void* m) {
  return *static_cast<const M*>(m);
}

/// Seconds, or a number of something, that a model has answered with. Throws: input_error for a time that is negative or not
/// finite, and a number below 1.
[[nodiscard]] inline double checked(double seconds, const char* question) {
  if (seconds >= 0 && seconds < longest_time_s) return seconds;
  throw input_error(std::string("a cost model's ") + question + " is " + number_text(seconds) +
                    ", expected seconds of at least 0");
}
[[nodiscard]] inline int checked(int count, const char* question) {
  if (count < 1)
    throw input_error(std::string("a cost model's ") + question + " is " + std::to_string(count) + ", expected at least 1");
  return count;
}

template <stage_cost_model M>
[[nodiscard]] constexpr question_table make_questions() {
  question_table all{
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
      .copies = [](const void* m, const placement& where) -> std::vector<parameter_copy> {
        return cost_of::copies(model_at<M>(m), where);
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
        if constexpr (says_additive<M>)
          return model_at<M>(m).additive();
        else
          return additive_cost_model<M>;
      },
      .has_transfer_class = [](const void* m) -> bool {
        if constexpr (says_has_transfer_class<M>)
          return model_at<M>(m).has_transfer_class();
        else
          return has_transfer_class<M>;
      },
      .asks_proximity = [](const void* m) -> bool {
        if constexpr (says_asks_proximity<M>)
          return model_at<M>(m).asks_proximity();
        else
          return asks_proximity<M>;
      },
  };
  if constexpr (inference_costs<M>) {
    all.output_tokens = [](const void* m) -> int { return model_at<M>(m).output_tokens(); };
    all.chunk_count = [](const void* m) -> int { return model_at<M>(m).chunk_count(); };
    all.chunk_s = [](const void* m, int chunk, layer_range layers, const placement& where) -> double {
      return model_at<M>(m).chunk_s(chunk, layers, where);
    };
    all.decoding_s = [](const void* m, layer_range layers, const placement& where) -> double {
      return model_at<M>(m).decoding_s(layers, where);
    };
    all.chunk_transfer_s = [](const void* m, int chunk, int boundary, const placement& from, const placement& to,
                              proximity near) -> double {
      return model_at<M>(m).chunk_transfer_s(chunk, boundary, from, to, near);
    };
    all.decoding_transfer_s = [](const void* m, int boundary, const placement& from, const placement& to,
                                 proximity near) -> double {
      return model_at<M>(m).decoding_transfer_s(boundary, from, to, near);
    };
  }
  return all;
}

template <stage_cost_model M>
inline constexpr question_table questions_of = make_questions<M>();

}  // namespace detail::cost_model

/// Refers to a cost model of any type, which must outlive it unless it was made by owner_of: what planners and evaluate take, so
/// that they are compiled once for all models. Copies are cheap and refer to the same model. A question costs a call through a
/// pointer.
/// It answers all that a model may answer, where the model does not with the defaults of cost_of; what the model answers itself
/// is told by additive() and its neighbours. What it says of updates, reductions, pieces and tokens is checked here: input_error
/// for times that are none; of the other answers, where they are kept (price_book). A model that forwards to another one may have
/// members of these three names.
class any_cost_model {
 public:
  /// Not compiled, with a message for each question, if a model answers only some of those of stage_cost_model.
  template <class M>
  requires(!std::same_as<M, any_cost_model> && detail::cost_model::resembles_costs<M>) any_cost_model(const M& model)
      : model_(std::addressof(model)) {
    detail::cost_model::require_answers<M>();
    if constexpr (stage_cost_model<M>) ask_ = &detail::cost_model::questions_of<M>;
  }

  /// One that keeps the model, together with its copies.
  template <stage_cost_model M>
  [[nodiscard]] static any_cost_model owner_of(M model) {
    const auto kept = std::make_shared<const M>(std::move(model));
    any_cost_model any(*kept);
    any.kept_ = kept;
    return any;
  }

  [[nodiscard]] int layer_count() const { return ask_->layer_count(model_); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return ask_->placements(model_, mesh); }
  /// Of a model that is not additive, a stage of one layer.
  [[nodiscard]] stage_cost layer(int index, const placement& where) const { return ask_->layer(model_, index, where); }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return ask_->stage(model_, layers, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return ask_->transfer(model_, boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const {
    return detail::cost_model::checked(ask_->update(model_, layers, where), "update");
  }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    const auto c = ask_->gradient_sync(model_, layers, holders);
    if (c.seconds >= 0 && c.bytes >= 0) return c;
    throw input_error("the reduction of the gradients of " + describe(layers) + " is negative or not a number");
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return ask_->overheads(model_, where); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const { return ask_->copies(model_, where); }
  [[nodiscard]] int slices() const { return ask_->slices(model_); }
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    return ask_->sliced_stage(model_, layers, parts);
  }
  /// Requires: has_transfer_class().
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const { return ask_->transfer_class(model_, where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return ask_->boundary_class(model_, boundary); }

  /// Whether the model is one of inference_costs, whose questions these six are.
  [[nodiscard]] bool tells_tokens() const { return ask_->chunk_s != nullptr; }
  [[nodiscard]] int output_tokens() const { return detail::cost_model::checked(ask_->output_tokens(model_), "output_tokens"); }
  [[nodiscard]] int chunk_count() const { return detail::cost_model::checked(ask_->chunk_count(model_), "chunk_count"); }
  [[nodiscard]] double chunk_s(int chunk, layer_range layers, const placement& where) const {
    return detail::cost_model::checked(ask_->chunk_s(model_, chunk, layers, where), "chunk_s");
  }
  [[nodiscard]] double decoding_s(layer_range layers, const placement& where) const {
    return detail::cost_model::checked(ask_->decoding_s(model_, layers, where), "decoding_s");
  }
  [[nodiscard]] double chunk_transfer_s(int chunk, int boundary, const placement& from, const placement& to,
                                        proximity near) const {
    return detail::cost_model::checked(ask_->chunk_transfer_s(model_, chunk, boundary, from, to, near), "chunk_transfer_s");
  }
  [[nodiscard]] double decoding_transfer_s(int boundary, const placement& from, const placement& to, proximity near) const {
    return detail::cost_model::checked(ask_->decoding_transfer_s(model_, boundary, from, to, near), "decoding_transfer_s");
  }

  /// Whether the model is an additive_cost_model.
  [[nodiscard]] bool additive() const { return ask_->additive(model_); }
  /// Whether it names the classes of its transfer prices.
  [[nodiscard]] bool has_transfer_class() const { return ask_->has_transfer_class(model_); }
  /// Whether its transfer prices may depend on the proximity of stages.
  [[nodiscard]] bool asks_proximity() const { return ask_->asks_proximity(model_); }

 private:
  const void* model_;
  std::shared_ptr<const void> kept_ = {};  // the model, if it is kept
  const detail::cost_model::question_table* ask_ = nullptr;
};

/// A function that makes the cost model for a microbatch size, or returns one that somebody else keeps.
template <class F>
concept costs_by_microbatch_size = requires(F& f) {
  { f(1) } -> stage_cost_model;
};

namespace detail {

/// Cost models that a function makes, each made once.
template <class F>
class made_costs {
 public:
  using model = std::remove_cvref_t<std::invoke_result_t<F&, int>>;
  explicit made_costs(F f) : make_(std::forward<F>(f)) {}
  any_cost_model operator()(int size) {
    for (const auto& [known, costs] : made_)
      if (known == size) return *costs;
    return *made_.emplace_back(size, std::make_unique<const model>(make_(size))).second;
  }

 private:
  F make_;  // a reference, where it outlives this
  std::vector<std::pair<int, std::unique_ptr<const model>>> made_;
};

/// Cost models that a function finds.
template <class F>
struct found_costs {
  F find;
  any_cost_model operator()(int size) { return find(size); }
};

}  // namespace detail

/// Any function that costs_by_microbatch_size describes. One that is given by its name is referred to and must outlive this; a
/// temporary one is kept. Models that it returns by value are made once and kept; references it may return anew each time.
/// Copies share what is kept. Not for several threads at once, unless the function returns references and is.
class costs_by_size {
 public:
  template <costs_by_microbatch_size F>
  requires(!std::same_as<std::remove_cvref_t<F>, costs_by_size>) costs_by_size(F&& f) {
    using answer = std::invoke_result_t<F&, int>;
    constexpr bool lasts = std::is_lvalue_reference_v<answer> || std::same_as<std::remove_cvref_t<answer>, any_cost_model>;
    using keeper = std::conditional_t<lasts, detail::found_costs<F>, detail::made_costs<F>>;
    costs_ = std::make_shared<keeper>(keeper{std::forward<F>(f)});
    ask_ = [](void* kept, int size) { return (*static_cast<keeper*>(kept))(size); };
  }

  [[nodiscard]] any_cost_model operator()(int microbatch_size) const { return ask_(costs_.get(), microbatch_size); }

 private:
  std::shared_ptr<void> costs_;
  any_cost_model (*ask_)(void*, int);
};

}  // namespace hetsched
