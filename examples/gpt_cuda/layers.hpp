// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/trainer/detail/gradient_norm.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>

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
  /// Behind a change of the value, unless an update has done it.
  void refresh(const hetsched::cuda_queue<Api>& q) {
    if (!rounded) return;
    const auto* const of = std::exchange(rounded->of, nullptr);
    if (of && of == value.data()) return;
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
      : m_(m), own_(std::move(all)), axis_(part.axis), cuts_(part.cuts) {
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

  shape m_;
  gpt_cuda::parameters<Api> own_;
  tensor_axis<Api> axis_;
  std::vector<hetsched::parameter_cut> cuts_;
};

/// See gpt::embedding.
template <class Api>
class embedding : public layer_base<Api, float> {
  using base = layer_base<Api, float>;
  using base::m_, base::own, base::axis_;

 public:
  using typename base::own_tensor, typename base::queue;
  struct context {
    argument<const float> tokens;
  };
  using base::base;

  own_tensor forward(const own_tensor& tokens, context& c, const queue& q) {
    c.tokens = in(tokens);
    auto y = base::make(q, tokens.rows(), m_.hidden);
    const auto positions = m_.rotary ? argument<const float>() : in(own(1).value);
    each(q, y.size(), look_up{}, m_.hidden, part(), c.tokens, in(own(0).value), positions, out(y));
    return y;
  }
  /// Zero: tokens have no gradient.
  own_tensor backward_input(const own_tensor& dy, context&, const queue& q) {
    auto dx = base::make(q, dy.rows(), 1);
    each(q, dx.size(), fill_with{}, 0.0f, out(dx));
    return dx;
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    teams(q, dy.rows(), look_up_backward{}, dy.rows(), dy.columns(), c.tokens, in(dy), out(own(0).gradient));
    if (!m_.rotary)
      each(q, part().length * dy.columns(), positions_backward{}, dy.rows(), dy.columns(), part(), in(dy), out(own(1).gradient));
  }
  own_tensor backward(const own_tensor& dy, context& c, const queue& q) {
    backward_weight(dy, c, q);
    return backward_input(dy, c, q);
  }

 private:
  [[nodiscard]] sequence_part part() const {
    const int length = m_.sequence / axis_.size;
    return {.length = length, .first = length * axis_.rank};
  }
};

/// See gpt::block.
template <class Api, class Real>
class block : public layer_base<Api, Real> {
  using base = layer_base<Api, Real>;
  using base::m_, base::own, base::bias_of;

 public:
  using typename base::own_tensor, typename base::queue, typename base::inner;
  struct context {
    typename base::norm_context norm_1, norm_2;
    inner normed_1, qkv, mixed, normed_2, up, active;
    own_tensor middle, logs;
    bool up_has_bias = false;
    inner dqkv, dup, dup_bias;  ///< these and those below: for the weights' half; dup_bias: none if it is still to be summed
    own_tensor dmiddle, dnormed_1, dnormed_2;
    typename base::gathered all_dmiddle, all_dy;
  };

  block(const shape& m, parameters<Api> all, const layer_part<Api>& part, const queue& q) : base(m, std::move(all), part) {
    qkv_ = base::norm_parameters();
    out_ = qkv_ + base::linear_parameters();
    norm_2_ = out_ + base::linear_parameters();
    up_ = norm_2_ + base::norm_parameters();
    down_ = up_ + base::linear_parameters();
    heads_ = own(out_).value.rows() / size();
    kv_heads_ = heads_ * m.kv_heads / m.heads;
    ffn_ = own(down_).value.rows();
    if (!m.rotary) return;
    const int half = size() / 2;
    numbers cosine{static_cast<std::size_t>(m.sequence), static_cast<std::size_t>(half), {}}, sine = cosine;
    for (int p = 0; p < m.sequence; ++p)
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(1e4, -2.0 * i / size());
        cosine.values.push_back(static_cast<float>(std::cos(angle)));
        sine.values.push_back(static_cast<float>(std::sin(angle)));
      }
    cosine_ = std::make_shared<own_tensor>(upload(q, cosine));
    sine_ = std::make_shared<own_tensor>(upload(q, sine));
  }

  /// x: (samples * sequence / ranks of the axis) x hidden.
  own_tensor forward(const own_tensor& x, context& c, const queue& q) {
    c.normed_1 = base::norm_of_all(q, 0, x, c.norm_1);
    c.qkv = base::biased_product(q, qkv_, c.normed_1);
    turn(q, c.qkv, 1);
    c.mixed = base::make_inner(q, c.qkv.rows(), heads_ * size());
    c.logs = base::make(q, c.qkv.rows(), heads_);
    teams(q, c.logs.size(), attention_forward{}, attention(), in(c.qkv), out(c.mixed), out(c.logs));
    const auto attended = base::sum_slices(q, base::template product<float>(q, out_, c.mixed));

    c.middle = base::make(q, x.rows(), x.columns());
    c.normed_2 = base::norm_of_all(q, norm_2_, x, c.norm_2, {in(attended), bias_of(out_), out(c.middle)});
    go_up(q, c);
    auto y = base::sum_slices(q, base::template product<float>(q, down_, c.active));
    each(q, y.size(), add_bias{}, y.columns(), bias_of(down_), in(c.middle), out(y));
    return y;
  }
  own_tensor backward_input(const own_tensor& dy, context& c, const queue& q) {
    come_down(q, base::gather_factor(q, dy, c.all_dy), c);
    c.dnormed_2 = base::sum_slices(q, base::template product_backward<float>(q, up_, factor_of(c.dup)));
    c.dmiddle = base::norm_backward(q, norm_2_, c.dnormed_2, c.norm_2, in(dy));

    const auto s = attention();
    const auto dmixed = base::template product_backward<Real>(q, out_, base::gather_factor(q, c.dmiddle, c.all_dmiddle));
    auto along = base::make(q, c.logs.rows(), heads_);
    c.dqkv = base::make_inner(q, c.qkv.rows(), c.qkv.columns());
    teams(q, along.size(), attention_queries_backward{}, s, in(c.qkv), in(c.mixed), in(dmixed), in(c.logs), out(along),
          out(c.dqkv));
    teams(q, c.qkv.rows() * kv_heads_, attention_keys_backward{}, s, in(c.qkv), in(dmixed), in(c.logs), in(along), out(c.dqkv));
    turn(q, c.dqkv, -1);
    c.dnormed_1 = base::sum_slices(q, base::template product_backward<float>(q, qkv_, factor_of(c.dqkv)));
    return base::norm_backward(q, 0, c.dnormed_1, c.norm_1, in(c.dmiddle));
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    base::linear_weight(q, down_, c.active, base::gathered_factor(dy, c.all_dy), dy);
    if (c.dup_bias.size() > 0) {
      base::product_weight(q, up_, c.normed_2, factor_of(c.dup));
      base::add_to_gradient(q, up_ + 1, c.dup_bias);
      c.dup_bias = {};
    } else {
      base::linear_weight(q, up_, c.normed_2, factor_of(c.dup), c.dup);
    }
    base::norm_weight(q, norm_2_, c.dnormed_2, c.norm_2);
    base::linear_weight(q, out_, c.mixed, base::gathered_factor(c.dmiddle, c.all_dmiddle), c.dmiddle);
    base::linear_weight(q, qkv_, c.normed_1, factor_of(c.dqkv), c.dqkv);
    base::norm_weight(q, 0, c.dnormed_1, c.norm_1);
  }
  own_tensor backward(const own_tensor& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }

 private:
  /// c.up and c.active: by one product for GELU, where there is such a one.
  void go_up(const queue& q, context& c) {
    const auto rows = c.normed_2.shape()[0];
    c.up = inner(rows, own(up_).value.shape()[1], q);
    c.active = inner(rows, static_cast<std::size_t>(ffn_), q);
    c.up_has_bias = false;
    if (m_.epilogues && !m_.gated) {
      auto p = call_of(c.active, 0, factor_of(c.normed_2), own(up_).as_factor());
      p.kept_aux = any_out(c.up);
      if (m_.bias) p.bias = base::bias_of_products(up_);
      c.up_has_bias = multiply_with(q, m_.bias ? epilogue::gelu_aux_bias : epilogue::gelu_aux, p);
    }
    if (c.up_has_bias) return;
    multiply(q, c.up, 0, factor_of(c.normed_2), own(up_).as_factor());
    each(q, c.active.size(), activate{}, ffn_, m_.gated, in(c.up), bias_of(up_), out(c.active));
  }
  /// c.dup of the gradient of what comes out.
  void come_down(const queue& q, const factor& dy, context& c) {
    c.dup = inner(c.up.shape()[0], c.up.shape()[1], q);
    c.dup_bias = {};
    if (c.up_has_bias) {
      auto p = call_of(c.dup, 0, dy, own(down_).as_factor(), transposed::second);
      p.aux = any_in(c.up);
      inner sums;
      if (m_.bias) {
        sums = base::make_inner(q, 1, ffn_);
        p.summed_bias = any_out(sums);
      }
      if (multiply_with(q, m_.bias ? epilogue::dgelu_bgrad : epilogue::dgelu, p)) {
        c.dup_bias = std::move(sums);
        return;
      }
    }
    const auto dactive = base::template product_backward<Real>(q, down_, dy);
    const auto bias = c.up_has_bias ? argument<const float>() : bias_of(up_);
    each(q, dactive.size(), activate_backward{}, ffn_, m_.gated, in(c.up), bias, in(dactive), out(c.dup));
  }
  [[nodiscard]] int size() const { return m_.hidden / m_.heads; }
  [[nodiscard]] attention_shape attention() const { return {m_.sequence, heads_, kv_heads_, size()}; }
  void turn(const queue& q, inner& qkv, float direction) const {
    if (!m_.rotary) return;
    const int heads = heads_ + kv_heads_, half = size() / 2;
    each(q, qkv.rows() * heads * half, turn_pair{}, heads, half, qkv.columns(), m_.sequence, direction, in(*cosine_), in(*sine_),
         out(qkv));
  }

  int qkv_ = 0, out_ = 0, norm_2_ = 0, up_ = 0, down_ = 0;  ///< first parameters; those of the first norm are the first
  int heads_ = 0, kv_heads_ = 0, ffn_ = 0;                  ///< of this rank
  std::shared_ptr<own_tensor> cosine_, sine_;               ///< sequence x size / 2
};

