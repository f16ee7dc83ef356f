// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/inference.hpp>

#include <algorithm>
#include <optional>
#include <utility>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

namespace {

cluster two_devices() {
  cluster c{.subclusters = {{"a", catalogue_device("A5000"), 1, 1, {}, {}}, {"b", catalogue_device("A4000"), 1, 1, {}, {}}}};
  connect(c, "a", "b", {1e-4, 1e8});
  return c;
}

transformer small_llama() {
  return llama({.layers = 3, .hidden = 512, .heads = 8, .kv_heads = 2, .ffn_hidden = 1024, .vocab = 1000, .sequence = 1024});
}

/// Seconds are what a kernel of attention sees of keys.
struct keys_timer {
  double operator()(const tile_device&, const operator_shape& op) const {
    return op.kind == operator_kind::flash_attention ? static_cast<double>(op.n) : 0.0;
  }
};

/// Seconds are the arithmetic of attention.
struct scores_timer {
  double operator()(const tile_device&, const operator_shape& op) const {
    return op.kind == operator_kind::flash_attention
               ? static_cast<double>(op.batch) * static_cast<double>(op.m) * static_cast<double>(op.n) * op.causal_share
               : 0.0;
  }
};

/// Seconds are the weights that products read, in elements.
struct weights_timer {
  double operator()(const tile_device&, const operator_shape& op) const {
    return op.kind == operator_kind::gemm ? static_cast<double>(op.n) * static_cast<double>(op.k) : 0.0;
  }
};

constexpr placement on_a{.mesh = {0, 1, 1}};
constexpr placement on_b{.mesh = {1, 1, 1}};

}  // namespace

TEST_CASE("inference: decoding sees the cache grow by one token a step") {
  for (const int output : {1, 2, 3, 4, 17, 128}) {
    CAPTURE(output);
    const inference_cost_model<keys_timer> costs(two_devices(), small_llama(), {.prompt_tokens = 100, .output_tokens = output});
    double keys = 0;
    for (int t = 1; t < output; ++t) keys += 3 * (100 + t);
    CHECK(costs.decoding_s({0, 5}, on_a) == doctest::Approx(keys));
    CHECK(costs.chunk_s(0, {0, 5}, on_a) == 300);
    CHECK(costs.stage({0, 5}, on_a).forward_s == doctest::Approx(300 + keys));
  }
}

TEST_CASE("inference: pieces of a prompt have the scores of the whole") {
  const inference_cost_model<scores_timer> whole(two_devices(), small_llama(), {.prompt_tokens = 96, .output_tokens = 1});
  for (const int piece : {1, 7, 32, 96, 500}) {
    CAPTURE(piece);
    const inference_cost_model<scores_timer> cut(two_devices(), small_llama(),
                                                 {.prompt_tokens = 96, .output_tokens = 1, .chunk_tokens = piece});
    CHECK(cut.chunk_count() == (96 + piece - 1) / piece);
    const double pieces = cut.stage({0, 5}, on_a).forward_s, all = whole.stage({0, 5}, on_a).forward_s;
    CHECK(all == 3 * 8 * 96 * 96 / 2);
    // A token sees itself: pieces of one count the diagonal in full, larger ones half of it.
    CHECK(pieces >= all * (1 - 1e-12));
    CHECK(pieces <= all + 3 * 8 * 96 / 2);
    if (piece > 1) CHECK(pieces == doctest::Approx(all).epsilon(0.01));
  }
}

TEST_CASE("inference: every step reads all weights, also of the head, a prompt once") {
  const inference_cost_model<weights_timer> costs(two_devices(), small_llama(), {.prompt_tokens = 64, .output_tokens = 11});
  // Queries, keys and values; projection; the three matrices of the MLP; and the head.
  const double read = 3 * (512.0 * (512 + 2 * 128) + 512 * 512 + 3 * 512 * 1024) + 512 * 1000;
  CHECK(costs.chunk_s(0, {0, 5}, on_a) == read);
  CHECK(costs.decoding_s({0, 5}, on_a) == doctest::Approx(10 * read));
  const inference_cost_model<weights_timer> cut(two_devices(), small_llama(),
                                                {.prompt_tokens = 64, .output_tokens = 11, .chunk_tokens = 16});
  CHECK(cut.chunk_s(0, {0, 5}, on_a) == read - 512 * 1000);
  CHECK(cut.chunk_s(3, {0, 5}, on_a) == read);
}

