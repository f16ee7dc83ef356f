// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/spmd/rank_steps.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// An operator that a device is to compute.
struct spmd_call {
  const tensor_node& node;
  std::int64_t first_row = 0;  ///< of the table that this device has: embedding and embedding_grad, whose ids count from 0
};

/// What computes operators with a user's tensors:
///   kernels(const spmd_call&, std::span<const Tensor* const> inputs, Tensor& result)
/// writes all of the result, which has the shape of this device's part and elements of any value. Inputs may be parts too; none
/// is empty. One thread at a time calls it.
template <class K, class Tensor>
concept spmd_kernels = requires(K& kernels, const spmd_call& call, std::span<const Tensor* const> inputs, Tensor& result) {
  kernels(call, inputs, result);
};

namespace detail {

// A dimension of a tensor, and what lies outside and inside of it.
struct dimension_view {
  std::size_t outer = 1, extent = 1, inner = 1;
};
[[nodiscard]] inline dimension_view view_of(const tensor_shape& shape, int dimension) {
  dimension_view v{.extent = at(shape, dimension)};
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (static_cast<int>(d) != dimension) (static_cast<int>(d) < dimension ? v.outer : v.inner) *= shape[d];
  return v;
}
// packed = rows [first, first + count) of a dimension; returns the end of what was written.
template <class Element>
Element* pack(Element* packed, const Element* from, const dimension_view& v, std::size_t first, std::size_t count) {
  for (std::size_t o = 0; o < v.outer; ++o, packed += count * v.inner)
    copy_elements(packed, from + (o * v.extent + first) * v.inner, count * v.inner);
  return packed;
}
template <class Element>
const Element* unpack(Element* to, const Element* packed, const dimension_view& v, std::size_t first, std::size_t count) {
  for (std::size_t o = 0; o < v.outer; ++o, packed += count * v.inner)
    copy_elements(to + (o * v.extent + first) * v.inner, packed, count * v.inner);
  return packed;
}

// The tensors of one run: those that it makes, and those that it is given, which stay where they are.
template <class Tensor>
struct spmd_values {
  std::vector<Tensor> own;
  std::vector<const Tensor*> at;
};

// Runs the steps of one device. Buffers are kept, so that a second run allocates nothing but what kernels do.
template <pipeline_tensor Tensor, spmd_kernels<Tensor> Kernels>
class spmd_run {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;
  static_assert(traits::space != memory_space::device, "programs are run on tensors in host memory");

 public:
  spmd_run(std::shared_ptr<const spmd::problem> problem, spmd_parts parts, rank_steps steps, device_axis<element> axis,
           Kernels kernels)
      : problem_(std::move(problem)),
        parts_(std::move(parts)),
        steps_(std::move(steps)),
        axis_(std::move(axis)),
        kernels_(std::move(kernels)),
        counts_(as_size(axis_.size())),
        other_counts_(counts_) {}

  [[nodiscard]] const rank_steps& steps() const { return steps_; }
  [[nodiscard]] const spmd_parts& parts() const { return parts_; }
  [[nodiscard]] const device_axis<element>& axis() const { return axis_; }

  [[nodiscard]] spmd_values<Tensor> make_values() const {
    spmd_values<Tensor> v;
    v.own.resize(steps_.held().size());
    v.at.assign(steps_.held().size(), nullptr);
    return v;
  }

  // The steps that do not depend on the gradient of the output, or those that do. Leaves they read have been given.
  void run(spmd_values<Tensor>& v, bool late) {
    for (const auto& step : steps_.steps()) {
      if (step.late != late) continue;
      const auto r = as_size(step.result);
      const auto& shape = steps_.held()[r].shape;
      auto& result = v.own[r];
      if (v.at[r] == nullptr) {
        result = traits::make(shape);
        v.at[r] = &result;
      }
      switch (step.what) {
        case rank_step::kind::compute:
          compute(v, step, result);
          break;
        case rank_step::kind::part: {
          const int dimension = steps_.held()[r].form.dimension(), device = axis_.rank();
          pack(traits::data(result), input(v, step), view_of(shape_of_input(step), dimension),
               parts_.first(step.node, dimension, device), parts_.size(step.node, dimension, device));
          break;
        }
        case rank_step::kind::change:
          change(v, step, result);
      }
    }
  }

 private:
  [[nodiscard]] const element* input(const spmd_values<Tensor>& v, const rank_step& step) const {
    return traits::data(*at(v.at, step.inputs.front()));
  }
  [[nodiscard]] const tensor_shape& shape_of_input(const rank_step& step) const {
    return at(steps_.held(), step.inputs.front()).shape;
  }
  [[nodiscard]] element* buffer(std::vector<element>& kept, std::size_t n) const {
    if (kept.size() < n) kept.resize(n);
    return kept.data();
  }

  void compute(const spmd_values<Tensor>& v, const rank_step& step, Tensor& result) {
    if (elements(result) == 0) return;
    inputs_.clear();
    bool nothing = false;
    for (const int i : step.inputs) {
      inputs_.push_back(at(v.at, i));
      nothing = nothing || elements(*inputs_.back()) == 0;
    }
    // A device without a share adds nothing to the sum.
    if (nothing)
      zero(result);
    else
      kernels_(spmd_call{problem_->graph.at(step.node), step.row}, std::span<const Tensor* const>(inputs_), result);
  }