/// See gpt::head.
template <class Api, class Real>
class head : public layer_base<Api, Real> {
  using base = layer_base<Api, Real>;
  using base::own;

 public:
  using typename base::own_tensor, typename base::queue, typename base::inner;
  struct context {
    typename base::norm_context norm;
    inner normed, dlogits;
    own_tensor dnormed;
  };
  using base::base;

  own_tensor forward(const own_tensor& x, context& c, const queue& q) {
    c.normed = base::template norm<Real>(q, 1, x, c.norm);
    auto y = base::make(q, x.rows(), own(0).value.rows());
    multiply(q, y, 0, factor_of(c.normed), own(0).as_factor(), transposed::second);
    return y;
  }
  own_tensor backward_input(const own_tensor& dy, context& c, const queue& q) {
    c.dnormed = base::make(q, dy.rows(), own(0).value.columns());
    multiply(q, c.dnormed, 0, base::factor_from(q, dy, c.dlogits), own(0).as_factor());
    return base::norm_backward(q, 1, c.dnormed, c.norm);
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    const auto d = std::same_as<Real, float> ? factor_of(dy) : factor_of(c.dlogits);
    multiply(q, own(0).gradient, 1, d, factor_of(c.normed), transposed::first);
    c.dlogits = {};
    base::norm_weight(q, 1, c.dnormed, c.norm);
  }
  own_tensor backward(const own_tensor& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }
};

