// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/model/elementwise_fusion.hpp>
#include <hetsched/model/flash_attention.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/layer_operators.hpp>
#include <hetsched/model/operator.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// flash: one kernel that never stores the scores; plain: products and a softmax that do.
enum class attention_kernels { plain, flash };

/// An elementwise kernel by the tensors that it and its gradient read and write.
struct elementwise_step {
  int read = 1, written = 1, back_read = 1, back_written = 1;

  friend bool operator==(const elementwise_step&, const elementwise_step&) = default;
};

/// What a library without fusion runs between the products, one operation at a time.
struct eager_library {
  bool joint_projections = true;            ///< one product for queries, keys and values, and one for a gated MLP's first two
  std::vector<elementwise_step> queries{};  ///< on the queries
  std::vector<elementwise_step> scores{{1, 1, 1, 1}, {1, 1, 0, 0}};  ///< scale, mask
  std::vector<elementwise_step> activation{{1, 1, 2, 1}};
  /// On queries and keys: times cosine, minus a half, halves side by side (whose gradients are put into zeros), times sine, sum
  /// (whose gradients of both halves and of both products are summed).
  std::vector<elementwise_step> rotary{{1, 1, 1, 1}, {1, 0, 1, 0}, {1, 1, 1, 3}, {1, 1, 1, 1}, {2, 1, 4, 2}};

  friend bool operator==(const eager_library&, const eager_library&) = default;
};

/// Hugging Face's GPT-2: its GELU is 0.5 x (1 + tanh(a (x + b x^3))), an operation at a time.
[[nodiscard]] inline eager_library eager_gpt2() {
  return {.scores = {{1, 1, 1, 1}, {1, 1, 1, 1}},
          .activation = {
              {1, 1, 1, 1}, {1, 1, 3, 2}, {1, 1, 1, 1}, {2, 1, 2, 1}, {1, 1, 1, 1}, {1, 1, 2, 1}, {1, 1, 0, 0}, {2, 1, 4, 2}}};
}

/// Hugging Face's BERT and ViT.
[[nodiscard]] inline eager_library eager_bert() { return {.joint_projections = false}; }

/// Hugging Face's OPT: scales queries, and clamps the scores after the mask.
[[nodiscard]] inline eager_library eager_opt() {
  return {.joint_projections = false, .queries = {{1, 1, 1, 1}}, .scores = {{2, 1, 0, 0}, {1, 1, 2, 1}}};
}

/// As what kernels a transformer runs.
struct kernel_style {
  number_format format = number_format::fp16;
  attention_kernels attention = attention_kernels::plain;
  elementwise_fusion fusion = elementwise_fusion::grouped;
  bool autocast = false;           ///< 16 bits in products; norms, residual sums and the loss in fp32, rounded for products
  bool wide_weights = true;        ///< weights are in fp32, too, where autocast is on, and are rounded for each product
  bool fp8_products = false;       ///< linear layers of blocks multiply in fp8 where the format has 16 bits and sizes allow it
  bool causal = true;              ///< flash attention leaves out what a causal mask hides
  bool sequence_parallel = false;  ///< tensor-parallel devices share norms, dropouts and residual sums
  bool training = true;            ///< with dropout, where the model has it, and a loss
  bool adds_gradients = false;     ///< those of weights are added to earlier ones by kernels of their own
  eager_library library{};         ///< where nothing is fused

  friend bool operator==(const kernel_style&, const kernel_style&) = default;
};

namespace detail {

// Writes down the kernels of one layer on one device.
class kernel_writer {
 public:
  kernel_writer(const transformer& model, const kernel_style& style, const layer_share& share)
      : m_(model),
        style_(style),
        sizes_(model),
        samples_(share.samples),
        context_(share.context),
        tensor_(share.tensor),
        slices_(share.slices),
        expert_(share.expert),
        queries_(ceil_div(sizes_.s, context_)),
        tokens_(checked_mul(share.samples, queries_)),
        tokens_here_(style.sequence_parallel ? part(tokens_) : tokens_) {}

  [[nodiscard]] layer_operators take() { return std::move(list_); }

  void embedding();

  /// Of a module that predicts a token further on, before its block.
  void join() {
    list_.forward.push_back({hetsched::embedding(tokens_, sizes_.word, f())});
    gradient(elementwise(checked_mul(tokens_, sizes_.word), 2, 1, f()), true);
    for (int i = 0; i < 2; ++i) norm();
    linear(tokens_, checked_mul(2, sizes_.h), part(sizes_.h), false);
  }

  void norm() { norm(tokens_here_, sizes_.h); }
  void norm(std::int64_t rows, std::int64_t width) {
    list_.forward.push_back({hetsched::norm(rows, width, wide_format())});
    gradient(hetsched::norm(rows, width, wide_format()));
    gradient(elementwise(checked_mul(rows, width), 2, 0, wide_format()), true);
    list_.parameters += m_.norm_vectors;
    round(checked_mul(rows, width));  // what products read
  }

  void attention(bool windowed) {
    m_.kv_rank > 0 ? latent_attention(windowed) : full_attention(windowed);
    if (m_.norms_behind) norm();
    add_residual();
  }