  // counts = elements of every device's part; `rest`: of one row.
  void count(std::vector<std::size_t>& counts, int node, int dimension, std::size_t rest) const {
    for (std::size_t k = 0; k < counts.size(); ++k) counts[k] = parts_.size(node, dimension, static_cast<int>(k)) * rest;
  }

  void change(const spmd_values<Tensor>& v, const rank_step& step, Tensor& result) {
    const auto& from = at(steps_.held(), step.inputs.front());
    const auto& to = at(steps_.held(), step.result);
    const element* mine = input(v, step);
    element* const made = traits::data(result);
    const int ranks = axis_.size();
    if (from.form.is_partial() && to.form.is_whole()) {
      const auto n = elements(result);
      copy_elements(made, mine, n);
      axis_.all_reduce({made, n});
    } else if (from.form.is_partial()) {
      const int d = to.form.dimension();
      const auto w = view_of(from.shape, d);
      count(counts_, step.node, d, w.outer * w.inner);
      const element* all = mine;
      if (w.outer > 1) {
        auto* end = buffer(send_, w.outer * w.extent * w.inner);
        all = end;
        for (int k = 0; k < ranks; ++k) end = pack(end, mine, w, parts_.first(step.node, d, k), parts_.size(step.node, d, k));
      }
      axis_.reduce_scatter({all, w.outer * w.extent * w.inner}, {made, elements(result)}, counts_);
    } else if (to.form.is_whole()) {
      const int d = from.form.dimension();
      const auto w = view_of(to.shape, d);
      count(counts_, step.node, d, w.outer * w.inner);
      const std::size_t own = at(counts_, axis_.rank()), n = w.outer * w.extent * w.inner;
      if (w.outer == 1) return axis_.all_gather({mine, own}, {made, n}, counts_);
      auto* const all = buffer(receive_, n);
      axis_.all_gather({mine, own}, {all, n}, counts_);
      const element* next = all;
      for (int k = 0; k < ranks; ++k) next = unpack(made, next, w, parts_.first(step.node, d, k), parts_.size(step.node, d, k));
    } else if (from.form == to.form) {
      share_anew(from, to, mine, made);
    } else {
      // Each device sends the others their parts of what it has.
      const int a = from.form.dimension(), b = to.form.dimension();
      const auto cut = view_of(from.shape, b), joined = view_of(to.shape, a);
      count(counts_, step.node, b, cut.outer * cut.inner);
      count(other_counts_, from.node, a, joined.outer * joined.inner);
      const std::size_t sent = cut.outer * cut.extent * cut.inner, received = joined.outer * joined.extent * joined.inner;
      auto* const out = buffer(send_, sent);
      auto* const in = buffer(receive_, received);
      auto* end = out;
      for (int k = 0; k < ranks; ++k) end = pack(end, mine, cut, parts_.first(step.node, b, k), parts_.size(step.node, b, k));
      axis_.all_to_all({out, sent}, counts_, {in, received}, other_counts_);
      const element* next = in;
      for (int k = 0; k < ranks; ++k)
        next = unpack(made, next, joined, parts_.first(from.node, a, k), parts_.size(from.node, a, k));
    }
  }

  // Over a border: the same dimension in other shares. Each device sends the others those of its rows that are theirs there.
  void share_anew(const held_tensor& from, const held_tensor& to, const element* mine, element* made) {
    const int d = from.form.dimension(), ranks = axis_.size(), me = axis_.rank();
    const auto had = view_of(from.shape, d), has = view_of(to.shape, d);
    // Rows of device i before the border that device k has behind it, as first and count.
    const auto common = [&](int i, int k) {
      const auto begin = std::max(parts_.first(from.node, d, i), parts_.first(to.node, d, k));
      const auto end = std::min(parts_.first(from.node, d, i) + parts_.size(from.node, d, i),
                                parts_.first(to.node, d, k) + parts_.size(to.node, d, k));
      return std::pair{begin, end > begin ? end - begin : 0};
    };
    const std::size_t row = had.outer * had.inner;
    auto* const out = buffer(send_, had.extent * row);
    auto* const in = buffer(receive_, has.extent * row);
    auto* end = out;
    for (int k = 0; k < ranks; ++k) {
      const auto [first, count] = common(me, k);
      at(counts_, k) = count * row;
      at(other_counts_, k) = common(k, me).second * row;
      if (count > 0) end = pack(end, mine, had, first - parts_.first(from.node, d, me), count);
    }
    axis_.all_to_all({out, had.extent * row}, counts_, {in, has.extent * row}, other_counts_);
    const element* next = in;
    for (int k = 0; k < ranks; ++k)
      if (const auto [first, count] = common(k, me); count > 0)
        next = unpack(made, next, has, first - parts_.first(to.node, d, me), count);
  }

  std::shared_ptr<const spmd::problem> problem_;
  spmd_parts parts_;
  rank_steps steps_;
  device_axis<element> axis_;
  Kernels kernels_;
  std::vector<const Tensor*> inputs_;
  std::vector<std::size_t> counts_, other_counts_;
  std::vector<element> send_, receive_;
};

}  // namespace detail
}  // namespace hetsched
