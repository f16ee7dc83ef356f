// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
#include <gpt_cuda/experts.hpp>
#include <gpt_cuda/half_boundaries.hpp>
#include <gpt_cuda/kernels.hpp>
#include <gpt_cuda/layer_base.hpp>
#include <gpt_cuda/operations.hpp>
#include <gpt_cuda/tensor.hpp>

namespace gpt_cuda {

/// See gpt::embedding.
template <class Api>
class embedding : public layer_base<Api, float> {
  using base = layer_base<Api, float>;
  using base::m_, base::own, base::axis_, base::context_;

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
    return {.length = length, .first = length * (context_.rank * axis_.size + axis_.rank)};
  }
};

/// See gpt::block.
template <class Api, class Real>
class block : public layer_base<Api, Real> {
  using base = layer_base<Api, Real>;
  using base::m_, base::own, base::bias_of, base::context_;

 public:
  using typename base::own_tensor, typename base::queue, typename base::inner;
  struct context {
    typename base::norm_context norm_1, norm_2;
    inner normed_1, qkv, mixed, normed_2, up, active;
    own_tensor middle, logs;
    inner keys;  ///< and values, of all context ranks, if there are several
    bool up_has_bias = false;
    typename gpt_cuda::experts<Api, Real>::context experts;
    inner dqkv, dup, dup_bias;  ///< these and those below: for the weights' half; dup_bias: none if it is still to be summed
    own_tensor dmiddle, dnormed_1, dnormed_2;
    typename base::gathered all_dmiddle, all_dy;
  };

