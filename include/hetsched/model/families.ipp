// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/families.hpp>

namespace hetsched {

HETSCHED_INLINE transformer gpt(const transformer_shape& shape) {
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

HETSCHED_INLINE transformer llama(const transformer_shape& shape) {
  transformer m = gpt(shape);
  if (shape.vocab == 0) m.vocab = 32000;
  if (shape.sequence == 0) m.sequence = 4096;
  if (shape.ffn_hidden == 0) m.ffn_hidden = static_cast<int>(ceil_div(std::int64_t{8} * shape.hidden / 3, 256) * 256);
  m.positions = 0;
  m.norm_vectors = 1;
  m.gated_mlp = true;
  m.qkv_bias = m.output_bias = m.mlp_bias = m.tied_embeddings = m.dropout = false;
  return m;
}

HETSCHED_INLINE transformer moe(const transformer_shape& shape, int experts, int experts_per_token, int moe_every) {
  transformer m = llama(shape);
  m.experts = experts;
  m.experts_per_token = experts_per_token;
  m.moe_every = moe_every;
  return m;
}

HETSCHED_INLINE transformer bert(const transformer_shape& shape) {
  transformer m = gpt(shape);
  if (shape.vocab == 0) m.vocab = 30522;
  if (shape.sequence == 0) m.sequence = 512;
  m.positions = m.sequence;
  m.token_types = 2;
  m.head = output_head::masked_language_model;
  m.pre_norm = false;
  m.embedding_norm = true;
  return m;
}

HETSCHED_INLINE transformer vit(const vit_shape& shape) {
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
