// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/compiled.hpp>

#include <string_view>

#include <doctest/doctest.h>

#define HETSCHED_TEST_TEXT_OF(x) #x
#define HETSCHED_TEST_TEXT(...) HETSCHED_TEST_TEXT_OF(__VA_ARGS__)

TEST_CASE("core: definitions are inline where headers bring them, and not in a library") {
#ifdef HETSCHED_COMPILED
  CHECK(std::string_view(HETSCHED_TEST_TEXT(HETSCHED_INLINE)).empty());
#else
  CHECK(std::string_view(HETSCHED_TEST_TEXT(HETSCHED_INLINE)) == "inline");
#endif
}
