// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer_operators.hpp>

using namespace hetsched;

namespace {

double flops(const std::vector<operator_use>& operators) {
  double sum = 0;
  for (const auto& use : operators) sum += use.times * hetsched::flops(use.op);
  return sum;
}

double traffic(const std::vector<operator_use>& operators, operator_kind kind) {
  double sum = 0;
  for (const auto& use : operators) sum += use.op.kind == kind ? use.times * use.op.traffic_bytes : 0;
  return sum;
}

// As DeepSeek's: keys and values from few numbers of a token, an expert for all, a first block without any.
transformer latent() {
  auto m = moe({.layers = 3, .hidden = 256, .heads = 8, .ffn_hidden = 96, .sequence = 128}, 8, 2);
  m.head_size = 48;
  m.rotary_size = 16;
  m.value_size = 32;
  m.kv_rank = 64;
  m.query_rank = 96;
  m.shared_experts = 2;
  m.dense_blocks = 1;
  m.dense_ffn_hidden = 512;
  return m;
}

// As Falcon-7B's.
transformer shared_norm() {
  auto m = gpt({.layers = 2, .hidden = 256, .heads = 8, .kv_heads = 8, .vocab = 5000, .sequence = 128});
  m.shared_norm = true;
  return m;
}

std::vector<std::pair<std::string, transformer>> families() {
  return {{"gpt", gpt({.layers = 2, .hidden = 256, .heads = 8, .vocab = 5000, .sequence = 128})},
          {"llama", llama({.layers = 2, .hidden = 256, .heads = 8, .kv_heads = 4, .sequence = 128})},
          {"moe", moe({.layers = 5, .hidden = 256, .heads = 8, .sequence = 128}, 8, 2, 2)},
          {"bert", bert({.layers = 2, .hidden = 256, .heads = 8, .vocab = 3000, .sequence = 128})},
          {"latent", latent()},
          {"shared norm", shared_norm()},
          {"vit", vit({.layers = 2, .hidden = 192, .heads = 8, .image = 112})}};
}

constexpr granularity cuts[] = {granularity::block, granularity::sublayer};
constexpr elementwise_fusion fusions[] = {elementwise_fusion::none, elementwise_fusion::grouped, elementwise_fusion::absorbed};

}  // namespace

TEST_CASE("products add up to the arithmetic of the chain") {
  auto models = families();
  // 129 * 3 tokens do not spread evenly over 16 experts, and 3 do not reach them all
  models.emplace_back("uneven moe", moe({.layers = 3, .hidden = 64, .heads = 8, .sequence = 129}, 16, 3));
  auto further = latent();
  further.further_tokens = 2;
  models.emplace_back("further tokens", further);
  models.emplace_back("few tokens", moe({.layers = 1, .hidden = 64, .heads = 8, .sequence = 1}, 16, 1));
  for (const auto& [name, model] : models)
    for (const auto cut : cuts)
      for (const auto fusion : fusions) {
        CAPTURE(name);
        const transformer_operators operators(model, {.fusion = fusion, .library = eager_opt()}, cut);
        for (int i = 0; i < operators.chain().size(); ++i) {
          const auto& l = operators.chain().layers[static_cast<std::size_t>(i)];
          CAPTURE(l.name);
          const auto listed = operators.operators(i, {.samples = 3});
          CHECK(flops(listed.forward) == 3 * l.forward_flops);
          CHECK(flops(listed.backward) == 3 * l.backward_flops);
          CHECK(flops(listed.weight_backward) == 3 * l.weight_backward_flops);
          CHECK(flops(listed.selective) == 3 * l.selective_flops);
        }
      }
}

