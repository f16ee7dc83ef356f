// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  require(m.kv_rank >= 0 && m.query_rank >= 0 && m.value_size >= 0, "ranks and sizes of latent attention must not be negative");
  if (m.kv_rank > 0) {
    require(m.head_size > 0 && m.rotary_size >= 0 && m.rotary_size < m.head_size,
            "latent attention needs a head_size, of which rotary_size is a part");
    require(m.kv_heads == 0 || m.kv_heads == m.heads, "latent attention has keys for every head");
    require(!m.bias && !m.qkv_bias && !m.qk_norm, "latent attention has no biases and no norms of heads");
  } else {
    require(m.query_rank == 0 && m.rotary_size == 0 && m.value_size == 0,
            "query_rank, rotary_size and value_size need a kv_rank");
  }
  require(!m.shared_norm || m.pre_norm, "a shared norm stands before attention and MLP");
  require(m.positions == 0 || m.positions >= m.sequence, "positions must be 0 or at least the sequence");
  require(m.token_types >= 0, "token_types must not be negative");
  require(m.patch_inputs >= 0, "patch_inputs must not be negative");
  require(m.patch_inputs > 0 || m.vocab >= 1, "vocab must be at least 1");
  require(m.head == output_head::classifier ? m.classes >= 1 : m.vocab >= 1,
          "the head needs classes or a vocabulary of at least 1");
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE void append(layer& a, const layer& b) {
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
  const auto make_block = [&](bool with_experts) {
    block b{sizes.attention(), model.shared_norm ? sizes.passed_norm() : sizes.norm(), sizes.mlp(with_experts)};
    if (model.pre_norm) {
      auto first = sizes.norm();
      detail::append(first, b.attention);
      b.attention = std::move(first);
    } else {
      detail::append(b.mlp, sizes.norm());
    }
    return b;
  };
  const block dense = make_block(false);
  const block sparse = model.experts > 0 ? make_block(true) : dense;

  layer_chain chain;
  chain.parameter_bytes = model.parameter_bytes;
  chain.heads = model.heads;
  chain.sequence = model.sequence;
  chain.experts = model.experts;
  chain.layers.push_back(sizes.embedding());
  for (int i = 0; i < model.layers; ++i) {
    const block& b = has_experts(model, i) ? sparse : dense;
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
  chain.layers.push_back(sizes.head());
  return chain;
}

}  // namespace hetsched
