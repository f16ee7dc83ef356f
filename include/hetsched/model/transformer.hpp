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

/// What normalises queries and keys before their product.
enum class qk_norm_kind {
  none,
  per_head,  ///< one scale of a head's size for all queries, and one for all keys (Qwen3, Gemma 3)
  whole,     ///< scales of all heads' queries, and of all heads' keys (OLMo 2)
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
  int moe_every = 1;          ///< blocks moe_every - 1, 2 * moe_every - 1 ... have experts, the others one dense MLP
  int dense_blocks = 0;       ///< so many first blocks have no experts
  int dense_ffn_hidden = 0;   ///< of blocks without experts; 0: ffn_hidden
  int shared_experts = 0;     ///< that every token goes through, beside those that the router chooses
  int shared_ffn_hidden = 0;  ///< of one shared expert; 0: ffn_hidden
  bool shared_gate = false;   ///< a token weighs what the shared experts make of it (Qwen2-MoE)
  bool expert_bias = false;   ///< the router adds a number of its own to each expert (DeepSeek-V3, gpt-oss)

  int kv_rank = 0;      ///< > 0: latent attention, keys and values are made from so many numbers of a token (DeepSeek)
  int query_rank = 0;   ///< of latent attention: queries, too, are made from so many; 0: from the token
  int rotary_size = 0;  ///< of latent attention: numbers of a head that are turned; of keys, all heads share them
  int value_size = 0;   ///< of latent attention: of a head's values; 0: head_size

  int window = 0;                ///< > 0: tokens see so many last ones, themselves among them; 0: all before them
  int full_every = 0;            ///< blocks full_every - 1, 2 * full_every - 1 ... have no window; 0: all have it
  bool chunked = false;          ///< the window is a chunk of the sequence: tokens see those before them in it (Llama 4)
  bool attention_sinks = false;  ///< a number of each head stands in its softmax beside the scores (gpt-oss)

  int positions = 0;        ///< rows of the learned position table; 0: none (rotary positions)
  int token_types = 0;      ///< rows of BERT's segment table
  int embedding_width = 0;  ///< of words, which a matrix makes hidden wide, and another back (OPT-350M); 0: hidden
  int patch_inputs = 0;     ///< numbers of one image patch; > 0: patches are embedded in place of words
  int classes = 0;          ///< of the classifier
  output_head head = output_head::language_model;
  /// Modules at the head that each predict one token further on: the last block over again, on norms and a product of what came
  /// before and of the embedding, then norm, logits and loss (DeepSeek-V3). They are part of the head's layer.
  int further_tokens = 0;
  bool pre_norm = true;         ///< norms before attention and MLP and a final one; else after each residual sum (BERT)
  bool norms_before = true;     ///< of pre_norm; false: only norms_behind and a final one (OLMo 2)
  bool embedding_norm = false;  ///< after the embedding (BERT, BLOOM)
  int norm_vectors = 2;         ///< of a norm: scale and bias; 1: a scale (RMS); 0: neither (OLMo)
  qk_norm_kind qk_norm = qk_norm_kind::none;
  bool shared_norm = false;   ///< attention and MLP read the same norm, side by side (Falcon-7B)
  bool norms_behind = false;  ///< what attention and MLP make is normalised, too, before the residual sum (Gemma 2)
  bool gated_mlp = false;     ///< three matrices (SwiGLU) in place of two
  bool qkv_bias = true;
  bool output_bias = true;  ///< of attention's last product
  bool mlp_bias = true;     ///< of experts, too
  bool head_bias = false;   ///< a number of each word
  bool tied_embeddings = true;
  bool dropout = true;  ///< its masks, one byte an element, are kept for backward

  friend bool operator==(const transformer&, const transformer&) = default;
};

/// Whether a block has experts.
[[nodiscard]] constexpr bool has_experts(const transformer& m, int block) {
  return m.experts > 0 && block >= m.dense_blocks && (block + 1) % m.moe_every == 0;
}

/// Whether a block's tokens see a window only.
[[nodiscard]] constexpr bool has_window(const transformer& m, int block) {
  return m.window > 0 && m.window < m.sequence && !(m.full_every > 0 && (block + 1) % m.full_every == 0);
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
  explicit transformer_sizes(const transformer& model);

  const transformer& m;
  std::int64_t s, h, a, e;
  std::int64_t q{}, kv{};   // widths of the queries and of the keys (or values), all heads together
  std::int64_t values{};    // width of what latent attention makes, all heads together
  std::int64_t f{};         // width inside the MLP, or inside an expert
  std::int64_t dense_f{};   // width inside the MLP of blocks without experts
  std::int64_t shared_f{};  // width inside a shared expert
  std::int64_t word{};      // width of the embedding's words
  std::int64_t tensor{};    // bytes of one s x h activation
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

  /// Of a module that predicts a token further on, before its block: norms of what came before and of words, and their product.
  [[nodiscard]] layer join() const {
    layer l;
    l.parameters = checked_add(checked_mul(2, norm_parameters), checked_mul(2, h, h));
    l.forward_flops = product(checked_mul(2, h), h);
    l.activation_bytes = checked_mul(4, tensor);
    finish(l);
    return l;
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
  [[nodiscard]] layer latent_attention(bool windowed) const;

  [[nodiscard]] layer full_attention(bool windowed) const;

  [[nodiscard]] layer attention(bool windowed) const;

  // Keys per query, such that a causal kernel that leaves out half of them does as much as the window shows.
  [[nodiscard]] double seen(bool windowed) const;

  [[nodiscard]] layer mlp(bool with_experts) const;

  [[nodiscard]] layer embedding() const;

  [[nodiscard]] layer head() const;
};

}  // namespace detail

/// The layers of a transformer, for one sample: layers + 2 by block, 3 * layers + 2 by sublayer. Attention counts all s^2
/// scores, also those that a causal mask hides, as the usual definition of MFU does. A tied embedding counts at the
/// embedding; the head holds a copy as shared_parameters, since the two lie in different stages of any pipeline with more
/// than one. A window's scores are counted in the same way: those of all pairs less than a window apart, to either side. Kept
/// scores are all, as kernels that keep any mask them.
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
