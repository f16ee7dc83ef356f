// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/cost/memory.hpp>
#include <hetsched/model.hpp>

using namespace hetsched;

TEST_CASE("ZeRO stages hold what Rajbhandari et al. tabulate (Fig. 1: 7.5B parameters on 64 devices)") {
  const std::int64_t parameters = 7'500'000'000;
  const degrees d{.data = 64};
  CHECK(state_bytes(parameters, d, {.zero = 0}) == 120'000'000'000);
  CHECK(state_bytes(parameters, d, {.zero = 1}) == 31'406'250'000);
  CHECK(state_bytes(parameters, d, {.zero = 2}) == 16'640'625'000);
  CHECK(state_bytes(parameters, d, {.zero = 3}) == 1'875'000'000);
}

TEST_CASE("state is divided by tensor, and by data or context only under ZeRO") {
  CHECK(state_bytes(1000, {}) == 16'000);
  CHECK(state_bytes(1000, {.tensor = 4}) == 4'000);
  CHECK(state_bytes(1000, {.data = 8, .context = 2}) == 16'000);
  CHECK(state_bytes(1000, {}, {.gradient_bytes = 4}) == 18'000);
  CHECK(state_bytes(1000, {}, {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8}) == 16'000);
  CHECK(state_bytes(1600, {.data = 2, .context = 2, .tensor = 4}, {.zero = 1}) == 4 * 400 + 12 * 100);
  CHECK(state_bytes(3, {.tensor = 2}) == 3 + 3 + 18);
  CHECK(state_bytes(1, {.tensor = 3}) == 1 + 1 + 4);  // rounded up
  CHECK_THROWS_AS((void)state_bytes(std::int64_t{1} << 62, {}), input_error);
  CHECK_THROWS_AS(validate(training_memory{.zero = 4}), input_error);
  CHECK_THROWS_AS(validate(training_memory{.gradient_bytes = -1}), input_error);
}

TEST_CASE("activations of a GPT block under each recomputation (Korthikanti et al. 2023, Table 2)") {
  const std::int64_t s = 2048, h = 12288, a = 96, b = 3;
  const auto chain = make_chain(gpt({.layers = 2, .hidden = 12288, .heads = 96, .vocab = 51200, .sequence = 2048}));
  for (const int t : {1, 2, 8}) {
    CAPTURE(t);
    const degrees d{.tensor = t};
    CHECK(activation_bytes(chain, 1, recomputation::none, d, b) == s * b * h / t * 34 + 5 * a * s * s * b / t);
    CHECK(activation_bytes(chain, 1, recomputation::selective, d, b) == 34 * s * b * h / t);
    CHECK(activation_bytes(chain, 1, recomputation::full, d, b) == 2 * s * b * h);
  }
  CHECK(activation_bytes(chain, 1, recomputation::selective, {.context = 4, .tensor = 2}) == 34 * s * h / 8);
  CHECK(activation_bytes(chain, 1, recomputation::full, {.context = 4, .tensor = 2}) == 2 * s * h / 4);
  // The embedding and the head are never recomputed.
  for (const int l : {0, 3})
    CHECK(activation_bytes(chain, l, recomputation::full, {}) == activation_bytes(chain, l, recomputation::none, {}));
  CHECK_THROWS_AS((void)activation_bytes(chain, 1, recomputation::none, {}, std::int64_t{1} << 40), input_error);
}

TEST_CASE("recomputing more never keeps more") {
  const transformer models[] = {gpt({.layers = 1, .hidden = 1024, .heads = 16}),
                                llama({.layers = 1, .hidden = 1024, .heads = 16}),
                                moe({.layers = 1, .hidden = 1024, .heads = 16}), bert({.layers = 1, .hidden = 1024, .heads = 16}),
                                vit({.layers = 1, .hidden = 1024, .heads = 16})};
  for (const auto& model : models)
    for (const auto cut : {granularity::block, granularity::sublayer}) {
      const auto chain = make_chain(model, cut);
      for (int l = 0; l < chain.size(); ++l)
        for (const int t : {1, 16}) {
          CAPTURE(l);
          CAPTURE(t);
          const auto none = activation_bytes(chain, l, recomputation::none, {.tensor = t});
          const auto selective = activation_bytes(chain, l, recomputation::selective, {.tensor = t});
          const auto full = activation_bytes(chain, l, recomputation::full, {.tensor = t});
          CHECK(full <= selective);
          CHECK(selective <= none);
        }
    }
}
