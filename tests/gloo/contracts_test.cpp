// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <hetsched/gloo/gloo_communicator.hpp>

#include "../io/checkpoint/partial_load.hpp"
#include "../runtime/breaches.hpp"
#include "../runtime/packed_layers.hpp"
#include "ends.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::vector<gloo_communicator<view_tensor>> two_ends() {
  std::vector<gloo_communicator<view_tensor>> ends;
  for (auto& end : connect_ends<view_tensor>(2)) ends.push_back(*end);
  return ends;
}

}  // namespace

TEST_CASE("[threads] gloo: a layer that breaks a contract is named as it is over threads") { check_breaches(two_ends); }

TEST_CASE("[threads] gloo: a checkpoint of twelve layers does not load into eleven") { check_partial_load(two_ends); }

TEST_CASE("[threads] gloo: three tensors of three types between stages have the losses of layers that hand them on themselves") {
  const three_parts net{};
  for (const auto* name : {"1f1b", "zb_v"}) {
    CAPTURE(name);
    constexpr int ranks = 3;
    const auto layout = even_layout(net.layers, schedule_of(name, ranks, 6), 4);
    const auto expected = net.alone(layout, 3, 0.05).losses;
    auto ends = connect_ends(ranks);
    rethrow_first(on_ranks(ranks, [&](int r) {
      if (net.train(layout, 3, 0.05, *ends[static_cast<std::size_t>(r)]) != expected) throw error("other losses");
    }));
  }
}
