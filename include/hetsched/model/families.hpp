// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/transformer_test.cpp.

#include <cstdint>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// What distinguishes the members of a family; 0 takes the family's usual value.
struct transformer_shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int ffn_hidden = 0;
  std::int64_t vocab = 0;
  int sequence = 0;
  int parameter_bytes = 2;
};

/// GPT-2 and GPT-3: learned positions, GELU, biases, tied embeddings. Usual values: 50257 words, 1024 tokens, an MLP of 4 *
/// hidden.
[[nodiscard]] inline transformer gpt(const transformer_shape& shape) {
  transformer m{.layers = shape.layers,
                .hidden = shape.hidden,
                .heads = shape.heads,
                .kv_heads = shape.kv_heads,
                .ffn_hidden = shape.ffn_hidden,
                .vocab = shape.vocab != 0 ? shape.vocab : 50257,
                .sequence = shape.sequence != 0 ? shape.sequence : 1024,
                .parameter_bytes = shape.parameter_bytes};
  m.positions = m.sequence;
  return m;
}

/// Llama, Mistral and kin: rotary positions, SwiGLU, RMS norms, no biases, no dropout, an output matrix of their own. Usual
/// values: 32000 words, 4096 tokens, an MLP of 8/3 * hidden rounded up to a multiple of 256.
[[nodiscard]] inline transformer llama(const transformer_shape& shape) {
  transformer m = gpt(shape);
  if (shape.vocab == 0) m.vocab = 32000;
  if (shape.sequence == 0) m.sequence = 4096;
  if (shape.ffn_hidden == 0) m.ffn_hidden = static_cast<int>(ceil_div(std::int64_t{8} * shape.hidden / 3, 256) * 256);
  m.positions = 0;
  m.rms_norm = m.gated_mlp = true;
  m.bias = m.qkv_bias = m.tied_embeddings = m.dropout = false;
  return m;
}

/// Mixtral and kin: llama with experts in every moe_every-th block, without shared experts.
[[nodiscard]] inline transformer moe(const transformer_shape& shape, int experts = 8, int experts_per_token = 2,
                                     int moe_every = 1) {
  transformer m = llama(shape);
  m.experts = experts;
  m.experts_per_token = experts_per_token;
  m.moe_every = moe_every;
  return m;
}

/// BERT with its masked-language-model head, without the pooler. Usual values: 30522 words, 512 tokens, an MLP of 4 * hidden.
[[nodiscard]] inline transformer bert(const transformer_shape& shape) {
  transformer m = gpt(shape);
  if (shape.vocab == 0) m.vocab = 30522;
  if (shape.sequence == 0) m.sequence = 512;
  m.positions = m.sequence;
  m.token_types = 2;
  m.head = output_head::masked_language_model;
  m.pre_norm = false;
  return m;
}

/// A vision transformer (ViT-B/16: 12 layers, 768, 12 heads).
struct vit_shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int ffn_hidden = 0;  ///< 0: 4 * hidden
  int image = 224;     ///< pixels along each side
  int patch = 16;
  int channels = 3;
  int classes = 1000;
  int parameter_bytes = 2;
};

/// ViT: patches and a class token with learned positions, and a classifier on the class token.
/// Throws: input_error unless the patches tile the image.
[[nodiscard]] inline transformer vit(const vit_shape& shape) {
  if (shape.patch < 1 || shape.channels < 1 || shape.image < shape.patch || shape.image % shape.patch != 0)
    throw input_error("vit: the image must be a whole number of patches");
  const auto as_int = [](std::int64_t x) {
    if (x > 1'000'000'000) throw input_error("vit: image or patch too large");
    return static_cast<int>(x);
  };
  const std::int64_t side = shape.image / shape.patch;
  transformer m{.layers = shape.layers,
                .hidden = shape.hidden,
                .heads = shape.heads,
                .ffn_hidden = shape.ffn_hidden,
                .sequence = as_int(side * side + 1),
                .parameter_bytes = shape.parameter_bytes};
  m.positions = m.sequence;
  m.patch_inputs = as_int(checked_mul(shape.patch, shape.patch, shape.channels));
  m.classes = shape.classes;
  m.head = output_head::classifier;
  m.tied_embeddings = false;
  return m;
}

}  // namespace hetsched
