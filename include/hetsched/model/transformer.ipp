// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

HETSCHED_INLINE void validate(const transformer& m) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(std::string("transformer: ") + what);
  };
  require(m.layers >= 1 && m.layers <= 100'000, "layers must be between 1 and 100000");
  require(m.hidden >= 1, "hidden must be at least 1");
  require(m.heads >= 1, "heads must be at least 1");
  require(m.sequence >= 1, "sequence must be at least 1");
  require(m.head_size >= 0, "head_size must not be negative");
  require(m.head_size > 0 || m.hidden % m.heads == 0, "hidden must be divisible by heads");
  require(m.kv_heads >= 0, "kv_heads must not be negative");
  require(m.kv_heads == 0 || m.heads % m.kv_heads == 0, "heads must be divisible by kv_heads");
  require(m.ffn_hidden >= 0, "ffn_hidden must not be negative");
  require(m.parameter_bytes >= 1 && m.parameter_bytes <= 8, "parameter_bytes must be between 1 and 8");
  require(m.experts >= 0, "experts must not be negative");
  require(m.experts > 0 || m.experts_per_token == 0, "experts_per_token needs experts");
  require(m.experts == 0 || (m.experts_per_token >= 1 && m.experts_per_token <= m.experts),
          "experts_per_token must be between 1 and experts");
  require(m.moe_every >= 1, "moe_every must be at least 1");
  require(m.dense_blocks >= 0 && m.dense_ffn_hidden >= 0, "dense_blocks and dense_ffn_hidden must not be negative");
  require(m.shared_experts >= 0 && (m.experts > 0 || m.shared_experts == 0), "shared_experts needs experts");
  require(m.shared_ffn_hidden >= 0 && (m.shared_experts > 0 || (m.shared_ffn_hidden == 0 && !m.shared_gate)),
          "shared_ffn_hidden and shared_gate need shared_experts");
  require(m.kv_rank >= 0 && m.query_rank >= 0 && m.value_size >= 0, "ranks and sizes of latent attention must not be negative");
  if (m.kv_rank > 0) {
    require(m.head_size > 0 && m.rotary_size >= 0 && m.rotary_size < m.head_size,
            "latent attention needs a head_size, of which rotary_size is a part");
    require(m.kv_heads == 0 || m.kv_heads == m.heads, "latent attention has keys for every head");
    require(!m.output_bias && !m.qkv_bias && m.qk_norm == qk_norm_kind::none && !m.attention_sinks,
            "latent attention has no biases, no norms of heads and no sinks");
  } else {
    require(m.query_rank == 0 && m.rotary_size == 0 && m.value_size == 0,
            "query_rank, rotary_size and value_size need a kv_rank");
  }
  require(!m.shared_norm || m.pre_norm, "a shared norm stands before attention and MLP");
  require(m.norms_before || (m.pre_norm && m.norms_behind && !m.shared_norm),
          "without norms before attention and MLP there must be norms behind them");
  require(m.norm_vectors >= 0 && m.norm_vectors <= 2, "norm_vectors must be between 0 and 2");
  require(m.window >= 0 && m.full_every >= 0, "window and full_every must not be negative");
  require(m.window > 0 || (m.full_every == 0 && !m.chunked), "full_every and chunked need a window");
  require(m.embedding_width >= 0 && (m.patch_inputs == 0 || m.embedding_width == 0), "embedding_width is of words");
  require(m.positions == 0 || m.positions >= m.sequence, "positions must be 0 or at least the sequence");
  require(m.token_types >= 0, "token_types must not be negative");
  require(m.patch_inputs >= 0, "patch_inputs must not be negative");
  require(m.patch_inputs > 0 || m.vocab >= 1, "vocab must be at least 1");
  require(m.further_tokens >= 0 && m.further_tokens <= 64, "further_tokens must be between 0 and 64");
  require(m.further_tokens == 0 || (m.head == output_head::language_model && m.patch_inputs == 0 && m.pre_norm),
          "further_tokens needs words, logits over them and norms before attention and MLP");
  require(m.head == output_head::classifier ? m.classes >= 1 : m.vocab >= 1,
          "the head needs classes or a vocabulary of at least 1");
}

}  // namespace hetsched

