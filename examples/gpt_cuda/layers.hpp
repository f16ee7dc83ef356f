// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
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

// The layers of gpt/ for the queues of GPUs and hosts: products of bf16 numbers with sums of floats, or of floats; all else, and
// what lies between layers, in floats.
namespace gpt_cuda {

/// A parameter: its master weights, their gradient and, if it is a factor of products, what these take of it.
template <class Api>
struct parameter {
  tensor<Api> value, gradient;
  halves<Api> half;  ///< none: products take the value

  parameter(const hetsched::cuda_queue<Api>& q, const numbers& first, bool rounds)
      : value(upload(q, first)), gradient(hetsched::tensor_traits<tensor<Api>>::make({first.rows, first.columns}, q)) {
    each(q, gradient.size(), fill_with{}, 0.0f, out(gradient));
    if (rounds) half = halves<Api>(first.rows, first.columns, q);
    refresh(q);
  }
  /// Behind a change of the value.
  void refresh(const hetsched::cuda_queue<Api>& q) {
    if (half.size() > 0) each(q, half.size(), round_to_bf16{}, in(value), out(half));
  }
  [[nodiscard]] factor as_factor() const { return half.size() > 0 ? factor_of(half) : factor_of(value); }
};
/// Those of a layer, in the order of gpt::make_layer. The layer and whoever updates them share them.
template <class Api>
using parameters = std::shared_ptr<std::vector<parameter<Api>>>;

/// What layers have in common: contexts keep where an input's numbers are, which stay there, and all else that a backward needs.
template <class Api>
class layer_base {
 public:
  using queue = hetsched::cuda_queue<Api>;
  using own_tensor = tensor<Api>;
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