/// The parameters of a layer. The table that only looks up is no factor; of biases products add those of queries, keys and values
/// and of the MLP's inside.
template <class Api>
[[nodiscard]] parameters<Api> make_parameters(const shape& m, int layer, const std::vector<numbers>& first,
                                              const hetsched::cuda_queue<Api>& q) {
  auto made = std::make_shared<std::vector<parameter<Api>>>();
  const std::size_t norm = m.rms ? 1 : 2, qkv_bias = norm + 1, up_bias = 2 * norm + 5;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool adds = m.bias && layer <= m.layers && (i == qkv_bias || i == up_bias);
    made->emplace_back(q, first[i], m.half && layer > 0 && (first[i].rows > 1 || adds));
  }
  return made;
}

template <class Api>
[[nodiscard]] any_layer<Api> make_layer(const shape& m, int layer, parameters<Api> own, const layer_part<Api>& part,
                                        const hetsched::cuda_queue<Api>& q) {
  if (layer == 0) return embedding<Api>(m, std::move(own), part);
  const bool last = layer > m.layers;
  if (m.half && last) return head<Api, bf16>(m, std::move(own), part);
  if (last) return head<Api, float>(m, std::move(own), part);
  if (m.half) return block<Api, bf16>(m, std::move(own), part, q);
  return block<Api, float>(m, std::move(own), part, q);
}

