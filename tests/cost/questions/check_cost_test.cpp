// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/questions/check_cost.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../../plan/stub_costs.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("every part of a cost must be finite and not negative") {
  const auto hardware = two_kinds();
  const placement where{{1, 1, 2}, {1, 1, 2}, recomputation::full};
  CHECK_NOTHROW(check_cost({}, hardware, {0, 1}, where));
  CHECK_NOTHROW(check_cost({1, 2, 3, 4, 1, 1, 1, 5}, hardware, {0, 1}, where));
  const auto refused = [&](auto change) {
    stage_cost c{1, 2, 3, 4, 1, 1, 1, 5};
    change(c);
    CHECK_THROWS_WITH_AS(check_cost(c, hardware, {2, 5}, where),
                         "the cost of layers 2-4 on subcluster fast (1x2, tensor 2, recompute full) is not finite, or negative",
                         input_error);
  };
  for (const double bad : {-1.0, never, std::nan("")}) {
    refused([&](stage_cost& c) { c.forward_s = bad; });
    refused([&](stage_cost& c) { c.backward_s = bad; });
    refused([&](stage_cost& c) { c.weight_backward_s = bad; });
  }
  for (const auto part : {&stage_cost::weight_bytes, &stage_cost::activation_bytes, &stage_cost::gradient_bytes,
                          &stage_cost::optimizer_bytes, &stage_cost::temporary_bytes})
    refused([&](stage_cost& c) { c.*part = -1; });
}

TEST_CASE("a transfer may be impossible, but not negative or no number") {
  const auto hardware = two_kinds();
  const placement from{{0, 1, 1}, {}}, to{{1, 1, 1}, {}};
  CHECK_NOTHROW(check_transfer({}, hardware, 0, from, to));
  CHECK_NOTHROW(check_transfer(never, hardware, 0, from, to));
  CHECK_NOTHROW(check_transfer({0.5, never, 10, 20}, hardware, 0, from, to));
  for (const transfer_cost& bad : {transfer_cost(-1.0), transfer_cost(std::nan("")), transfer_cost(0, -1),
                                   transfer_cost(std::nan(""), 0), transfer_cost(0, 0, -1), transfer_cost(0, 0, 0, -1)})
    CHECK_THROWS_WITH_AS(check_transfer(bad, hardware, 3, from, to),
                         "transfer of boundary 3 from subcluster slow (1x1) to subcluster fast (1x1) is negative or not a number",
                         input_error);
  for (const auto part : {&transfer_cost::forward_occupied_s, &transfer_cost::backward_occupied_s})
    for (const double seconds : {0.0, 0.5, 1.0, -1.0, 1.5, never, std::nan("")}) {
      transfer_cost c(1, 1);
      c.*part = seconds;
      CAPTURE(seconds);
      if (seconds >= 0 && seconds <= 1)
        CHECK_NOTHROW(check_transfer(c, hardware, 3, from, to));
      else
        CHECK_THROWS_WITH_AS(
            check_transfer(c, hardware, 3, from, to),
            "transfer of boundary 3 from subcluster slow (1x1) to subcluster fast (1x1) occupies the boundary for "
            "less than 0 s, or for longer than it takes",
            input_error);
    }
}

TEST_CASE("copies are of two layers that there are, and of no fewer bytes than their parts") {
  const parameter_copy fine{
      .owner = 0, .layer = 3, .weight_bytes = 8, .gradient_bytes = 2, .optimizer_bytes = 6, .reduction_bytes = 2};
  CHECK_NOTHROW(check_copies(std::vector{fine, {.owner = 2, .layer = 1}}, 4));
  const auto refused = [&](const std::string& what, auto change) {
    auto c = fine;
    change(c);
    CHECK_THROWS_WITH_AS(check_copies(std::vector{fine, c}, 4), what.c_str(), input_error);
  };
  refused("layer 4's copy of parameters of layer 0: expected two of 4 layers", [](auto& c) { c.layer = 4; });
  refused("layer 3's copy of parameters of layer -1: expected two of 4 layers", [](auto& c) { c.owner = -1; });
  refused("layer 3's copy of parameters of layer 3: expected two of 4 layers", [](auto& c) { c.owner = 3; });
  const std::string bytes =
      "layer 3's copy of parameters of layer 0 has bytes below 0, or fewer than its gradients and optimizer state together";
  refused(bytes, [](auto& c) { c.weight_bytes = 7; });
  refused(bytes, [](auto& c) { c.gradient_bytes = -1; });
  refused(bytes, [](auto& c) { c.optimizer_bytes = -1; });
  refused(bytes, [](auto& c) { c.reduction_bytes = -1; });
}
