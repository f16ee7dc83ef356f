// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <hetsched/model.hpp>

using namespace hetsched;

namespace {

struct published {
  const char* name;
  transformer model;
  std::int64_t parameters;
};

const published published_counts[] = {
    {"GPT-2", gpt({.layers = 12, .hidden = 768, .heads = 12}), 124'439'808},
    {"GPT-2 medium", gpt({.layers = 24, .hidden = 1024, .heads = 16}), 354'823'168},
    {"GPT-2 large", gpt({.layers = 36, .hidden = 1280, .heads = 20}), 774'030'080},
    {"GPT-2 XL", gpt({.layers = 48, .hidden = 1600, .heads = 25}), 1'557'611'200},
    {"BERT-base", bert({.layers = 12, .hidden = 768, .heads = 12}), 109'514'298},
    {"BERT-large", bert({.layers = 24, .hidden = 1024, .heads = 16}), 335'174'458},
    {"Llama-2-7B", llama({.layers = 32, .hidden = 4096, .heads = 32}), 6'738'415'616},
    {"Llama-2-13B", llama({.layers = 40, .hidden = 5120, .heads = 40}), 13'015'864'320},
    {"Llama-2-70B", llama({.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn_hidden = 28672}), 68'976'648'192},
    {"Llama-3-8B",
     llama({.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336, .vocab = 128256, .sequence = 8192}),
     8'030'261'248},
    {"Mistral-7B", llama({.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}), 7'241'732'096},
    {"Mixtral-8x7B", moe({.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}), 46'702'792'704},
    {"ViT-B/16", vit({.layers = 12, .hidden = 768, .heads = 12}), 86'567'656},
    {"ViT-L/16", vit({.layers = 24, .hidden = 1024, .heads = 16}), 304'326'632},
};

// Sum over the layers of a chain.
template <class T>
T total(const layer_chain& chain, T layer::*field) {
  T sum{};
  for (const auto& l : chain.layers) sum += l.*field;
  return sum;
}

}  // namespace

TEST_CASE("parameter counts are the published ones, at either granularity") {
  for (const auto& p : published_counts) {
    CAPTURE(p.name);
    CHECK(parameter_count(make_chain(p.model)) == p.parameters);
    CHECK(parameter_count(make_chain(p.model, granularity::sublayer)) == p.parameters);
  }
  // Qwen2-7B: llama with biases on queries, keys and values only
  auto qwen = llama({.layers = 28, .hidden = 3584, .heads = 28, .kv_heads = 4, .ffn_hidden = 18944, .vocab = 152064});
  qwen.qkv_bias = true;
  CHECK(parameter_count(make_chain(qwen)) == 7'615'616'512);
}

TEST_CASE("a tied embedding counts once, and the head holds a copy of it") {
  const auto model = gpt({.layers = 2, .hidden = 64, .heads = 4, .vocab = 1000, .sequence = 32});
  const auto tied = make_chain(model);
  CHECK(tied.layers.front().parameters == 1000 * 64 + 32 * 64);
  CHECK(tied.layers.back().shared_parameters == 1000 * 64);
  CHECK(tied.layers.back().parameters == 2 * 64);
  auto own = model;
  own.tied_embeddings = false;
  const auto untied = make_chain(own);
  CHECK(untied.layers.back().shared_parameters == 0);
  CHECK(parameter_count(untied) == parameter_count(tied) + 1000 * 64);
}

TEST_CASE("a module that predicts a token further on is a block, a product and logits, with the head") {
  // DeepSeek-V3: "11.5B unique parameters" of its module (README_WEIGHTS.md), which has words of embedding and head beside them.
  auto m = moe({.layers = 61, .hidden = 7168, .heads = 128, .ffn_hidden = 2048, .vocab = 129280, .sequence = 4096}, 256, 8);
  m.head_size = 192;
  m.rotary_size = 64;
  m.value_size = 128;
  m.kv_rank = 512;
  m.query_rank = 1536;
  m.shared_experts = 1;
  m.dense_blocks = 3;
  m.dense_ffn_hidden = 18432;
  m.expert_bias = true;
  auto further = m;
  further.further_tokens = 1;
  for (const auto cut : {granularity::block, granularity::sublayer}) {
    const auto plain = make_chain(m, cut), chain = make_chain(further, cut);
    CHECK(chain.size() == plain.size());
    CHECK(static_cast<double>(parameter_count(chain) - parameter_count(plain)) == doctest::Approx(11.5e9).epsilon(0.015));
    const auto &head = chain.layers.back(), &alone = plain.layers.back();
    const auto block = make_chain(m).layers[61];
    CHECK(head.shared_parameters == m.vocab * m.hidden);
    CHECK(alone.shared_parameters == 0);
    const double joined = 2.0 * m.sequence * 2 * m.hidden * m.hidden;
    CHECK(head.forward_flops == doctest::Approx(2 * alone.forward_flops + block.forward_flops + joined).epsilon(1e-12));
    CHECK(head.expert_parameters == block.expert_parameters);
    CHECK(head.boundary_bytes == alone.boundary_bytes);
    CHECK_FALSE(head.recomputable);
  }
  further.head = output_head::masked_language_model;
  CHECK_THROWS_WITH_AS((void)make_chain(further), doctest::Contains("further_tokens"), input_error);
}

TEST_CASE("FLOPs of GPT follow Megatron's closed form") {
  // Narayanan et al. 2021: 96 s l h^2 (1 + s/6h + V/16lh) with recomputation of the blocks; without it a quarter of the
  // blocks' share goes: 72 s l h^2 (1 + s/6h + V/12lh).
  const transformer_shape shapes[] = {{.layers = 24, .hidden = 2304, .heads = 24, .vocab = 51200, .sequence = 2048},
                                      {.layers = 48, .hidden = 8192, .heads = 64, .vocab = 51200, .sequence = 1024},
                                      {.layers = 128, .hidden = 25600, .heads = 160, .vocab = 51200, .sequence = 2048}};
  for (const auto& shape : shapes) {
    CAPTURE(shape.hidden);
    const double s = shape.sequence, l = shape.layers, h = shape.hidden, v = static_cast<double>(shape.vocab);
    for (const auto cut : {granularity::block, granularity::sublayer}) {
      const auto chain = make_chain(gpt(shape), cut);
      const double plain = 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
      CHECK(training_flops(chain) == doctest::Approx(plain).epsilon(1e-12));
      double recomputed = 0;
      for (const auto& each : chain.layers)
        if (each.recomputable) recomputed += each.forward_flops;
      const double closed = 96 * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
      CHECK(training_flops(chain) + recomputed == doctest::Approx(closed).epsilon(1e-12));
    }
  }
}

TEST_CASE("FLOPs of grouped queries, gates and experts, by hand") {
  const double s = 4096, h = 4096, f = 14336, kv = 1024;
  const double attention = 2 * s * h * (h + 2 * kv) + 4 * s * s * h + 2 * s * h * h;
  const auto mistral = make_chain(llama({.layers = 1, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}));
  CHECK(mistral.layers[1].forward_flops == doctest::Approx(attention + 6 * s * h * f).epsilon(1e-12));
  const auto mixtral = make_chain(moe({.layers = 1, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}));
  CHECK(mixtral.layers[1].forward_flops == doctest::Approx(attention + 2 * s * h * 8 + 2 * 6 * s * h * f).epsilon(1e-12));
  CHECK(mixtral.layers[1].backward_flops == 2 * mixtral.layers[1].forward_flops);
  CHECK(mixtral.layers[1].selective_flops == 4 * s * s * h);
  // Every product with a weight has a weight gradient of as many FLOPs; scores and their sums have none.
  CHECK(mixtral.layers[1].weight_backward_flops == mixtral.layers[1].forward_flops - 4 * s * s * h);

  // DeepSeek-V3's projections as its report has them (table of sec. 4.2), and the experts of a token: 8 of 256 and a shared one
  auto deepseek = llama({.layers = 4, .hidden = 7168, .heads = 128, .ffn_hidden = 2048, .vocab = 129280});
  deepseek.kv_rank = 512;
  deepseek.query_rank = 1536;
  deepseek.head_size = 128 + 64;
  deepseek.rotary_size = 64;
  deepseek.value_size = 128;
  deepseek.experts = 256;
  deepseek.experts_per_token = 8;
  deepseek.shared_experts = 1;
  deepseek.dense_blocks = 3;
  deepseek.dense_ffn_hidden = 18432;
  const auto v3 = make_chain(deepseek);
  const double token =
      2 * (7168 * 1536.0 + 1536 * 128 * 192.0 + 7168 * 576.0 + 512 * 128 * 256.0 + 128 * 128 * 7168.0 + s * 128 * (192 + 128));
  CHECK(v3.layers[3].forward_flops == doctest::Approx(s * (token + 6.0 * 7168 * 18432)).epsilon(1e-12));
  CHECK(v3.layers[4].forward_flops == doctest::Approx(s * (token + 2.0 * 7168 * 256 + 9 * 6.0 * 7168 * 2048)).epsilon(1e-12));
  CHECK(v3.layers[4].selective_flops == 2 * s * s * 128 * (192 + 128));

  const auto image = make_chain(vit({.layers = 1, .hidden = 768, .heads = 12}));
  CHECK(image.layers[0].forward_flops == 2.0 * 196 * 768 * 768);
  CHECK(image.layers[2].forward_flops == 2.0 * 768 * 1000);
}

TEST_CASE("a window's scores: pairs less than a window apart, or of one chunk, by counting") {
  auto model = llama({.layers = 4, .hidden = 64, .heads = 4, .ffn_hidden = 128, .sequence = 100});
  const auto full = make_chain(model);
  for (const bool chunked : {false, true})
    for (const int window : {1, 7, 50, 99, 100, 300}) {
      CAPTURE(chunked);
      CAPTURE(window);
      model.window = window;
      model.chunked = chunked;
      model.full_every = 2;
      const auto chain = make_chain(model);
      double pairs = 0;
      for (int q = 0; q < 100; ++q)
        for (int k = 0; k < 100; ++k) {
          const bool seen = chunked ? q / window == k / window : true;
          // To either side a token less than a window away; a causal kernel sees half of them.
          pairs += chunked ? seen : std::abs(q - k) < window;
        }
      // Each token counts itself on both sides, but for as many as a window is long: all s^2 at the longest.
      const double counted = chunked ? pairs : pairs + std::max(0, 100 - window);
      CHECK(chain.layers[1].selective_flops == doctest::Approx(4 * counted * 64).epsilon(1e-12));
      CHECK(full.layers[1].forward_flops - chain.layers[1].forward_flops ==
            doctest::Approx(4 * (10000 - counted) * 64).epsilon(1e-9));
      CHECK(chain.layers[2] == full.layers[2]);
      CHECK(chain.layers[3] == [&] {
        auto l = chain.layers[1];
        l.name = "block 2";
        return l;
      }());
      CHECK(parameter_count(chain) == parameter_count(full));
    }
}

TEST_CASE("words narrower than the blocks: a matrix in, one out, and the table is tied") {
  auto model = gpt({.layers = 1, .hidden = 64, .heads = 4, .vocab = 1000, .sequence = 32});
  const auto wide = make_chain(model);
  model.embedding_width = 16;
  const auto narrow = make_chain(model);
  CHECK(narrow.layers[0].parameters == 1000 * 16 + 16 * 64 + 32 * 64);
  CHECK(narrow.layers[0].forward_flops == 2.0 * 32 * 16 * 64);
  CHECK(narrow.layers[2].shared_parameters == 1000 * 16);
  CHECK(narrow.layers[2].parameters == wide.layers[2].parameters + 64 * 16);
  CHECK(narrow.layers[2].forward_flops == 2.0 * 32 * 64 * 16 + 2.0 * 32 * 16 * 1000);
  CHECK(narrow.layers[1] == wide.layers[1]);
}

TEST_CASE("what features add to a block's parameters") {
  const auto plain = llama({.layers = 1, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn_hidden = 128, .sequence = 32});
  const auto more = [&](auto change, transformer m) {
    const auto before = make_chain(m).layers[1].parameters;
    change(m);
    for (const auto cut : {granularity::block, granularity::sublayer})
      CHECK(make_chain(m, cut).layers.back().boundary_bytes == 0);
    return make_chain(m).layers[1].parameters - before;
  };
  CHECK(more([](auto& m) { m.attention_sinks = true; }, plain) == 4);
  CHECK(more([](auto& m) { m.qk_norm = qk_norm_kind::per_head; }, plain) == 2 * 16);
  CHECK(more([](auto& m) { m.qk_norm = qk_norm_kind::whole; }, plain) == 64 + 32);
  CHECK(more([](auto& m) { m.norm_vectors = 0; }, plain) == -2 * 64);
  CHECK(more([](auto& m) { m.norms_before = false, m.norms_behind = true; }, plain) == 0);
  CHECK(more([](auto& m) { m.output_bias = true; }, plain) == 64);
  CHECK(more([](auto& m) { m.mlp_bias = true; }, plain) == 2 * 128 + 64);
  auto experts = moe({.layers = 1, .hidden = 64, .heads = 4, .ffn_hidden = 128, .sequence = 32}, 4, 2);
  CHECK(more([](auto& m) { m.mlp_bias = true; }, experts) == 4 * (2 * 128 + 64));
  CHECK(more([](auto& m) { m.shared_experts = 2, m.shared_ffn_hidden = 32; }, experts) == 2 * 3 * 64 * 32);
  CHECK(more([](auto& m) { m.shared_experts = 1, m.shared_gate = true; }, experts) == 3 * 64 * 128 + 64);
}

TEST_CASE("activations of the standard block follow Korthikanti et al.") {
  const std::array<std::int64_t, 3> sizes[] = {{12288, 96, 2048}, {8192, 64, 1024}, {768, 12, 512}};
  for (const auto& [h, a, s] : sizes) {
    CAPTURE(h);
    const transformer_shape shape{.layers = 3,
                                  .hidden = static_cast<int>(h),
                                  .heads = static_cast<int>(a),
                                  .vocab = 51200,
                                  .sequence = static_cast<int>(s)};
    const auto blocks = make_chain(gpt(shape));
    const auto& block = blocks.layers[1];
    CHECK(block.activation_bytes == 34 * s * h + 5 * a * s * s);
    CHECK(block.activation_bytes - block.selective_saved_bytes == 34 * s * h);
    // outside the blocks (sec. 4.3): the mask after the embedding; final norm, output layer and fp32 logits
    CHECK(blocks.layers.front().activation_bytes == s * h);
    CHECK(blocks.layers.back().activation_bytes == 4 * s * h + 4 * s * 51200);

    const auto fine = make_chain(gpt(shape), granularity::sublayer);
    CHECK(fine.layers[1].activation_bytes == 13 * s * h + 5 * a * s * s);
    CHECK(fine.layers[2].activation_bytes == 2 * s * h);
    CHECK(fine.layers[3].activation_bytes == 19 * s * h);

    // post-norm: the second norm stands after the MLP, the sum is the same
    CHECK(make_chain(bert(shape)).layers[1].activation_bytes == 34 * s * h + 5 * a * s * s);
  }
}

TEST_CASE("activations of a Llama block, by hand") {
  const std::int64_t s = 4096, h = 4096, kv = 1024, f = 14336, a = 32;
  const auto chain = make_chain(llama({.layers = 1, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336}));
  // two norms, attention's input, queries, keys, values, projection's input; MLP's input, gate, up and product
  const auto kept = 2 * s * (2 * h + h + h + 2 * kv + h + h + 3 * f);
  CHECK(chain.layers[1].activation_bytes - chain.layers[1].selective_saved_bytes == kept);
  CHECK(chain.layers[1].selective_saved_bytes == 2 * a * s * s);
}

TEST_CASE("a norm that attention and MLP share counts once, and crosses every cut inside a block") {
  auto model = gpt({.layers = 2, .hidden = 64, .heads = 4, .vocab = 100, .sequence = 16});
  const auto two = make_chain(model, granularity::sublayer);
  model.shared_norm = true;
  const auto one = make_chain(model, granularity::sublayer);
  CHECK(parameter_count(two) - parameter_count(one) == 2 * 2 * 64);
  CHECK(total(two, &layer::activation_bytes) - total(one, &layer::activation_bytes) == 2 * 2 * 16 * 64);
  CHECK(training_flops(one) == training_flops(two));
  for (const int i : {1, 2, 4, 5})
    CHECK(one.layers[static_cast<std::size_t>(i)].boundary_bytes == 2 * two.layers[0].boundary_bytes);
  for (const int i : {3, 6}) CHECK(one.layers[static_cast<std::size_t>(i)].boundary_bytes == two.layers[0].boundary_bytes);
}

TEST_CASE("GPT-39B has 146 layers by sublayer, and a cut after a norm carries two tensors") {
  const auto model = gpt({.layers = 48, .hidden = 8192, .heads = 64, .vocab = 51200, .sequence = 1024});
  CHECK(make_chain(model).size() == 50);
  const auto chain = make_chain(model, granularity::sublayer);
  REQUIRE(chain.size() == 146);
  CHECK(static_cast<double>(parameter_count(chain)) == doctest::Approx(39e9).epsilon(0.01));
  const bytes_t tensor = 2LL * 1024 * 8192;
  for (int i = 0; i + 1 < chain.size(); ++i) {
    CAPTURE(i);
    const auto& l = chain.layers[static_cast<std::size_t>(i)];
    CHECK(l.boundary_bytes == (i > 0 && i % 3 == 2 ? 2 * tensor : tensor));
  }
  CHECK(chain.layers[0].name == "embedding");
  CHECK(chain.layers[1].name == "block 0 attention");
  CHECK(chain.layers[2].name == "block 0 norm");
  CHECK(chain.layers[144].name == "block 47 mlp");
  CHECK(chain.layers[145].name == "head");

  const auto post_norm = make_chain(bert({.layers = 2, .hidden = 768, .heads = 12}), granularity::sublayer);
  for (int i = 0; i + 1 < post_norm.size(); ++i)
    CHECK(post_norm.layers[static_cast<std::size_t>(i)].boundary_bytes == 2 * 512 * 768);
}

TEST_CASE("both granularities describe the same model") {
  for (const auto& p : published_counts) {
    CAPTURE(p.name);
    const auto coarse = make_chain(p.model);
    const auto fine = make_chain(p.model, granularity::sublayer);
    CHECK(fine.size() == 3 * p.model.layers + 2);
    CHECK(total(fine, &layer::forward_flops) == doctest::Approx(total(coarse, &layer::forward_flops)).epsilon(1e-12));
    CHECK(total(fine, &layer::activation_bytes) == total(coarse, &layer::activation_bytes));
    CHECK(total(fine, &layer::selective_saved_bytes) == total(coarse, &layer::selective_saved_bytes));
    CHECK(total(fine, &layer::memory_traffic_bytes) == total(coarse, &layer::memory_traffic_bytes));
    CHECK(total(fine, &layer::tensor_reduce_bytes) == total(coarse, &layer::tensor_reduce_bytes));
    CHECK(total(fine, &layer::context_gather_bytes) == total(coarse, &layer::context_gather_bytes));
    CHECK_NOTHROW(validate(coarse));
    CHECK_NOTHROW(validate(fine));
  }
}

TEST_CASE("collectives move one activation each for attention and MLP, and the keys and values") {
  const auto chain = make_chain(llama({.layers = 1, .hidden = 4096, .heads = 32, .kv_heads = 8}), granularity::sublayer);
  const bytes_t tensor = 2LL * 4096 * 4096;
  CHECK(chain.layers[1].tensor_reduce_bytes == tensor);
  CHECK(chain.layers[2].tensor_reduce_bytes == 0);
  CHECK(chain.layers[3].tensor_reduce_bytes == tensor);
  CHECK(chain.layers[1].context_gather_bytes == 2 * tensor / 4);
  // one in the embedding's forward, one in the head's backward
  CHECK(chain.layers[0].tensor_reduce_bytes + chain.layers[4].tensor_reduce_bytes == tensor);
}

TEST_CASE("experts sit in every moe_every-th block") {
  const auto chain = make_chain(moe({.layers = 6, .hidden = 256, .heads = 4, .sequence = 64}, 4, 1, 3));
  for (const int i : {1, 2, 4, 5}) CHECK(chain.layers[static_cast<std::size_t>(i)].parameters == chain.layers[1].parameters);
  CHECK(chain.layers[3].parameters == chain.layers[6].parameters);
  // three more experts of 3 h f each, and the router
  CHECK(chain.layers[3].parameters == chain.layers[1].parameters + 3 * 3 * 256 * 768 + 4 * 256);
  CHECK(chain.experts == 4);
  CHECK(chain.layers[1].expert_parameters == 0);
  CHECK(chain.layers[3].expert_parameters == 4 * 3 * 256 * 768);
  CHECK(chain.layers[3].expert_exchange_bytes == 64 * 256 * 2);
}

TEST_CASE("sizes that make no sense are refused") {
  const auto good = gpt({.layers = 2, .hidden = 64, .heads = 4, .vocab = 100, .sequence = 16});
  CHECK_NOTHROW((void)make_chain(good));
  const auto refused = [&](auto spoil) {
    auto m = good;
    spoil(m);
    CHECK_THROWS_AS((void)make_chain(m), input_error);
  };
  refused([](auto& m) { m.layers = 0; });
  refused([](auto& m) { m.layers = 2'000'000'000; });
  refused([](auto& m) { m.hidden = -64; });
  refused([](auto& m) { m.hidden = 66; });
  refused([](auto& m) { m.heads = 0; });
  refused([](auto& m) { m.kv_heads = 3; });
  refused([](auto& m) { m.kv_heads = -1; });
  refused([](auto& m) { m.head_size = -1; });
  refused([](auto& m) { m.ffn_hidden = -1; });
  refused([](auto& m) { m.vocab = 0; });
  refused([](auto& m) { m.sequence = 0; });
  refused([](auto& m) { m.positions = 8; });
  refused([](auto& m) { m.parameter_bytes = 0; });
  refused([](auto& m) { m.experts = 4; });
  refused([](auto& m) { m.experts_per_token = 1; });
  refused([](auto& m) { m.experts = 4, m.experts_per_token = 5; });
  refused([](auto& m) { m.moe_every = 0; });
  refused([](auto& m) { m.shared_experts = 1; });
  refused([](auto& m) { m.dense_blocks = -1; });
  refused([](auto& m) { m.query_rank = 8; });
  refused([](auto& m) { m.value_size = 8; });
  refused([](auto& m) { m.kv_rank = 8, m.head_size = 16, m.rotary_size = 16, m.output_bias = m.qkv_bias = false; });
  refused([](auto& m) { m.kv_rank = 8, m.head_size = 16, m.rotary_size = 4; });
  refused([](auto& m) { m.shared_norm = true, m.pre_norm = false; });
  refused([](auto& m) { m.norms_before = false; });
  refused([](auto& m) { m.norm_vectors = 3; });
  refused([](auto& m) { m.full_every = 2; });
  refused([](auto& m) { m.window = -1; });
  refused([](auto& m) { m.shared_ffn_hidden = 64; });
  refused([](auto& m) { m.head = output_head::classifier; });
  // too large for 64 bits
  constexpr int huge = std::numeric_limits<int>::max();
  refused([](auto& m) { m.vocab = std::numeric_limits<std::int64_t>::max() / 2; });
  refused([](auto& m) { m.hidden = huge, m.heads = huge, m.sequence = m.positions = huge; });
  CHECK_THROWS_AS((void)vit({.layers = 1, .hidden = 64, .heads = 4, .image = 225}), input_error);
  CHECK_THROWS_AS((void)vit({.layers = 1, .hidden = 64, .heads = 4, .patch = 0}), input_error);
  CHECK_THROWS_AS((void)vit({.layers = 1, .hidden = 64, .heads = 4, .image = 2'000'000'000, .patch = 1}), input_error);
}
