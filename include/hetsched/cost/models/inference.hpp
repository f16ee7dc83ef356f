// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/models/inference_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/model/transformer_operators.hpp>

namespace hetsched {

/// Requests of equal length, and how they are served.
struct inference_options {
  int prompt_tokens = 512;
  int output_tokens = 128;  ///< the first of which the prompt makes
  int batch = 1;            ///< requests that go through the stages together
  int chunk_tokens = 0;     ///< the prompt goes in pieces of so many; 0: at once
  hetsched::precision precision = hetsched::precision::fp16;
  /// fp8 or int8: linear layers of blocks multiply in it where the device does, with inputs that are rounded first, in sizes that
  /// 16 divides; elsewhere, and all else, in the precision, which has 16 bits then. None: all in the precision.
  std::optional<number_format> products{};
  double weight_bits = 0;  ///< of a weight as it is stored and read, scales included; 0: as products or the precision have it
  double cache_bits = 0;   ///< the same of keys and values
  memory_overheads overheads = fitted_overheads;
  granularity cut = granularity::block;
};

/// Costs of inference with a decoder from its operators, each timed by itself: the prompt with attention over what is there
/// already, of the head only the last token; then every further token of a batch by itself, for which all weights are read and
/// the keys and values of all tokens so far. A stage holds its weights and for each batch in flight the keys and values of the
/// whole request. Stages lie on single devices. An additive_cost_model and inference_costs: forward_s is all that a batch takes.
/// Source: HAP5 sec. IV-C; the steps of decoding are summed by Simpson's rule, exact where they grow evenly with the cache,
/// apart before and after a window is full.
template <operator_timer Timer = tile_timer>
class inference_cost_model {
 public:
  /// Throws input_error for a cluster, model or option that makes no sense, for a model that makes no tokens or has fewer
  /// positions than a request, and, naming the device, for one that the timer cannot time.
  inference_cost_model(hetsched::cluster hardware, transformer model, const inference_options& options = {}, Timer timer = {})
      : cluster_(std::move(hardware)), model_(std::move(model)), options_(options), timer_(std::move(timer)) {
    validate(cluster_);
    validate(options_.overheads);
    const auto require = [](bool holds, const std::string& what) {
      if (!holds) throw input_error(what);
    };
    require(options_.prompt_tokens >= 1 && options_.output_tokens >= 1 && options_.batch >= 1 && options_.chunk_tokens >= 0,
            "a request needs a prompt and an output of at least one token, and a batch a request");
    for (const double bits : {options_.weight_bits, options_.cache_bits})
      require(bits == 0 || (bits >= 1 && bits <= 32), "weights and caches have between 1 and 32 bits");
    if (options_.products) {
      require(in_8_bits(*options_.products), "products of inference are in fp8, int8, or the precision");
      require(element_bytes(format_of(options_.precision)) == 2, "products in 8 bits go with a precision of 16");
      if (options_.weight_bits == 0) options_.weight_bits = 8;
    }
    require(model_.kv_rank == 0, "inference with latent attention is not priced");
    require(model_.head == output_head::language_model && model_.patch_inputs == 0,
            "inference needs a model that makes one token after the other");
    const auto tokens = std::int64_t{options_.prompt_tokens} + options_.output_tokens;
    require(tokens <= 1 << 24, "a request of more than 16777216 tokens");
    require(model_.positions == 0 || tokens <= model_.positions, "prompt and output have " + std::to_string(tokens) +
                                                                     " tokens, the model " + std::to_string(model_.positions) +
                                                                     " positions");
    model_.dropout = false;
    model_.further_tokens = 0;
    const int piece = options_.chunk_tokens > 0 ? options_.chunk_tokens : options_.prompt_tokens;
    for (int past = 0; past < options_.prompt_tokens; past += piece)
      chunks_.push_back({std::min(piece, options_.prompt_tokens - past), past});
    price_memory();
    for (const auto& s : cluster_.subclusters) {
      try {
        const auto device = make_tile_device(s.device);
        price(device, options_.products && (*options_.products == number_format::fp8 ? device.has_fp8 : device.has_int8));
      } catch (const input_error& e) {
        throw input_error("device " + s.device.name + ": " + e.what());
      }
    }
  }