  /// `has_experts`: in place of one MLP.
  block(const shape& m, parameters<Api> all, const layer_part<Api>& part, bool has_experts, const queue& q)
      : base(m, std::move(all), part) {
    qkv_ = base::norm_parameters();
    out_ = qkv_ + base::linear_parameters();
    norm_2_ = out_ + base::linear_parameters();
    up_ = norm_2_ + base::norm_parameters();
    down_ = up_ + base::linear_parameters();
    heads_ = own(out_).value.rows() / size();
    kv_heads_ = heads_ * m.kv_heads / m.heads;
    if (has_experts)
      experts_.emplace(m, this->own_, part, up_);
    else
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
    attend(q, c);
    const auto attended = base::sum_slices(q, base::template product<float>(q, out_, c.mixed));

    c.middle = base::make(q, x.rows(), x.columns());
    c.normed_2 = base::norm_of_all(q, norm_2_, x, c.norm_2, {in(attended), bias_of(out_), out(c.middle)});
    if (experts_) {
      auto y = base::sum_slices(q, experts_->forward(q, c.normed_2, c.experts));
      each(q, y.size(), add_to{}, in(c.middle), out(y));
      return y;
    }
    go_up(q, c);
    auto y = base::sum_slices(q, base::template product<float>(q, down_, c.active));
    each(q, y.size(), add_bias{}, y.columns(), bias_of(down_), in(c.middle), out(y));
    return y;
  }
  own_tensor backward_input(const own_tensor& dy, context& c, const queue& q) {
    if (experts_) {
      own_tensor room;
      c.dnormed_2 = base::sum_slices(q, experts_->backward_input(q, base::gather(q, dy, room), c.experts));
    } else {
      come_down(q, base::gather_factor(q, dy, c.all_dy), c);
      c.dnormed_2 = base::sum_slices(q, base::template product_backward<float>(q, up_, factor_of(c.dup)));
    }
    c.dmiddle = base::norm_backward(q, norm_2_, c.dnormed_2, c.norm_2, in(dy));

    const auto s = attention();
    const auto dmixed = base::template product_backward<Real>(q, out_, base::gather_factor(q, c.dmiddle, c.all_dmiddle));
    auto along = base::make(q, c.logs.rows(), heads_);
    c.dqkv = base::make_inner(q, c.qkv.rows(), c.qkv.columns());
    if (context_.size == 1) {
      teams(q, along.size(), attention_queries_backward{}, s, in(c.qkv), in(c.mixed), in(dmixed), in(c.logs), out(along),
            out(c.dqkv));
      teams(q, c.qkv.rows() * kv_heads_, attention_keys_backward{}, s, in(c.qkv), in(dmixed), in(c.logs), in(along), out(c.dqkv));
    } else {
      attend_back(q, s, dmixed, along, c);
    }
    turn(q, c.dqkv, -1);
    c.dnormed_1 = base::sum_slices(q, base::template product_backward<float>(q, qkv_, factor_of(c.dqkv)));
    return base::norm_backward(q, 0, c.dnormed_1, c.norm_1, in(c.dmiddle));
  }
  void backward_weight(const own_tensor& dy, context& c, const queue& q) {
    if (experts_)
      experts_->backward_weight(q, c.normed_2, c.experts);
    else
      mlp_weight(q, dy, c);
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
  void mlp_weight(const queue& q, const own_tensor& dy, context& c) {
    base::linear_weight(q, down_, c.active, base::gathered_factor(dy, c.all_dy), dy);
    if (c.dup_bias.size() > 0) {
      base::product_weight(q, up_, c.normed_2, factor_of(c.dup));
      base::add_to_gradient(q, up_ + 1, c.dup_bias);
      c.dup_bias = {};
    } else {
      base::linear_weight(q, up_, c.normed_2, factor_of(c.dup), c.dup);
    }
  }
  [[nodiscard]] int size() const { return m_.hidden / m_.heads; }
  [[nodiscard]] attention_shape attention() const {
    attention_shape s{.sequence = m_.sequence, .heads = heads_, .kv_heads = kv_heads_, .size = size()};
    if (context_.size == 1) return s;
    s.keys = m_.sequence * context_.size;
    s.first_position = m_.sequence * context_.rank;
    return s;
  }
  [[nodiscard]] slices_by_rank slices_of_contexts(int own_rows, int columns) const {
    return {.columns = columns, .samples = own_rows / m_.sequence, .ranks = context_.size, .length = m_.sequence};
  }
  /// Ranks of a context axis have their slice's queries, and gather keys and values of whole sequences.
  void attend(const queue& q, context& c) {
    if (context_.size == 1)
      return teams(q, c.logs.size(), attention_forward{}, attention(), in(c.qkv), out(c.mixed), out(c.logs));
    const int rows = c.qkv.rows(), width = 2 * kv_heads_ * size();
    auto mine = base::make_inner(q, rows, width);
    each(q, mine.size(), take_columns{}, width, heads_ * size(), c.qkv.columns(), in(c.qkv), out(mine));
    auto all = base::make_inner(q, rows * context_.size, width);
    auto as_floats = base::carried(std::move(all));
    context_.all_gather(base::carried(std::move(mine)), as_floats, q);
    all = inner({static_cast<std::size_t>(rows * context_.size), static_cast<std::size_t>(width)}, std::move(as_floats.buffer()));
    if (const auto order = slices_of_contexts(rows, width); order.samples > 1) {
      c.keys = base::make_inner(q, all.rows(), width);
      each(q, all.size(), to_samples{}, order, in(all), out(c.keys));
    } else {
      c.keys = std::move(all);
    }
    teams(q, c.logs.size(), attention_forward{}, attention(), in(c.qkv), in(c.keys), out(c.mixed), out(c.logs));
  }
  /// Gradients of keys and values are summed where these come from.
  void attend_back(const queue& q, const attention_shape& s, const inner& dmixed, own_tensor& along, context& c) {
    teams(q, along.size(), attention_queries_backward{}, s, in(c.qkv), in(c.keys), in(c.mixed), in(dmixed), in(c.logs),
          out(along), out(c.dqkv));
    const int rows = c.qkv.rows(), width = c.keys.columns();
    auto all = base::make(q, c.keys.rows(), width);
    teams(q, c.keys.rows() * kv_heads_, attention_keys_backward{}, s, in(c.qkv), in(c.keys), in(dmixed), in(c.logs),
          in(std::as_const(along)), out(all));
    if (const auto order = slices_of_contexts(rows, width); order.samples > 1) {
      auto by_rank = base::make(q, all.rows(), width);
      each(q, all.size(), to_ranks{}, order, in(all), out(by_rank));
      all = std::move(by_rank);
    }
    auto mine = base::make(q, rows, width);
    context_.reduce_scatter(all, mine, q);
    each(q, mine.size(), put_columns{}, width, heads_ * size(), c.dqkv.columns(), in(mine), out(c.dqkv));
    c.keys = {};
  }
  void turn(const queue& q, inner& qkv, float direction) const {
    if (!m_.rotary) return;
    const int heads = heads_ + kv_heads_, half = size() / 2;
    const sequence_part part{.length = m_.sequence, .first = m_.sequence * context_.rank};
    each(q, qkv.rows() * heads * half, turn_pair{}, heads, half, qkv.columns(), part, direction, in(*cosine_), in(*sine_),
         out(qkv));
  }

  int qkv_ = 0, out_ = 0, norm_2_ = 0, up_ = 0, down_ = 0;  ///< first parameters; those of the first norm are the first
  int heads_ = 0, kv_heads_ = 0, ffn_ = 0;                  ///< of this rank
  std::shared_ptr<own_tensor> cosine_, sine_;               ///< sequence x size / 2
  std::optional<gpt_cuda::experts<Api, Real>> experts_;
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
  using wide = tensor<Api>;
  using half = halves<Api>;
  const auto with = [&]<class Input, class Output>(auto made) -> any_layer<Api> {
    if (m.half_boundaries) return with_sides<Input, Output, Api>(std::move(made));
    return made;
  };
  const auto made = [&]<class Real>(Real) -> any_layer<Api> {
    if (layer > m.layers) return with.template operator()<half, wide>(head<Api, Real>(m, std::move(own), part));
    return with.template operator()<half, half>(block<Api, Real>(m, std::move(own), part, m.has_experts(layer - 1), q));
  };
  if (layer == 0) return with.template operator()<wide, half>(embedding<Api>(m, std::move(own), part));
  return m.half ? made(bf16{}) : made(0.0f);
}

template <hetsched::cuda_api Api>
any_layer<Api> operations<Api>::make_layer(const shape& m, int layer, const layer_part<Api>& part, const queue& q) {
  return gpt_cuda::make_layer<Api>(m, layer, make_parameters<Api>(m, layer, part.first, q), part, q);
}
template <hetsched::cuda_api Api>
tensor<Api> operations<Api>::cross_entropy_part(tensor<Api> logits, const tensor<Api>& targets, std::size_t all_rows,
                                                const queue& q, double& value) {
  tensor<Api> losses(logits.shape()[0], 1, q);
  teams(q, logits.rows(), cross_entropy_row{}, logits.columns(), 1.0f / static_cast<float>(all_rows), in(targets), out(logits),
        out(losses));
  teams(q, 1, sum_losses{}, logits.rows(), static_cast<int>(all_rows), in(losses), argument<double>{&value, sizeof value});
  return logits;
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
    }
    if (table.count == 0) continue;
    using update_type = decltype(body(all[begin].updates));
    hetsched::work_on(q, std::span(std::as_const(reads)), std::span(std::as_const(writes)),
                      [&] { teams(q, table.pieces(), update_all<update_type>{body(all[begin].updates)}, table); });
    for (const auto& u : all.subspan(begin, k - begin))
      if (auto& p = *u.parameter; p.rounded && p.rounded->half.size() == p.size()) {
        p.rounded->of = std::as_const(p).data();
        p.rounded->writes = p.buffer().writes();
      }
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
