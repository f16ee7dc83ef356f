// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <hetsched/cuda/queue.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>

#include <gpt_cuda/description.hpp>
#include <gpt_cuda/kernels.hpp>
#include <gpt_cuda/operations.hpp>
#include <gpt_cuda/tensor.hpp>

// The layers of gpt/ for the queues of GPUs and hosts. Real: of what is factors of products and what they make inside a layer,
// bf16 or float; sums, norms, what lies between layers and what blocks add up are floats.
namespace gpt_cuda {

/// A parameter: its master weights, their gradient and, if it is a factor of products, what these take of it.
template <class Api>
struct parameter {
  tensor<Api> value, gradient;
  std::shared_ptr<rounded_copy<Api>> rounded;  ///< null: products take the value

  parameter(const hetsched::cuda_queue<Api>& q, const numbers& first, bool rounds)
      : value(upload(q, first)), gradient(hetsched::tensor_traits<tensor<Api>>::make({first.rows, first.columns}, q)) {
    each(q, gradient.size(), fill_with{}, 0.0f, out(gradient));
    if (rounds) {
      rounded = std::make_shared<rounded_copy<Api>>();
      rounded->half = halves<Api>(first.rows, first.columns, q);
      value.rounded = rounded;
    }
    refresh(q);
  }
  /// Behind a change of the value, unless an update has done it and is the last that has written the value.
  void refresh(const hetsched::cuda_queue<Api>& q) {
    if (!rounded) return;
    const auto* const of = std::exchange(rounded->of, nullptr);
    if (of && of == value.data() && rounded->writes == value.buffer().writes()) return;
    each(q, value.size(), round_to_bf16{}, in(value), out(rounded->half));
  }
  [[nodiscard]] factor as_factor() const { return rounded ? factor_of(rounded->half) : factor_of(value); }
};
/// Those of a layer, in the order of gpt::make_layer. The layer and whoever updates them share them.
template <class Api>
using parameters = std::shared_ptr<std::vector<parameter<Api>>>;

/// What layers have in common: contexts keep where an input's numbers are, which stay there, and all else that a backward needs.
template <class Api, class Real>
class layer_base {
 public:
  using queue = hetsched::cuda_queue<Api>;
  using own_tensor = tensor<Api>;
  using inner = matrix<Api, Real>;
  layer_base(const shape& m, parameters<Api> all, const layer_part<Api>& part)
      : m_(m), own_(std::move(all)), axis_(part.axis), context_(part.context), cuts_(part.cuts) {
    m_.sequence /= context_.size;
    cuts_.resize(own_->size());
  }

  std::vector<std::reference_wrapper<own_tensor>> parameters() {
    std::vector<std::reference_wrapper<own_tensor>> found;
    for (auto& p : *own_) found.push_back(p.value);
    return found;
  }
  std::vector<std::reference_wrapper<own_tensor>> gradients() {
    std::vector<std::reference_wrapper<own_tensor>> found;
    for (auto& p : *own_) found.push_back(p.gradient);
    return found;
  }
  [[nodiscard]] const std::vector<hetsched::parameter_cut>& parameter_cuts() const { return cuts_; }
  void parameters_changed(const queue& q) {
    for (auto& p : *own_) p.refresh(q);
  }

 protected:
  [[nodiscard]] parameter<Api>& own(int i) { return (*own_)[static_cast<std::size_t>(i)]; }
  static own_tensor make(const queue& q, int rows, int columns) {
    return {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), q};
  }