TEST_CASE("flash attention does the same products, and half of them under a mask") {
  for (const auto& [name, model] : families()) {
    CAPTURE(name);
    const transformer_operators plain(model), open(model, {.attention = attention_kernels::flash, .causal = false}),
        causal(model, {.attention = attention_kernels::flash});
    const auto a = plain.operators(1, {}), b = open.operators(1, {}), c = causal.operators(1, {});
    const double core = flops(a.selective);
    CHECK(flops(b.forward) == flops(a.forward));
    CHECK(flops(b.backward) == flops(a.backward) + 0.5 * core);
    CHECK(flops(c.forward) == flops(a.forward) - 0.5 * core);
    CHECK(b.selective.empty());
    CHECK(traffic(b.forward, operator_kind::softmax) == 0);
  }
}

TEST_CASE("tensor and context parallel devices share the products") {
  for (const auto& [name, model] : families())
    for (const int n : {2, 4}) {
      CAPTURE(name);
      CAPTURE(n);
      for (const bool sequence_parallel : {false, true}) {
        const transformer_operators operators(model, {.sequence_parallel = sequence_parallel}, granularity::sublayer);
        const int layers = operators.chain().size();
        for (int i = 0; i < layers; ++i) {
          CAPTURE(i);
          const auto whole = operators.operators(i, {.samples = 2}), part = operators.operators(i, {.samples = 2, .tensor = n});
          // What is not shared: patches, the router, BERT's transform.
          const double tokens = 2.0 * model.sequence, h = model.hidden;
          double replicated = 0;
          if (i == 0) replicated = flops(whole.forward);
          if (model.experts > 0 && operators.kind(i) == 6) replicated = 2 * tokens * h * model.experts;
          if (model.kv_rank > 0 && operators.kind(i) == 1)
            replicated = 2 * tokens * h * (model.query_rank + model.kv_rank + model.rotary_size);
          if (i == layers - 1 && model.head == output_head::masked_language_model) replicated = 2 * tokens * h * h;
          if (sequence_parallel && i > 0) replicated = 0;
          CHECK(flops(part.forward) == replicated + (flops(whole.forward) - replicated) / n);
          CHECK(flops(part.selective) == flops(whole.selective) / n);
          if (i == 0 || i == layers - 1) continue;
          CHECK(traffic(part.forward, operator_kind::norm) ==
                traffic(whole.forward, operator_kind::norm) / (sequence_parallel ? n : 1));
        }
      }
      if (model.patch_inputs > 0) continue;  // the class token makes sequences odd
      const transformer_operators operators(model);
      for (int i = 0; i < operators.chain().size(); ++i) {
        const auto whole = operators.operators(i, {}), part = operators.operators(i, {.context = n});
        CHECK(flops(part.forward) == flops(whole.forward) / n);
        CHECK(flops(part.backward) == flops(whole.backward) / n);
      }
    }
  // Fewer key and value heads than devices: each has one.
  const transformer_operators shared(llama({.layers = 1, .hidden = 64, .heads = 8, .kv_heads = 2, .sequence = 16}), {},
                                     granularity::sublayer);
  CHECK(shared.operators(1, {.tensor = 4}).forward[1].op == gemm(16, (2 + 1 + 1) * 8, 64, number_format::fp16));
}

TEST_CASE("devices of an expert axis have fewer experts, and for them the tokens of all") {
  const auto model = moe({.layers = 1, .hidden = 64, .heads = 4, .sequence = 128}, 8, 2);
  const transformer_operators operators(model, {}, granularity::sublayer);
  const auto whole = operators.operators(3, {.samples = 2}), shared = operators.operators(3, {.samples = 2, .expert = 4});
  CHECK(flops(shared.forward) == flops(whole.forward));
  CHECK(flops(shared.backward) == flops(whole.backward));
  const auto count = [](const layer_operators& l, const operator_shape& op) {
    return std::count_if(l.forward.begin(), l.forward.end(), [&](const operator_use& use) { return use.op == op; });
  };
  const auto width = static_cast<std::int64_t>(make_chain(model).layers[1].expert_parameters / (3 * 8 * 64));
  const auto f = number_format::fp16;
  CHECK(count(whole, batched_gemm(8, 64, 64, width, f)) == 1);
  CHECK(count(shared, batched_gemm(8, 64, 64, width, f)) == 0);
  CHECK(count(shared, batched_gemm(2, 256, 64, width, f)) == 1);
  CHECK_THROWS_AS((void)operators.operators(3, {.expert = 0}), input_error);
}