  /// A factor of products, and what it needs to stay one.
  struct kept_factor {
    halves<Api> half;
    factor as;
  };
  void keep(const queue& q, const own_tensor& x, kept_factor& kept) const {
    if (!m_.half) {
      kept.as = factor_of(x);
      return;
    }
    kept.half = halves<Api>(x.shape()[0], x.shape()[1], q);
    each(q, x.size(), round_to_bf16{}, in(x), out(kept.half));
    kept.as = factor_of(kept.half);
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

  // Parameters first and, with biases, first + 1.
  [[nodiscard]] int linear_parameters() const { return m_.bias ? 2 : 1; }
  own_tensor product(const queue& q, int first, const own_tensor& x, kept_factor& input) {
    keep(q, x, input);
    auto y = make(q, x.rows(), own(first).value.columns());
    multiply(q, y, 0, input.as, own(first).as_factor());
    return y;
  }
  void bias(const queue& q, int first, own_tensor& y) {
    if (m_.bias) each(q, y.size(), add_bias{}, y.columns(), in(own(first + 1).value), out(y));
  }
  /// See gpt::column_linear; `room`: for the gathered input.
  own_tensor column_linear(const queue& q, int first, const own_tensor& x, own_tensor& room, kept_factor& input) {
    auto y = product(q, first, gather(q, x, room), input);
    bias(q, first, y);
    return y;
  }
  own_tensor column_linear_backward(const queue& q, int first, const own_tensor& dy) {
    return sum_slices(q, product_backward(q, first, dy));
  }
  void column_linear_weight(const queue& q, int first, const own_tensor& dy, const kept_factor& input) {
    product_weight(q, first, dy, input);
    bias_weight(q, first, dy);
  }
  /// See gpt::row_linear; `room`: for the gathered gradient.
  own_tensor row_linear(const queue& q, int first, const own_tensor& x, kept_factor& input) {
    auto y = sum_slices(q, product(q, first, x, input));
    bias(q, first, y);
    return y;
  }
  own_tensor row_linear_backward(const queue& q, int first, const own_tensor& dy, own_tensor& room) {
    return product_backward(q, first, gather(q, dy, room));
  }
  void row_linear_weight(const queue& q, int first, const own_tensor& dy, const own_tensor& room, const kept_factor& input) {
    product_weight(q, first, axis_.size == 1 ? dy : room, input);
    bias_weight(q, first, dy);
  }
  own_tensor product_backward(const queue& q, int first, const own_tensor& dy) {
    kept_factor d;
    keep(q, dy, d);
    auto dx = make(q, dy.rows(), own(first).value.rows());
    multiply(q, dx, 0, d.as, own(first).as_factor(), transposed::second);
    return dx;
  }
  void product_weight(const queue& q, int first, const own_tensor& dy, const kept_factor& input) {
    kept_factor d;
    keep(q, dy, d);
    multiply(q, own(first).gradient, 1, input.as, d.as, transposed::first);
  }
  void bias_weight(const queue& q, int first, const own_tensor& dy) {
    if (m_.bias) each(q, dy.columns(), sum_column{}, dy.rows(), dy.columns(), in(dy), out(own(first + 1).gradient));
  }

  struct norm_context {
    own_tensor unit, scale;
  };
  [[nodiscard]] int norm_parameters() const { return m_.rms ? 1 : 2; }
  own_tensor norm(const queue& q, int first, const own_tensor& x, norm_context& c) {
    auto y = make(q, x.rows(), x.columns());
    c.unit = make(q, x.rows(), x.columns());
    c.scale = make(q, x.rows(), 1);
    const auto bias = m_.rms ? argument<const float>() : in(own(first + 1).value);
    teams(q, x.rows(), norm_forward{}, x.columns(), in(x), in(own(first).value), bias, out(c.unit), out(c.scale), out(y));
    return y;
  }
  own_tensor norm_backward(const queue& q, int first, const own_tensor& dy, const norm_context& c) {
    auto dx = make(q, dy.rows(), dy.columns());
    teams(q, dy.rows(), gpt_cuda::norm_backward{}, dy.columns(), !m_.rms, in(dy), in(own(first).value), in(c.unit), in(c.scale),
          out(dx));
    return dx;
  }
  void norm_weight(const queue& q, int first, const own_tensor& dy, const norm_context& c) {
    each(q, dy.columns(), norm_gain_backward{}, dy.rows(), dy.columns(), in(dy), in(c.unit), out(own(first).gradient));
    if (!m_.rms) each(q, dy.columns(), sum_column{}, dy.rows(), dy.columns(), in(dy), out(own(first + 1).gradient));
  }

  own_tensor sum(const queue& q, const own_tensor& a, const own_tensor& b) {
    auto y = make(q, a.rows(), a.columns());
    each(q, y.size(), add_both{}, in(a), in(b), out(y));
    return y;
  }

  shape m_;
  gpt_cuda::parameters<Api> own_;
  tensor_axis<Api> axis_;
  std::vector<hetsched::parameter_cut> cuts_;
};

/// See gpt::embedding.
template <class Api>
class embedding : public layer_base<Api> {
  using base = layer_base<Api>;
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
    const auto positions = m_.rotary ? argument<float>() : out(own(1).gradient);
    each(q, dy.columns(), look_up_backward{}, dy.rows(), dy.columns(), part(), c.tokens, in(dy), out(own(0).gradient), positions);
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
template <class Api>
class block : public layer_base<Api> {
  using base = layer_base<Api>;
  using base::m_, base::own;

 public:
  using typename base::own_tensor, typename base::queue;
  struct context {
    typename base::norm_context norm_1, norm_2;
    typename base::kept_factor qkv_input, out_input, up_input, down_input;
    own_tensor normed_1, qkv, weights, mixed, middle, normed_2, up, sigmoid, active;
    own_tensor dmiddle, dnormed_1, dqkv, dnormed_2, dup;  ///< for the weights' half
    own_tensor all_1, all_2, all_dmiddle, all_dy;         ///< rows of all ranks, where they have slices
  };

