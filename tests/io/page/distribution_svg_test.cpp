// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/page/distribution_svg.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

using namespace hetsched;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<double> numbers(const std::string& text, const std::string& attribute) {
  std::vector<double> found;
  for (auto at = text.find(attribute + "=\""); at != std::string::npos; at = text.find(attribute + "=\"", at + 1))
    found.push_back(std::stod(text.substr(at + attribute.size() + 2)));
  return found;
}

}  // namespace

TEST_CASE("a line of the shares that have ended, with three quantiles and the time without noise") {
  std::vector<double> seconds;
  for (int i = 0; i < 100; ++i) seconds.push_back(100 - i);  // 1 to 100, in no order
  const auto svg = distribution_svg(seconds, 40);
  const auto x = numbers(svg, "cx"), y = numbers(svg, "cy");
  REQUIRE(x.size() == 3);
  // 50, 90 and 99 seconds on an even axis; 50, 90 and 99 % up the page.
  CHECK((x[1] - x[0]) / 40 == doctest::Approx((x[2] - x[1]) / 9).epsilon(0.01));
  CHECK((y[0] - y[1]) / 40 == doctest::Approx((y[1] - y[2]) / 9).epsilon(0.01));
  CHECK(y[0] > y[1]);
  for (const std::string text : {"50 %: 50.0 s", "90 %: 90.0 s", "99 %: 99.0 s", "without noise: 40.0 s"}) {
    CAPTURE(text);
    CHECK(count(svg, text) >= 1);
  }
  CHECK(count(svg, "<path") == 1);
}

TEST_CASE("many iterations make no larger picture, equal ones and none at all make one too") {
  CHECK(distribution_svg(std::vector<double>(200'000, 1.5), 1.5).size() < 60'000);
  CHECK(count(distribution_svg({2, 2, 2}, 2), "99 %: 2.00 s") >= 1);
  CHECK(distribution_svg({}, 1).ends_with("</svg>\n"));
  CHECK(count(distribution_svg({0, 0}, 0), "nan") == 0);
}
