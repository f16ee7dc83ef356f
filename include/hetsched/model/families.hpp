// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/transformer_test.cpp.

#include <cstdint>

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
[[nodiscard]] transformer gpt(const transformer_shape& shape);

/// Llama, Mistral and kin: rotary positions, SwiGLU, RMS norms, no biases, no dropout, an output matrix of their own. Usual
/// values: 32000 words, 4096 tokens, an MLP of 8/3 * hidden rounded up to a multiple of 256.
[[nodiscard]] transformer llama(const transformer_shape& shape);

/// Mixtral and kin: llama with experts in every moe_every-th block, without shared experts.
[[nodiscard]] transformer moe(const transformer_shape& shape, int experts = 8, int experts_per_token = 2, int moe_every = 1);

/// BERT with its masked-language-model head, without the pooler. Usual values: 30522 words, 512 tokens, an MLP of 4 * hidden.
[[nodiscard]] transformer bert(const transformer_shape& shape);

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
[[nodiscard]] transformer vit(const vit_shape& shape);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/families.ipp>
#endif