TEST_CASE("norms of queries and keys, head by head") {
  auto model = llama({.layers = 1, .hidden = 256, .heads = 8, .kv_heads = 2, .sequence = 128});
  const transformer_operators plain(model);
  model.qk_norm = qk_norm_kind::per_head;
  const transformer_operators normed(model);
  CHECK(normed.chain().layers[1].parameters == plain.chain().layers[1].parameters + 2 * 32);
  CHECK(normed.chain().layers[1].activation_bytes == plain.chain().layers[1].activation_bytes + 128 * (256 + 64) * 2);
  std::vector<operator_shape> more;
  auto before = plain.operators(1, {.samples = 3}).forward;
  for (const auto& use : normed.operators(1, {.samples = 3}).forward) {
    const auto same = std::find_if(before.begin(), before.end(), [&](const auto& b) { return b.op == use.op; });
    if (same != before.end())
      before.erase(same);
    else
      more.push_back(use.op);
  }
  CHECK(before.empty());
  REQUIRE(more.size() == 2);
  CHECK(more[0] == norm(3 * 128 * 8, 32, more[0].format));
  CHECK(more[1] == norm(3 * 128 * 2, 32, more[0].format));
}

TEST_CASE("blocks with a window launch attention over what it shows, and blocks alike are of one kind") {
  auto model = moe({.layers = 8, .hidden = 256, .heads = 8, .sequence = 1024}, 4, 2, 2);
  model.window = 256;
  model.full_every = 4;
  const transformer_operators flash(model, {.attention = attention_kernels::flash}), plain(model);
  const auto attention = [](const layer_operators& all) {
    const auto found = std::find_if(all.forward.begin(), all.forward.end(),
                                    [](const operator_use& use) { return use.op.kind == operator_kind::flash_attention; });
    REQUIRE(found != all.forward.end());
    return found->op;
  };
  const auto f = number_format::fp16;
  CHECK(attention(flash.operators(1, {})) == flash_attention(8, 8, 1024, 256 * 2 - 64, 32, true, f));
  CHECK(attention(flash.operators(4, {})) == flash_attention(8, 8, 1024, 1024, 32, true, f));
  CHECK(plain.operators(1, {}).forward == plain.operators(5, {}).forward);  // a mask hides, and all is computed
  // window, window and experts, the same two again but full
  for (const auto* each : {&flash, &plain}) {
    const int kinds[] = {1, 2, 1, 4, 1, 2, 1, 4};
    for (int b = 0; b < 8; ++b) CHECK(each->kind(1 + b) == kinds[b]);
    for (int b = 0; b < 8; ++b) CHECK(each->operators(1 + b, {}).forward == each->operators(kinds[b], {}).forward);
  }
  const transformer_operators fine(model, {.attention = attention_kernels::flash}, granularity::sublayer);
  for (int i = 1; i < fine.chain().size() - 1; ++i)
    CHECK(fine.operators(i, {}).forward == fine.operators(fine.kind(i), {}).forward);
  CHECK(fine.kind(1 + 3 * 3) == 1 + 3 * 3);          // full attention
  CHECK(fine.kind(1 + 3 * 3 + 2) == 1 + 3 * 1 + 2);  // experts
}

