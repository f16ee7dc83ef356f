// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>

#include <hetsched/core/random.hpp>
#include <hetsched/cost/memory/memory.hpp>
#include <hetsched/model.hpp>

using namespace hetsched;

TEST_CASE("ZeRO stages hold what Rajbhandari et al. tabulate (Fig. 1: 7.5B parameters on 64 devices)") {
  const std::int64_t parameters = 7'500'000'000;
  const degrees d{.data = 64};
  CHECK(state_bytes(parameters, d, 0) == 120'000'000'000);
  CHECK(state_bytes(parameters, d, 1) == 31'406'250'000);
  CHECK(state_bytes(parameters, d, 2) == 16'640'625'000);
  CHECK(state_bytes(parameters, d, 3) == 1'875'000'000);
}

TEST_CASE("state is divided by tensor, and by data or context only under ZeRO") {
  CHECK(state_bytes(1000, {}) == 16'000);
  CHECK(state_bytes(1000, {.tensor = 4}) == 4'000);
  CHECK(state_bytes(1000, {.data = 8, .context = 2}) == 16'000);
  CHECK(state_bytes(1000, {}, 0, {.gradient_bytes = 4}) == 18'000);
  CHECK(state_bytes(1000, {}, 0, {.weight_bytes = 4, .gradient_bytes = 4, .optimizer_bytes = 8}) == 16'000);
  CHECK(state_bytes(1600, {.data = 2, .context = 2, .tensor = 4}, 1) == 4 * 400 + 12 * 100);
  CHECK(state_bytes(3, {.tensor = 2}) == 3 + 3 + 18);
  CHECK(state_bytes(1, {.tensor = 3}) == 1 + 1 + 4);  // rounded up
  CHECK_THROWS_AS((void)state_bytes(std::int64_t{1} << 62, {}), input_error);
  for (const int zero : {-1, 4}) CHECK_THROWS_AS(validate_zero(zero), input_error);
  for (int zero = 0; zero <= 3; ++zero) CHECK_NOTHROW(validate_zero(zero));
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

TEST_CASE("what a device holds, part by part") {
  const stage_cost cost{
      .weight_bytes = 1000, .activation_bytes = 100, .gradient_bytes = 200, .optimizer_bytes = 300, .temporary_bytes = 40};
  CHECK(memory_of(cost, {}, 3) ==
        memory_use{.weights = 500, .gradients = 200, .optimizer = 300, .activations = 300, .temporary = 40});
  CHECK(memory_of(cost, {}, 3).total() == 1340);
  CHECK(memory_of(cost, {}, 0).activations == 0);
  CHECK(memory_of(cost, {}, 2.5).activations == 250);
  // Shares of a microbatch that add up to a little more or less than a whole one are one.
  CHECK(memory_of(cost, {}, 3 + 1e-9).activations == 300);
  CHECK(memory_of(cost, {}, 3 - 1e-9).activations == 300);
  const memory_overheads more{.runtime_bytes = 10, .buffer_bytes = 20, .fragmentation = 0.5, .margin = 0.25};
  const auto use = memory_of(cost, more, 3);
  CHECK(use.temporary == 40 + (300 + 40) / 2);
  CHECK(use.runtime == 10);
  CHECK(use.buffers == 20);
  CHECK(use.margin == (1000 + 300 + 210 + 30) / 4);
  CHECK(use.total() == 1540 + 385);
  CHECK(memory_of({}, {}, 7) == memory_use{});
  CHECK_THROWS_AS((void)memory_of({.activation_bytes = bytes_t{1} << 62}, {}, 4), input_error);
  for (const auto& bad : {memory_overheads{.runtime_bytes = -1}, memory_overheads{.buffer_bytes = -1},
                          memory_overheads{.fragmentation = -0.1}, memory_overheads{.margin = std::nan("")}})
    CHECK_THROWS_AS(validate(bad), input_error);
  CHECK_NOTHROW(validate(fitted_overheads));
}

TEST_CASE("room: what keeps within it fits the device, and what is more than roundings beyond does not") {
  random_source random(61);
  int tight = 0;
  for (int n = 0; n < 5000; ++n) {
    CAPTURE(n);
    const bytes_t memory = random.integer(1000, 1 << 30);
    const memory_overheads more = n % 5 == 0 ? memory_overheads{}
                                             : memory_overheads{.runtime_bytes = random.integer(0, 400),
                                                                .buffer_bytes = random.integer(0, 400),
                                                                .fragmentation = random.uniform(0, 0.5),
                                                                .margin = n % 3 == 0 ? 0 : random.uniform(0, 0.5)};
    const auto [room, scale] = room_within(memory, more);
    const int in_flight = random.integer(0, 9);
    stage_cost cost{.activation_bytes = static_cast<bytes_t>(random.uniform(0, 0.2) * room / scale / (in_flight + 1)),
                    .temporary_bytes = static_cast<bytes_t>(random.uniform(0, 0.5) * room / scale)};
    const double moving = static_cast<double>(in_flight * cost.activation_bytes + cost.temporary_bytes) * scale;
    if (room < moving) continue;
    ++tight;
    // The largest weights that keep within the room.
    cost.weight_bytes = static_cast<bytes_t>(std::floor(room - moving));
    REQUIRE(memory_of(cost, more, in_flight).total() <= memory);
    cost.weight_bytes += 12;
    REQUIRE(memory_of(cost, more, in_flight).total() > memory);
  }
  CHECK(tight > 4000);
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

TEST_CASE("of what a chain shares, inference holds the parameters") {
  layer_chain chain{.layers = {{.name = "a"}, {.name = "b"}, {.name = "c", .shared_parameters = 50, .owner = 1}}};
  CHECK(parameters_shared_in(chain) == std::vector<parameter_copy>{{.owner = 1, .layer = 2, .weight_bytes = 100}});
  chain.layers[2].shared_parameters = 0;
  CHECK(parameters_shared_in(chain).empty());
}
