// SPDX-License-Identifier: Apache-2.0
#include <hetsched/views/reshard.hpp>

#include <doctest/doctest.h>

#include <cstddef>

#include <hetsched/reshard/strategies.hpp>

#include "mode.hpp"

TEST_CASE(VIEWS "messages of a transfer plan come phase by phase, each with its slice") {
  using namespace hetsched;
  const auto from = boundary_layout({.data = 2, .tensor = 2}, 8, 16, 4), to = boundary_layout({.data = 4}, 8, 16, 4);
  bool several = false;
  for (const auto strategy : all_reshard_strategies) {
    CAPTURE(name_of(strategy));
    const auto plan = plan_transfer(from, to, strategy, {.chunks = 2});
    std::size_t message = 0;
    for (const auto& [phase, m, slice] : views::messages_by_phase(plan)) {
      CHECK(&m == &plan.messages[message]);
      CHECK((plan.phases[phase] <= message && message < plan.phases[phase + 1]));
      CHECK(slice.data() == plan.slice_of(m).data());
      CHECK(element_count(slice) == m.elements);
      ++message;
    }
    CHECK(message == plan.messages.size());
    several = several || plan.phase_count() > 2;
  }
  CHECK(several);
  const transfer_plan none;
  for ([[maybe_unused]] const auto& m : views::messages_by_phase(none)) CHECK(false);
}
