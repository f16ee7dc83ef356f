// SPDX-License-Identifier: Apache-2.0
// Compiled by itself, with contracts off.
#undef HETSCHED_CONTRACTS
#ifndef NDEBUG
#define NDEBUG
#endif
#include <hetsched/core/contract.hpp>

#include <doctest/doctest.h>

TEST_CASE("contracts cost nothing where they are off") {
  [[maybe_unused]] int evaluations = 0;
  HETSCHED_EXPECTS(++evaluations < 0);
  CHECK(evaluations == 0);
}
