// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/layer/layer_error.hpp>

#include <doctest/doctest.h>

#include <hetsched/runtime/communicator/thread_communicator.hpp>

#include "../breaches.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("[threads] a layer that breaks a contract is named, with rank, stage and microbatch, and both shapes") {
  check_breaches([] { return thread_communicator<view_tensor>::connect(2); });
}
