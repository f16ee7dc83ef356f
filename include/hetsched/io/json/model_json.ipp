// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/detail/config_json.hpp>
#include <hetsched/io/json/detail/copied_part_json.hpp>
#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/json/profile_json.hpp>
#include <hetsched/model/families.hpp>

namespace hetsched::detail {

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
  if (options.sequence > 0) model.sequence = options.sequence;
  try {
    validate(model);
    return {.chain = make_chain(model, options.cut), .precision = numbers.precision, .family = model};
  } catch (const file_error&) {
    throw;
  } catch (const input_error& wrong) {
    place.fail(wrong.what());
  }
}

/// The keys of a model.json's "transformer" that are sizes, from `low` on, and features that are there or not.
struct transformer_size {
  std::string_view key;
  int transformer::*size;
  int low = 0;
};
inline constexpr transformer_size transformer_size_keys[] = {
    {"kv_heads", &transformer::kv_heads, 1},
    {"head_dim", &transformer::head_size, 1},
    {"ffn_hidden", &transformer::ffn_hidden, 1},
    {"experts", &transformer::experts},
    {"experts_per_token", &transformer::experts_per_token},
    {"moe_every", &transformer::moe_every, 1},
    {"dense_blocks", &transformer::dense_blocks},
    {"shared_experts", &transformer::shared_experts},
    {"shared_ffn_hidden", &transformer::shared_ffn_hidden, 1},
    {"kv_rank", &transformer::kv_rank, 1},
    {"query_rank", &transformer::query_rank},
    {"rotary_dim", &transformer::rotary_size},
    {"value_dim", &transformer::value_size, 1},
    {"window", &transformer::window},
    {"full_every", &transformer::full_every},
    {"positions", &transformer::positions},
    {"token_types", &transformer::token_types},
    {"embedding_dim", &transformer::embedding_width, 1},
    {"further_tokens", &transformer::further_tokens},
};
struct transformer_flag {
  std::string_view key;
  bool transformer::*on;
};
inline constexpr transformer_flag transformer_flag_keys[] = {
    {"gated", &transformer::gated_mlp},
    {"tie", &transformer::tied_embeddings},
    {"dropout", &transformer::dropout},
    {"norm_before", &transformer::norms_before},
    {"norm_after", &transformer::norms_behind},
    {"shared_norm", &transformer::shared_norm},
    {"embedding_norm", &transformer::embedding_norm},
    {"shared_gate", &transformer::shared_gate},
    {"expert_bias", &transformer::expert_bias},
    {"chunked", &transformer::chunked},
    {"attention_sinks", &transformer::attention_sinks},
};
struct bias_key {
  std::string_view of;
  bool transformer::*on;
};
inline constexpr bias_key bias_keys[] = {{"qkv", &transformer::qkv_bias},
                                         {"output", &transformer::output_bias},
                                         {"mlp", &transformer::mlp_bias},
                                         {"head", &transformer::head_bias}};

struct norm_key {
  std::string_view name;
  int vectors;
};
inline constexpr norm_key norm_keys[] = {{"layer", 2},   {"layernorm", 2},          {"rms", 1},
                                         {"rmsnorm", 1}, {"layer_without_bias", 1}, {"bare", 0}};

/// true: of all products in blocks; false: none; a list: of those.
inline void read_biases(const json_value& value, transformer& m) {
  const bool all = value.kind() != json_kind::list && value.boolean();
  m.qkv_bias = m.output_bias = m.mlp_bias = all;
  for (std::size_t i = 0; value.kind() == json_kind::list && i < value.size(); ++i) {
    const auto name = value[i].text();
    const auto* found = std::find_if(std::begin(bias_keys), std::end(bias_keys), [&](const bias_key& b) { return b.of == name; });
    if (found == std::end(bias_keys)) value[i].expected("one of qkv, output, mlp, head");
    m.*found->on = true;
  }
}

