// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/detail/copied_part_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/model/families.hpp>

namespace hetsched::detail {

inline constexpr int max_width = 1 << 24;

inline constexpr int max_blocks = 10'000;

[[nodiscard]] constexpr arithmetic arithmetic_of(precision p) {
  return {p, p == precision::fp32 || p == precision::tf32 ? 4 : 2};
}

HETSCHED_INLINE arithmetic read_dtype(const std::optional<json_value>& value, std::optional<precision> instead) {
  if (instead) return arithmetic_of(*instead);
  if (!value) return {};
  const auto name = value->text();
  if (const auto one = find_precision(name)) return arithmetic_of(*one);
  if (name == "float16") return arithmetic_of(precision::fp16);
  if (name == "bfloat16") return arithmetic_of(precision::bf16);
  if (name == "float32") return arithmetic_of(precision::fp32);
  value->expected("one of fp16, bf16, fp32, tf32 (float16, bfloat16, float32)");
}

/// The layers of a transformer whose sizes came from one place of a file, which errors in them name.
[[nodiscard]] inline model_file model_of(const json_value& place, transformer model, arithmetic numbers,
                                         const model_options& options) {
  model.parameter_bytes = numbers.bytes;
  if (options.sequence > 0) {
    model.sequence = options.sequence;
    if (model.positions > 0) model.positions = std::max(model.positions, model.sequence);
  }
  try {
    validate(model);
    return {.chain = make_chain(model, options.cut), .precision = numbers.precision, .family = model};
  } catch (const file_error&) {
    throw;
  } catch (const input_error& wrong) {
    place.fail(wrong.what());
  }
}

/// GPT by its sizes; with experts in every moe_every-th block if there are any.
[[nodiscard]] inline model_file read_transformer(const json_value& top, const model_options& options) {
  const auto value = top.at("transformer");
  value.object({"layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "sequence", "dtype", "experts",
                "experts_per_token", "moe_every", "dropout", "weight_bits", "cache_bits"});
  const auto optional = [&](const char* key, int low, int otherwise) {
    const auto given = value.find(key);
    return given ? given->count(low, max_width) : otherwise;
  };
  const int heads = value.at("heads").count(1, max_width);
  if (const auto kv = value.find("kv_heads"); kv && heads % kv->count(1, max_width) != 0)
    kv->expected("a divisor of the " + std::to_string(heads) + " heads");
  if (const auto hidden = value.at("hidden"); hidden.count(1, max_width) % heads != 0)
    hidden.expected("a multiple of the " + std::to_string(heads) + " heads");
  auto model = gpt({.layers = value.at("layers").count(1, max_blocks),
                    .hidden = value.at("hidden").count(1, max_width),
                    .heads = heads,
                    .kv_heads = optional("kv_heads", 1, 0),
                    .ffn_hidden = optional("ffn_hidden", 1, 0),
                    .vocab = value.at("vocab").count(1, 1 << 30),
                    .sequence = value.at("sequence").count(1, max_width)});
  if (const auto dropout = value.find("dropout")) model.dropout = dropout->boolean();
  model.experts = optional("experts", 0, 0);
  model.experts_per_token = optional("experts_per_token", 0, model.experts > 0 ? std::min(2, model.experts) : 0);
  model.moe_every = optional("moe_every", 1, 1);
  if (model.experts == 0) model.experts_per_token = 0;
  if (const auto chosen = value.find("experts_per_token"); chosen && model.experts_per_token > model.experts)
    chosen->expected("at most the " + std::to_string(model.experts) + " experts");
  auto read = model_of(value, model, read_dtype(value.find("dtype"), options.dtype), options);
  if (const auto bits = value.find("weight_bits")) read.weight_bits = bits->number(1, 32);
  if (const auto bits = value.find("cache_bits")) read.cache_bits = bits->number(1, 32);
  return read;
}

/// Bits of weights that a config.json's quantization_config tells; 0 where it tells none.
[[nodiscard]] inline double quantized_bits(const json_value& top) {
  const auto quantized = top.find("quantization_config");
  if (!quantized || quantized->is_null()) return 0;
  // Each group has a scale and a zero point.
  const auto group = quantized->find("group_size");
  const double grouped = group && !group->is_null() && group->number(-1, 1 << 20) > 0 ? 20 / group->number(-1, 1 << 20) : 0;
  for (const char* key : {"bits", "w_bit"})
    if (const auto bits = quantized->find(key); bits && !bits->is_null()) return std::min(32.0, bits->number(1, 32) + grouped);
  for (const auto& [key, bits] : {std::pair{"load_in_4bit", 4.0}, {"load_in_8bit", 8.0}})
    if (const auto on = quantized->find(key); on && !on->is_null() && on->boolean()) return bits;
  const auto method = quantized->find("quant_method");
  const auto name = method && !method->is_null() ? method->text() : std::string();
  return name == "fp8" || name == "fbgemm_fp8" ? 8 : name == "mxfp4" ? 4.25 : 0;
}

/// Reads a Hugging Face config.json: the keys that say what is computed. All others are passed over.
[[nodiscard]] inline model_file read_hugging_face(const json_value& top, const model_options& options) {
  const auto present = [&](const char* key) {
    auto value = top.find(key);
    return value && !value->is_null() ? value : std::nullopt;
  };
  const auto required = [&](const char* key, int high = max_width) { return top.at(key).count(1, high); };
  const auto size = [&](const char* key, int otherwise) {
    const auto value = present(key);
    return value ? value->count(1, max_width) : otherwise;
  };
  const auto flag = [&](const char* key, bool otherwise) {
    const auto value = present(key);
    return value ? value->boolean() : otherwise;
  };
  auto dtype = present("torch_dtype");
  if (!dtype) dtype = present("dtype");

  const auto type = top.at("model_type");
  const std::string family = type.text();
  transformer model;
  if (family == "gpt2") {
    model = gpt({.layers = required("n_layer", max_blocks),
                 .hidden = required("n_embd"),
                 .heads = required("n_head"),
                 .ffn_hidden = size("n_inner", 0),
                 .vocab = required("vocab_size", 1 << 30),
                 .sequence = required("n_positions")});
    model.tied_embeddings = flag("tie_word_embeddings", true);
    model.dropout = false;
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
      const auto share = present(key);
      model.dropout = model.dropout || !share || share->number(0, 1) > 0;
    }
  } else if (family == "bert") {
    model = bert({.layers = required("num_hidden_layers", max_blocks),
                  .hidden = required("hidden_size"),
                  .heads = required("num_attention_heads"),
                  .ffn_hidden = required("intermediate_size"),
                  .vocab = required("vocab_size", 1 << 30),
                  .sequence = required("max_position_embeddings")});
    model.token_types = size("type_vocab_size", 2);
    model.tied_embeddings = flag("tie_word_embeddings", true);
  } else if (family == "gpt_neox") {
    model = gpt({.layers = required("num_hidden_layers", max_blocks),
                 .hidden = required("hidden_size"),
                 .heads = required("num_attention_heads"),
                 .ffn_hidden = required("intermediate_size"),
                 .vocab = required("vocab_size", 1 << 30),
                 .sequence = required("max_position_embeddings")});
    model.positions = 0;  // rotary
    model.tied_embeddings = flag("tie_word_embeddings", false);
    model.qkv_bias = flag("attention_bias", true);
    model.dropout = false;
  } else if (family == "opt") {
    const int hidden = required("hidden_size");
    if (const auto width = present("word_embed_proj_dim"); width && width->count(1, max_width) != hidden)
      width->expected("the hidden_size, " + std::to_string(hidden));
    if (const auto before = present("do_layer_norm_before"); before && !before->boolean()) before->expected("true");
    model = gpt({.layers = required("num_hidden_layers", max_blocks),
                 .hidden = hidden,
                 .heads = required("num_attention_heads"),
                 .ffn_hidden = required("ffn_dim"),
                 .vocab = required("vocab_size", 1 << 30),
                 .sequence = required("max_position_embeddings")});
    model.positions = model.sequence + 2;
    model.tied_embeddings = flag("tie_word_embeddings", true);
  } else if (family == "falcon") {
    const bool grouped = flag("new_decoder_architecture", false), side_by_side = grouped || flag("parallel_attn", true);
    const int heads = required("num_attention_heads");
    model = gpt({.layers = required("num_hidden_layers", max_blocks),
                 .hidden = required("hidden_size"),
                 .heads = heads,
                 .kv_heads = grouped                     ? size("num_kv_heads", heads)
                             : flag("multi_query", true) ? 1
                                                         : heads,
                 .ffn_hidden = size("ffn_hidden_size", 0),
                 .vocab = required("vocab_size", 1 << 30),
                 .sequence = size("max_position_embeddings", 2048)});
    model.positions = 0;  // rotary, or added to the scores
    model.bias = model.qkv_bias = flag("bias", false);
    model.tied_embeddings = flag("tie_word_embeddings", true);
    model.shared_norm = side_by_side && size("num_ln_in_parallel_attn", grouped ? 2 : 1) == 1;
    model.dropout = false;
  } else if (family == "deepseek_v2" || family == "deepseek_v3") {
    if (const auto every = present("moe_layer_freq"); every && every->count(1, max_width) != 1) every->expected("1");
    if (const auto bias = present("attention_bias"); bias && bias->boolean()) bias->expected("false");
    model = llama({.layers = required("num_hidden_layers", max_blocks),
                   .hidden = required("hidden_size"),
                   .heads = required("num_attention_heads"),
                   .ffn_hidden = required("moe_intermediate_size"),
                   .vocab = required("vocab_size", 1 << 30),
                   .sequence = required("max_position_embeddings")});
    model.kv_rank = required("kv_lora_rank");
    model.query_rank = size("q_lora_rank", 0);
    model.rotary_size = required("qk_rope_head_dim");
    model.head_size = required("qk_nope_head_dim") + model.rotary_size;
    model.value_size = required("v_head_dim");
    model.experts = required("n_routed_experts");
    model.experts_per_token = required("num_experts_per_tok");
    model.shared_experts = size("n_shared_experts", 0);
    if (const auto dense = present("first_k_dense_replace")) model.dense_blocks = dense->count(0, max_blocks);
    model.dense_ffn_hidden = required("intermediate_size");
    model.expert_bias = family == "deepseek_v3";
    model.tied_embeddings = flag("tie_word_embeddings", false);
  } else if (family == "llama" || family == "mistral" || family == "qwen2" || family == "qwen3" || family == "phi3" ||
             family == "mixtral" || family == "gemma" || family == "gemma2" || family == "gemma3_text") {
    const bool gemma = family.starts_with("gemma");
    model = llama({.layers = required("num_hidden_layers", max_blocks),
                   .hidden = required("hidden_size"),
                   .heads = required("num_attention_heads"),
                   .kv_heads = size("num_key_value_heads", 0),
                   .ffn_hidden = required("intermediate_size"),
                   .vocab = required("vocab_size", 1 << 30),
                   .sequence = required("max_position_embeddings")});
    model.head_size = size("head_dim", gemma ? 256 : 0);
    model.tied_embeddings = flag("tie_word_embeddings", gemma);
    model.bias = flag("mlp_bias", false);
    model.qkv_bias = flag("attention_bias", family == "qwen2");
    model.qk_norm = family == "qwen3" || family == "gemma3_text";
    model.norms_behind = gemma && family != "gemma";
    if (family == "qwen3" && model.head_size == 0) model.head_size = 128;
    if (family == "mixtral") {
      model.experts = required("num_local_experts");
      model.experts_per_token = required("num_experts_per_tok");
    }
  } else {
    type.expected(
        "one of gpt2, gpt_neox, opt, falcon, llama, mistral, qwen2, qwen3, phi3, mixtral, gemma, gemma2, gemma3_text, "
        "deepseek_v2, deepseek_v3, bert");
  }
  if (model.positions > 0 && options.sequence > model.sequence)
    top.fail("found " + std::to_string(model.sequence) + " learned positions, expected at least the " +
             std::to_string(options.sequence) + " tokens of a sequence");
  auto read = model_of(top, model, read_dtype(dtype, options.dtype), options);
  read.weight_bits = quantized_bits(top);
  read.stored_as_fp32 = dtype && !options.dtype && read.precision == precision::fp32;
  return read;
}

