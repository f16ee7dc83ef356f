// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/layer_range.hpp>

#include <doctest/doctest.h>

using hetsched::layer_range;

TEST_CASE("a layer range is half open: neighbours share an end, and sizes add up") {
  for (int cut = 0; cut <= 5; ++cut) {
    const layer_range left{0, cut}, right{cut, 5};
    CHECK(left.size() == cut);
    CHECK(left.size() + right.size() == layer_range{0, 5}.size());
  }
  CHECK(layer_range{} == layer_range{0, 0});
  CHECK(layer_range{2, 3} != layer_range{2, 4});
}