/// A transformer by its sizes and features: GPT's where nothing is said.
[[nodiscard]] inline model_file read_transformer(const json_value& top, const model_options& options) {
  const auto value = top.at("transformer");
  std::vector<std::string_view> known{"layers", "hidden",      "heads",         "vocab",          "sequence",
                                      "dtype",  "weight_bits", "cache_bits",    "moe_ffn_hidden", "biases",
                                      "norm",   "qk_norm",     "norm_after_sum"};
  for (const auto& each : transformer_size_keys) known.push_back(each.key);
  for (const auto& each : transformer_flag_keys) known.push_back(each.key);
  value.object(known);

  const int heads = value.at("heads").count(1, max_width);
  if (const auto kv = value.find("kv_heads"); kv && heads % kv->count(1, max_width) != 0)
    kv->expected("a divisor of the " + std::to_string(heads) + " heads");
  if (const auto hidden = value.at("hidden"); hidden.count(1, max_width) % heads != 0 && !value.has("head_dim"))
    hidden.expected("a multiple of the " + std::to_string(heads) + " heads, or a head_dim");
  auto model = gpt({.layers = value.at("layers").count(1, max_blocks),
                    .hidden = value.at("hidden").count(1, max_width),
                    .heads = heads,
                    .vocab = value.at("vocab").count(1, 1 << 30),
                    .sequence = value.at("sequence").count(1, max_width)});
  if (options.sequence > 0) model.sequence = options.sequence;
  model.positions = std::max(model.positions, model.sequence);
  if (const auto norm = value.find("norm")) {
    const auto name = norm->text();
    const auto* found =
        std::find_if(std::begin(norm_keys), std::end(norm_keys), [&](const norm_key& k) { return k.name == name; });
    if (found == std::end(norm_keys)) norm->expected("one of layer, rms, layer_without_bias, bare (neither scale nor bias)");
    model.norm_vectors = found->vectors;
    if (name.starts_with("rms")) {  // nobody has such norms and a table of positions
      model.positions = 0;
      model.dropout = false;
    }
  }
  for (const auto& [key, size, low] : transformer_size_keys)
    if (const auto given = value.find(key)) model.*size = given->count(low, max_width);
  for (const auto& [key, on] : transformer_flag_keys)
    if (const auto given = value.find(key)) model.*on = given->boolean();
  if (const auto table = value.find("positions"); table && model.positions > 0 && model.positions < model.sequence)
    table->expected("0, or at least the " + std::to_string(model.sequence) + " tokens of a sequence");
  if (const auto chosen = value.find("experts_per_token"); chosen && model.experts_per_token > model.experts)
    chosen->expected("at most the " + std::to_string(model.experts) + " experts");
  if (model.experts > 0 && model.experts_per_token == 0) model.experts_per_token = std::min(2, model.experts);
  if (const auto width = value.find("moe_ffn_hidden")) {
    model.dense_ffn_hidden = model.ffn_hidden > 0 ? model.ffn_hidden : 4 * model.hidden;
    model.ffn_hidden = width->count(1, max_width);
  }
  if (const auto after = value.find("norm_after_sum")) model.pre_norm = !after->boolean();
  if (const auto norm = value.find("qk_norm")) {
    const bool by_name = norm->kind() == json_kind::text;
    if (by_name && norm->text() != "per_head" && norm->text() != "whole") norm->expected("true, false, per_head or whole");
    model.qk_norm = by_name && norm->text() == "whole" ? qk_norm_kind::whole
                    : by_name || norm->boolean()       ? qk_norm_kind::per_head
                                                       : qk_norm_kind::none;
  }
  if (const auto biases = value.find("biases")) read_biases(*biases, model);
  auto read = model_of(value, model, read_dtype(value.find("dtype"), options.dtype), options);
  if (const auto bits = value.find("weight_bits")) read.weight_bits = bits->number(1, 32);
  if (const auto bits = value.find("cache_bits")) read.cache_bits = bits->number(1, 32);
  return read;
}

[[nodiscard]] inline std::string quantization_method(const json_value& quantized) {
  const auto method = quantized.find("quant_method");
  return method && !method->is_null() ? method->text() : std::string();
}