  // Devices do not share what is made of a token before its heads.
  void latent_attention(bool windowed);

  void full_attention(bool windowed);

  void mlp(bool with_experts);

  void head();

 private:
  void dense_mlp(std::int64_t inner) {
    if (m_.gated_mlp)
      linears(tokens_, sizes_.h, {inner, inner}, m_.mlp_bias);
    else
      linear(tokens_, sizes_.h, inner, m_.mlp_bias);
    activation(checked_mul(tokens_, inner));
    linear(tokens_, inner, sizes_.h, m_.mlp_bias);
  }

  [[nodiscard]] number_format f() const { return style_.format; }
  [[nodiscard]] bool autocasts() const { return style_.autocast && element_bytes(f()) == 2; }
  /// Of what lies between products.
  [[nodiscard]] number_format wide_format() const { return autocasts() ? number_format::fp32 : f(); }
  /// Kernels that read fp32 and write 16 bits, and the other way round for gradients: as many bytes as three tensors.
  void round(std::int64_t elements, bool of_weights = false) {
    if (autocasts()) convert(elements, of_weights);
  }
  void convert(std::int64_t elements, bool of_weights = false) {
    list_.forward.push_back({elementwise(elements, 2, 1, f())});
    gradient(elementwise(elements, 2, 1, f()), of_weights);
  }
  [[nodiscard]] bool eager() const { return style_.fusion == elementwise_fusion::none; }
  [[nodiscard]] bool joint() const { return !eager() || style_.library.joint_projections; }
  [[nodiscard]] std::int64_t part(std::int64_t whole) const { return ceil_div(checked_mul(whole, slices_), tensor_); }
  [[nodiscard]] std::int64_t wide(std::int64_t tokens) const { return checked_mul(tokens, sizes_.h); }

  void gradient(const operator_shape& op, bool of_weights = false, double times = 1) {
    list_.backward.push_back({op, times});
    if (of_weights) list_.weight_backward.push_back({op, times});
  }

  void add_gradient(std::int64_t weights) {
    ++list_.parameters;
    if (style_.adds_gradients) gradient(elementwise(weights, 2, 1, f()), true);
  }

  // Transformer Engine multiplies in fp8 where both sizes of the weights are multiples of 16, and torchao's float8 does so, too.
  [[nodiscard]] bool in_fp8(std::int64_t in, std::int64_t out) const {
    return style_.fp8_products && element_bytes(f()) == 2 && in % 16 == 0 && out % 16 == 0;
  }
  // Rounding to fp8 with a scale that is known before (delayed scaling): 2 bytes are read, and a byte is written twice, as it is
  // and transposed, since products in fp8 take both operands along the reduction (cast_transpose).
  [[nodiscard]] operator_shape rounding(std::int64_t elements) const { return elementwise(elements, 1, 1, f()); }

  // Inputs and weights are rounded in forward, for each microbatch, and gradients of outputs in backward, which sums those of
  // biases on the way. Engines of inference hold weights rounded, and round inputs by one scale of them.
  void fp8_linear(std::int64_t tokens, std::int64_t in, std::int64_t out) {
    if (!style_.training) {
      list_.forward.push_back({quantised_gemm(tokens, out, in)});
      return;
    }
    const auto weights = checked_mul(in, out);
    if (style_.wide_weights) round(weights, true);
    list_.forward.push_back({rounding(checked_mul(tokens, in))});
    list_.forward.push_back({rounding(weights)});
    list_.forward.push_back({gemm(tokens, out, in, number_format::fp8)});
    gradient(rounding(checked_mul(tokens, out)));
    gradient(gemm(tokens, in, out, number_format::fp8));
    gradient(gemm(out, in, tokens, number_format::fp8), true);
    add_gradient(weights);
  }

  void linear(std::int64_t tokens, std::int64_t in, std::int64_t out, bool bias) {
    in_fp8(in, out) ? fp8_linear(tokens, in, out) : wide_linear(tokens, in, out, bias);
  }

  // A linear layer that is not one of a block's matrices: always in the style's format.
  void wide_linear(std::int64_t tokens, std::int64_t in, std::int64_t out, bool bias) {
    list_.forward.push_back({gemm(tokens, out, in, f())});
    gradient(gemm(tokens, in, out, f()));
    gradient(gemm(out, in, tokens, f()), true);
    if (style_.wide_weights) round(checked_mul(in, out), true);
    add_gradient(checked_mul(in, out));
    if (!bias) return;
    gradient(elementwise(checked_mul(tokens, out), 1, 0, f()), true);
    ++list_.parameters;
  }

  // Linear layers that read the same.
  void linears(std::int64_t tokens, std::int64_t in, std::initializer_list<std::int64_t> outs, bool bias);

  // Tokens spread evenly over the experts: some get one more than the others.
  void expert_linears(std::int64_t routed, std::int64_t in, std::int64_t out);

