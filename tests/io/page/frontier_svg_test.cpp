// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/page/frontier_svg.hpp>

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

/// The numbers behind an attribute, in order.
std::vector<double> numbers(const std::string& text, const std::string& attribute) {
  std::vector<double> found;
  for (auto at = text.find(attribute + "=\""); at != std::string::npos; at = text.find(attribute + "=\"", at + 1))
    found.push_back(std::stod(text.substr(at + attribute.size() + 2)));
  return found;
}

}  // namespace

TEST_CASE("a point for every plan, by rising time and in order of cost; the chosen one has another shape") {
  const auto svg = frontier_svg({{4, 1e-4, "cheap & slow"}, {1, 3e-4, "fast"}, {2, 2e-4, "", true}});
  auto x = numbers(svg, "cx"), y = numbers(svg, "cy");
  REQUIRE(x.size() == 2);
  // The diamond begins at its upper corner.
  const auto corner = svg.substr(svg.find("class=\"chosen\" d=\"M") + 19);
  x.insert(x.begin() + 1, std::stod(corner));
  y.insert(y.begin() + 1, std::stod(corner.substr(corner.find(' '))) + 8);
  CHECK(x[1] - x[0] == doctest::Approx(x[2] - x[1]).epsilon(0.01));  // a logarithmic axis
  CHECK(x[0] < x[1]);
  CHECK(y[1] - y[0] == doctest::Approx(y[2] - y[1]).epsilon(0.01));
  CHECK(y[0] < y[1]);  // down on the page
  CHECK(count(svg, "<circle") == 2);
  CHECK(count(svg, " class=\"chosen\"") == 1);
  CHECK(count(svg, "cheap &amp; slow") == 1);
  CHECK(count(svg, "2.00 s, 0.0002 per iteration") == 1);
}

TEST_CASE("one plan, plans that cost nothing or the same, times far apart: all inside the picture") {
  const std::vector<std::vector<frontier_point>> pictures{
      {}, {{1, 0.1}}, {{1, 0}}, {{1, 2}, {3, 2}}, {{1e-6, 5}, {1e5, 1e-9}}, {{0.99, 1.0000001}, {1, 1}}};
  for (const auto& points : pictures) {
    CAPTURE(points.size());
    const auto svg = frontier_svg(points, 600, 300);
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
    CHECK(count(svg, "<line") < 60);
    for (const double x : numbers(svg, "cx")) CHECK((x > 90 && x < 600));
    for (const double y : numbers(svg, "cy")) CHECK((y > 30 && y < 260));
  }
}