  block(const shape& m, parameters<Api> all, const layer_part<Api>& part, const queue& q)
      : base(m, std::move(all), part), recomputes_(part.recomputes) {
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
    c.normed_1 = base::norm(q, 0, x, c.norm_1);
    c.qkv = base::column_linear(q, qkv_, c.normed_1, c.all_1, c.qkv_input);
    turn(q, c.qkv, 1);
    auto weights = find_weights(q, c);
    c.mixed = base::make(q, c.qkv.rows(), heads_ * size());
    teams(q, c.qkv.rows() * heads_, attention_mix{}, attention(), in(c.qkv), in(weights), out(c.mixed));
    if (!recomputes_) c.weights = std::move(weights);
    c.middle = base::sum(q, x, base::row_linear(q, out_, c.mixed, c.out_input));

    c.normed_2 = base::norm(q, norm_2_, c.middle, c.norm_2);
    c.up = base::column_linear(q, up_, c.normed_2, c.all_2, c.up_input);
    c.sigmoid = base::make(q, c.up.rows(), ffn_);
    c.active = base::make(q, c.up.rows(), ffn_);
    each(q, c.active.size(), activate{}, ffn_, m_.gated, in(c.up), out(c.sigmoid), out(c.active));
    return base::sum(q, c.middle, base::row_linear(q, down_, c.active, c.down_input));
  }
  own_tensor backward_input(const own_tensor& dy, context& c, const queue& q) {
    const auto dactive = base::row_linear_backward(q, down_, dy, c.all_dy);
    c.dup = base::make(q, c.up.rows(), c.up.columns());
    each(q, dactive.size(), activate_backward{}, ffn_, m_.gated, in(c.up), in(c.sigmoid), in(dactive), out(c.dup));
    c.dnormed_2 = base::column_linear_backward(q, up_, c.dup);
    c.dmiddle = base::sum(q, dy, base::norm_backward(q, norm_2_, c.dnormed_2, c.norm_2));

    const auto s = attention();
    const auto dmixed = base::row_linear_backward(q, out_, c.dmiddle, c.all_dmiddle);
    own_tensor again;
    if (recomputes_) again = find_weights(q, c);
    const auto& weights = recomputes_ ? again : c.weights;
    auto dscores = base::make(q, weights.rows(), weights.columns());
    teams(q, weights.rows(), attention_scores_backward{}, s, in(c.qkv), in(weights), in(dmixed), out(dscores));
    c.dqkv = base::make(q, c.qkv.rows(), c.qkv.columns());
    teams(q, weights.rows(), attention_queries_backward{}, s, in(c.qkv), in(dscores), out(c.dqkv));
    teams(q, c.qkv.rows() * kv_heads_, attention_keys_backward{}, s, in(c.qkv), in(weights), in(dscores), in(dmixed),
          out(c.dqkv));
    turn(q, c.dqkv, -1);
    c.dnormed_1 = base::column_linear_backward(q, qkv_, c.dqkv);
    return base::sum(q, c.dmiddle, base::norm_backward(q, 0, c.dnormed_1, c.norm_1));
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    base::row_linear_weight(q, down_, dy, c.all_dy, c.down_input);
    base::column_linear_weight(q, up_, c.dup, c.up_input);
    base::norm_weight(q, norm_2_, c.dnormed_2, c.norm_2);
    base::row_linear_weight(q, out_, c.dmiddle, c.all_dmiddle, c.out_input);
    base::column_linear_weight(q, qkv_, c.dqkv, c.qkv_input);
    base::norm_weight(q, 0, c.dnormed_1, c.norm_1);
  }
  own_tensor backward(const own_tensor& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }

 private:
  [[nodiscard]] int size() const { return m_.hidden / m_.heads; }
  [[nodiscard]] attention_shape attention() const { return {m_.sequence, heads_, kv_heads_, size()}; }
  [[nodiscard]] own_tensor find_weights(const queue& q, const context& c) const {
    auto weights = base::make(q, c.qkv.rows() * heads_, m_.sequence);
    teams(q, weights.rows(), attention_weights{}, attention(), in(c.qkv), out(weights));
    return weights;
  }
  void turn(const queue& q, own_tensor& qkv, float direction) const {
    if (!m_.rotary) return;
    const int heads = heads_ + kv_heads_, half = size() / 2;
    each(q, qkv.rows() * heads * half, turn_pair{}, heads, half, qkv.columns(), m_.sequence, direction, in(*cosine_), in(*sine_),
         out(qkv));
  }

  bool recomputes_;
  int qkv_ = 0, out_ = 0, norm_2_ = 0, up_ = 0, down_ = 0;  ///< first parameters; those of the first norm are the first
  int heads_ = 0, kv_heads_ = 0, ffn_ = 0;                  ///< of this rank
  std::shared_ptr<own_tensor> cosine_, sine_;               ///< sequence x size / 2
};

/// See gpt::head.
template <class Api>
class head : public layer_base<Api> {
  using base = layer_base<Api>;
  using base::m_, base::own;