namespace hetsched::detail {

// Runs b after a as one layer.
inline void append(layer& a, const layer& b) {
  const auto parameters = checked_add(a.parameters, b.parameters);
  if (parameters > 0)
    a.active_fraction =
        (a.active_fraction * static_cast<double>(a.parameters) + b.active_fraction * static_cast<double>(b.parameters)) /
        static_cast<double>(parameters);
  a.parameters = parameters;
  a.forward_flops += b.forward_flops;
  a.backward_flops += b.backward_flops;
  a.weight_backward_flops += b.weight_backward_flops;
  a.selective_flops += b.selective_flops;
  a.activation_bytes = checked_add(a.activation_bytes, b.activation_bytes);
  a.selective_saved_bytes = checked_add(a.selective_saved_bytes, b.selective_saved_bytes);
  a.memory_traffic_bytes = checked_add(a.memory_traffic_bytes, b.memory_traffic_bytes);
  a.tensor_reduce_bytes = checked_add(a.tensor_reduce_bytes, b.tensor_reduce_bytes);
  a.context_gather_bytes = checked_add(a.context_gather_bytes, b.context_gather_bytes);
  a.expert_parameters = checked_add(a.expert_parameters, b.expert_parameters);
  a.expert_exchange_bytes = checked_add(a.expert_exchange_bytes, b.expert_exchange_bytes);
  a.boundary_bytes = b.boundary_bytes;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE layer_chain make_chain(const transformer& model, granularity cut) {
  validate(model);
  const detail::transformer_sizes sizes(model);

  struct block {
    layer attention, norm, mlp;
  };
  const auto make_block = [&](bool with_experts, bool windowed) {
    const bool reads_norm = model.norms_before && !model.shared_norm;
    block b{sizes.attention(windowed), reads_norm ? sizes.norm() : sizes.passed_norm(), sizes.mlp(with_experts)};
    if (!model.norms_before) {
      b.norm.boundary_bytes = sizes.tensor;
    } else if (model.pre_norm) {
      auto first = sizes.norm();
      detail::append(first, b.attention);
      b.attention = std::move(first);
    } else {
      detail::append(b.mlp, sizes.norm());
    }
    return b;
  };
  const std::array<std::array<block, 2>, 2> blocks{
      {{make_block(false, false), make_block(false, true)}, {make_block(true, false), make_block(true, true)}}};

  layer_chain chain;
  chain.parameter_bytes = model.parameter_bytes;
  chain.heads = model.heads;
  chain.sequence = model.sequence;
  chain.experts = model.experts;
  chain.layers.push_back(sizes.embedding());
  for (int i = 0; i < model.layers; ++i) {
    const block& b = blocks[has_experts(model, i)][has_window(model, i)];
    const std::string name = "block " + std::to_string(i);
    if (cut == granularity::block) {
      auto& whole = chain.layers.emplace_back(b.attention);
      detail::append(whole, b.norm);
      detail::append(whole, b.mlp);
      whole.name = name;
    } else {
      chain.layers.emplace_back(b.attention).name = name + " attention";
      chain.layers.emplace_back(b.norm).name = name + " norm";
      chain.layers.emplace_back(b.mlp).name = name + " mlp";
    }
  }
  auto head = sizes.head();
  if (model.further_tokens > 0) {
    const block& b = blocks[has_experts(model, model.layers - 1)][has_window(model, model.layers - 1)];
    auto logits = sizes.head();  // by the head's words
    logits.parameters = sizes.norm_parameters;
    logits.shared_parameters = 0;
    const auto boundary = head.boundary_bytes;
    for (int i = 0; i < model.further_tokens; ++i)
      for (const auto& part : {sizes.join(), b.attention, b.norm, b.mlp, logits}) detail::append(head, part);
    head.boundary_bytes = boundary;
    if (!model.tied_embeddings)  // a copy of the words that go in
      head.shared_parameters = checked_mul(model.vocab, sizes.word);
  }
  chain.layers.push_back(std::move(head));
  return chain;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE transformer_sizes::transformer_sizes(const transformer& model)
    : m(model), s(m.sequence), h(m.hidden), a(m.heads), e(m.parameter_bytes) {
  const std::int64_t head_size = m.head_size > 0 ? m.head_size : h / a;
  q = checked_mul(a, head_size);
  kv = checked_mul(m.kv_heads > 0 ? m.kv_heads : a, head_size);
  values = m.value_size > 0 ? checked_mul(a, m.value_size) : q;
  f = m.ffn_hidden > 0 ? m.ffn_hidden : checked_mul(4, h);
  dense_f = m.dense_ffn_hidden > 0 ? m.dense_ffn_hidden : f;
  shared_f = m.shared_ffn_hidden > 0 ? m.shared_ffn_hidden : f;
  word = m.embedding_width > 0 ? m.embedding_width : h;
  tensor = checked_mul(s, h, e);
  norm_parameters = m.norm_vectors * h;
}

HETSCHED_INLINE double transformer_sizes::seen(bool windowed) const {
  const auto all = static_cast<double>(s), w = static_cast<double>(m.window);
  if (!windowed) return all;
  if (!m.chunked) return w * (2 - w / all);
  const double chunks = std::floor(all / w), rest = all - chunks * w;
  return (chunks * w * w + rest * rest) / all;
}

HETSCHED_INLINE layer transformer_sizes::latent_attention(bool windowed) const {
  const std::int64_t queries_from = m.query_rank > 0 ? m.query_rank : h;
  const std::int64_t down = checked_add(m.kv_rank, m.rotary_size);
  const std::int64_t up = checked_add(q - checked_mul(a, m.rotary_size), values);
  layer l;
  l.selective_flops = product(q, 1) * seen(windowed) + product(values, 1) * seen(windowed);
  l.forward_flops = product(queries_from, q) + product(h, down) + product(m.kv_rank, up) + product(values, h) + l.selective_flops;
  l.parameters = checked_add(checked_mul(queries_from, q), checked_mul(h, down));
  l.parameters = checked_add(l.parameters, checked_add(checked_mul(m.kv_rank, up), checked_mul(values, h)));
  l.parameters = checked_add(l.parameters, m.kv_rank);  // its norm
  // input; numbers of a token before and after their norm; queries and keys; values and input of the projection
  auto numbers = checked_add(checked_add(m.kv_rank, down), checked_mul(2, checked_add(q, values)));
  if (m.query_rank > 0) {
    l.forward_flops += product(h, m.query_rank);
    l.parameters = checked_add(l.parameters, checked_add(checked_mul(h, m.query_rank), m.query_rank));
    numbers = checked_add(numbers, checked_mul(2, m.query_rank));
  }
  l.activation_bytes = checked_add(tensor, checked_mul(s, numbers, e));
  l.context_gather_bytes = checked_mul(s, checked_add(q, values), e);
  return l;
}

HETSCHED_INLINE layer transformer_sizes::full_attention(bool windowed) const {
  layer l;
  l.selective_flops = 2 * product(q, 1) * seen(windowed);
  l.forward_flops = product(h, q) + 2 * product(h, kv) + l.selective_flops + product(q, h);
  const auto weights = checked_add(checked_mul(2, h, q), checked_mul(2, h, kv));
  const auto biases = (m.qkv_bias ? checked_add(q, checked_mul(2, kv)) : 0) + (m.output_bias ? h : 0);
  const auto scales = m.qk_norm == qk_norm_kind::per_head ? 2 * q / a : m.qk_norm == qk_norm_kind::whole ? q + kv : 0;
  l.parameters = checked_add(weights, biases + scales + (m.attention_sinks ? a : 0));
  // input; queries; keys and values; input of the projection; mask of its dropout
  auto kept = checked_add(tensor, checked_mul(s, checked_mul(2, checked_add(q, kv)), e));
  if (m.qk_norm != qk_norm_kind::none) kept = checked_add(kept, checked_mul(s, checked_add(q, kv), e));
  l.activation_bytes = kept;
  l.context_gather_bytes = checked_mul(2, s, kv, e);
  return l;
}

HETSCHED_INLINE layer transformer_sizes::attention(bool windowed) const {
  layer l = m.kv_rank > 0 ? latent_attention(windowed) : full_attention(windowed);
  auto kept = l.activation_bytes;
  // softmax, and with dropout its mask and its result
  l.selective_saved_bytes = checked_mul(a, s, s, m.dropout ? 2 * e + 1 : e);
  if (m.norms_behind) {
    l.parameters = checked_add(l.parameters, norm_parameters);
    kept = checked_add(kept, tensor);
  }
  l.activation_bytes = checked_add(checked_add(kept, mask(checked_mul(s, h))), l.selective_saved_bytes);
  l.boundary_bytes = m.shared_norm ? checked_mul(2, tensor) : tensor;  // the MLP goes on with the norm, past the sum
  l.tensor_reduce_bytes = tensor;
  finish(l);
  return l;
}

HETSCHED_INLINE layer transformer_sizes::mlp(bool with_experts) const {
  const std::int64_t matrices = m.gated_mlp ? 3 : 2;
  const auto width = with_experts ? f : dense_f;
  const auto parameters_of = [&](std::int64_t inside) {
    return checked_add(checked_mul(matrices, h, inside), m.mlp_bias ? checked_add(checked_mul(matrices - 1, inside), h) : 0);
  };
  const auto mlp_parameters = parameters_of(width);
  const double mlp_flops = static_cast<double>(matrices) * product(h, width);
  // before and after the non-linearity, whose gate is rebuilt in backward
  const auto inner = checked_mul(matrices, s, width, e);
  layer l;
  if (with_experts) {
    const std::int64_t k = m.experts_per_token, everywhere = m.shared_experts;
    l.expert_parameters = checked_mul(m.experts, mlp_parameters);
    l.parameters = checked_add(checked_mul(h, m.experts), l.expert_parameters);
    l.parameters = checked_add(l.parameters, checked_mul(everywhere, parameters_of(shared_f)));
    if (m.shared_gate) l.parameters = checked_add(l.parameters, h);
    if (m.expert_bias) l.parameters = checked_add(l.parameters, m.experts);
    l.expert_exchange_bytes = checked_mul(k, tensor);
    l.forward_flops = product(h, m.experts) + static_cast<double>(k) * mlp_flops +
                      static_cast<double>(everywhere * matrices) * product(h, shared_f) + (m.shared_gate ? product(h, 1) : 0);
    // the router's input and its fp32 probabilities; per chosen expert its input, inside and output
    const auto router = checked_add(tensor, checked_mul(4, s, m.experts));
    l.activation_bytes = checked_add(router, checked_mul(k, checked_add(checked_mul(2, tensor), inner)));
    l.activation_bytes =
        checked_add(l.activation_bytes, checked_mul(everywhere * matrices, s, shared_f, e));  // their input is the router's
    // a sequence reaches all experts but for very short ones
    l.active_fraction = checked_mul(s, k) < m.experts ? static_cast<double>(s * k) / m.experts : 1;
  } else {
    l.parameters = mlp_parameters;
    l.forward_flops = mlp_flops;
    l.activation_bytes = checked_add(tensor, inner);
  }
  if (m.norms_behind) {
    l.parameters = checked_add(l.parameters, norm_parameters);
    l.activation_bytes = checked_add(l.activation_bytes, tensor);
  }
  l.activation_bytes = checked_add(l.activation_bytes, mask(checked_mul(s, h)));
  l.boundary_bytes = tensor;
  l.tensor_reduce_bytes = tensor;
  finish(l);
  return l;
}

HETSCHED_INLINE layer transformer_sizes::embedding() const {
  layer l;
  l.name = "embedding";
  std::int64_t rows = checked_add(m.positions, m.token_types);
  if (m.patch_inputs > 0) {
    rows = checked_add(rows, 1);  // the class token
    l.parameters = checked_add(checked_mul(m.patch_inputs, h), h);
    l.forward_flops = 2 * static_cast<double>(s - 1) * static_cast<double>(m.patch_inputs) * static_cast<double>(h);
    // pixels need no gradient
    l.backward_flops = l.weight_backward_flops = l.forward_flops;
    l.activation_bytes = checked_mul(s, m.patch_inputs, e);
  } else {
    l.parameters = checked_mul(m.vocab, word);
    l.active_fraction = 0;
    if (word != h) {
      l.parameters = checked_add(l.parameters, checked_mul(word, h));
      l.active_fraction = static_cast<double>(word * h) / static_cast<double>(l.parameters);
      l.forward_flops = product(word, h);
      l.backward_flops = 2 * l.forward_flops;
      l.weight_backward_flops = l.forward_flops;
      l.activation_bytes = checked_mul(s, word, e);
    }
    l.tensor_reduce_bytes = tensor / 2;  // once an iteration: the words here in forward, their gradients at the head in backward
  }
  l.parameters = checked_add(l.parameters, checked_mul(rows, h));
  l.activation_bytes = checked_add(l.activation_bytes, mask(checked_mul(s, h)));
  if (m.embedding_norm) {
    l.parameters = checked_add(l.parameters, norm_parameters);
    l.activation_bytes = checked_add(l.activation_bytes, tensor);
  }
  l.memory_traffic_bytes = checked_add(checked_mul(2, tensor), checked_mul(2, l.activation_bytes));
  l.boundary_bytes = tensor;
  l.recomputable = false;
  return l;
}

HETSCHED_INLINE layer transformer_sizes::head() const {
  layer l;
  l.name = "head";
  if (m.pre_norm) {
    l.parameters = norm_parameters;
    l.activation_bytes = tensor;
  }
  if (m.head == output_head::classifier) {
    l.parameters = checked_add(l.parameters, checked_add(checked_mul(m.classes, h), m.classes));
    l.forward_flops = 2 * static_cast<double>(h) * m.classes;
    l.activation_bytes = checked_add(l.activation_bytes, checked_add(checked_mul(h, e), checked_mul(4, m.classes)));
  } else {
    l.forward_flops = product(word, m.vocab);
    // input of the product, logits in fp32
    l.activation_bytes = checked_add(l.activation_bytes, checked_add(tensor, checked_mul(4, s, m.vocab)));
    auto& words = m.tied_embeddings ? l.shared_parameters : l.parameters;
    words = checked_add(words, checked_mul(m.vocab, word));
    if (m.head_bias) l.parameters = checked_add(l.parameters, m.vocab);
    if (word != h) {
      l.parameters = checked_add(l.parameters, checked_mul(h, word));
      l.forward_flops += product(h, word);
      l.activation_bytes = checked_add(l.activation_bytes, checked_mul(s, word, e));
    }
    l.tensor_reduce_bytes = tensor - tensor / 2;
    if (m.head == output_head::masked_language_model) {
      l.parameters =
          checked_add(l.parameters, checked_add(checked_add(checked_mul(h, h), h), checked_add(norm_parameters, m.vocab)));
      l.forward_flops += product(h, h);
      l.activation_bytes = checked_add(l.activation_bytes, checked_mul(3, tensor));
    }
  }
  l.recomputable = false;
  finish(l);
  return l;
}

}  // namespace hetsched::detail
