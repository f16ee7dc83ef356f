// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <hetsched/core/units.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

/// What follows the last block.
enum class output_head {
  language_model,         ///< logits of every position over the vocabulary
  masked_language_model,  ///< the same after BERT's transform: dense, GELU, norm, and a bias per word
  classifier,             ///< logits of the first position over the classes
};

/// A transformer by its sizes. The defaults make a GPT block; families.hpp has the usual families.
struct transformer {
  int layers = 0;  ///< blocks
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;    ///< 0: as many as heads
  int head_size = 0;   ///< 0: hidden / heads
  int ffn_hidden = 0;  ///< of one expert, where there are experts; 0: 4 * hidden
  std::int64_t vocab = 0;
  int sequence = 0;         ///< tokens of a sample; for images patches + 1 class token
  int parameter_bytes = 2;  ///< 2 for fp16 and bf16, 4 for fp32; activations alike
  int experts = 0;          ///< 0: dense
  int experts_per_token = 0;
  int moe_every = 1;         ///< blocks moe_every - 1, 2 * moe_every - 1 ... have experts, the others one dense MLP
  int dense_blocks = 0;      ///< so many first blocks have no experts
  int dense_ffn_hidden = 0;  ///< of blocks without experts; 0: ffn_hidden
  int shared_experts = 0;    ///< that every token goes through, beside those that the router chooses
  bool expert_bias = false;  ///< the router adds a number of its own to each expert (DeepSeek-V3)

  int kv_rank = 0;      ///< > 0: latent attention, keys and values are made from so many numbers of a token (DeepSeek)
  int query_rank = 0;   ///< of latent attention: queries, too, are made from so many; 0: from the token
  int rotary_size = 0;  ///< of latent attention: numbers of a head that are turned; of keys, all heads share them
  int value_size = 0;   ///< of latent attention: of a head's values; 0: head_size

  int positions = 0;     ///< rows of the learned position table; 0: none (rotary positions)
  int token_types = 0;   ///< rows of BERT's segment table
  int patch_inputs = 0;  ///< numbers of one image patch; > 0: patches are embedded in place of words
  int classes = 0;       ///< of the classifier
  output_head head = output_head::language_model;
  bool pre_norm =
      true;  ///< norms before attention and MLP and a final one; else after each residual sum and after the embedding (BERT)
  bool rms_norm = false;      ///< norms have no bias
  bool qk_norm = false;       ///< queries and keys are normalised (RMS), head by head
  bool shared_norm = false;   ///< attention and MLP read the same norm, side by side (Falcon-7B)
  bool norms_behind = false;  ///< what attention and MLP make is normalised, too, before the residual sum (Gemma 2)
  bool gated_mlp = false;     ///< three matrices (SwiGLU) in place of two
  bool bias = true;           ///< of the linear layers in blocks
  bool qkv_bias = true;
  bool tied_embeddings = true;
  bool dropout = true;  ///< its masks, one byte an element, are kept for backward

  friend bool operator==(const transformer&, const transformer&) = default;
};

/// Whether a block has experts.
[[nodiscard]] constexpr bool has_experts(const transformer& m, int block) {
  return m.experts > 0 && block >= m.dense_blocks && (block + 1) % m.moe_every == 0;
}

/// How a transformer is cut into layers: embedding, whole blocks, head; or embedding, three layers per block (attention,
/// norm, MLP), head. A pre-norm block is then cut as norm + attention + residual sum | norm | MLP + residual sum.
enum class granularity { block, sublayer };

/// Checks that a transformer's sizes make sense.
/// Throws: input_error, naming the field, if they do not.
void validate(const transformer& m);