template <hetsched::cuda_api Api>
any_layer<Api> operations<Api>::make_layer(const shape& m, int layer, const layer_part<Api>& part, const queue& q) {
  return gpt_cuda::make_layer<Api>(m, layer, make_parameters<Api>(m, layer, part.first, q), part, q);
}
template <hetsched::cuda_api Api>
tensor<Api> operations<Api>::cross_entropy_part(const tensor<Api>& logits, const tensor<Api>& targets, std::size_t all_rows,
                                                const queue& q, double& value) {
  tensor<Api> gradient(logits.shape()[0], logits.shape()[1], q), losses(logits.shape()[0], 1, q);
  teams(q, logits.rows(), cross_entropy_row{}, logits.columns(), 1.0f / static_cast<float>(all_rows), in(logits), in(targets),
        out(gradient), out(losses));
  teams(q, 1, sum_losses{}, logits.rows(), static_cast<int>(all_rows), in(losses), argument<double>{&value, sizeof value});
  return gradient;
}

template <hetsched::cuda_api Api>
void operations<Api>::add(tensor<Api>& sum, const tensor<Api>& term, const queue& q) {
  work_on(q, {&term.buffer()}, {&sum.buffer()}, [&] { each(q, sum.size(), add_to{}, in(term), out(sum)); });
}
template <hetsched::cuda_api Api>
void operations<Api>::scale(tensor<Api>& t, double factor, const queue& q) {
  work_on(q, {}, {&t.buffer()}, [&] { each(q, t.size(), scale_by{}, static_cast<float>(factor), out(t)); });
}
template <hetsched::cuda_api Api>
void operations<Api>::squares(const tensor<Api>& t, const hetsched::strided_runs& at, const queue& q, double* told) {
  constexpr std::size_t numbers_told = hetsched::detail::square_sum::told;
  work_on(q, {&t.buffer()}, {}, [&] {
    if (q.on_host()) {
      hetsched::detail::square_sum sum;
      hetsched::detail::add_squares_here(sum, t, at);
      std::vector<double> found;
      sum.append(found);
      std::copy(found.begin(), found.end(), told);
      return;
    }
    const runs r{.first = static_cast<int>(at.first_a),
                 .stride = static_cast<int>(at.stride_a),
                 .length = static_cast<int>(at.length),
                 .rows = static_cast<int>(at.rows)};
    const int pieces = (r.count() + square_digits::each - 1) / square_digits::each;
    const auto count = static_cast<std::size_t>(pieces);
    tensor<Api> largest(count, 1, q), most(1, 1, q);
    const hetsched::cuda_buffer<Api> sums(q, 4 * count * sizeof(double));
    const argument<double> to_sums{static_cast<double*>(sums.data()), sums.bytes()};
    teams(q, pieces, largest_number{}, r, in(t), out(largest));
    teams(q, 1, largest_of_all{}, pieces, in(largest), out(most));
    teams(q, pieces, sum_digits{}, r, in(t), in(most), to_sums);
    teams(q, 1, tell_digits{}, pieces, in(most), argument<const double>{to_sums.data, to_sums.bytes},
          argument<double>{told, numbers_told * sizeof(double)});
  });
}

