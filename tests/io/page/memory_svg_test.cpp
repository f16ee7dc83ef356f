// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/io/page/memory_svg.hpp>

using namespace hetsched;

TEST_CASE("a curve rises and falls at its times, on the scale of the most that is held") {
  // 0 to 10 s on 400 pixels from x = 100; 40 pixels stand for 4 GiB.
  const double full = 4 * static_cast<double>(gib);
  const memory_curve curve{.label = "<stage 0>", .steps = {{0, full / 2}, {2.5, full}, {5, 0}}, .capacity = 0};
  const auto svg = memory_svg({curve}, {.makespan_s = 10, .width = 690, .left = 100});
  CAPTURE(svg);
  CHECK(svg.find("M100.0 66.0V66.0H100V46.0H101V46.0H200V26.0H201V26.0H300V66.0H301V66.0H500.0V66.0Z") != std::string::npos);
  CHECK(svg.find("peak 4.00 GiB<") != std::string::npos);
  CHECK(svg.find("&lt;stage 0&gt;") != std::string::npos);
  CHECK(svg.find("class=\"cap\"") == std::string::npos);
}

TEST_CASE("a capacity is a line where it fits on the scale, and text in any case") {
  const memory_curve fits{.label = "a", .steps = {{0, 10}, {1, 0}}, .capacity = 16};
  const memory_curve over{.label = "b", .steps = {{0, 20}, {1, 0}}, .capacity = 16};
  const memory_curve roomy{.label = "c", .steps = {{0, 10}, {1, 0}}, .capacity = 1000};
  const auto two = memory_svg({fits, over}, {.in_bytes = false});
  CHECK(two.find("class=\"cap\"") != std::string::npos);
  CHECK(two.find("class=\"held\"") != std::string::npos);
  CHECK(two.find("class=\"over\"") != std::string::npos);
  CHECK(two.find("peak 20.0 of 16.0") != std::string::npos);
  const auto one = memory_svg({roomy}, {.in_bytes = false});
  CHECK(one.find("class=\"cap\"") == std::string::npos);
  CHECK(one.find("peak 10.0 of 1000") != std::string::npos);
}

TEST_CASE("a step between two others of one pixel shows if it is the highest") {
  memory_curve curve{.label = "a", .steps = {}, .capacity = 0};
  for (int i = 0; i < 100'000; ++i) curve.steps.push_back({1.0 * i, i == 50'000 ? 8.0 : 1.0 + i % 2});
  const auto svg = memory_svg({curve}, {.makespan_s = 100'000, .width = 690, .left = 100});
  CHECK(svg.size() < 12'000);
  CHECK(svg.find("V26.0H301") != std::string::npos);
}

TEST_CASE("nothing held, no time and no ranks are drawn, too") {
  CHECK_NOTHROW((void)memory_svg({}));
  CHECK_NOTHROW((void)memory_svg({{.label = "a", .steps = {}, .capacity = 0}}));
  CHECK_NOTHROW((void)memory_svg({{.label = "a", .steps = {{0, 0}}, .capacity = 5}}));
}
