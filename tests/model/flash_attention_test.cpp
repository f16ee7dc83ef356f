// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/flash_attention.hpp>

#include <cstddef>

#include <doctest/doctest.h>

#include <hetsched/model/families.hpp>
#include <hetsched/model/transformer.hpp>

TEST_CASE("flash attention takes the terms with s^2 out of a block's memory, and adds a product to backward") {
  using namespace hetsched;
  const int h = 64, a = 4, s = 32;
  const auto stored = make_chain(gpt({.layers = 2, .hidden = h, .heads = a, .vocab = 100, .sequence = s}));
  const auto flash = with_flash_attention(stored);
  REQUIRE(flash.size() == stored.size());
  for (int i = 0; i < stored.size(); ++i) {
    const auto& before = stored.layers[static_cast<std::size_t>(i)];
    const auto& after = flash.layers[static_cast<std::size_t>(i)];
    CAPTURE(before.name);
    CHECK(after.forward_flops == before.forward_flops);
    CHECK(after.parameters == before.parameters);
    if (i == 0 || i + 1 == stored.size()) {
      CHECK(after == before);
      continue;
    }
    // Korthikanti et al. 2023: 34 s h + 5 a s^2 bytes, of which the latter are scores.
    CHECK(before.activation_bytes == 34 * s * h + 5 * a * s * s);
    CHECK(after.activation_bytes == 34 * s * h);
    CHECK(before.memory_traffic_bytes - after.memory_traffic_bytes == 2 * 5 * a * s * s);
    CHECK(after.backward_flops - before.backward_flops == 2.0 * s * s * h);
    CHECK(after.selective_saved_bytes == 0);
    CHECK(after.selective_flops == 0);
  }
}
