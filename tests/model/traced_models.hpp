// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <hetsched/model/families.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/model/trace.hpp>

namespace hetsched::test {

/// The usual families as users write them, for the sizes of a `transformer`.
struct traced_transformer {
  transformer m;

  template <class Net, class Tensor>
  Tensor dense(Net& net, const Tensor& x, std::int64_t n, bool bias) const {
    const auto k = x.shape.back();
    return bias ? linear(x, net.parameter({k, n}), net.parameter({n})) : linear(x, net.parameter({k, n}));
  }

  template <class Net, class Tensor>
  Tensor norm(Net& net, const Tensor& x) const {
    const auto h = x.shape.back();
    return m.norm_vectors == 1 ? rms_norm(x, net.parameter({h})) : layer_norm(x, net.parameter({h}), net.parameter({h}));
  }

  template <class Tensor>
  Tensor drop(const Tensor& x) const {
    return m.dropout ? dropout(x) : x;
  }

  template <class Net, class Tensor>
  Tensor self_attention(Net& net, const Tensor& x) const {
    const auto scope = net.scope("attention");
    const std::int64_t s = m.sequence, heads = m.heads, kv = m.kv_heads > 0 ? m.kv_heads : m.heads, d = m.hidden / m.heads;
    // [kv x group x s x d] against [kv x 1 x d x s]
    auto q = transpose(reshape(dense(net, x, m.hidden, m.qkv_bias), {s, kv, heads / kv, d}), 0, 1);
    auto k = transpose(reshape(dense(net, x, kv * d, m.qkv_bias), {s, kv, 1, d}), 0, 1);
    auto v = transpose(reshape(dense(net, x, kv * d, m.qkv_bias), {s, kv, 1, d}), 0, 1);
    if (m.positions == 0) q = rotary(q), k = rotary(k);
    q = transpose(q, 1, 2), k = transpose(transpose(k, 1, 2)), v = transpose(v, 1, 2);
    const auto scores = drop(softmax(mul(matmul(q, k), 1 / std::sqrt(static_cast<double>(d)))));
    const auto mixed = reshape(transpose(transpose(matmul(scores, v), 1, 2), 0, 1), {s, heads * d});
    return drop(dense(net, mixed, m.hidden, m.output_bias));
  }

  template <class Net, class Tensor>
  Tensor mlp(Net& net, const Tensor& x) const {
    const auto scope = net.scope("mlp");
    const std::int64_t f = m.ffn_hidden > 0 ? m.ffn_hidden : 4 * m.hidden;
    const auto inner = [&] {
      const auto up = dense(net, x, f, m.mlp_bias);
      return m.gated_mlp ? swiglu(dense(net, x, f, m.mlp_bias), up) : gelu(up);
    }();
    return drop(dense(net, inner, m.hidden, m.mlp_bias));
  }

  template <class Net, class Tensor>
  Tensor block(Net& net, const Tensor& x) const {
    if (m.pre_norm) {
      const auto y = add(x, self_attention(net, norm(net, x)));
      return add(y, mlp(net, norm(net, y)));
    }
    const auto y = norm(net, add(x, self_attention(net, x)));
    return norm(net, add(y, mlp(net, y)));
  }

  template <class Net, class Tensor>
  Tensor blocks(Net& net, Tensor x) const {
    for (int i = 0; i < m.layers; ++i) {
      const auto scope = net.scope("block " + std::to_string(i));
      x = block(net, x);
    }
    return x;
  }

  /// Ids of words (and of their segments).
  template <class Net, class Tensor>
  Tensor operator()(Net& net, const Tensor& ids) const {
    const std::int64_t h = m.hidden;
    const auto words = net.parameter({m.vocab, h});
    auto x = [&] {
      const auto scope = net.scope("embedding");
      auto sum = embedding(ids, words);
      if (m.positions > 0) sum = add(sum, net.parameter({m.positions, h}));
      if (m.token_types > 0) sum = add(sum, embedding(ids, net.parameter({m.token_types, h})));
      if (m.embedding_norm) sum = norm(net, sum);
      return drop(sum);
    }();
    x = blocks(net, x);
    const auto scope = net.scope("head");
    if (m.pre_norm) x = norm(net, x);
    if (m.head == output_head::masked_language_model) x = norm(net, gelu(dense(net, x, h, true)));
    const auto out = m.tied_embeddings ? transpose(words) : net.parameter({h, m.vocab});
    const auto logits = m.head == output_head::masked_language_model ? linear(x, out, net.parameter({m.vocab})) : linear(x, out);
    return cross_entropy(logits, ids);
  }

  /// Patches of an image.
  template <class Net, class Tensor>
  Tensor classify(Net& net, const Tensor& patches) const {
    const std::int64_t h = m.hidden, s = m.sequence;
    auto x = [&] {
      const auto scope = net.scope("embedding");
      const auto all = concat(0, net.parameter({1, h}), dense(net, patches, h, true));
      return drop(add(all, net.parameter({s, h})));
    }();
    x = blocks(net, x);
    const auto scope = net.scope("head");
    return dense(net, split(norm(net, x), {1, s - 1}, 0)[0], m.classes, true);
  }
};

[[nodiscard]] inline operator_graph traced(const transformer& m, number_format format = number_format::bf16) {
  const trace_options options{.format = format, .heads = m.heads};
  const traced_transformer model{m};
  if (m.patch_inputs == 0) return trace(model, options, symbolic_shape{m.sequence});
  return trace([&](auto& net, const auto& x) { return model.classify(net, x); }, options,
               symbolic_shape{m.sequence - 1, m.patch_inputs});
}

/// ResNet-50 (He et al. 2015, with the stride in the 3 x 3 convolution) for 1000 classes.
struct traced_resnet50 {
  template <class Net, class Tensor>
  static Tensor unit(Net& net, const Tensor& x, std::int64_t out, std::int64_t size, std::int64_t stride) {
    const auto y = conv2d(x, net.parameter({out, x.shape[0], size, size}), {.stride = stride, .padding = size / 2});
    return batch_norm(y, net.parameter({out}), net.parameter({out}));
  }

  template <class Net, class Tensor>
  static Tensor bottleneck(Net& net, const Tensor& x, std::int64_t width, std::int64_t stride) {
    auto y = relu(unit(net, x, width, 1, 1));
    y = relu(unit(net, y, width, 3, stride));
    y = unit(net, y, 4 * width, 1, 1);
    return relu(add(y, y.shape == x.shape ? x : unit(net, x, 4 * width, 1, stride)));
  }

  template <class Net, class Tensor>
  Tensor operator()(Net& net, const Tensor& image) const {
    auto x = max_pool2d(relu(unit(net, image, 64, 7, 2)), 3, {.stride = 2, .padding = 1});
    const int blocks[] = {3, 4, 6, 3};
    for (int stage = 0; stage < 4; ++stage)
      for (int i = 0; i < blocks[stage]; ++i) {
        const auto scope = net.scope("stage " + std::to_string(stage) + "/block " + std::to_string(i));
        x = bottleneck(net, x, std::int64_t{64} << stage, stage > 0 && i == 0 ? 2 : 1);
      }
    return linear(reshape(mean(x, 2), {1, 2048}), net.parameter({2048, 1000}), net.parameter({1000}));
  }
};

}  // namespace hetsched::test