  static inner make_inner(const queue& q, int rows, int columns) {
    return {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), q};
  }

  /// The same memory as floats; a row has an even number of bf16.
  static own_tensor carried(inner t) {
    const auto columns = t.shape()[1] * sizeof(Real) / sizeof(float);
    return own_tensor({t.shape()[0], columns}, std::move(t.buffer()));
  }
  static inner rounded(const queue& q, const own_tensor& x) requires std::same_as<Real, bf16> {
    auto y = make_inner(q, x.rows(), x.columns());
    each(q, x.size(), round_to_bf16{}, in(x), out(y));
    return y;
  }
  /// Floats as a factor of products: themselves, or what `room` gets.
  static factor factor_from(const queue& q, const own_tensor& x, inner& room) {
    if constexpr (std::same_as<Real, float>) {
      return factor_of(x);
    } else {
      room = rounded(q, x);
      return factor_of(room);
    }
  }

  // Between the halves of blocks a rank of a tensor axis has its slice of every sample's sequence, inside them all rows: see
  // gpt::sequence_slices.

  /// All ranks' slices: the slice itself, or what is put into `room`.
  const own_tensor& gather(const queue& q, const own_tensor& slice, own_tensor& room) const {
    if (axis_.size == 1) return slice;
    const auto order = slices_of(slice.rows() * axis_.size, slice.columns());
    room = make(q, slice.rows() * axis_.size, slice.columns());
    if (order.samples == 1) {
      axis_.all_gather(slice, room, q);
      return room;
    }
    auto by_rank = make(q, room.rows(), room.columns());
    axis_.all_gather(slice, by_rank, q);
    each(q, room.size(), to_samples{}, order, in(by_rank), out(room));
    return room;
  }
  /// This rank's slice of the sum over the ranks.
  [[nodiscard]] own_tensor sum_slices(const queue& q, own_tensor all) const {
    if (axis_.size == 1) return all;
    const auto order = slices_of(all.rows(), all.columns());
    auto slice = make(q, all.rows() / axis_.size, all.columns());
    if (order.samples > 1) {
      auto by_rank = make(q, all.rows(), all.columns());
      each(q, all.size(), to_ranks{}, order, in(all), out(by_rank));
      all = std::move(by_rank);
    }
    axis_.reduce_scatter(all, slice, q);
    return slice;
  }
  [[nodiscard]] slices_by_rank slices_of(int rows, int columns) const {
    return {.columns = columns, .samples = rows / m_.sequence, .ranks = axis_.size, .length = m_.sequence / axis_.size};
  }

  /// A gradient of this rank's slices as the factor that all its rows are, in both halves of a backward.
  struct gathered {
    own_tensor all;
    inner half;
  };
  factor gather_factor(const queue& q, const own_tensor& slice, gathered& room) const {
    const auto& all = gather(q, slice, room.all);
    if constexpr (std::same_as<Real, float>)
      return factor_of(all);
    else {
      room.half = rounded(q, all);
      room.all = {};
      return factor_of(room.half);
    }
  }
  [[nodiscard]] factor gathered_factor(const own_tensor& slice, const gathered& room) const {
    if constexpr (std::same_as<Real, float>)
      return factor_of(axis_.size == 1 ? slice : room.all);
    else
      return factor_of(room.half);
  }

  // Parameters first and, with biases, first + 1.
  [[nodiscard]] int linear_parameters() const { return m_.bias ? 2 : 1; }
  [[nodiscard]] argument<const float> bias_of(int first) { return m_.bias ? in(own(first + 1).value) : argument<const float>(); }
  /// Without its bias.
  template <class To>
  matrix<Api, To> product(const queue& q, int first, const inner& x) {
    matrix<Api, To> y(x.shape()[0], own(first).value.shape()[1], q);
    multiply(q, y, 0, factor_of(x), own(first).as_factor());
    return y;
  }
  // With epilogues where there are such products, else with kernels behind them.
  [[nodiscard]] argument<const void> bias_of_products(int first) {
    auto& bias = own(first + 1);
    if constexpr (std::same_as<Real, float>)
      return any_in(bias.value);
    else
      return any_in(bias.rounded->half);
  }
  inner biased_product(const queue& q, int first, const inner& x) {
    inner y(x.shape()[0], own(first).value.shape()[1], q);
    auto p = call_of(y, 0, factor_of(x), own(first).as_factor());
    if (m_.bias && m_.epilogues) {
      p.bias = bias_of_products(first);
      if (multiply_with(q, epilogue::bias, p)) return y;
    }
    p.bias = {};
    multiply(q, p);
    if (m_.bias) each(q, y.size(), add_bias{}, y.columns(), bias_of(first), argument<const float>(), out(y));
    return y;
  }
  template <class To>
  matrix<Api, To> product_backward(const queue& q, int first, const factor& dy) {
    matrix<Api, To> dx(static_cast<std::size_t>(dy.rows), own(first).value.shape()[0], q);
    multiply(q, dx, 0, dy, own(first).as_factor(), transposed::second);
    return dx;
  }
  void product_weight(const queue& q, int first, const inner& x, const factor& dy) {
    multiply(q, own(first).gradient, 1, factor_of(x), dy, transposed::first);
  }
  /// And of the bias, whose gradient `dy` is summed: as the factor, if that is all of it.
  template <class From>
  void linear_weight(const queue& q, int first, const inner& x, const factor& factor, const matrix<Api, From>& dy) {
    if (m_.bias && m_.epilogues && factor.rows == dy.rows()) {
      auto p = call_of(own(first).gradient, 1, factor_of(x), factor, transposed::first);
      auto sums = make(q, 1, dy.columns());
      p.summed_bias = any_out(sums);
      if (multiply_with(q, epilogue::bgrada, p)) return add_to_gradient(q, first + 1, sums);
    }
    product_weight(q, first, x, factor);
    bias_weight(q, first, dy);
  }
  template <class From>
  void add_to_gradient(const queue& q, int which, const matrix<Api, From>& term) {
    each(q, term.size(), add_to{}, in(term), out(own(which).gradient));
  }
  template <class From>
  void bias_weight(const queue& q, int first, const matrix<Api, From>& dy) {
    if (!m_.bias) return;
    auto sums = make(q, band::count(dy.rows()), dy.columns());
    each(q, sums.size(), sum_band{}, dy.rows(), dy.columns(), in(dy), out(sums));
    add_bands(q, sums, own(first + 1).gradient);
  }
  static void add_bands(const queue& q, const own_tensor& sums, own_tensor& sum) {
    each(q, sums.columns(), sum_bands{}, sums.rows(), sums.columns(), in(sums), out(sum));
  }

  struct norm_context {
    argument<const float> x;
    own_tensor mean, scale;
  };
  /// What a norm is of: x, or, with a term, `sum`, which gets x + term + bias.
  struct summed {
    argument<const float> term, bias;
    argument<float> sum;
  };
  [[nodiscard]] int norm_parameters() const { return m_.rms ? 1 : 2; }
  template <class To>
  matrix<Api, To> norm(const queue& q, int first, const own_tensor& x, norm_context& c, const summed& s = {}) {
    matrix<Api, To> y(x.shape()[0], x.shape()[1], q);
    c.x = s.sum.data ? argument<const float>{s.sum.data, s.sum.bytes} : in(x);
    c.mean = make(q, x.rows(), 1);
    c.scale = make(q, x.rows(), 1);
    const auto bias = m_.rms ? argument<const float>() : in(own(first + 1).value);
    teams(q, x.rows(), norm_forward{}, x.columns(), in(x), s.term, s.bias, in(own(first).value), bias, s.sum, out(c.mean),
          out(c.scale), out(y));
    return y;
  }
  /// Of all ranks' slices, as a factor.
  inner norm_of_all(const queue& q, int first, const own_tensor& x, norm_context& c, const summed& s = {}) {
    if (axis_.size == 1) return norm<Real>(q, first, x, c, s);
    own_tensor all;
    (void)gather(q, norm<float>(q, first, x, c, s), all);
    if constexpr (std::same_as<Real, float>)
      return all;
    else
      return rounded(q, all);
  }
  /// `more`: what the gradient is added to; null: nothing.
  own_tensor norm_backward(const queue& q, int first, const own_tensor& dy, const norm_context& c,
                           const argument<const float>& more = {}) {
    auto dx = make(q, dy.rows(), dy.columns());
    teams(q, dy.rows(), gpt_cuda::norm_backward{}, dy.columns(), !m_.rms, in(dy), in(own(first).value), c.x, in(c.mean),
          in(c.scale), more, out(dx));
    return dx;
  }
  void norm_weight(const queue& q, int first, const own_tensor& dy, const norm_context& c) {
    auto gains = make(q, band::count(dy.rows()), dy.columns());
    own_tensor biases;
    if (!m_.rms) biases = make(q, gains.rows(), dy.columns());
    each(q, gains.size(), norm_band{}, dy.rows(), dy.columns(), in(dy), c.x, in(c.mean), in(c.scale), out(gains), out(biases));
    add_bands(q, gains, own(first).gradient);
    if (!m_.rms) add_bands(q, biases, own(first + 1).gradient);
  }

  shape m_;  ///< its sequence: this context rank's slice
  gpt_cuda::parameters<Api> own_;
  group_axis<Api> axis_, context_;
  std::vector<hetsched::parameter_cut> cuts_;
};

}  // namespace gpt_cuda