  void map(std::int64_t elements, const elementwise_step& s) { map(elements, s, f()); }
  void map(std::int64_t elements, const elementwise_step& s, number_format format) {
    if (style_.fusion == elementwise_fusion::absorbed) return;
    list_.forward.push_back({elementwise(elements, s.read, s.written, format)});
    if (s.back_read + s.back_written > 0) gradient(elementwise(elements, s.back_read, s.back_written, format));
  }

  void maps(std::int64_t elements, const std::vector<elementwise_step>& steps) {
    for (const auto& s : steps) map(elements, s);
  }

  [[nodiscard]] bool drops() const { return style_.training && m_.dropout; }
  void dropout(std::int64_t elements) {
    if (drops()) map(elements, {1, 1, 1, 1});
  }

  void add_residual() {
    const auto elements = wide(tokens_here_);
    if (eager()) dropout(elements);
    map(elements, {2, 1, 2, 1}, wide_format());
    if (autocasts()) gradient(elementwise(elements, 2, 1, f()));  // of the products' output, rounded
    if (!eager() && drops() && style_.fusion == elementwise_fusion::grouped) gradient(elementwise(elements, 1, 1, f()));
  }

  void activation(std::int64_t elements) {
    if (!eager()) {
      map(elements, m_.gated_mlp ? elementwise_step{2, 1, 3, 2} : elementwise_step{1, 1, 2, 1});
      return;
    }
    maps(elements, style_.library.activation);
    if (m_.gated_mlp) map(elements, {2, 1, 4, 2});
  }

  void rows_softmax(std::int64_t rows, std::int64_t columns) {
    list_.forward.push_back({softmax(rows, columns, f())});
    gradient(elementwise(checked_mul(rows, columns), 2, 1, f()));
  }

  void product(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
    list_.forward.push_back({batched_gemm(batch, m, n, k, f())});
    gradient(batched_gemm(batch, m, k, n, f()));
    gradient(batched_gemm(batch, k, n, m, f()));
  }

  // What selective recomputation runs again. Flash attention does so by itself: its backward has five products to the
  // forward's two.
  void scores_and_values(std::int64_t heads, std::int64_t kv_heads, std::int64_t head, std::int64_t value, bool windowed);

  const transformer& m_;
  const kernel_style& style_;
  transformer_sizes sizes_;
  std::int64_t samples_, context_, tensor_, slices_, expert_;
  std::int64_t queries_;      // of a sequence on this device
  std::int64_t tokens_;       // on this device in products
  std::int64_t tokens_here_;  // in norms, dropouts and residual sums
  layer_operators list_;
};

// make_chain's chain, where products in fp8 keep their inputs so, transposed alone, for the gradients of weights: all inputs of
// attention's and dense MLPs' matrices, but attention keeps its output in 16 bits, too, beside what the projection reads. Experts
// and latent attention keep theirs in 16 bits.
[[nodiscard]] layer_chain with_inputs_in_fp8(layer_chain chain, const transformer& model, granularity cut);

}  // namespace detail

/// A transformer as an operator_model. Its chain is make_chain's, with_flash_attention where that is the style; with products in
/// fp8 less is kept for backward.
/// Tensor-parallel devices share heads, inner width and vocabulary, rounded up, and all look up whole words, as in
/// Megatron-LM. They do not share router, patches, what latent attention
/// makes of a token before its heads, and BERT's transform, unless sequence_parallel says so. Experts get equally
/// many tokens.
/// Throws: as make_chain.
class transformer_operators {
 public:
  explicit transformer_operators(transformer model, kernel_style style = {}, granularity cut = granularity::block)
      : model_(std::move(model)), style_(std::move(style)), cut_(cut), chain_(make_chain(model_, cut)) {
    if (style_.attention == attention_kernels::flash) chain_ = with_flash_attention(std::move(chain_));
    if (style_.fp8_products && style_.training) chain_ = detail::with_inputs_in_fp8(std::move(chain_), model_, cut_);
  }

  [[nodiscard]] const layer_chain& chain() const { return chain_; }
  [[nodiscard]] const transformer& model() const { return model_; }
  [[nodiscard]] const kernel_style& style() const { return style_; }

  /// Equal slices of a layer that tensor-parallel devices may have unevenly many of: each some heads with all that they need.
  [[nodiscard]] int slices() const { return model_.kv_heads > 0 ? model_.kv_heads : model_.heads; }

  /// The first layer that launches the same as layer `index`.
  [[nodiscard]] int kind(int index) const;

  /// What one device launches for a layer, its backward in no particular order.
  /// Throws: input_error for a share below 1 and sizes that overflow.
  /// Complexity: O(operators).
  [[nodiscard]] layer_operators operators(int index, const layer_share& share) const;

 private:
  void attention(detail::kernel_writer& write, int block) const {
    if (model_.pre_norm && model_.norms_before) write.norm();
    write.attention(has_window(model_, block));
  }
  void mlp(detail::kernel_writer& write, int block) const {
    write.mlp(has_experts(model_, block));
    if (!model_.pre_norm) write.norm();
  }

  transformer model_;
  kernel_style style_;
  granularity cut_;
  layer_chain chain_;
};

static_assert(operator_model<transformer_operators>);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/transformer_operators.ipp>
#endif