TEST_CASE("inference: a stage holds its weights, and keys and values of whole requests") {
  const inference_cost_model<> costs(two_devices(), small_llama(), {.prompt_tokens = 100, .output_tokens = 28, .batch = 4});
  const auto block = costs.layer(1, on_a);
  CHECK(block.activation_bytes == 4 * 128 * 2 * 128 * 2);  // requests, tokens, keys and values, their width, bytes
  CHECK(block.backward_s == 0);
  CHECK(costs.layer(0, on_a).activation_bytes == 0);
  CHECK(costs.layer(4, on_a).activation_bytes == 0);
  CHECK(costs.layer(0, on_a).weight_bytes == 2 * 512 * 1000);
  CHECK(block.weight_bytes == 2 * (512 * (512 + 256) + 512 * 512 + 3 * 512 * 1024 + 2 * 512));
  for (const auto cut : {granularity::block, granularity::sublayer}) {
    const inference_cost_model<> same(two_devices(), small_llama(),
                                      {.prompt_tokens = 100, .output_tokens = 28, .batch = 4, .cut = cut});
    const auto all = same.stage({0, same.layer_count()}, on_b), as = costs.stage({0, 5}, on_b);
    CHECK(all.activation_bytes == as.activation_bytes);
    CHECK(all.weight_bytes == as.weight_bytes);
    CHECK(all.forward_s == doctest::Approx(as.forward_s));
  }
}

TEST_CASE("inference: a decoding step of Llama 2 takes what reading its weights takes, and little more") {
  cluster c{.subclusters = {{"a", catalogue_device("A5000"), 1, 1, {}, {}}}};
  const auto model = llama({.layers = 32, .hidden = 4096, .heads = 32, .ffn_hidden = 11008, .vocab = 32000, .sequence = 2048});
  const inference_cost_model<> costs(c, model, {.prompt_tokens = 128, .output_tokens = 2});
  const double weights_s = 2 * 6.6e9 / 768e9;
  CHECK(costs.decoding_s({0, 34}, on_a) > weights_s);
  CHECK(costs.decoding_s({0, 34}, on_a) < 1.5 * weights_s);
  // A batch reads them once.
  const inference_cost_model<> eight(c, model, {.prompt_tokens = 128, .output_tokens = 2, .batch = 8});
  CHECK(eight.decoding_s({0, 34}, on_a) < 1.2 * costs.decoding_s({0, 34}, on_a));
}

TEST_CASE("inference: one message for each piece of the prompt and each further token") {
  const inference_cost_model<> costs(two_devices(), small_llama(),
                                     {.prompt_tokens = 96, .output_tokens = 5, .batch = 2, .chunk_tokens = 32});
  const double token = 2 * 512 * 2;
  const double wanted = 3 * (1e-4 + 32 * token / 1e8) + 4 * (1e-4 + token / 1e8);
  CHECK(costs.transfer(1, on_a, on_b).forward_s == doctest::Approx(wanted));
  CHECK(costs.transfer(1, on_a, on_b).backward_s == 0);
  CHECK(costs.transfer(1, on_a, on_b).bytes == 100 * 2048);
}

TEST_CASE("inference: what cannot be served is told") {
  auto model = small_llama();
  model.positions = 100;
  model.sequence = 100;
  CHECK_THROWS_WITH_AS((inference_cost_model<>(two_devices(), model, {.prompt_tokens = 90, .output_tokens = 11})),
                       "prompt and output have 101 tokens, the model 100 positions", input_error);
  CHECK_NOTHROW((inference_cost_model<>(two_devices(), model, {.prompt_tokens = 90, .output_tokens = 10})));
  model.head = output_head::classifier;
  model.classes = 2;
  CHECK_THROWS_AS((inference_cost_model<>(two_devices(), model, {.prompt_tokens = 9, .output_tokens = 1})), input_error);
  CHECK_THROWS_AS((inference_cost_model<>(two_devices(), small_llama(), {.prompt_tokens = 0})), input_error);
  auto without = two_devices();
  without.subclusters[1].device.multiprocessors = 0;
  CHECK_THROWS_AS((inference_cost_model<>(without, small_llama())), input_error);
  const inference_cost_model<> costs(two_devices(), small_llama());
  CHECK(costs.placements({0, 1, 2}).empty());
}

