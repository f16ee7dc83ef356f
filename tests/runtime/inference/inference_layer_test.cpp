// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/inference/inference_layer.hpp>

#include <doctest/doctest.h>

#include <memory>

#include "counted_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

struct least_layer {
  struct state {};
  row_tensor infer(const row_tensor& x, state&) { return x; }
};
static_assert(inference_layer<least_layer, row_tensor>);
static_assert(inference_layer<counted_layer, row_tensor>);
static_assert(inference_layer<inference_list<row_tensor, counted_layer>, row_tensor>);

struct without_state {
  row_tensor infer(const row_tensor& x, int&) { return x; }
};
static_assert(!inference_layer<without_state, row_tensor>);
struct without_infer {
  struct state {};
};
static_assert(!inference_layer<without_infer, row_tensor>);
struct without_maker {
  struct state {
    explicit state(int) {}
  };
  row_tensor infer(const row_tensor& x, state&) { return x; }
};
static_assert(!inference_layer<without_maker, row_tensor>);
static_assert(!inference_layer<least_layer, int>);

}  // namespace

TEST_CASE("inference_list: layers one after the other, with a state each") {
  const auto count = std::make_shared<state_count>();
  auto list = counted_stage(0, 3, count);
  counted_layer a{0, count}, b{1, count}, c{2, count};
  {
    auto s = list.make_state();
    auto x = a.make_state(), y = b.make_state(), z = c.make_state();
    CHECK(count->now == 6);
    for (const std::uint64_t v : {5000U, 5001U, 5000U})
      CHECK(list.infer(row(v), s).values == c.infer(b.infer(a.infer(row(v), x), y), z).values);
  }
  CHECK(count->now == 0);
}
