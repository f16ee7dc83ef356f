// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include <hetsched/model/layer.hpp>

using namespace hetsched;

namespace {

layer_chain two_layers() {
  return {{{.name = "a",
            .forward_flops = 1,
            .backward_flops = 2,
            .parameters = 10,
            .activation_bytes = 5,
            .selective_saved_bytes = 5},
           {.name = "b", .forward_flops = 4, .backward_flops = 8, .parameters = 20, .shared_parameters = 10}}};
}

}  // namespace

TEST_CASE("totals of a chain") {
  CHECK(training_flops(two_layers()) == 15);
  CHECK(parameter_count(two_layers()) == 30);
  CHECK(shared_fraction(two_layers().layers[0]) == 0);
  CHECK(shared_fraction(two_layers().layers[1]) == doctest::Approx(1.0 / 3));
  CHECK(shared_fraction({}) == 0);
  auto huge = two_layers();
  huge.layers[0].parameters = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS((void)parameter_count(huge), input_error);
}

TEST_CASE("amounts that make no sense are refused with layer and field") {
  CHECK_NOTHROW(validate(two_layers()));
  const auto refused = [](const char* message, auto spoil) {
    auto chain = two_layers();
    spoil(chain);
    CHECK_THROWS_WITH_AS(validate(chain), message, input_error);
  };
  refused("the model has no layer", [](auto& c) { c.layers.clear(); });
  refused("parameter_bytes must be at least 1", [](auto& c) { c.parameter_bytes = 0; });
  refused("layer b: forward_flops must be finite and not negative", [](auto& c) { c.layers[1].forward_flops = -1; });
  refused("layer a: backward_flops must be finite and not negative", [](auto& c) { c.layers[0].backward_flops = std::nan(""); });
  refused("layer a: selective_flops must be finite and not negative", [](auto& c) { c.layers[0].selective_flops = INFINITY; });
  refused("layer b: parameters must be finite and not negative", [](auto& c) { c.layers[1].parameters = -1; });
  refused("layer b: boundary_bytes must be finite and not negative", [](auto& c) { c.layers[1].boundary_bytes = -1; });
  refused("layer b: owner must be another layer of the chain", [](auto& c) { c.layers[1].owner = 1; });
  refused("layer b: owner must be another layer of the chain", [](auto& c) { c.layers[1].owner = 2; });
  refused("layer a: owner must be another layer of the chain", [](auto& c) { c.layers[0].shared_parameters = 1; });
  refused("layer a: activation_bytes - selective_saved_bytes must be finite and not negative",
          [](auto& c) { c.layers[0].selective_saved_bytes = 6; });
}
