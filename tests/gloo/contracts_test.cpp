// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <hetsched/gloo/gloo_communicator.hpp>

#include "../runtime/breaches.hpp"
#include "ends.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("[threads] gloo: a layer that breaks a contract is named as it is over threads") {
  check_breaches([] {
    std::vector<gloo_communicator<view_tensor>> ends;
    for (auto& end : connect_ends<view_tensor>(2)) ends.push_back(*end);
    return ends;
  });
}