namespace detail {

/// body(updates): what updates a number. As few kernels as their arguments allow.
template <class Api, class Body>
void update_tensors(std::span<const hetsched::parameter_update<tensor<Api>>> all, const hetsched::cuda_queue<Api>& q,
                    const Body& body) {
  for (std::size_t k = 0; k < all.size();) {
    update_table table;
    std::vector<const hetsched::cuda_buffer<Api>*> reads;
    std::vector<hetsched::cuda_buffer<Api>*> writes;
    const auto begin = k;
    for (; k < all.size() && all[k].updates == all[begin].updates && table.count < update_table::most; ++k) {
      auto& p = *all[k].parameter;
      if (p.size() == 0) continue;
      const auto state = [&](std::size_t i) { return i < all[k].state.size() ? all[k].state[i].data() : nullptr; };
      auto* const copy = p.rounded && p.rounded->half.size() == p.size() ? p.rounded.get() : nullptr;
      table.add({.gradient = std::as_const(*all[k].gradient).data(),
                 .first = state(0),
                 .second = state(1),
                 .value = p.data(),
                 .rounded = copy ? copy->half.data() : nullptr,
                 .size = p.size()});
      reads.push_back(&all[k].gradient->buffer());
      writes.push_back(&p.buffer());
      for (auto& s : all[k].state) writes.push_back(&s.buffer());
      if (!copy) continue;
      writes.push_back(&copy->half.buffer());
      copy->of = p.data();
    }
    if (table.count == 0) continue;
    using update_type = decltype(body(all[begin].updates));
    hetsched::work_on(q, std::span(std::as_const(reads)), std::span(std::as_const(writes)),
                      [&] { teams(q, table.pieces(), update_all<update_type>{body(all[begin].updates)}, table); });
  }
}

}  // namespace detail

template <hetsched::cuda_api Api>
void operations<Api>::update(const hetsched::adamw& a, std::span<const hetsched::parameter_update<tensor<Api>>> all,
                             const queue& q) {
  detail::update_tensors<Api>(all, q, [&](std::int64_t updates) {
    const auto unbias = [&](double beta) { return 1 - hetsched::detail::power(beta, updates); };
    return adamw_update{static_cast<float>(a.beta1),
                        static_cast<float>(1 - a.beta1),
                        static_cast<float>(a.beta2),
                        static_cast<float>(1 - a.beta2),
                        static_cast<float>(1 - a.learning_rate * a.weight_decay),
                        static_cast<float>(a.learning_rate / unbias(a.beta1)),
                        static_cast<float>(1 / std::sqrt(unbias(a.beta2))),
                        static_cast<float>(a.epsilon)};
  });
}
template <hetsched::cuda_api Api>
void operations<Api>::update(const hetsched::sgd& s, std::span<const hetsched::parameter_update<tensor<Api>>> all,
                             const queue& q) {
  detail::update_tensors<Api>(all, q, [&](std::int64_t) {
    return sgd_update{static_cast<float>(s.learning_rate), static_cast<float>(s.momentum), static_cast<float>(s.weight_decay),
                      s.nesterov};
  });
}

}  // namespace gpt_cuda
