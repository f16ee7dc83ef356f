// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/page/bars_svg.hpp>

#include <string>

#include <doctest/doctest.h>

using namespace hetsched;

TEST_CASE("bars are as long as their values, and marks stand where theirs are") {
  // From 170 to what the longest text leaves of 860, 813.5: 643.5 for 2.
  const auto picture = bars_svg({{"one", 1, "1 s", 0.5}, {"a < b", 2, "2 s"}, {"none", 0, "no plan"}}, "Times");
  const auto has = [&](const std::string& piece) { return picture.find(piece) != std::string::npos; };
  CHECK(has("<rect x=\"170.0\" y=\"42.0\" width=\"321.8\""));
  CHECK(has("<line x1=\"330.9\""));
  CHECK(has("<rect x=\"170.0\" y=\"72.0\" width=\"643.5\""));
  CHECK_FALSE(has("y=\"102.0\" width"));
  CHECK(has("a &lt; b"));
  CHECK(has("no plan"));
}
