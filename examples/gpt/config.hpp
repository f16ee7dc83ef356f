// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>

namespace gpt {

enum class norm_kind {
  layer,  ///< mean 0 and variance 1, times a gain, plus a bias (Ba et al. 2016)
  rms,    ///< mean square 1, times a gain (Zhang and Sennrich 2019)
};

enum class activation_kind { gelu, swiglu };

enum class position_kind {
  learned,  ///< a row per position, added to the token's
  rotary,   ///< queries and keys turned by their position
};

/// A GPT by its sizes and kinds.
struct config {
  int layers = 4;  ///< blocks
  int hidden = 64;
  int heads = 4;
  int kv_heads = 0;    ///< 0: as many as heads
  int ffn_hidden = 0;  ///< 0: 4 * hidden
  int sequence = 64;   ///< tokens of a sample
  int vocab = 256;
  int experts = 0;  ///< MLPs of a block that has several; 0: none has
  int experts_per_token = 2;
  int moe_every = 1;  ///< blocks moe_every - 1, 2 * moe_every - 1 ... have experts
  norm_kind norm = norm_kind::layer;
  activation_kind activation = activation_kind::gelu;
  position_kind positions = position_kind::learned;
  bool bias = true;  ///< of the linear layers in blocks
  bool tied = true;  ///< the head's table is the embedding's
  std::uint64_t seed = 1;

  [[nodiscard]] int key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  [[nodiscard]] int ffn_width() const { return ffn_hidden > 0 ? ffn_hidden : 4 * hidden; }
  [[nodiscard]] bool has_experts(int block) const { return experts > 0 && (block + 1) % moe_every == 0; }
  /// Of what is added to the residual stream at first, so that it grows no wider with more blocks (GPT-2).
  [[nodiscard]] double residual_gain() const { return 1 / std::sqrt(2.0 * layers); }
  friend bool operator==(const config&, const config&) = default;
};

/// Throws input_error, naming the field, unless the sizes make sense.
inline void validate(const config& m) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw hetsched::input_error(std::string("gpt: ") + what);
  };
  const auto within = [](int value, int low, int high) { return value >= low && value <= high; };
  require(within(m.layers, 1, 10'000), "layers must be between 1 and 10000");
  require(within(m.hidden, 1, 1 << 20), "hidden must be between 1 and 1048576");
  require(within(m.heads, 1, m.hidden), "heads must be between 1 and hidden");
  require(m.hidden % m.heads == 0, "hidden must be divisible by heads");
  require(within(m.kv_heads, 0, m.heads), "kv_heads must be between 0 and heads");
  require(m.heads % m.key_heads() == 0, "heads must be divisible by kv_heads");
  require(within(m.ffn_hidden, 0, 1 << 22), "ffn_hidden must be between 0 and 4194304");
  require(within(m.sequence, 1, 1 << 20), "sequence must be between 1 and 1048576");
  require(within(m.vocab, 1, 1 << 24), "vocab must be between 1 and 16777216, which floats count exactly");
  require(within(m.experts, 0, 1 << 16), "experts must be between 0 and 65536");
  require(m.experts == 0 || within(m.experts_per_token, 1, m.experts), "experts_per_token must be between 1 and experts");
  require(within(m.moe_every, 1, 10'000), "moe_every must be between 1 and 10000");
  require(m.positions == position_kind::learned || m.hidden / m.heads % 2 == 0, "rotary positions need an even hidden / heads");
}

/// Also for the ranks of a tensor axis, which have the same number of heads, columns and positions each, and of a context axis,
/// which share positions, too; and of an expert axis, which have the same number of experts each.
inline void validate(const config& m, int tensor_degree, int context_degree = 1, int expert_degree = 1) {
  validate(m);
  if (m.experts % expert_degree != 0)
    throw hetsched::input_error("gpt: experts (" + std::to_string(m.experts) + ") must be divisible by the expert degree (" +
                                std::to_string(expert_degree) + ")");
  const auto require = [&](int value, const char* what) {
    if (value % tensor_degree != 0)
      throw hetsched::input_error(std::string("gpt: ") + what + " (" + std::to_string(value) +
                                  ") must be divisible by the tensor degree (" + std::to_string(tensor_degree) + ")");
  };
  require(m.heads, "heads");
  require(m.key_heads(), "kv_heads");
  require(m.ffn_width(), "ffn_hidden");
  require(m.sequence, "sequence");
  if (m.sequence % (tensor_degree * context_degree) != 0)
    throw hetsched::input_error("gpt: sequence (" + std::to_string(m.sequence) + ") must be divisible by the context degree (" +
                                std::to_string(context_degree) + ") times the tensor degree (" + std::to_string(tensor_degree) +
                                ")");
}

/// For the ranks of a tensor axis that have so many of the heads of keys and values each, with the queries and columns that
/// belong to them, and positions in equal parts.
inline void validate(const config& m, const std::vector<std::int64_t>& key_heads, int context_degree) {
  validate(m);
  const auto ranks = static_cast<int>(key_heads.size());
  if (std::find(key_heads.begin(), key_heads.end(), 0) != key_heads.end())
    throw hetsched::input_error("gpt: a tensor rank has none of the " + std::to_string(m.key_heads()) +
                                " heads of keys and values");
  if (m.ffn_width() % m.key_heads() != 0)
    throw hetsched::input_error("gpt: ffn_hidden (" + std::to_string(m.ffn_width()) + ") must be divisible by kv_heads (" +
                                std::to_string(m.key_heads()) + ") for uneven shares of the tensor axis");
  if (m.sequence % (ranks * context_degree) != 0)
    throw hetsched::input_error("gpt: sequence (" + std::to_string(m.sequence) + ") must be divisible by the context degree (" +
                                std::to_string(context_degree) + ") times the tensor degree (" + std::to_string(ranks) + ")");
}

}  // namespace gpt