TEST_CASE("features of blocks as kernels") {
  const auto count = [](const transformer& m, int layer, const operator_shape& op) {
    const auto all = transformer_operators(m).operators(layer, {});
    return std::count_if(all.forward.begin(), all.forward.end(), [&](const operator_use& use) { return use.op == op; });
  };
  const auto f = number_format::fp16;
  auto model = llama({.layers = 1, .hidden = 256, .heads = 8, .kv_heads = 2, .ffn_hidden = 512, .vocab = 1000, .sequence = 128});
  model.qk_norm = qk_norm_kind::whole;
  CHECK(count(model, 1, norm(128, 64, f)) == 1);   // keys
  CHECK(count(model, 1, norm(128, 256, f)) == 3);  // queries, before attention and MLP
  model.norms_before = false;
  model.norms_behind = true;
  CHECK(count(model, 1, norm(128, 256, f)) == 3);  // queries, behind attention and MLP
  CHECK(count(model, 0, norm(128, 256, f)) == 0);
  model.embedding_norm = true;
  CHECK(count(model, 0, norm(128, 256, f)) == 1);
  model.embedding_width = 32;
  CHECK(count(model, 0, gemm(128, 256, 32, f)) == 1);
  CHECK(count(model, 2, gemm(128, 32, 256, f)) == 1);
  CHECK(count(model, 2, gemm(128, 1000, 32, f)) == 1);
  auto experts = moe({.layers = 1, .hidden = 256, .heads = 8, .ffn_hidden = 512, .sequence = 128}, 4, 2);
  experts.shared_experts = 1;
  experts.shared_ffn_hidden = 192;
  experts.shared_gate = true;
  CHECK(count(experts, 1, gemm(128, 2 * 192, 256, f)) == 1);
  CHECK(count(experts, 1, gemm(128, 1, 256, f)) == 1);
}

TEST_CASE("norms behind attention and MLP") {
  auto model = llama({.layers = 2, .hidden = 256, .heads = 8, .sequence = 128});
  const auto norms = [](const transformer& m) {
    const transformer_operators all(m);
    std::int64_t parameters = 0, bytes = 0, found = 0;
    for (int i = 0; i < all.chain().size(); ++i) {
      const auto& l = all.chain().layers[static_cast<std::size_t>(i)];
      parameters += l.parameters;
      bytes += l.activation_bytes;
      for (const auto& use : all.operators(i, {}).forward) found += use.op == norm(128, 256, use.op.format);
    }
    return std::array{parameters, bytes, found};
  };
  const auto before = norms(model);
  CHECK(before[2] == 2 * 2 + 1);
  model.norms_behind = true;
  const auto behind = norms(model);
  CHECK(behind[0] == before[0] + 2 * 2 * 256);
  CHECK(behind[1] == before[1] + 2 * 2 * 128 * 256 * 2);
  CHECK(behind[2] == before[2] + 2 * 2);
}

TEST_CASE("autocast rounds what products read, and computes in fp32 between them") {
  const auto m = gpt({.layers = 1, .hidden = 256, .heads = 8, .vocab = 5000, .sequence = 128});
  const auto of = [&](bool autocast, number_format format) {
    return transformer_operators(
        m, {.format = format, .attention = attention_kernels::flash, .fusion = elementwise_fusion::none, .autocast = autocast},
        granularity::block);
  };
  const double h = 256, tokens = 128, word = 12 * h * h;  // numbers of a block's four matrices
  const auto plain = of(false, number_format::bf16).operators(1, {}), rounded = of(true, number_format::bf16).operators(1, {});
  // Forward: 6 bytes for each weight, and for what the two norms make; residual sums have 4 bytes in place of 2.
  CHECK(traffic(rounded.forward, operator_kind::elementwise) - traffic(plain.forward, operator_kind::elementwise) ==
        6 * word + 2 * 6 * tokens * h + 2 * (3 * 2) * tokens * h);
  // Weights that are there in 16 bits are not rounded.
  const auto narrow = transformer_operators(m,
                                            {.format = number_format::bf16,
                                             .attention = attention_kernels::flash,
                                             .fusion = elementwise_fusion::none,
                                             .autocast = true,
                                             .wide_weights = false},
                                            granularity::block)
                          .operators(1, {});
  CHECK(traffic(rounded.forward, operator_kind::elementwise) - traffic(narrow.forward, operator_kind::elementwise) == 6 * word);
  CHECK(traffic(rounded.forward, operator_kind::norm) == 2 * traffic(plain.forward, operator_kind::norm));
  CHECK(traffic(rounded.forward, operator_kind::gemm) == traffic(plain.forward, operator_kind::gemm));
  CHECK(traffic(rounded.weight_backward, operator_kind::elementwise) >
        traffic(plain.weight_backward, operator_kind::elementwise));
  // Where all is fp32 there is nothing to round.
  CHECK(traffic(of(true, number_format::fp32).operators(1, {}).forward, operator_kind::elementwise) ==
        traffic(of(false, number_format::fp32).operators(1, {}).forward, operator_kind::elementwise));
}

