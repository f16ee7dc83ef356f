// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/transformer_operators.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void kernel_writer::embedding() {
  if (m_.patch_inputs > 0) {
    const auto patches = checked_mul(samples_, ceil_div(sizes_.s - 1, context_));
    if (patches > 0) {
      list_.forward.push_back({gemm(patches, sizes_.h, m_.patch_inputs, f())});
      gradient(gemm(sizes_.h, m_.patch_inputs, patches, f()), true);  // pixels need none
      add_gradient(wide(m_.patch_inputs));
    }
  } else {
    list_.forward.push_back({hetsched::embedding(tokens_, sizes_.word, f())});
    gradient(elementwise(checked_mul(tokens_, sizes_.word), 2, 1, f()), true);
    add_gradient(checked_mul(part(m_.vocab), sizes_.word));
    if (sizes_.word != sizes_.h) wide_linear(tokens_here_, sizes_.word, sizes_.h, false);
  }
  list_.parameters += (m_.positions > 0 ? 1 : 0) + (m_.token_types > 0 ? 1 : 0);
  if (m_.positions > 0) map(wide(tokens_here_), {2, 1, 1, 0});
  if (m_.token_types > 0) map(wide(tokens_here_), {2, 1, 0, 0});
  if (m_.embedding_norm) norm();
  dropout(wide(tokens_here_));
}

HETSCHED_INLINE void kernel_writer::latent_attention(bool windowed) {
  const auto heads = part(sizes_.a), head = sizes_.q / sizes_.a, value = sizes_.values / sizes_.a;
  if (m_.query_rank > 0) {
    linear(tokens_here_, sizes_.h, m_.query_rank, false);
    norm(tokens_here_, m_.query_rank);
  }
  linear(tokens_, m_.query_rank > 0 ? m_.query_rank : sizes_.h, heads * head, false);
  linear(tokens_here_, sizes_.h, m_.kv_rank + m_.rotary_size, false);
  norm(tokens_here_, m_.kv_rank);
  linear(tokens_, m_.kv_rank, heads * (head - m_.rotary_size + value), false);
  if (m_.rotary_size > 0) {
    const auto turned = checked_mul(tokens_, (heads + 1) * m_.rotary_size);
    if (eager())
      maps(turned, style_.library.rotary);
    else
      map(turned, {1, 1, 1, 1});
    map(checked_mul(tokens_, heads * head), {1, 1, 1, 1});  // keys from their two parts
  }
  scores_and_values(checked_mul(samples_, heads), checked_mul(samples_, heads), head, value, windowed);
  if (style_.attention == attention_kernels::plain) map(checked_mul(tokens_, heads * value), {1, 1, 1, 1});
  linear(tokens_, heads * value, sizes_.h, m_.output_bias);
}

HETSCHED_INLINE void kernel_writer::full_attention(bool windowed) {
  const auto heads = part(sizes_.a), kv_heads = part(m_.kv_heads > 0 ? m_.kv_heads : sizes_.a), head = sizes_.q / sizes_.a;
  const auto q = heads * head, kv = kv_heads * head;
  linears(tokens_, sizes_.h, {q, kv, kv}, m_.qkv_bias);
  if (m_.qk_norm == qk_norm_kind::per_head)
    for (const auto own : {heads, kv_heads}) norm(checked_mul(tokens_, own), head);
  if (m_.qk_norm == qk_norm_kind::whole)
    for (const auto width : {q, kv}) norm(tokens_, width);
  if (m_.positions == 0) {
    const auto turned = checked_mul(tokens_, q + kv);
    if (eager()) {
      for (const auto& s : style_.library.rotary) map(turned, s, wide_format());  // by tables in fp32
      round(turned);
    } else {
      map(turned, {1, 1, 1, 1});
    }
  }
  if (eager()) {
    maps(checked_mul(tokens_, q), style_.library.queries);
    for (int i = 0; i < 3; ++i) map(checked_mul(tokens_, q), {1, 1, 1, 1});  // heads side by side: copies
  }
  scores_and_values(checked_mul(samples_, heads), checked_mul(samples_, kv_heads), head, head, windowed);
  if (style_.attention == attention_kernels::plain) map(checked_mul(tokens_, q), {1, 1, 1, 1});  // and back
  linear(tokens_, q, sizes_.h, m_.output_bias);
}

