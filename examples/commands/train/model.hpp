// SPDX-License-Identifier: Apache-2.0
// The GPT that hetsched-train and hetsched-profile work on, from a file and options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <gpt/config.hpp>

namespace CLI {
class App;
}

namespace train {

struct model_arguments {
  std::string file;
  std::optional<int> layers, hidden, heads, kv_heads, ffn, sequence;
  std::string norm = "layer", activation = "gelu", positions = "learned", precision = "fp32";
  bool tied = true, bias = true;
  std::uint64_t seed = 1;

  [[nodiscard]] int element_bytes() const { return precision == "fp64" ? 8 : 4; }
};

void add_model_options(CLI::App& app, model_arguments& given);

/// Throws input_error for sizes that make no sense, and for files that ask for more than this example has.
[[nodiscard]] gpt::config read_config(const model_arguments& given);

/// One line that tells models apart.
[[nodiscard]] inline std::string describe(const gpt::config& m) {
  return std::to_string(m.layers) + " blocks, hidden " + std::to_string(m.hidden) + ", heads " + std::to_string(m.heads) + "/" +
         std::to_string(m.key_heads()) + ", ffn " + std::to_string(m.ffn_width()) + ", sequence " + std::to_string(m.sequence) +
         ", vocab " + std::to_string(m.vocab) + (m.norm == gpt::norm_kind::rms ? ", rms norm" : ", layer norm") +
         (m.activation == gpt::activation_kind::swiglu ? ", swiglu" : ", gelu") +
         (m.experts > 0 ? ", experts " + std::to_string(m.experts) + "/" + std::to_string(m.experts_per_token) + " every " +
                              std::to_string(m.moe_every)
                        : "") +
         (m.positions == gpt::position_kind::rotary ? ", rotary" : ", learned positions") + (m.bias ? "" : ", no bias") +
         (m.tied ? ", tied" : ", untied");
}

/// A model.json of these sizes, for hetsched-plan.
[[nodiscard]] std::string to_model_json(const gpt::config& m);

[[nodiscard]] inline std::string layer_name(const gpt::config& m, int layer) {
  if (layer == 0) return "embedding";
  return layer <= m.layers ? "block " + std::to_string(layer - 1) : "head";
}

/// Equal for layers that cost the same.
[[nodiscard]] inline int layer_kind(const gpt::config& m, int layer) {
  if (layer == 0) return 0;
  if (layer > m.layers) return 2;
  return m.has_experts(layer - 1) ? 3 : 1;
}

/// The text to train on: a file's, or the shipped one's.
[[nodiscard]] std::string read_corpus(const std::string& file);

}  // namespace train
