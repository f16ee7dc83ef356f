// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/measured.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace hetsched;

namespace {

using enum action_kind;

action of(action_kind kind, int stage, int microbatch = 0) { return {.kind = kind, .stage = stage, .microbatch = microbatch}; }

}  // namespace

TEST_CASE("a transfer ends when its receiver has it") {
  const timeline sender{.ranks = 2,
                        .microbatches = 2,
                        .actions = {{of(forward, 0), 0, -1, 10, 11},
                                    {of(forward, 0, 1), 0, -1, 11, 12},
                                    {of(send_activation, 0), 0, 1, 11, 11.25},
                                    {of(send_activation, 0, 1), 0, 1, 12, 12.25},
                                    {of(receive_gradient, 0), 0, 1, 16, 16}}};
  const timeline receiver{.ranks = 2,
                          .microbatches = 2,
                          .actions = {{of(forward, 1), 1, -1, 13, 14},
                                      {of(backward, 1), 1, -1, 14, 15},
                                      {of(send_gradient, 1), 1, 0, 15, 15},
                                      {of(receive_activation, 1), 1, 0, 13, 13},
                                      {of(receive_activation, 1, 1), 1, 0, 14, 14}}};
  const std::vector<timed_action> expected{{of(forward, 0), 0, -1, 0, 1},        {of(forward, 0, 1), 0, -1, 1, 2},
                                           {of(send_activation, 0), 0, 1, 1, 3}, {of(send_activation, 0, 1), 0, 1, 2, 4},
                                           {of(forward, 1), 1, -1, 3, 4},        {of(backward, 1), 1, -1, 4, 5},
                                           {of(send_gradient, 1), 1, 0, 5, 6}};
  CHECK(merged(std::vector{sender, receiver}).actions == expected);
  CHECK(merged(std::vector{receiver, sender}).actions == expected);
  CHECK(merged(std::vector{sender, receiver}).ranks == 2);

  // One alone: what it sends ends when it believes so, and what it has received is nobody's.
  const auto alone = merged(std::vector{sender});
  REQUIRE(alone.actions.size() == 4);
  CHECK(alone.actions[2] == timed_action{of(send_activation, 0), 0, 1, 1, 1.25});
}

TEST_CASE("the phases of a transfer are listed by its sender") {
  // As simulate() has it: the last one keeps the stage that it leads to.
  const timeline sender{
      .ranks = 2, .microbatches = 1, .actions = {{of(d2h_gradient, 1), 1, 0, 1, 2}, {of(network_gradient, 1), 1, 0, 2, 2.5}}};
  const timeline receiver{
      .ranks = 2, .microbatches = 1, .actions = {{of(receive_gradient, 0), 0, 1, 4, 4}, {of(h2d_gradient, 0), 0, 1, 4, 5}}};
  const std::vector<timed_action> expected{
      {of(d2h_gradient, 1), 1, 0, 0, 1}, {of(network_gradient, 1), 1, 0, 1, 3}, {of(h2d_gradient, 0), 1, 0, 3, 4}};
  CHECK(merged(std::vector{receiver, sender}).actions == expected);
}