TEST_CASE("inference: weights and caches in fewer bits take fewer bytes, and are read sooner") {
  const auto hardware = two_devices();
  const auto model =
      llama({.layers = 4, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336, .vocab = 32000, .sequence = 4096});
  const inference_cost_model plain(hardware, model, {.prompt_tokens = 1000, .output_tokens = 100});
  const inference_cost_model packed(hardware, model,
                                    {.prompt_tokens = 1000, .output_tokens = 100, .weight_bits = 4, .cache_bits = 8});
  const layer_range all{0, plain.layer_count()};
  const auto a = plain.stage(all, on_a), b = packed.stage(all, on_a);
  CHECK(b.weight_bytes == doctest::Approx(static_cast<double>(a.weight_bytes) / 4).epsilon(1e-6));
  CHECK(b.activation_bytes == a.activation_bytes / 2);
  // Decoding reads weights: a quarter of their time, and what else there is.
  CHECK(packed.decoding_s(all, on_a) < 0.5 * plain.decoding_s(all, on_a));
  CHECK(packed.decoding_s(all, on_a) > 0.25 * plain.decoding_s(all, on_a));
  // A prompt is bound by arithmetic, which stays.
  CHECK(packed.chunk_s(0, all, on_a) == doctest::Approx(plain.chunk_s(0, all, on_a)).epsilon(0.05));
  // A head that shares the embedding holds it once.
  auto tied = model;
  tied.tied_embeddings = true;
  for (const double bits : {1.0, 3.7, 4.0, 16.0, 32.0}) {
    const inference_cost_model one(hardware, tied, {.weight_bits = bits});
    const auto held = static_cast<double>(one.stage(all, on_a).weight_bytes);
    CHECK(held == doctest::Approx(static_cast<double>(parameter_count(make_chain(tied))) * bits / 8).epsilon(1e-6));
  }
  CHECK_THROWS_AS(inference_cost_model(hardware, model, {.weight_bits = 0.5}), input_error);
  CHECK_THROWS_AS(inference_cost_model(hardware, model, {.cache_bits = 33}), input_error);
}