TEST_CASE("products in fp8: the matrices of blocks, forward and both ways back, with what is rounded before them") {
  auto m = gpt({.layers = 1, .hidden = 256, .heads = 8, .vocab = 5000, .sequence = 128});
  const auto of = [&](bool fp8, int layer, number_format format = number_format::bf16) {
    const kernel_style style{.format = format, .attention = attention_kernels::flash, .wide_weights = false, .fp8_products = fp8};
    return transformer_operators(m, style, granularity::block).operators(layer, {});
  };
  const double h = 256, tokens = 128, words = 12 * h * h;                  // numbers of a block's four matrices
  const double read = (1 + 1 + 1 + 4) * h, written = (3 + 1 + 4 + 1) * h;  // of a token by these matrices
  const auto plain = of(false, 1), rounded = of(true, 1);
  const auto extra = [&](std::vector<operator_use> layer_operators::*list, operator_kind kind) {
    return traffic(rounded.*list, kind) - traffic(plain.*list, kind);
  };
  // Two bytes are read, two copies of one byte written: of inputs and weights in forward, of gradients in backward, where those
  // of biases (2 bytes an element) need no pass of their own.
  CHECK(extra(&layer_operators::forward, operator_kind::elementwise) == 4 * (tokens * read + words));
  CHECK(extra(&layer_operators::backward, operator_kind::elementwise) == (4 - 2) * tokens * written);
  // Operands of products have half of their bytes, results all.
  CHECK(extra(&layer_operators::forward, operator_kind::gemm) == -(tokens * read + words));
  CHECK(extra(&layer_operators::backward, operator_kind::gemm) == -(2 * tokens * written + words + tokens * read));
  CHECK(extra(&layer_operators::forward, operator_kind::flash_attention) == 0);
  const auto eighths = [](const std::vector<operator_use>& list) {
    return std::count_if(list.begin(), list.end(), [](const operator_use& u) { return u.op.format == number_format::fp8; });
  };
  CHECK(eighths(rounded.forward) == 4);
  CHECK(eighths(rounded.backward) == 8);
  CHECK(eighths(rounded.weight_backward) == 4);
  // Not the ends of the model, nor where the format has no 16 bits, nor sizes that are no multiples of 16.
  for (const int end : {0, 2}) CHECK(of(true, end).forward == of(false, end).forward);
  CHECK(of(true, 1, number_format::fp32).forward == of(false, 1, number_format::fp32).forward);
  m = gpt({.layers = 1, .hidden = 264, .heads = 8, .vocab = 5000, .sequence = 128});
  CHECK(of(true, 1).forward == of(false, 1).forward);
  // Experts' matrices are, routers are not.
  m.hidden = 256;
  m.experts = 4;
  m.experts_per_token = 2;
  CHECK(eighths(of(true, 1).forward) == 2 + 2);
}

TEST_CASE("gradients that are added to earlier ones are read twice and written once") {
  // Without biases a layer has matrices, norms and, in the embedding, words.
  for (const auto& model : {families()[1].second, families()[2].second}) {
    const transformer_operators fresh(model), added(model, {.adds_gradients = true});
    for (int i = 0; i < fresh.chain().size(); ++i) {
      const auto& l = fresh.chain().layers[static_cast<std::size_t>(i)];
      const int norms = i == 0 ? 0 : i == fresh.chain().size() - 1 ? 1 : 2;
      const auto extra = [&](std::vector<operator_use> layer_operators::*list) {
        return traffic(added.operators(i, {}).*list, operator_kind::elementwise) -
               traffic(fresh.operators(i, {}).*list, operator_kind::elementwise);
      };
      CHECK(extra(&layer_operators::backward) == 3.0 * 2 * static_cast<double>(l.parameters - norms * model.hidden));
      CHECK(extra(&layer_operators::weight_backward) == extra(&layer_operators::backward));
      CHECK(extra(&layer_operators::forward) == 0);
    }
  }
}