namespace detail {

/// The sizes of one sample of a transformer, and its layers by formula. Only matrix products count as FLOPs; norms,
/// activations and sums count as memory traffic. Kept activations of the standard block (16 bits, dropout, an MLP of 4 h)
/// come to 34 s h + 5 a s^2 bytes.
/// Source: Korthikanti et al. 2023, sec. 4 (activations).
struct transformer_sizes {
  explicit transformer_sizes(const transformer& model) : m(model), s(m.sequence), h(m.hidden), a(m.heads), e(m.parameter_bytes) {
    const std::int64_t head_size = m.head_size > 0 ? m.head_size : h / a;
    q = checked_mul(a, head_size);
    kv = checked_mul(m.kv_heads > 0 ? m.kv_heads : a, head_size);
    values = m.value_size > 0 ? checked_mul(a, m.value_size) : q;
    f = m.ffn_hidden > 0 ? m.ffn_hidden : checked_mul(4, h);
    dense_f = m.dense_ffn_hidden > 0 ? m.dense_ffn_hidden : f;
    tensor = checked_mul(s, h, e);
    norm_parameters = m.rms_norm ? h : 2 * h;
  }

  const transformer& m;
  std::int64_t s, h, a, e;
  std::int64_t q{}, kv{};  // widths of the queries and of the keys (or values), all heads together
  std::int64_t values{};   // width of what latent attention makes, all heads together
  std::int64_t f{};        // width inside the MLP, or inside an expert
  std::int64_t dense_f{};  // width inside the MLP of blocks without experts
  std::int64_t tensor{};   // bytes of one s x h activation
  std::int64_t norm_parameters{};

  // FLOPs of an (s x k) * (k x n) product
  [[nodiscard]] double product(std::int64_t k, std::int64_t n) const {
    return 2 * static_cast<double>(s) * static_cast<double>(k) * static_cast<double>(n);
  }
  [[nodiscard]] std::int64_t mask(std::int64_t elements) const { return m.dropout ? elements : 0; }

  // Every kept tensor is written once and read once.
  static void finish(layer& l) {
    l.backward_flops = 2 * l.forward_flops;
    l.weight_backward_flops = l.forward_flops - l.selective_flops;  // attention scores have no weights
    l.memory_traffic_bytes = checked_mul(2, l.activation_bytes);
  }

  [[nodiscard]] layer norm() const {
    layer l;
    l.parameters = norm_parameters;
    l.activation_bytes = tensor;
    // A pre-norm block goes on with the normalised tensor and, past it, with the residual.
    l.boundary_bytes = m.pre_norm ? checked_mul(2, tensor) : tensor;
    finish(l);
    return l;
  }

  // In the place of a norm that attention has already computed.
  [[nodiscard]] layer passed_norm() const {
    layer l;
    l.boundary_bytes = checked_mul(2, tensor);
    return l;
  }