HETSCHED_INLINE void kernel_writer::mlp(bool with_experts) {
  const auto inner = part(sizes_.f);
  if (!with_experts) {
    dense_mlp(part(sizes_.dense_f));
  } else {
    wide_linear(tokens_here_, sizes_.h, m_.experts, false);
    rows_softmax(tokens_here_, m_.experts);
    const auto routed = checked_mul(tokens_, m_.experts_per_token);
    map(wide(routed), {1, 1, 1, 1});  // to their experts
    if (m_.gated_mlp && !joint()) expert_linears(routed, sizes_.h, inner);
    expert_linears(routed, sizes_.h, m_.gated_mlp && joint() ? 2 * inner : inner);
    activation(checked_mul(routed, inner));
    expert_linears(routed, inner, sizes_.h);
    map(wide(tokens_), {m_.experts_per_token, 1, 1, m_.experts_per_token});  // and back
    if (m_.shared_experts > 0) {
      if (m_.shared_gate) wide_linear(tokens_here_, sizes_.h, 1, false);
      dense_mlp(checked_mul(m_.shared_experts, part(sizes_.shared_f)));
      map(wide(tokens_), {2, 1, 0, 0});
    }
  }
  if (m_.norms_behind) norm();
  add_residual();
}

HETSCHED_INLINE void kernel_writer::head() {
  if (m_.pre_norm) norm();
  if (m_.head == output_head::classifier) {
    wide_linear(samples_, sizes_.h, part(m_.classes), true);
    return;
  }
  if (m_.head == output_head::masked_language_model) {
    wide_linear(tokens_here_, sizes_.h, sizes_.h, true);
    map(wide(tokens_here_), {1, 1, 2, 1});
    norm();
  }
  if (sizes_.word != sizes_.h) wide_linear(tokens_here_, sizes_.h, sizes_.word, false);
  const auto words = part(m_.vocab);
  wide_linear(tokens_, sizes_.word, words, m_.head_bias || m_.head == output_head::masked_language_model);
  if (!style_.training) return;
  if (autocasts() || (eager() && element_bytes(f()) == 2)) convert(checked_mul(tokens_, words));
  list_.forward.push_back({softmax(tokens_, words, number_format::fp32)});
  gradient(elementwise(checked_mul(tokens_, words), 2, 1, number_format::fp32));
}

HETSCHED_INLINE void kernel_writer::linears(std::int64_t tokens, std::int64_t in, std::initializer_list<std::int64_t> outs,
                                            bool bias) {
  if (!joint()) {
    for (const auto out : outs) linear(tokens, in, out, bias);
    return;
  }
  std::int64_t sum = 0;
  for (const auto out : outs) sum = checked_add(sum, out);
  linear(tokens, in, sum, bias);
  if (eager()) gradient(elementwise(checked_mul(tokens, sum), 1, 1, f()));  // gradients side by side: a copy
}

HETSCHED_INLINE void kernel_writer::expert_linears(std::int64_t routed, std::int64_t in, std::int64_t out) {
  const std::int64_t here = ceil_div(m_.experts, expert_), least = routed / here, more = routed % here;
  for (const auto& [experts, tokens] : {std::pair{more, least + 1}, std::pair{here - more, least}}) {
    if (experts == 0 || tokens == 0) continue;
    const auto weights = checked_mul(experts, in, out);
    const bool fp8 = in_fp8(in, out);  // as fp8_linear, of each expert
    const auto format = fp8 ? number_format::fp8 : f();
    if (fp8 && style_.training) {
      list_.forward.push_back({rounding(checked_mul(experts, tokens, in))});
      list_.forward.push_back({rounding(weights)});
      gradient(rounding(checked_mul(experts, tokens, out)));
    }
    auto& product = list_.forward.emplace_back(batched_gemm(experts, tokens, out, in, format)).op;
    product.quantised = fp8 && !style_.training;
    gradient(batched_gemm(experts, tokens, in, out, format));
    gradient(batched_gemm(experts, out, in, tokens, format), true);
    if (style_.wide_weights) round(weights, true);
    add_gradient(weights);
  }
  if (!m_.mlp_bias || in_fp8(in, out)) return;
  gradient(elementwise(checked_mul(routed, out), 1, 0, f()), true);
  ++list_.parameters;
}

