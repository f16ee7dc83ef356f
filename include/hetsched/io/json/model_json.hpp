// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// How to take a model file.
struct model_options {
  granularity cut = granularity::sublayer;  ///< of transformers; explicit layers stay as they are
  int sequence = 0;                         ///< tokens of a sample; 0: as the file says (Hugging Face: all positions)
  /// In place of the file's. Layers are amounts of 16-bit numbers: fp16 or bf16.
  std::optional<precision> dtype{};
};

/// A model and the arithmetic that its file asks for.
struct model_file {
  layer_chain chain;
  hetsched::precision precision = hetsched::precision::fp16;
  std::optional<transformer> family{};  ///< what the chain was cut from; none for explicit layers
  double weight_bits = 0;               ///< of weights in inference, where the file tells; 0: as the precision has it
  double cache_bits = 0;                ///< the same of keys and values
  /// Of linear layers in inference, where the file tells and the precision has 16 bits: see inference_options.
  std::optional<number_format> products{};
  std::vector<std::string> remarks{};  ///< what of a Hugging Face config was guessed or left out
  bool stored_as_fp32 = false;         ///< precision is fp32 as a Hugging Face config says so, which is how weights are stored
  friend bool operator==(const model_file&, const model_file&) = default;
};

namespace detail {

struct arithmetic {
  hetsched::precision precision = hetsched::precision::fp16;
  int bytes = 2;
};

/// `instead`, or what a file says.
[[nodiscard]] arithmetic read_dtype(const std::optional<json_value>& value, std::optional<precision> instead);

}  // namespace detail

/// Reads a model.json or a Hugging Face config.json from its text. A `transformer` is a GPT: learned positions, GELU, biases,
/// tied embeddings. Without a dtype, it is fp16.
/// Throws: file_error.
/// Complexity: O(size + layers).
[[nodiscard]] model_file parse_model(std::string_view text, std::string_view file_name, const model_options& options = {});

/// Reads a model.json or a Hugging Face config.json.
/// Throws: file_error.
/// Example:
///   const auto machines = read_cluster("cluster.json");
///   const auto model = read_model("model.json", {.cut = granularity::block});
///   const analytic_cost_model costs(machines, model.chain, {});
[[nodiscard]] inline model_file read_model(const std::string& path, const model_options& options = {}) {
  return parse_model(read_text(path), path, options);
}

/// The text of a model.json of explicit layers. The format has no place for backwards that do not take twice the forward, nor
/// for what selective recomputation and tensor or context parallelism need to know.
/// Throws: input_error unless an element has 2 bytes, as the format takes for granted.
[[nodiscard]] std::string to_model_json(const layer_chain& chain);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/model_json.ipp>
#endif
