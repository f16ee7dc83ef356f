// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <hetsched/gloo/gloo_communicator.hpp>

#include "../io/checkpoint/partial_load.hpp"
#include "../runtime/breaches.hpp"
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
