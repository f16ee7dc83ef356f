// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/detail/transfer_ends.hpp>

#include <doctest/doctest.h>

#include <string>

#include <hetsched/schedule/text.hpp>

using namespace hetsched;

TEST_CASE("the other end of a transfer lies one stage on, where its tensor goes or comes from") {
  using enum action_kind;
  const auto other = [](action_kind kind) { return to_text(detail::other_end({.kind = kind, .stage = 2, .microbatch = 5})); };
  CHECK(other(send_activation) == "3RECV_F5");
  CHECK(other(receive_activation) == "1SEND_F5");
  CHECK(other(send_gradient) == "1RECV_B5");
  CHECK(other(receive_gradient) == "3SEND_B5");
  CHECK(other(network_activation) == "3H2D_F5");
  CHECK(other(h2d_activation) == "1NET_F5");
  CHECK(other(network_gradient) == "1H2D_B5");
  CHECK(other(h2d_gradient) == "3NET_B5");
}

TEST_CASE("what a computation makes goes to the next stage, a gradient to the one before") {
  using enum action_kind;
  for (const auto kind : {forward, send_activation, d2h_activation, network_activation})
    CHECK(detail::next_stage({.kind = kind, .stage = 2}) == 3);
  for (const auto kind : {backward, backward_input, send_gradient, d2h_gradient, network_gradient})
    CHECK(detail::next_stage({.kind = kind, .stage = 2}) == 1);
}