HETSCHED_INLINE void kernel_writer::scores_and_values(std::int64_t heads, std::int64_t kv_heads, std::int64_t head,
                                                      std::int64_t value, bool windowed) {
  if (style_.attention == attention_kernels::flash) {
    const auto keys = static_cast<std::int64_t>(std::ceil(sizes_.seen(windowed)));
    // A kernel of one width does as much for values of another as one of their mean.
    const auto op = flash_attention(heads, kv_heads, queries_, keys, ceil_div(head + value, 2), style_.causal, f());
    list_.forward.push_back({op});
    gradient(flash_attention_backward(heads, kv_heads, queries_, keys, ceil_div(head + value, 2), style_.causal, f()));
    return;
  }
  const auto keys = sizes_.s;  // a mask hides what is outside a window
  const auto first = static_cast<std::ptrdiff_t>(list_.forward.size());
  const auto rows = checked_mul(heads, queries_), scores = checked_mul(rows, keys);
  product(heads, queries_, keys, head);
  if (eager()) maps(scores, style_.library.scores);
  rows_softmax(rows, keys);
  dropout(scores);
  product(heads, queries_, value, keys);
  list_.selective.insert(list_.selective.end(), list_.forward.begin() + first, list_.forward.end());
}

HETSCHED_INLINE layer_chain with_inputs_in_fp8(layer_chain chain, const transformer& model, granularity cut) {
  const transformer_sizes sizes(model);
  if (chain.parameter_bytes != 2 || sizes.h % 16 != 0) return chain;
  const int parts = cut == granularity::block ? 1 : 3;
  for (int i = 1; i + 1 < chain.size(); ++i) {
    const int place = (i - 1) % parts;
    std::int64_t less = 0;  // bytes of a token: one in place of two
    if (place == 0 && model.kv_rank == 0 && sizes.q % 16 == 0) less += sizes.h - sizes.q;
    if (place == parts - 1 && !has_experts(model, (i - 1) / parts) && sizes.dense_f % 16 == 0) less += sizes.h + sizes.dense_f;
    at(chain.layers, i).activation_bytes -= checked_mul(sizes.s, less);
  }
  return chain;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE int transformer_operators::kind(int index) const {
  HETSCHED_EXPECTS(index >= 0 && index < chain_.size());
  if (index == 0 || index == chain_.size() - 1) return index;
  const int parts = cut_ == granularity::block ? 1 : 3;
  const int place = (index - 1) % parts, block = (index - 1) / parts;
  const auto alike = [&](int other) {
    return (place > 0 || has_window(model_, other) == has_window(model_, block)) &&
           (place < parts - 1 || has_experts(model_, other) == has_experts(model_, block));
  };
  int first = 0;
  while (!alike(first)) ++first;
  return 1 + first * parts + place;
}

HETSCHED_INLINE layer_operators transformer_operators::operators(int index, const layer_share& share) const {
  HETSCHED_EXPECTS(index >= 0 && index < chain_.size());
  if (share.samples < 1 || share.context < 1 || share.tensor < 1 || share.expert < 1 || share.slices < 1)
    throw input_error("the share of a layer must be at least 1");
  detail::kernel_writer write(model_, style_, share);
  const int parts = cut_ == granularity::block ? 1 : 3, block = (index - 1) / parts, place = (index - 1) % parts;
  if (index == 0)
    write.embedding();
  else if (index == chain_.size() - 1) {
    write.head();
    for (int i = 0; i < model_.further_tokens; ++i) {
      write.join();
      attention(write, model_.layers - 1);
      if (model_.norms_before && !model_.shared_norm) write.norm();
      mlp(write, model_.layers - 1);
      write.head();
    }
  } else {
    if (place == 0) attention(write, block);
    if ((parts == 1 || place == 1) && model_.norms_before && !model_.shared_norm) write.norm();
    if (place == parts - 1) mlp(write, block);
  }
  return write.take();
}

}  // namespace hetsched