  // Keys and values come from a few numbers of each token, and part of the keys is common to all heads.
  // Source: DeepSeek-V2, sec. 2.1.
  [[nodiscard]] layer latent_attention() const {
    const std::int64_t queries_from = m.query_rank > 0 ? m.query_rank : h;
    const std::int64_t down = checked_add(m.kv_rank, m.rotary_size);
    const std::int64_t up = checked_add(q - checked_mul(a, m.rotary_size), values);
    layer l;
    l.selective_flops = product(q, s) + product(values, s);
    l.forward_flops =
        product(queries_from, q) + product(h, down) + product(m.kv_rank, up) + product(values, h) + l.selective_flops;
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

  [[nodiscard]] layer full_attention() const {
    layer l;
    l.forward_flops = product(h, q) + 2 * product(h, kv) + 2 * product(q, s) + product(q, h);
    l.selective_flops = 2 * product(q, s);
    const auto weights = checked_add(checked_mul(2, h, q), checked_mul(2, h, kv));
    l.parameters = checked_add(
        weights, (m.qkv_bias ? checked_add(q, checked_mul(2, kv)) : 0) + (m.bias ? h : 0) + (m.qk_norm ? 2 * q / a : 0));
    // input; queries; keys and values; input of the projection; mask of its dropout
    auto kept = checked_add(tensor, checked_mul(s, checked_mul(2, checked_add(q, kv)), e));
    if (m.qk_norm) kept = checked_add(kept, checked_mul(s, checked_add(q, kv), e));
    l.activation_bytes = kept;
    l.context_gather_bytes = checked_mul(2, s, kv, e);
    return l;
  }

  [[nodiscard]] layer attention() const {
    layer l = m.kv_rank > 0 ? latent_attention() : full_attention();
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

  [[nodiscard]] layer mlp(bool with_experts) const {
    const std::int64_t matrices = m.gated_mlp ? 3 : 2;
    const auto width = with_experts ? f : dense_f;
    const auto mlp_parameters =
        checked_add(checked_mul(matrices, h, width), m.bias ? checked_add(checked_mul(matrices - 1, width), h) : 0);
    const double mlp_flops = static_cast<double>(matrices) * product(h, width);
    // before and after the non-linearity, whose gate is rebuilt in backward
    const auto inner = checked_mul(matrices, s, width, e);
    layer l;
    if (with_experts) {
      const std::int64_t k = m.experts_per_token, everywhere = m.shared_experts;
      l.expert_parameters = checked_mul(m.experts, mlp_parameters);
      l.parameters = checked_add(checked_mul(h, m.experts), checked_mul(checked_add(m.experts, everywhere), mlp_parameters));
      if (m.expert_bias) l.parameters = checked_add(l.parameters, m.experts);
      l.expert_exchange_bytes = checked_mul(k, tensor);
      l.forward_flops = product(h, m.experts) + static_cast<double>(k + everywhere) * mlp_flops;
      // the router's input and its fp32 probabilities; per chosen expert its input, inside and output
      const auto router = checked_add(tensor, checked_mul(4, s, m.experts));
      l.activation_bytes = checked_add(router, checked_mul(k, checked_add(checked_mul(2, tensor), inner)));
      l.activation_bytes = checked_add(l.activation_bytes, checked_mul(everywhere, inner));  // their input is the router's
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

  [[nodiscard]] layer embedding() const {
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
      l.parameters = checked_mul(m.vocab, h);
      l.active_fraction = 0;
      l.tensor_reduce_bytes =
          tensor / 2;  // once an iteration: the words here in forward, their gradients at the head in backward
    }
    l.parameters = checked_add(l.parameters, checked_mul(rows, h));
    l.activation_bytes = checked_add(l.activation_bytes, mask(checked_mul(s, h)));
    if (!m.pre_norm) {
      l.parameters = checked_add(l.parameters, norm_parameters);
      l.activation_bytes = checked_add(l.activation_bytes, tensor);
    }
    l.memory_traffic_bytes = checked_add(checked_mul(2, tensor), checked_mul(2, l.activation_bytes));
    l.boundary_bytes = tensor;
    l.recomputable = false;
    return l;
  }

  [[nodiscard]] layer head() const {
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
      l.forward_flops = product(h, m.vocab);
      // input of the product, logits in fp32
      l.activation_bytes = checked_add(l.activation_bytes, checked_add(tensor, checked_mul(4, s, m.vocab)));
      auto& words = m.tied_embeddings ? l.shared_parameters : l.parameters;
      words = checked_add(words, checked_mul(m.vocab, h));
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
};

// Runs b after a as one layer.
void append(layer& a, const layer& b);

}  // namespace detail

/// The layers of a transformer, for one sample: layers + 2 by block, 3 * layers + 2 by sublayer. Attention counts all s^2
/// scores, also those that a causal mask hides, as the usual definition of MFU does. A tied embedding counts at the
/// embedding; the head holds a copy as shared_parameters, since the two lie in different stages of any pipeline with more
/// than one.
/// Throws: input_error for sizes that make no sense or overflow.
/// Complexity: O(layers).
/// Source: HARP sec. 6.7 (146 layers of GPT-39B by sublayer).
/// Example:
///   const auto chain = make_chain(llama({.layers = 32, .hidden = 4096, .heads = 32}));
///   const auto parameters = parameter_count(chain);
///   const double flops_per_sample = training_flops(chain);
[[nodiscard]] layer_chain make_chain(const transformer& model, granularity cut = granularity::block);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/transformer.ipp>
#endif