  [[nodiscard]] int layer_count() const { return static_cast<int>(kinds_.size()); }
  [[nodiscard]] const inference_options& options() const { return options_; }
  [[nodiscard]] int output_tokens() const { return options_.output_tokens; }
  [[nodiscard]] int chunk_count() const { return static_cast<int>(chunks_.size()); }

  /// One device.
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.device_count() != 1) return {};
    return {{.mesh = mesh}};
  }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto cost = at(memory_, index);
    const auto& t = times(index, where);
    for (const double s : t.chunk_s) cost.forward_s += s;
    cost.forward_s += t.decoding_s;
    return cost;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  /// Seconds of a piece of the prompt.
  [[nodiscard]] double chunk_s(int piece, layer_range layers, const placement& where) const {
    double sum = 0;
    for (int l = layers.first; l < layers.last; ++l) sum += times(l, where).chunk_s.at(as_size(piece));
    return sum;
  }
  /// Seconds of all tokens behind the first.
  [[nodiscard]] double decoding_s(layer_range layers, const placement& where) const {
    double sum = 0;
    for (int l = layers.first; l < layers.last; ++l) sum += times(l, where).decoding_s;
    return sum;
  }

  /// All that a batch sends over a boundary, as boundary_cost prices each message.
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    double seconds = decoding_transfer_s(boundary, from, to, near);
    for (int c = 0; c < chunk_count(); ++c) seconds += chunk_transfer_s(c, boundary, from, to, near);
    const auto tokens = std::int64_t{options_.prompt_tokens} + options_.output_tokens - 1;
    return {seconds, 0, checked_mul(tokens, bytes_of_token(boundary)), 0, "direct"};
  }
  [[nodiscard]] double chunk_transfer_s(int piece, int boundary, const placement& from, const placement& to,
                                        proximity near) const {
    return moved_s(chunks_.at(as_size(piece)).tokens, boundary, from, to, near);
  }
  [[nodiscard]] double decoding_transfer_s(int boundary, const placement& from, const placement& to, proximity near) const {
    if (options_.output_tokens == 1) return 0;
    return (options_.output_tokens - 1) * moved_s(1, boundary, from, to, near);
  }
  [[nodiscard]] static constexpr std::int64_t transfer_class(const placement& where) { return boundary_side_class(where); }
  /// Boundaries of equally many bytes.
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return bytes_of_token(boundary); }

  [[nodiscard]] memory_overheads overheads(const placement&) const { return options_.overheads; }
  /// Of parameters: there are no gradients.
  [[nodiscard]] std::vector<parameter_copy> copies(const placement&) const { return copies_; }

 private:
  struct chunk {
    int tokens, past;
  };
  struct layer_times {
    std::vector<double> chunk_s;
    double decoding_s = 0;
  };

  // The model as it sees `tokens` new tokens of a sequence. `quantises`: with its products in 8 bits.
  [[nodiscard]] transformer_operators operators_of(int tokens, bool quantises = false) const {
    auto m = model_;
    m.sequence = tokens;
    return transformer_operators(std::move(m),
                                 {.format = format_of(options_.precision),
                                  .attention = attention_kernels::flash,
                                  .fp8_products = quantises,
                                  .causal = true,
                                  .training = false},
                                 options_.cut);
  }

  // Whether a layer's attention has a window that requests outgrow.
  [[nodiscard]] bool windowed(int layer) const {
    const int parts = options_.cut == granularity::block ? 1 : 3;
    auto m = model_;
    m.sequence = options_.prompt_tokens + options_.output_tokens;
    return layer > 0 && has_window(m, (layer - 1) / parts);
  }

  // Attention of that many tokens behind `past` others, as `op` has its heads and their width.
  [[nodiscard]] operator_shape attention(const operator_shape& op, int tokens, int past, bool with_window) const {
    const int kv_heads = model_.kv_heads > 0 ? model_.kv_heads : model_.heads;
    const std::int64_t window = model_.window;
    // Keys that any of the tokens sees.
    std::int64_t keys = std::int64_t{past} + tokens;
    if (with_window) keys = model_.chunked ? past % window + tokens : std::min(keys, tokens + window - 1);
    auto cached = cached_attention(op.batch, std::int64_t{options_.batch} * kv_heads, tokens, keys, op.k, true, op.format);
    if (with_window && tokens > 1) {
      // As without a window, a token counts half of itself.
      const double scores = pairs(past + std::int64_t{tokens}) - pairs(past) - 0.5 * tokens;
      cached.causal_share = scores / (static_cast<double>(tokens) * static_cast<double>(keys));
    }
    cached.traffic_bytes -= 2.0 * static_cast<double>(options_.batch) * kv_heads * static_cast<double>(keys * cached.k) *
                            (element_bytes(cached.format) - cache_bytes_each(element_bytes(cached.format)));
    return cached;
  }
  // Of tokens and what their windows show them, among the first `tokens`.
  [[nodiscard]] double pairs(std::int64_t tokens) const {
    const auto triangle = [](std::int64_t n) { return 0.5 * static_cast<double>(n) * static_cast<double>(n + 1); };
    const std::int64_t window = model_.window, whole = tokens / window;
    if (model_.chunked) return static_cast<double>(whole) * triangle(window) + triangle(tokens % window);
    return tokens <= window ? triangle(tokens)
                            : triangle(window) + static_cast<double>(tokens - window) * static_cast<double>(window);
  }

  // What a device launches for that many tokens behind `past` others.
  [[nodiscard]] std::vector<operator_use> launches(const transformer_operators& ops, int kind, int tokens, int past) const {
    const bool head = kind == ops.chain().size() - 1;
    auto list = (head ? operators_of(1) : ops).operators(kind, {options_.batch, 1, 1}).forward;
    for (auto& use : list) {
      if (use.op.quantised) use.op.format = *options_.products;
      if (use.op.kind == operator_kind::gemm)
        use.op.traffic_bytes -= static_cast<double>(use.op.batch) * static_cast<double>(use.op.k) *
                                static_cast<double>(use.op.n) *
                                (element_bytes(use.op.format) - weight_bytes_each(element_bytes(use.op.format)));
      if (use.op.kind == operator_kind::flash_attention) use.op = attention(use.op, tokens, past, windowed(kind));
    }
    return list;
  }

  [[nodiscard]] double weight_bytes_each(int otherwise) const {
    return options_.weight_bits > 0 ? options_.weight_bits / 8 : otherwise;
  }
  [[nodiscard]] double cache_bytes_each(int otherwise) const {
    return options_.cache_bits > 0 ? options_.cache_bits / 8 : otherwise;
  }

  void price_memory() {
    const auto ops = operators_of(1);
    const auto& chain = ops.chain();
    const auto request = operators_of(options_.prompt_tokens + options_.output_tokens);  // its layers are alike by their windows
    const std::int64_t width = model_.head_size > 0 ? model_.head_size : model_.hidden / model_.heads;
    const auto cache_of = [&](int layer) {
      auto tokens = std::int64_t{options_.prompt_tokens} + options_.output_tokens;
      if (windowed(layer)) tokens = model_.window;
      const auto cached =
          checked_mul(2 * tokens * options_.batch, (model_.kv_heads > 0 ? model_.kv_heads : model_.heads) * width);
      return detail::whole_bytes(static_cast<double>(cached) * cache_bytes_each(chain.parameter_bytes));
    };
    const int most = std::max_element(chunks_.begin(), chunks_.end(), [](auto a, auto b) { return a.tokens < b.tokens; })->tokens;
    const auto wide = operators_of(most);
    copies_ = parameters_shared_in(chain);
    for (auto& c : copies_)
      c.weight_bytes = detail::whole_bytes(static_cast<double>(at(chain.layers, c.layer).shared_parameters) *
                                           weight_bytes_each(chain.parameter_bytes));
    for (int i = 0; i < chain.size(); ++i) {
      const auto& l = at(chain.layers, i);
      kinds_.push_back(request.kind(i));
      token_bytes_.push_back(checked_mul(l.boundary_bytes, std::int64_t{options_.batch}));
      stage_cost held{.weight_bytes = detail::whole_bytes(static_cast<double>(checked_add(l.parameters, l.shared_parameters)) *
                                                          weight_bytes_each(chain.parameter_bytes))};
      double largest = 0;  // operands and result of a product
      for (const auto& use : launches(wide, kinds_.back(), most, 0)) {
        if (use.op.kind == operator_kind::flash_attention)
          held.activation_bytes = checked_add(held.activation_bytes, cache_of(i));
        if (use.op.kind == operator_kind::gemm)
          largest =
              std::max(largest, static_cast<double>(use.op.batch) * static_cast<double>(use.op.m) *
                                    (static_cast<double>(use.op.k) + static_cast<double>(use.op.n)) * chain.parameter_bytes);
      }
      held.temporary_bytes = detail::whole_bytes(largest);
      memory_.push_back(held);
    }
  }

  void price(const tile_device& device, bool quantises) {
    auto& all = times_.emplace_back(kinds_.size());
    const auto seconds = [&](const std::vector<operator_use>& list) {
      double sum = 0;
      for (const auto& use : list) sum += use.times * timer_(device, use.op);
      return sum;
    };
    for (const auto& c : chunks_) {
      const auto ops = operators_of(c.tokens, quantises);
      for (std::size_t i = 0; i < kinds_.size(); ++i) {
        if (kinds_[i] != static_cast<int>(i)) continue;
        const bool head = i + 1 == kinds_.size();
        // Only the last token needs the head.
        all[i].chunk_s.push_back(head && &c != &chunks_.back() ? 0.0 : seconds(launches(ops, kinds_[i], c.tokens, c.past)));
      }
    }
    const auto ops = operators_of(1, quantises);
    const int steps = options_.output_tokens - 1, first = options_.prompt_tokens;
    for (std::size_t i = 0; i < kinds_.size() && steps > 0; ++i) {
      if (kinds_[i] != static_cast<int>(i)) continue;
      const auto step_s = [&](int past) { return seconds(launches(ops, kinds_[i], 1, past)); };
      const auto steps_s = [&](int past, int count) {
        if (count == 0) return 0.0;
        const double middle_s = step_s(past + (count - 1) / 2) + step_s(past + count / 2);
        return count * (step_s(past) + 2 * middle_s + step_s(past + count - 1)) / 6;
      };
      all[i].decoding_s = windowed(kinds_[i]) ? windowed_steps_s(first, steps, steps_s) : steps_s(first, steps);
    }
  }

  // Steps of decoding under a window: a sliding one fills and stays full, a chunk fills and the next one begins with nothing.
  template <class StepsSeconds>
  [[nodiscard]] double windowed_steps_s(int first, int steps, const StepsSeconds& steps_s) const {
    const int window = model_.window;
    const int filling = std::clamp(window - (model_.chunked ? first % window : first), 0, steps), rest = steps - filling;
    double sum = steps_s(first, filling);
    if (!model_.chunked) return rest > 0 ? sum + rest * steps_s(first + filling, 1) : sum;
    if (rest >= window) sum += rest / window * steps_s(0, window);
    return sum + steps_s(0, rest % window);
  }

  [[nodiscard]] const layer_times& times(int index, const placement& where) const {
    HETSCHED_EXPECTS(index >= 0 && index < layer_count());
    return at(times_.at(as_size(where.mesh.subcluster)), at(kinds_, index));
  }

  [[nodiscard]] bytes_t bytes_of_token(int boundary) const { return token_bytes_.at(as_size(boundary)); }
  [[nodiscard]] double moved_s(int tokens, int boundary, const placement& from, const placement& to, proximity near) const {
    return boundary_cost(cluster_, from, to, near, checked_mul(std::int64_t{tokens}, bytes_of_token(boundary))).forward_s;
  }

  hetsched::cluster cluster_;
  transformer model_;
  inference_options options_;
  Timer timer_;
  std::vector<chunk> chunks_;
  std::vector<int> kinds_;            // of each layer
  std::vector<bytes_t> token_bytes_;  // that a batch sends on behind a layer, for one token of each request
  std::vector<stage_cost> memory_;    // of each layer, without times
  std::vector<parameter_copy> copies_;
  std::vector<std::vector<layer_times>> times_;  // by subcluster and kind
};

static_assert(additive_cost_model<inference_cost_model<>>);

}  // namespace hetsched
