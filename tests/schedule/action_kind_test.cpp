// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/action_kind.hpp>

#include <doctest/doctest.h>

#include <hetsched/schedule/detail/transfer_ends.hpp>
#include <hetsched/schedule/text.hpp>

using namespace hetsched;

TEST_CASE("every kind is a computation, a transfer or work on parameters, and its name says what it moves") {
  for (int k = 0; k < action_kinds; ++k) {
    const auto kind = static_cast<action_kind>(k);
    const auto name = detail::kind_names[k];
    CAPTURE(name);
    CHECK(is_compute(kind) + is_transfer(kind) + is_parameter(kind) + is_mark(kind) == 1);
    CHECK(is_compute(kind) == (name.size() == 1));
    CHECK((is_transfer(kind) || (is_mark(kind) && takes_microbatch(kind))) ==
          (name.find('_') != name.npos && (name.ends_with("_F") || name.ends_with("_B"))));
    CHECK(moves_gradient(kind) == (is_transfer(kind) && name.ends_with("_B")));
    CHECK(makes_gradient(kind) == (name == "B" || name == "I"));
    CHECK(makes_tensor(kind) == (name == "F" || name == "B" || name == "I"));
    CHECK(detail::is_send(kind) == name.starts_with("SEND_"));
    CHECK(detail::is_receive(kind) == name.starts_with("RECV_"));
    CHECK(detail::is_staged(kind) == (name.starts_with("D2H_") || name.starts_with("NET_") || name.starts_with("H2D_")));
    if (is_mark(kind)) CHECK(name.substr(5) == detail::kind_names[static_cast<std::size_t>(marked_kind(kind))]);
    if (is_transfer(kind)) CHECK(transfer_kind(traits_of(kind).payload, traits_of(kind).leg) == kind);
  }
}