TEST_CASE("the kind is the first layer with the same operators") {
  auto models = families();
  models.emplace_back("moe everywhere", moe({.layers = 3, .hidden = 64, .heads = 8, .sequence = 16}));
  models.emplace_back("moe nowhere", moe({.layers = 3, .hidden = 64, .heads = 8, .sequence = 16}, 8, 2, 7));
  for (const auto& [name, model] : models)
    for (const auto cut : cuts) {
      CAPTURE(name);
      const transformer_operators operators(model, {}, cut);
      std::vector<layer_operators> seen;
      for (int i = 0; i < operators.chain().size(); ++i) {
        seen.push_back(operators.operators(i, {2, 1, 2}));
        CHECK(operators.kind(i) == std::find(seen.begin(), seen.end(), seen.back()) - seen.begin());
      }
    }
}

TEST_CASE("a block of GPT-2 by hand") {
  // 2 samples of 8 tokens, 3 heads of 4
  const auto model = gpt({.layers = 1, .hidden = 12, .heads = 3, .vocab = 100, .sequence = 8});
  const auto f = number_format::bf16;
  using list = std::vector<operator_use>;
  const transformer_operators fused(model, {.format = f});
  const auto block = fused.operators(1, {.samples = 2});
  CHECK(block.forward == list{{norm(16, 12, f)},
                              {gemm(16, 36, 12, f)},
                              {batched_gemm(6, 8, 8, 4, f)},
                              {softmax(48, 8, f)},
                              {elementwise(384, 1, 1, f)},
                              {batched_gemm(6, 8, 4, 8, f)},
                              {elementwise(192, 1, 1, f)},
                              {gemm(16, 12, 12, f)},
                              {elementwise(192, 2, 1, f)},
                              {norm(16, 12, f)},
                              {gemm(16, 48, 12, f)},
                              {elementwise(768, 1, 1, f)},
                              {gemm(16, 12, 48, f)},
                              {elementwise(192, 2, 1, f)}});
  CHECK(block.selective == list(block.forward.begin() + 2, block.forward.begin() + 6));
  CHECK(fused.operators(0, {}).forward == list{{embedding(8, 12, f)}, {elementwise(96, 2, 1, f)}, {elementwise(96, 1, 1, f)}});
  CHECK(fused.operators(2, {}).forward == list{{norm(8, 12, f)}, {gemm(8, 100, 12, f)}, {softmax(8, 100, number_format::fp32)}});

  // without dropout and loss
  const transformer_operators inference(model, {.format = f, .training = false});
  auto rest = block.forward;
  rest.erase(rest.begin() + 4);
  CHECK(inference.operators(1, {.samples = 2}).forward == rest);
  CHECK(inference.operators(2, {}).forward.size() == 2);

  // operation by operation: 3 copies of heads, scale and mask, 3 dropouts and 8 steps of GELU for 1
  const transformer_operators eager(model, {.format = f, .fusion = elementwise_fusion::none, .library = eager_gpt2()});
  CHECK(eager.operators(1, {.samples = 2}).forward.size() == block.forward.size() + 3 + 2 + 2 + 7);
}

TEST_CASE("what makes no sense is refused") {
  const transformer_operators operators(families()[0].second);
  for (const layer_share& share : {layer_share{0, 1, 1}, {1, 0, 1}, {1, 1, -1}})
    CHECK_THROWS_AS((void)operators.operators(1, share), input_error);
  CHECK_THROWS_AS(transformer_operators(transformer{}), input_error);
}