TEST_CASE("inference: products in 8 bits are those of blocks, where the device has them; else weights alone have 8 bits") {
  const cluster hardware{.subclusters = {{"h", catalogue_device("H100-SXM5-80GB"), 1, 1, {}, {}},
                                         {"a", catalogue_device("A100-SXM4-80GB"), 1, 1, {}, {}},
                                         {"v", catalogue_device("V100-SXM2-32GB"), 1, 1, {}, {}}}};
  const auto model =
      llama({.layers = 2, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn_hidden = 14336, .vocab = 32000, .sequence = 4096});
  const int prompt = 2048;
  const auto costs = [&](std::optional<number_format> products, double bits = 0) {
    return inference_cost_model(hardware, model, {.prompt_tokens = prompt, .products = products, .weight_bits = bits});
  };
  const auto plain = costs({}), fp8 = costs(number_format::fp8), int8 = costs(number_format::int8), stored = costs({}, 8);
  // Seconds of a block's four products, one by one: queries, keys and values; their output; both of the gated MLP; its output.
  const auto products_s = [&](int s, const auto& make) {
    const auto device = make_tile_device(hardware.subclusters[static_cast<std::size_t>(s)].device);
    double sum = 0;
    for (const auto& [n, k] : {std::pair{4096 + 2 * 1024, 4096}, {4096, 4096}, {2 * 14336, 4096}, {4096, 14336}})
      sum += predict_operator(device, make(n, k)).seconds;
    return sum;
  };
  const auto wide = [&](int n, int k) { return gemm(prompt, n, k, number_format::fp16); };
  const auto in = [&](number_format f) { return [=](int n, int k) { return quantised_gemm(prompt, n, k, f); }; };
  const auto at_device = [](int s) { return placement{.mesh = {s, 1, 1}}; };
  const layer_range block{1, 2}, all{0, 4};
  const auto gained_s = [&](const auto& of, int s) {
    return plain.chunk_s(0, block, at_device(s)) - of.chunk_s(0, block, at_device(s));
  };
  CHECK(gained_s(fp8, 0) == doctest::Approx(products_s(0, wide) - products_s(0, in(number_format::fp8))).epsilon(1e-9));
  CHECK(gained_s(int8, 0) == doctest::Approx(products_s(0, wide) - products_s(0, in(number_format::int8))).epsilon(1e-9));
  CHECK(gained_s(int8, 1) == doctest::Approx(products_s(1, wide) - products_s(1, in(number_format::int8))).epsilon(1e-9));
  CHECK(gained_s(int8, 1) > 0.2 * plain.chunk_s(0, block, at_device(1)));
  // A100 has no fp8, and V100 neither.
  for (const auto& [of, s] : {std::pair{&fp8, 1}, {&fp8, 2}, {&int8, 2}}) {
    CHECK(of->chunk_s(0, all, at_device(s)) == stored.chunk_s(0, all, at_device(s)));
    CHECK(of->decoding_s(all, at_device(s)) == stored.decoding_s(all, at_device(s)));
  }
  CHECK(fp8.stage(all, at_device(0)).weight_bytes == stored.stage(all, at_device(0)).weight_bytes);
  CHECK(fp8.chunk_s(0, {0, 1}, at_device(0)) == stored.chunk_s(0, {0, 1}, at_device(0)));  // the embedding
  CHECK(fp8.chunk_s(0, {3, 4}, at_device(0)) == stored.chunk_s(0, {3, 4}, at_device(0)));  // the head
  CHECK(costs(number_format::fp8, 4).stage(all, at_device(0)).weight_bytes < fp8.stage(all, at_device(0)).weight_bytes);
  CHECK_THROWS_AS(costs(number_format::bf16), input_error);
  CHECK_THROWS_AS(inference_cost_model(hardware, model, {.precision = precision::fp32, .products = number_format::fp8}),
                  input_error);
}

TEST_CASE("inference: windows bound what decoding reads, what a prompt's scores are, and caches") {
  constexpr layer_range all{0, 5};
  for (const bool chunked : {false, true})
    for (const int window : {1, 7, 64, 99, 100, 101, 128, 300, 1000})
      for (const int full_every : {0, 2}) {
        CAPTURE(chunked);
        CAPTURE(window);
        CAPTURE(full_every);
        auto model = small_llama();
        model.window = window;
        model.chunked = chunked;
        model.full_every = full_every;
        const auto seen = [&](int position, bool whole) {  // keys of the token there, token by token
          int keys = 0;
          for (int k = 0; k <= position; ++k)
            keys += whole || (chunked ? k / window == position / window : position - k < window) ? 1 : 0;
          return keys;
        };
        const int wholes = full_every == 2 ? 1 : 0;  // of the three blocks
        double decoded = 0, scores = 0;
        for (int t = 0; t < 200; ++t) {
          const double keys = wholes * seen(t, true) + (3 - wholes) * seen(t, false);
          (t < 100 ? scores : decoded) += t == 199 ? 0 : keys;  // the last token is only made
        }
        for (const int piece : {0, 32}) {
          const inference_options request{.prompt_tokens = 100, .output_tokens = 100, .batch = 2, .chunk_tokens = piece};
          const inference_cost_model<keys_timer> costs(two_devices(), model, request);
          CHECK(costs.decoding_s(all, on_a) == doctest::Approx(decoded));
          bytes_t cached = 0;
          for (int l = 1; l < 4; ++l) {
            const int tokens = full_every == 2 && l == 2 ? 200 : std::min(window, 200);
            cached += bytes_t{2} * tokens * 2 * 128 * 2;  // requests, tokens, keys and values, their width, bytes
          }
          CHECK(costs.stage(all, on_a).activation_bytes == cached);
          const inference_cost_model<scores_timer> sums(two_devices(), model, request);
          double prompt = 0;
          for (int c = 0; c < sums.chunk_count(); ++c) prompt += sums.chunk_s(c, all, on_a);
          // A token counts half of itself.
          CHECK(prompt == doctest::Approx(8 * 2 * (scores - 3 * 0.5 * 100)));
        }
      }
}
