// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/boundary_transfer.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../numbered.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::string why(const transfer_plan& p, const layout& from, const layout& to) {
  try {
    detail::check_transfer(p, from, to);
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every strategy's plan can be run; one that lacks a message of those that count cannot") {
  random_source random(1);
  int refused = 0;
  for (int instance = 0; instance < 300; ++instance) {
    CAPTURE(instance);
    const std::vector<std::int64_t> extents{6, 5};
    const auto from = random_layout(random, extents, random_mesh(random, 6));
    const auto to = random_layout(random, extents, random_mesh(random, 6));
    auto plan = plan_transfer(from, to, random_strategy(random), {.chunks = random.integer(1, 3)});
    CHECK(why(plan, from, to) == "");
    if (plan.messages.empty()) continue;
    // Every element of a destination comes once in these plans, so that no message into a destination's slice can be missing.
    const auto gone = static_cast<std::size_t>(random.integer(0, static_cast<int>(plan.messages.size()) - 1));
    auto& m = plan.messages[gone];
    const auto part = plan.slice_of(m);
    if (!plan.crosses(m) || plan.phase_count() > 1 || !overlap(part, slice_of(to, m.to - plan.sources))) continue;
    m.intervals = plan.intervals.size();
    plan.intervals.resize(plan.intervals.size() + plan.dimensions);  // nothing
    ++refused;
    CHECK(contains(why(plan, from, to), "does not get all of its slice"));
  }
  CHECK(refused > 50);
}

TEST_CASE("what is wrong with a transfer plan is told") {
  const layout two{.mesh = {2}, .dimensions = {{.extent = 4, .axes = {0}}}}, one{.mesh = {1}, .dimensions = {{.extent = 4}}};
  const auto good = plan_transfer(two, one, reshard_strategy::direct);
  CHECK(why(good, two, one) == "");
  CHECK(contains(why(good, one, two), "it is for 2 and 1 devices, not 1 and 2"));
  auto other = one;
  other.dimensions[0].extent = 5;
  CHECK(contains(why(good, two, other), "another shape"));
  auto self = good;
  self.messages[0].to = self.messages[0].from;
  CHECK(contains(why(self, two, one), "message 0 goes from device 0 to device 0"));
  auto lacking = good;
  lacking.messages[0].from = 1;
  CHECK(contains(why(lacking, two, one), "device 1 does not have what it is to send in message 0"));
}

TEST_CASE("leading dimensions of a layout may be one of the tensor's") {
  const slice s{{0, 2}, {3, 6}, {1, 5}};
  CHECK(detail::shape_of_slice(s) == tensor_shape{2, 3, 4});
  CHECK(detail::shape_of_slice(s, 2) == tensor_shape{6, 4});
  CHECK(detail::shape_of_slice(s, 3) == tensor_shape{24});
}
