// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/json/model_json_test.cpp.

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/json/detail/config_families.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched::detail {

inline constexpr int max_width = 1 << 24;
inline constexpr int max_blocks = 10'000;
inline constexpr int max_words = 1 << 30;

/// The keys of a Hugging Face config.json, each under the names that families give it. A key that is null is not there.
class config_keys {
 public:
  using names = std::initializer_list<std::string_view>;

  explicit config_keys(json_value top) : top_(std::move(top)) {}

  [[nodiscard]] const json_value& top() const { return top_; }

  /// The first key that is there, also within MPT's and DBRX's objects of keys.
  [[nodiscard]] std::optional<json_value> find(names any) const {
    for (const auto name : any) {
      if (auto value = top_.find(name); value && !value->is_null()) return value;
      for (const auto* within : {"attn_config", "ffn_config"})
        if (const auto some = top_.find(within); some && some->kind() == json_kind::object)
          if (auto value = some->find(name); value && !value->is_null()) return value;
    }
    return std::nullopt;
  }

  /// A number; of a list, as some write one per block, the number that all of it are.
  [[nodiscard]] std::optional<int> number(names any, int high = max_width) const {
    const auto value = find(any);
    if (!value) return std::nullopt;
    if (value->kind() != json_kind::list) return value->count(0, high);
    if (value->size() == 0) value->expected("a number, or one for each block");
    const int first = (*value)[0].count(0, high);
    for (std::size_t i = 1; i < value->size(); ++i)
      if ((*value)[i].count(0, high) != first) (*value)[i].expected("the same for all blocks, " + std::to_string(first));
    return first;
  }

  [[nodiscard]] std::optional<bool> flag(names any) const {
    const auto value = find(any);
    return value ? std::optional(value->boolean()) : std::nullopt;
  }

  void set(int& size, names any, int high = max_width) const {
    if (const auto value = number(any, high)) size = *value;
  }
  void set(bool& feature, names any) const {
    if (const auto value = flag(any)) feature = *value;
  }

  /// A size that must be there unless the family has a usual one; its complaints name the first name.
  void need(int& size, names any, int high = max_width) const {
    if (const auto value = find(any); value && value->kind() == json_kind::list) {
      set(size, any, high);
      if (size < 1) value->expected("whole numbers from 1 on");
    } else if (value)
      size = value->count(1, high);
    else if (size == 0)
      top_.at(*any.begin()).expected("a whole number");
  }

 private:
  json_value top_;
};

/// What no transformer block of ours is, by a key that says so or a part of the model_type. `or_not`: not where layer_types
/// says that all blocks have attention, whatever sizes others would have.
struct unlike_block {
  std::string_view word, is;
  bool or_not = false;
};
inline constexpr unlike_block unlike_blocks[] = {
    {"mamba", "state-space blocks", true},
    {"ssm", "state-space blocks", true},
    {"state_size", "state-space blocks", true},
    {"rwkv", "recurrent blocks"},
    {"xlstm", "recurrent blocks"},
    {"lru_width", "recurrent blocks"},
    {"conv_L_cache", "blocks of convolutions"},
    {"linear_key_head_dim", "blocks of linear attention", true},
    {"linear_attn_config", "blocks of linear attention"},
    {"attn_type_list", "blocks of linear attention"},
    {"hybrid_override_pattern", "blocks of several kinds"},
    {"block_configs", "blocks of unlike sizes"},
    {"ffn_multipliers", "blocks of unlike sizes"},
    {"global_head_dim", "blocks of unlike heads"},
    {"swa_num", "blocks of unlike heads"},
    {"cross_attention_layers", "blocks that attend to images"},
    {"hidden_size_per_layer_input", "an embedding for each block"},
    {"num_hidden_groups", "blocks that share weights"},
    {"use_cla", "blocks that share keys"},
    {"parallel_attn_mlp_res", "a dense MLP beside the experts"},
    {"index_n_heads", "attention to tokens that an indexer chooses"},
    {"zero_expert_num", "experts that do nothing"},
    {"is_encoder_decoder", "an encoder beside the decoder"},
};

inline void refuse_unlike_blocks(const json_value& top, std::string_view type) {
  const auto kinds = top.find("layer_types");
  const bool told = kinds && kinds->kind() == json_kind::list;
  for (std::size_t i = 0; told && i < kinds->size(); ++i)
    if (const auto kind = (*kinds)[i].text();
        kind != "full_attention" && kind != "attention" && kind != "sliding_attention" && kind != "chunked_attention")
      (*kinds)[i].expected("full_attention, sliding_attention or chunked_attention");
  const auto refuse = [](const json_value& place, std::string_view is) {
    place.fail("the model has " + std::string(is) +
               ", expected a transformer of blocks with attention and an MLP; a model.json of " + "layers can say what it is");
  };
  for (const auto& [word, is, or_not] : unlike_blocks)
    if (!(told && or_not) && type.find(word) != type.npos) refuse(top.at("model_type"), is);
  top.members([&](const std::string& key, const json_value& value) {
    for (const auto& [word, is, or_not] : unlike_blocks)
      if (!(told && or_not) && std::string_view(key).starts_with(word) && !value.is_nothing()) refuse(value, is);
  });
}

/// Whether a document is a config.json: it has a model_type, or blocks and a width.
[[nodiscard]] inline bool is_config(const json_value& top) {
  const config_keys keys(top);
  return top.has("model_type") || top.has("text_config") ||
         (keys.find({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}) &&
          keys.find({"hidden_size", "n_embd", "d_model"}));
}

/// A config.json as a transformer.
struct read_config {
  transformer model;
  json_value place;                  ///< of the keys: the document, or a config inside it
  std::vector<std::string> remarks;  ///< what was guessed or left out
};

inline void read_experts(const config_keys& keys, transformer& m) {
  keys.set(m.experts, {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  if (m.experts <= 1 || !keys.flag({"is_moe"}).value_or(true)) {
    m.experts = m.experts_per_token = m.shared_experts = m.dense_ffn_hidden = 0;
    m.shared_gate = false;
    return;
  }
  keys.need(m.experts_per_token,
            {"num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k", "moe_topk", "num_selected_experts"});
  if (const auto width = keys.number({"moe_intermediate_size", "expert_ffn_hidden_size"})) {
    m.dense_ffn_hidden = m.ffn_hidden;
    m.ffn_hidden = *width;
  }
  keys.set(m.dense_ffn_hidden, {"intermediate_size_mlp"});
  keys.set(m.shared_experts, {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"});
  keys.set(m.shared_ffn_hidden, {"shared_expert_intermediate_size", "shared_intermediate_size"});
  if (m.shared_ffn_hidden > 0 && m.shared_experts == 0) m.shared_experts = 1;
  keys.set(m.dense_blocks, {"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"}, max_blocks);
  if (const auto dense = keys.find({"mlp_only_layers"})) {
    for (std::size_t i = 0; i < dense->size(); ++i)
      if ((*dense)[i].count(0, max_blocks) != static_cast<int>(i)) (*dense)[i].expected("the first blocks, in order");
    if (dense->size() > 0) m.dense_blocks = static_cast<int>(dense->size());
  }
  if (const auto kinds = keys.find({"mlp_layer_types"})) {
    int dense = 0;
    for (std::size_t i = 0; i < kinds->size(); ++i)
      if ((*kinds)[i].text() == "dense" && dense++ != static_cast<int>(i))
        (*kinds)[i].expected("sparse, as dense blocks are the first");
    m.dense_blocks = dense;
  }
  const config_keys::names every{"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", "moe_layer_interval"};
  if (const auto list = keys.find(every); list && list->kind() == json_kind::list) {  // of each block whether it has experts
    m.dense_blocks = 0;
    while (m.dense_blocks < static_cast<int>(list->size()) && (*list)[as_size(m.dense_blocks)].count(0, 1) == 0) ++m.dense_blocks;
    for (auto i = as_size(m.dense_blocks); i < list->size(); ++i)
      if ((*list)[i].count(0, 1) != 1) (*list)[i].expected("1, as blocks without experts are the first");
  } else {
    keys.need(m.moe_every, every);
  }
}

inline void read_biases(const config_keys& keys, const config_family& family, transformer& m) {
  if (const auto all = keys.flag({"use_bias", "bias", "add_bias_linear"})) m.qkv_bias = m.output_bias = m.mlp_bias = *all;
  if (const auto none = keys.flag({"no_bias"}); none && family.types != "qwen") m.qkv_bias = m.output_bias = m.mlp_bias = !*none;
  if (const auto attention = keys.find({"attention_bias"}); attention && family.attention_bias != bias_scope::none) {
    m.qkv_bias = attention->boolean();
    if (family.attention_bias == bias_scope::all) m.output_bias = m.qkv_bias;
    if (m.kv_rank > 0 && m.qkv_bias) attention->expected("false");
  }
  keys.set(m.qkv_bias, {"qkv_bias", "use_qkv_bias", "add_qkv_bias"});
  keys.set(m.output_bias, {"attention_out_bias"});
  keys.set(m.mlp_bias, {"mlp_bias"});
  keys.set(m.head_bias, {"lm_head_bias"});
}

/// Windows, where each full_every-th block has none; other patterns are said and priced as if no block had one.
inline void read_windows(const config_keys& keys, const config_family& family, transformer& m,
                         std::vector<std::string>& remarks) {
  if (const auto chunk = keys.number({"attention_chunk_size"})) {
    m.window = *chunk;
    m.chunked = *chunk > 0;
  }
  if (const auto window = keys.top().find("sliding_window"))
    m.window = window->is_null() || window->is_nothing() ? 0 : window->count(0, max_width);
  if (!keys.flag({"use_sliding_window"}).value_or(!family.windows_when_told)) m.window = 0;
  bool regular = true;
  if (const auto kinds = keys.find({"layer_types"}); kinds && m.window > 0) {
    const auto full = [&](int i) {
      const auto kind = (*kinds)[as_size(i)].text();
      return kind == "full_attention" || kind == "attention";
    };
    const int count = static_cast<int>(kinds->size());
    int first = 0;
    while (first < count && !full(first)) ++first;
    m.full_every = first < count ? first + 1 : 0;
    for (int i = 0; i < count; ++i) regular = regular && full(i) == (m.full_every > 0 && (i + 1) % m.full_every == 0);
    if (m.full_every == 1) m.window = 0;
  } else if (const auto pattern = keys.find({"sliding_window_pattern"})) {
    m.full_every = pattern->kind() == json_kind::text ? static_cast<int>(pattern->text().size()) : pattern->count(0, max_blocks);
  } else if (const auto last = keys.number({"max_window_layers"}); last && m.window > 0 && *last > 0) {
    regular = *last >= m.layers;
    m.window = 0;
  }
  if (!regular) {
    m.window = 0;
    remarks.push_back("windows of attention are not every n-th block's: priced as if no block had one");
  }
  if (m.window == 0) {
    m.full_every = 0;
    m.chunked = false;
  }
}

/// Features of a model_type that is not known, by keys that families share.
[[nodiscard]] inline config_family guess_family(const config_keys& keys, std::string& guessed) {
  const auto told = [&](const std::string& what) { guessed += (guessed.empty() ? "" : ", ") + what; };
  const bool layer_norms = keys.find({"layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon"}).has_value();
  const bool rms = keys.find({"rms_norm_eps", "rms_norm", "rmsnorm"}).has_value() || !layer_norms;
  const auto act = keys.find({"hidden_act", "activation_function", "hidden_activation", "activation", "activation_type"});
  const auto name = act && act->kind() == json_kind::text ? act->text() : std::string();
  const bool gated = name.find("glu") != name.npos || name == "silu" || name == "swish" ||
                     (rms && name != "relu2" && name != "relu" && name != "relu_squared");
  config_family family{"", rms ? like_llama([](transformer&) {}) : like_gpt([](transformer& m) {
                         m.positions = 0;
                         m.dropout = false;
                       })};
  family.usual.gated_mlp = gated;
  family.usual.tied_embeddings = true;
  told(std::string(rms ? "RMS norms" : "layer norms") + " before attention and MLP");
  told(std::string(gated ? "a gated MLP" : "an MLP of two matrices") + (name.empty() ? "" : " (" + name + ")"));
  if (const auto kind = keys.find({"position_embedding_type"}); kind && kind->text() == "absolute") {
    family.usual.positions = 1;
    told("a table of positions");
  } else {
    told("rotary positions");
  }
  if (!keys.find({"attention_bias", "use_bias", "bias", "qkv_bias", "use_qkv_bias", "no_bias"}))
    told(rms ? "no biases" : "biases everywhere");
  if (!keys.find({"tie_word_embeddings"})) told("the output matrix is the embedding");
  return family;
}

/// What a reader can check of an unknown model_type.
[[nodiscard]] inline std::string taken_text(const transformer& m) {
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  std::string text = n(m.layers) + " blocks of " + n(m.hidden) + ", " + n(m.heads) + " heads";
  if (m.kv_heads > 0) text += " (" + n(m.kv_heads) + " of keys)";
  if (m.head_size > 0) text += " of " + n(m.head_size);
  if (m.kv_rank > 0) text += ", latent attention of rank " + n(m.kv_rank);
  if (m.experts > 0) text += ", " + n(m.experts) + " experts, " + n(m.experts_per_token) + " of a token";
  if (m.shared_experts > 0) text += ", " + n(m.shared_experts) + " shared";
  return text + ", MLP of " + n(m.ffn_hidden > 0 ? m.ffn_hidden : 4 * std::int64_t{m.hidden}) + ", " + n(m.vocab) + " words, " +
         n(m.sequence) + " tokens";
}

/// Images in patches, and a classifier of as many classes as have a name.
[[nodiscard]] inline transformer read_vision_transformer(const config_keys& keys) {
  vit_shape shape{.channels = keys.number({"num_channels"}).value_or(3), .classes = keys.number({"num_labels"}).value_or(2)};
  keys.need(shape.layers, {"num_hidden_layers"}, max_blocks);
  keys.need(shape.hidden, {"hidden_size"});
  keys.need(shape.heads, {"num_attention_heads"});
  keys.set(shape.ffn_hidden, {"intermediate_size"});
  shape.image = shape.patch = 0;
  keys.need(shape.image, {"image_size"});
  keys.need(shape.patch, {"patch_size"});
  if (const auto names = keys.find({"id2label"}); names && names->kind() == json_kind::object) {
    shape.classes = 0;
    names->members([&](const std::string&, const json_value&) { ++shape.classes; });
  }
  try {
    auto m = vit(shape);
    keys.set(m.qkv_bias, {"qkv_bias"});
    return m;
  } catch (const file_error&) {
    throw;
  } catch (const input_error& wrong) {
    keys.top().fail(wrong.what());
  }
}

/// What keys mean in one family alone. `tokens`: names of the most tokens.
inline void read_own_features(const config_keys& keys, const std::string& name, config_keys::names tokens, transformer& m) {
  if (name == "falcon") {
    const bool grouped = keys.flag({"new_decoder_architecture"}).value_or(false);
    m.shared_norm = (grouped || keys.flag({"parallel_attn"}).value_or(true)) &&
                    keys.number({"num_ln_in_parallel_attn"}).value_or(grouped ? 2 : 1) == 1;
  } else if (name == "stablelm") {
    keys.set(m.shared_norm, {"use_parallel_residual"});
  } else if (name == "opt") {
    keys.set(m.pre_norm, {"do_layer_norm_before"});
    keys.set(m.embedding_width, {"word_embed_proj_dim"});
    if (m.embedding_width == m.hidden) m.embedding_width = 0;
  } else if (name == "gpt2") {
    const auto drops = [&](const char* key) {
      const auto share = keys.find({key});
      return !share || share->number(0, 1) > 0;
    };
    m.dropout = drops("resid_pdrop") || drops("embd_pdrop") || drops("attn_pdrop");
  } else if (name == "internlm2") {
    m.mlp_bias = false;  // "bias" is attention's
  } else if (name == "mpt" && !keys.flag({"alibi"}).value_or(false) && keys.flag({"learned_pos_emb"}).value_or(true)) {
    keys.need(m.positions, tokens);
  }
}

/// The transformer that a config.json's keys say, its precision apart. `sequence` is what a user asks for; 0: all positions.
/// A config inside another, as of a model that also sees images, is the text model, and takes from `outer` what it leaves out.
[[nodiscard]] inline read_config read_transformer_config(const json_value& top, int sequence,
                                                         const std::optional<json_value>& outer = std::nullopt) {
  static const auto families = make_config_families();
  const config_keys keys(top);
  if (!keys.find({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}))
    for (const auto* within : {"text_config", "llm_config", "language_config", "language_model_config", "thinker_config"})
      if (const auto text = top.find(within); text && text->kind() == json_kind::object) {
        auto read = read_transformer_config(*text, sequence, outer ? outer : top);
        for (const auto* other : {"vision_config", "audio_config"})
          if (top.has(other)) read.remarks.push_back(std::string("of the model only ") + within + " is priced, without " + other);
        return read;
      }

  const auto type = keys.find({"model_type"});
  const std::string name = type ? type->text() : "";
  refuse_unlike_blocks(top, name);
  if (name == "vit") return {read_vision_transformer(keys), top, {}};
  const auto known = std::find_if(families.begin(), families.end(), [&](const config_family& f) {
    return !name.empty() && (' ' + std::string(f.types) + ' ').find(' ' + name + ' ') != std::string::npos;
  });
  std::string guessed;
  std::vector<std::string> remarks;
  const auto family = known != families.end() ? *known : guess_family(keys, guessed);
  transformer m = family.usual;
  if (!outer) m.layers = m.hidden = m.heads = m.kv_heads = 0;

  keys.need(m.layers, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, max_blocks);
  keys.need(m.hidden, {"hidden_size", "n_embd", "n_embed", "d_model", "dim"});
  keys.need(m.heads, {"num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"});
  if (!outer) m.ffn_hidden = 0, m.vocab = 0;
  int words = static_cast<int>(m.vocab);
  keys.need(words, {"vocab_size", "padded_vocab_size"}, max_words);
  keys.set(words, {"padded_vocab_size"}, max_words);
  m.vocab = words;
  const config_keys::names width{"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ffn_hidden", "hidden_dim"};
  if (m.gated_mlp && !keys.find(width)) keys.set(m.ffn_hidden, {"moe_intermediate_size"});  // no block is dense
  m.gated_mlp ? keys.need(m.ffn_hidden, width) : keys.set(m.ffn_hidden, width);
  if (const auto times = keys.number({"expansion_ratio"}); times && *times > 0) {
    if (*times > max_width / m.hidden)
      keys.find({"expansion_ratio"})->expected("at most " + std::to_string(max_width / m.hidden));
    m.ffn_hidden = *times * m.hidden;
  }
  if (family.types == "qwen") m.ffn_hidden /= 2;  // of both matrices that read
  keys.set(m.head_size, {"head_dim", "kv_channels"});

  const bool one_key =
      keys.flag({"multi_query"}).value_or(family.one_key) && !keys.flag({"new_decoder_architecture"}).value_or(false);
  if (one_key)
    m.kv_heads = 1;
  else if (keys.flag({"multi_query_attention"}).value_or(true) && keys.flag({"new_decoder_architecture"}).value_or(true))
    keys.set(m.kv_heads, {"num_key_value_heads", "num_kv_heads", "multi_query_group_num", "kv_n_heads"});

  const bool table = m.positions > 0;
  const int usual_sequence = outer || !m.gated_mlp ? m.sequence : 0;
  m.sequence = usual_sequence;
  const config_keys::names tokens{"max_position_embeddings", "n_positions", "seq_length",
                                  "max_sequence_length",     "max_seq_len", "n_ctx"};
  if (table || sequence == 0)
    keys.need(m.sequence, tokens);
  else
    m.sequence = sequence;
  if (table) {
    m.positions = m.sequence + std::max(0, family.spare_positions);
    m.sequence += std::min(0, family.spare_positions);
  }
  keys.set(m.token_types, {"type_vocab_size"});
  keys.set(m.tied_embeddings, {"tie_word_embeddings"});
  if (outer && !top.has("tie_word_embeddings")) config_keys(*outer).set(m.tied_embeddings, {"tie_word_embeddings"});

  keys.set(m.kv_rank, {"kv_lora_rank"});
  if (m.kv_rank > 0) {
    m.kv_heads = 0;
    keys.set(m.query_rank, {"q_lora_rank"});
    keys.need(m.rotary_size, {"qk_rope_head_dim"});
    int rest = 0;
    keys.need(rest, {"qk_nope_head_dim"});
    m.head_size = rest + m.rotary_size;
    m.value_size = m.hidden / m.heads;
    keys.set(m.value_size, {"v_head_dim"});
  }
  read_experts(keys, m);
  read_biases(keys, family, m);
  read_windows(keys, family, m, remarks);
  if (const auto on = keys.flag({"use_qk_norm", "qk_norm", "qk_layernorm"}))
    m.qk_norm = *on ? family.qk_norm : qk_norm_kind::none;

  read_own_features(keys, name, tokens, m);
  for (const auto* other : {"vision_config", "audio_config"})
    if (const auto part = top.find(other); !outer && part && part->kind() == json_kind::object)
      remarks.push_back(std::string("without ") + other);
  if (const auto more = keys.number({"num_nextn_predict_layers", "num_mtp_modules"}); more && *more > 0) {
    const bool known_at_head = m.head == output_head::language_model && m.patch_inputs == 0 && m.pre_norm && *more <= 64;
    if (known_at_head) m.further_tokens = *more;
    remarks.push_back(std::string(known_at_head ? "with" : "without") + " the blocks that predict further tokens (" +
                      std::to_string(*more) + ")" +
                      (known_at_head ? "; for trainers that have none, as transformers' models, say 0 of them" : ""));
  }
  if (known == families.end())
    remarks.push_back((type ? "model_type \"" + excerpt(name) + "\" is not known" : "there is no model_type") +
                      "; taken from the keys: " + taken_text(m) + "; guessed: " + guessed);
  return {m, top, std::move(remarks)};
}

}  // namespace hetsched::detail