/// Reads a layer by its amounts per sample. Backward takes twice the FLOPs of forward, weights are 16-bit parameters, and
/// what is kept is written once and read once.
[[nodiscard]] inline layer read_layer(const json_value& value, int index, int layers) {
  value.object({"name", "forward_flops", "weight_bytes", "activation_bytes", "boundary_bytes", "copy_of"});
  layer result;
  result.name = value.at("name").name();
  result.forward_flops = value.at("forward_flops").number(0, 1e24);
  result.backward_flops = 2 * result.forward_flops;
  result.parameters = ceil_div(value.at("weight_bytes").bytes(), 2);
  if (const auto copy = value.find("copy_of")) {
    const auto [owner, fraction] = read_copied_part(*copy, index, layers);
    result.owner = owner;
    result.shared_parameters = static_cast<std::int64_t>(std::round(static_cast<double>(result.parameters) * fraction));
    result.parameters -= result.shared_parameters;
  }
  result.activation_bytes = value.at("activation_bytes").bytes();
  result.boundary_bytes = value.at("boundary_bytes").bytes();
  result.memory_traffic_bytes = checked_mul(2, result.activation_bytes);
  return result;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE model_file parse_model(std::string_view text, std::string_view file_name, const model_options& options) {
  const detail::json_document document(text, file_name);
  const auto any = document.value();
  any.object();
  if (!any.has("format") && any.has("model_type")) return detail::read_hugging_face(any, options);
  const auto top = document.format("model", {"transformer", "layers"});
  if (top.has("transformer") == top.has("layers"))
    top.fail(
        "expected either the key \"transformer\" or the key \"layers\", or a Hugging Face config.json with its \"model_type\"");
  if (top.has("transformer")) return detail::read_transformer(top, options);
  const auto layers = top.at("layers");
  if (layers.size() == 0 || layers.size() > as_size(max_layers))
    layers.expected("1 to " + std::to_string(max_layers) + " layers");
  model_file result;
  if (options.dtype) {
    result.precision = *options.dtype;
    if (detail::arithmetic_of(*options.dtype).bytes != result.chain.parameter_bytes)
      layers.fail("are amounts of 16-bit numbers, expected fp16 or bf16 to compute them in, found " +
                  std::string(name_of(*options.dtype)));
  }
  const int count = static_cast<int>(layers.size());
  for (int i = 0; i < count; ++i) result.chain.layers.push_back(detail::read_layer(layers[as_size(i)], i, count));
  return result;
}

HETSCHED_INLINE std::string to_model_json(const layer_chain& chain) {
  if (chain.parameter_bytes != 2) throw input_error("a model.json of layers holds elements of 2 bytes only");
  auto layers = nlohmann::ordered_json::array();
  for (const auto& l : chain.layers) {
    layers.push_back({{"name", l.name},
                      {"forward_flops", l.forward_flops},
                      {"weight_bytes", checked_mul(2, checked_add(l.parameters, l.shared_parameters))},
                      {"activation_bytes", l.activation_bytes},
                      {"boundary_bytes", l.boundary_bytes}});
    if (l.shared_parameters > 0) layers.back()["copy_of"] = {{"layer", l.owner}, {"fraction", shared_fraction(l)}};
  }
  return detail::dump({{"format", "hetsched/model"}, {"version", 1}, {"layers", std::move(layers)}});
}

}  // namespace hetsched
