// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/json/model_json_test.cpp.

#include <array>
#include <string_view>
#include <vector>

#include <hetsched/model/families.hpp>

namespace hetsched::detail {

/// What attention_bias is of.
enum class bias_scope { none, queries_keys_values, all };

/// What a config.json of a family on Hugging Face means where its keys leave it open, as the family's class in transformers has
/// it.
struct config_family {
  std::string_view types;  ///< of "model_type", with blanks between
  /// Features. Sizes are those that a config inside another leaves out; positions is 1 where there is a table.
  transformer usual;
  int spare_positions = 0;  ///< rows of that table beyond max_position_embeddings; below 0: those that no token has
  bias_scope attention_bias = bias_scope::all;
  bool windows_when_told = false;                 ///< only with use_sliding_window
  qk_norm_kind qk_norm = qk_norm_kind::per_head;  ///< what use_qk_norm turns on
  bool one_key = false;                           ///< multi_query, one head of keys and values, is on where not said
};

/// A family with sizes of its own for configs inside others: blocks, width, heads, those of keys, MLP, words, tokens.
[[nodiscard]] inline transformer with_usual_sizes(transformer m, const std::array<int, 7>& sizes) {
  m.layers = sizes[0];
  m.hidden = sizes[1];
  m.heads = sizes[2];
  m.kv_heads = sizes[3];
  m.ffn_hidden = sizes[4];
  m.vocab = sizes[5];
  m.sequence = sizes[6];
  return m;
}

/// Llama's features without its sizes, changed by `change`.
template <class Change>
[[nodiscard]] transformer like_llama(Change change) {
  transformer m = with_usual_sizes(llama({}), {});
  change(m);
  return m;
}

/// GPT-2's features without its sizes, changed by `change`.
template <class Change>
[[nodiscard]] transformer like_gpt(Change change) {
  transformer m = with_usual_sizes(gpt({}), {});
  change(m);
  return m;
}

/// BERT's features without its sizes.
[[nodiscard]] inline transformer like_bert(int token_types) {
  transformer m = with_usual_sizes(bert({}), {});
  m.positions = 1;
  m.token_types = token_types;
  return m;
}

[[nodiscard]] inline std::vector<config_family> make_config_families() {
  const auto all_biases = [](transformer& m, bool on) { m.qkv_bias = m.output_bias = m.mlp_bias = on; };
  // rotary positions or none, no dropout
  const auto modern = [](transformer& m) { m.positions = 0, m.dropout = false; };
  const auto tied = [](transformer& m) { m.tied_embeddings = true; };
  const auto qwen = [](transformer& m) { m.qkv_bias = true; };
  const auto heads_normed = [](transformer& m) { m.qk_norm = qk_norm_kind::per_head; };
  const auto gemma = [](transformer& m) { m.tied_embeddings = true, m.head_size = 256; };
  const auto gemma2 = [](transformer& m) {
    m.tied_embeddings = m.norms_behind = true;
    m.head_size = 256;
    m.window = 4096;
    m.full_every = 2;
  };
  const auto gemma3 = [&](transformer& m) {
    gemma2(m), heads_normed(m);
    m.full_every = 6;
  };
  const auto olmo2 = [](transformer& m) {
    m.norms_before = false;
    m.norms_behind = true;
    m.qk_norm = qk_norm_kind::whole;
  };
  const auto cohere = [](transformer& m) { m.tied_embeddings = m.shared_norm = true; };
  const auto deepseek3 = [](transformer& m) { m.expert_bias = true; };
  const auto bare_layer_norms = [&](transformer& m) { modern(m), all_biases(m, false), m.tied_embeddings = false; };
  return {
      {"llama yi deepseek deepseek_v2 internlm2 baichuan xverse exaone helium granite granitemoe granitemoeshared "
       "granitemoehybrid aquila",
       with_usual_sizes(llama({}), {32, 4096, 32, 0, 11008, 32000, 4096})},
      {"mistral ministral ministral3 mixtral phi3", with_usual_sizes(llama({}), {32, 4096, 32, 8, 14336, 32000, 131072}), 0,
       bias_scope::none},
      {"smollm3 minicpm minicpm3 ernie4_5", like_llama(tied)},
      {"qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text",
       with_usual_sizes(like_llama(qwen), {32, 4096, 32, 32, 22016, 151936, 32768}), 0, bias_scope::all, true},
      {"qwen", like_llama(qwen), 0, bias_scope::all, true},
      {"chatglm", like_llama(qwen)},
      {"qwen2_moe", like_llama([](transformer& m) {
         m.qkv_bias = true;
         m.shared_experts = 1;
         m.shared_gate = true;
       }),
       0, bias_scope::all, true},
      {"qwen3 qwen3_vl_text", like_llama([&](transformer& m) { heads_normed(m), m.head_size = 128; }), 0, bias_scope::all, true},
      {"qwen3_moe qwen3_vl_moe_text qwen3_omni_moe_text", like_llama(heads_normed), 0, bias_scope::all, true},
      {"seed_oss", like_llama(qwen), 0, bias_scope::queries_keys_values},
      {"glm", like_llama(qwen), 0, bias_scope::queries_keys_values},
      {"glm4 glm4v_text", like_llama([](transformer& m) { m.qkv_bias = m.norms_behind = true; }), 0,
       bias_scope::queries_keys_values},
      {"glm4_moe glm4v_moe_text", like_llama(deepseek3), 0, bias_scope::queries_keys_values},
      {"deepseek_v3 kimi_k2 glm4_moe_lite", like_llama(deepseek3)},
      {"dots1", like_llama([&](transformer& m) { heads_normed(m), deepseek3(m); }), 0, bias_scope::all, true},
      {"ernie4_5_moe", like_llama([&](transformer& m) { tied(m), deepseek3(m); })},
      {"minimax_m2", like_llama([&](transformer& m) {
         deepseek3(m);
         m.qk_norm = qk_norm_kind::whole;
       }),
       0, bias_scope::all, false, qk_norm_kind::whole},
      {"hunyuan_v1_dense hunyuan_v1_moe", like_llama(heads_normed)},
      {"gpt_oss", like_llama([](transformer& m) {
         m.qkv_bias = m.output_bias = m.mlp_bias = m.attention_sinks = m.expert_bias = true;
         m.head_size = 64;
         m.full_every = 2;
       })},
      {"llama4_text",
       with_usual_sizes(like_llama([](transformer& m) {
                          m.experts_per_token = m.shared_experts = 1;
                          m.experts = 16;
                          m.head_size = 128;
                          m.dense_ffn_hidden = 16384;
                          m.window = 8192;
                          m.full_every = 4;
                          m.chunked = true;
                        }),
                        {48, 5120, 40, 8, 8192, 202048, 131072}),
       0, bias_scope::all, false, qk_norm_kind::none},  // whose norms have no parameters
      {"gemma", with_usual_sizes(like_llama(gemma), {28, 3072, 16, 16, 24576, 256000, 8192})},
      {"gemma2", with_usual_sizes(like_llama(gemma2), {26, 2304, 8, 4, 9216, 256000, 8192})},
      {"gemma3_text", with_usual_sizes(like_llama(gemma3), {26, 2304, 8, 4, 9216, 262208, 131072})},
      {"olmo", like_llama([](transformer& m) { m.norm_vectors = 0; })},
      {"olmo2", like_llama(olmo2)},
      {"olmo3", like_llama([&](transformer& m) { olmo2(m), m.full_every = 4; })},
      {"olmoe", like_llama([](transformer& m) { m.qk_norm = qk_norm_kind::whole; })},
      {"exaone4", like_llama([&](transformer& m) {
         olmo2(m), heads_normed(m);
         m.full_every = 4;
       })},
      {"cohere", like_llama(cohere), 0, bias_scope::all, false, qk_norm_kind::whole},
      {"cohere2", like_llama([&](transformer& m) { cohere(m), m.full_every = 4; })},
      {"dbrx", like_llama([](transformer&) {})},
      {"stablelm", like_llama([](transformer& m) { m.norm_vectors = 2; }), 0, bias_scope::all, false, qk_norm_kind::whole},
      {"phimoe", like_llama([](transformer& m) { m.norm_vectors = 2; })},
      {"arcee", like_llama([](transformer& m) { m.gated_mlp = false; })},
      {"apertus", like_llama([&](transformer& m) { heads_normed(m), m.gated_mlp = false; })},
      {"nemotron", like_gpt(bare_layer_norms)},
      {"mpt", like_gpt([&](transformer& m) {
         bare_layer_norms(m), tied(m);
         m.norm_vectors = 1;
       })},
      {"starcoder2 xglm", like_gpt(modern)},
      {"gpt_neox", like_gpt([&](transformer& m) { modern(m), m.tied_embeddings = false; })},
      {"persimmon", like_gpt([&](transformer& m) { modern(m), m.tied_embeddings = false; })},
      {"phi", like_gpt([&](transformer& m) {
         modern(m), m.tied_embeddings = false;
         m.shared_norm = m.head_bias = true;
       })},
      {"gptj codegen", like_gpt([&](transformer& m) {
         modern(m), m.qkv_bias = m.output_bias = m.tied_embeddings = false;
         m.shared_norm = m.head_bias = true;
       })},
      {"falcon", like_gpt([&](transformer& m) { modern(m), all_biases(m, false), m.sequence = 2048; }), 0, bias_scope::all, false,
       qk_norm_kind::per_head, true},
      {"bloom", like_gpt([&](transformer& m) { modern(m), m.embedding_norm = true, m.sequence = 2048; })},
      {"gpt2 gpt-sw3", like_gpt([](transformer& m) { m.positions = 1; })},
      {"openai-gpt", like_gpt([](transformer& m) { m.positions = 1, m.pre_norm = false; })},
      {"gpt_bigcode", like_gpt([](transformer& m) { m.positions = 1; }), 0, bias_scope::all, false, qk_norm_kind::per_head, true},
      {"gpt_neo", like_gpt([](transformer& m) { m.positions = 1, m.qkv_bias = false; })},
      {"opt biogpt", like_gpt([](transformer& m) { m.positions = 1; }), 2},
      {"bert ernie", like_bert(2)},
      {"distilbert", like_bert(0)},
      {"roberta xlm-roberta camembert data2vec-text", like_bert(1), -2},
  };
}

}  // namespace hetsched::detail