/// What compressed-tensors says of "weights" or "input_activations", in the first of its groups; nothing for others.
[[nodiscard]] inline std::optional<json_value> compressed(const json_value& quantized, const char* of) {
  const auto groups = quantized.find("config_groups");
  std::optional<json_value> found;
  if (!groups || groups->kind() != json_kind::object) return found;
  groups->members([&](const std::string&, const json_value& group) {
    if (const auto own = group.find(of); !found && own && !own->is_null()) found = own;
  });
  return found;
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
  if (const auto weights = compressed(*quantized, "weights")) {
    const auto own = weights->find("group_size");
    const double of_group = own && !own->is_null() && own->number(-1, 1 << 20) > 0 ? 20 / own->number(-1, 1 << 20) : 0;
    if (const auto bits = weights->find("num_bits"); bits && !bits->is_null())
      return std::min(32.0, bits->number(1, 32) + of_group);
  }
  const auto name = quantization_method(*quantized);
  return name == "fp8" || name == "fbgemm_fp8" ? 8 : name == "mxfp4" ? 4.25 : 0;
}

/// What engines multiply in where the file stores inputs' formats beside weights': fp8 checkpoints, and those of
/// compressed-tensors whose inputs have 8 bits; else nothing.
[[nodiscard]] inline std::optional<number_format> quantized_products(const json_value& top) {
  const auto quantized = top.find("quantization_config");
  if (!quantized || quantized->is_null()) return {};
  const auto name = quantization_method(*quantized);
  if (name == "fp8" || name == "fbgemm_fp8") return number_format::fp8;
  const auto inputs = compressed(*quantized, "input_activations");
  const auto bits = inputs ? inputs->find("num_bits") : std::nullopt;
  if (!bits || bits->is_null() || bits->number(1, 32) != 8) return {};
  const auto type = inputs->find("type");
  return type && !type->is_null() && type->text() == "float" ? number_format::fp8 : number_format::int8;
}

/// JSON with null for the NaN and Infinity that Python writes, as in the limits of state-space models.
[[nodiscard]] inline std::string without_python_numbers(std::string_view text) {
  std::string plain;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      plain += text.substr(i++, 2);
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    const auto rest = quoted ? std::string_view() : text.substr(i);
    const auto number = rest.starts_with("NaN") ? 3 : rest.starts_with("Infinity") ? 8 : rest.starts_with("-Infinity") ? 9 : 0;
    if (number == 0) {
      plain += text[i];
      continue;
    }
    plain += "null";
    i += as_size(number) - 1;
  }
  return plain;
}

/// Reads a Hugging Face config.json: the keys that say what is computed. All others are passed over.
[[nodiscard]] inline model_file read_hugging_face(const json_value& top, const model_options& options) {
  auto config = read_transformer_config(top, options.sequence);
  if (config.model.positions > 0 && options.sequence > config.model.sequence)
    top.fail("found " + std::to_string(config.model.sequence) + " learned positions, expected at least the " +
             std::to_string(options.sequence) + " tokens of a sequence");
  // Those of a text model inside another may stand at either place.
  const config_keys outside(top), inside(config.place);
  auto dtype = outside.find({"torch_dtype", "dtype"});
  if (!dtype) dtype = inside.find({"torch_dtype", "dtype"});
  auto read = model_of(config.place, config.model, read_dtype(dtype, options.dtype), options);
  read.weight_bits = quantized_bits(top);
  if (read.weight_bits == 0) read.weight_bits = quantized_bits(config.place);
  read.products = quantized_products(top);
  if (!read.products) read.products = quantized_products(config.place);
  if (read.precision == precision::fp32 || read.precision == precision::tf32) read.products.reset();
  read.stored_as_fp32 = dtype && !options.dtype && read.precision == precision::fp32;
  read.remarks = std::move(config.remarks);
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
  const bool own = text.find("\"hetsched/") != text.npos;  // and no config.json
  const detail::json_document document(own ? std::string(text) : detail::without_python_numbers(text), file_name);
  const auto any = document.value();
  any.object();
  if (!any.has("format") && detail::is_config(any)) return detail::read_hugging_face(any, options);
  if (!any.has("format") && !any.has("transformer") && !any.has("layers"))
    any.fail(
        "is neither a model.json (\"format\": \"hetsched/model\") nor a Hugging Face config.json (model_type, or blocks and a "
        "width)");
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