 public:
  using typename base::own_tensor, typename base::queue;
  struct context {
    typename base::norm_context norm;
    typename base::kept_factor input;
    own_tensor normed, dnormed;
  };
  using base::base;

  own_tensor forward(const own_tensor& x, context& c, const queue& q) {
    c.normed = base::norm(q, 1, x, c.norm);
    base::keep(q, c.normed, c.input);
    auto y = base::make(q, x.rows(), m_.vocab);
    multiply(q, y, 0, c.input.as, own(0).as_factor(), transposed::second);
    return y;
  }
  own_tensor backward_input(const own_tensor& dy, context& c, const queue& q) {
    typename base::kept_factor d;
    base::keep(q, dy, d);
    c.dnormed = base::make(q, dy.rows(), m_.hidden);
    multiply(q, c.dnormed, 0, d.as, own(0).as_factor());
    return base::norm_backward(q, 1, c.dnormed, c.norm);
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    typename base::kept_factor d;
    base::keep(q, dy, d);
    multiply(q, own(0).gradient, 1, d.as, c.input.as, transposed::first);
    base::norm_weight(q, 1, c.dnormed, c.norm);
  }
  own_tensor backward(const own_tensor& dy, context& c, const queue& q) {
    auto dx = backward_input(dy, c, q);
    backward_weight(dy, c, q);
    return dx;
  }
};

/// The parameters of a layer. The table that only looks up is no factor.
template <class Api>
[[nodiscard]] parameters<Api> make_parameters(const shape& m, int layer, const std::vector<numbers>& first,
                                              const hetsched::cuda_queue<Api>& q) {
  auto made = std::make_shared<std::vector<parameter<Api>>>();
  for (const auto& n : first) made->emplace_back(q, n, m.half && layer > 0 && n.rows > 1);
  return made;
}

template <class Api>
[[nodiscard]] any_layer<Api> make_layer(const shape& m, int layer, parameters<Api> own, const layer_part<Api>& part,
                                        const hetsched::cuda_queue<Api>& q) {
  if (layer == 0) return embedding<Api>(m, std::move(own), part);
  if (layer <= m.layers) return block<Api>(m, std::move(own), part, q);
  return head<Api>(m, std::move(own), part);
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
  each(q, 1, sum_losses{}, logits.rows(), static_cast<int>(all_rows), in(losses), argument<double>{&value, sizeof value});
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

template <hetsched::cuda_api Api>
void operations<Api>::update(const hetsched::adamw& a, tensor<Api>& p, const tensor<Api>& gradient, std::span<tensor<Api>> state,
                             std::int64_t updates, const queue& q) {
  const auto unbias = [&](double beta) { return 1 - hetsched::detail::power(beta, updates); };
  const adamw_update body{static_cast<float>(a.beta1),
                          static_cast<float>(1 - a.beta1),
                          static_cast<float>(a.beta2),
                          static_cast<float>(1 - a.beta2),
                          static_cast<float>(1 - a.learning_rate * a.weight_decay),
                          static_cast<float>(a.learning_rate / unbias(a.beta1)),
                          static_cast<float>(1 / std::sqrt(unbias(a.beta2))),
                          static_cast<float>(a.epsilon)};
  work_on(q, {&gradient.buffer()}, {&p.buffer(), &state[0].buffer(), &state[1].buffer()},
          [&] { each(q, p.size(), body, in(gradient), out(state[0]), out(state[1]), out(p)); });
}
template <hetsched::cuda_api Api>
void operations<Api>::update(const hetsched::sgd& s, tensor<Api>& p, const tensor<Api>& gradient, std::span<tensor<Api>> state,
                             std::int64_t, const queue& q) {
  const sgd_update body{static_cast<float>(s.learning_rate), static_cast<float>(s.momentum), static_cast<float>(s.weight_decay),
                        s.nesterov};
  tensor<Api> none;
  auto& velocity = state.empty() ? none : state[0];
  work_on(q, {&gradient.buffer()}, {&p.buffer(), &velocity.buffer()},
          [&] { each(q, p.size(), body, in(gradient), out(velocity), out(p)); });
}

}  // namespace gpt_cuda
