// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard/layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/cut_points.hpp>

using namespace hetsched;

namespace {

std::string complaint(const layout& l) {
  try {
    validate(l);
  } catch (const input_error& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("slices of devices partition the tensor; devices that differ along other axes are replicas") {
  random_source random(41);
  int uneven = 0, replicated = 0;
  for (int n = 0; n < 2000; ++n) {
    layout l;
    for (int axes = random.integer(0, 3); axes > 0; --axes) l.mesh.push_back(random.integer(1, 4));
    for (int d = random.integer(1, 3); d > 0; --d) l.dimensions.push_back({random.integer(0, 9), {}, {}});
    int replicas = 1;
    for (std::size_t a = 0; a < l.mesh.size(); ++a) {
      const auto d = static_cast<std::size_t>(random.integer(-1, static_cast<int>(l.dimensions.size()) - 1));
      if (d < l.dimensions.size())
        l.dimensions[d].axes.push_back(static_cast<int>(a));
      else
        replicas *= l.mesh[a];
    }
    for (std::size_t d = 0; d < l.dimensions.size(); ++d) {
      auto& cut = l.dimensions[d];
      if (random.integer(0, 1)) std::reverse(cut.axes.begin(), cut.axes.end());
      if (random.integer(0, 1)) continue;
      cut.points = {0, cut.extent};
      for (int p = 1; p < l.parts(d); ++p) cut.points.push_back(random.integer(0, static_cast<int>(cut.extent)));
      std::sort(cut.points.begin(), cut.points.end());
      uneven += l.parts(d) > 1;
    }
    CAPTURE(n);
    REQUIRE(complaint(l).empty());
    // How often every element is held.
    std::map<std::vector<std::int64_t>, int> held;
    const auto visit = [&](auto& self, const slice& s, std::vector<std::int64_t> at) -> void {
      if (at.size() == s.size()) {
        ++held[at];
        return;
      }
      const auto along = s[at.size()];
      at.push_back(0);
      for (auto x = along.first; x < along.last; ++x) {
        at.back() = x;
        self(self, s, at);
      }
    };
    for (int device = 0; device < l.device_count(); ++device) visit(visit, slice_of(l, device), {});
    REQUIRE(static_cast<std::int64_t>(held.size()) == element_count(l.whole()));
    for (const auto& [element, times] : held) REQUIRE(times == replicas);
    replicated += replicas > 1;
  }
  CHECK(uneven > 300);
  CHECK(replicated > 300);
}

TEST_CASE("positions and parts: the last axis is fastest, and so is the last of those that cut a dimension") {
  const layout l{.mesh = {2, 3, 4}, .dimensions = {{24, {2, 0}, {}}, {6, {1}, {0, 1, 3, 6}}}};
  CHECK(l.device_count() == 24);
  CHECK(l.parts(0) == 8);
  CHECK(l.parts(1) == 3);
  const int device = (1 * 3 + 2) * 4 + 3;
  CHECK(l.position(device, 0) == 1);
  CHECK(l.position(device, 1) == 2);
  CHECK(l.position(device, 2) == 3);
  CHECK(l.part_of(0, device) == 3 * 2 + 1);
  CHECK(slice_of(l, device) == slice{{21, 24}, {3, 6}});
  CHECK(slice_of(l, 0) == slice{{0, 3}, {0, 1}});
  CHECK(l.whole() == slice{{0, 24}, {0, 6}});
  // Fewer indices than parts: some have none.
  const layout thin{.mesh = {4}, .dimensions = {{2, {0}, {}}}};
  CHECK(slice_of(thin, 0) == slice{{0, 0}});
  CHECK(slice_of(thin, 1) == slice{{0, 1}});
  CHECK(slice_of(thin, 3) == slice{{1, 2}});
  // One device, and a scalar.
  CHECK(slice_of({.mesh = {}, .dimensions = {{5, {}, {}}}}, 0) == slice{{0, 5}});
  CHECK(slice_of({.mesh = {3}, .dimensions = {}}, 2).empty());
}

TEST_CASE("what is wrong with a layout is told") {
  CHECK(complaint({.mesh = {2, 0}, .dimensions = {}}) == "a mesh axis of 0 devices");
  CHECK(complaint({.mesh = {2}, .dimensions = {{4, {}, {}}, {-1, {}, {}}}}) == "dimension 1: an extent of -1");
  CHECK(complaint({.mesh = {2}, .dimensions = {{4, {1}, {}}}}) == "dimension 0: the mesh has no axis 1");
  CHECK(complaint({.mesh = {2}, .dimensions = {{4, {-1}, {}}}}) == "dimension 0: the mesh has no axis -1");
  CHECK(complaint({.mesh = {2, 2}, .dimensions = {{4, {0}, {}}, {4, {1, 0}, {}}}}) == "dimension 1: axis 0 cuts twice");
  CHECK(complaint({.mesh = {2}, .dimensions = {{4, {0}, {0, 4}}}}) == "dimension 0: 2 cut points for 2 parts");
  for (const std::vector<std::int64_t>& points : {std::vector<std::int64_t>{0, 3, 3}, {1, 2, 4}, {0, 5, 4}})
    CHECK(complaint({.mesh = {2}, .dimensions = {{4, {0}, points}}}) == "dimension 0: cut points must rise from 0 to 4");
  CHECK(complaint({.mesh = {2}, .dimensions = {{4, {0}, {0, 0, 4}}}}).empty());
  CHECK(complaint({}).empty());
}

TEST_CASE("cut points by largest remainder add up, each within one index of its share") {
  using points = std::vector<std::int64_t>;
  CHECK(cut_points(10, std::vector<double>{1, 1, 1}) == points{0, 4, 7, 10});
  CHECK(cut_points(10, std::vector<double>{0.6, 0.4}) == points{0, 6, 10});
  CHECK(cut_points(7, std::vector<double>{0.5, 0, 0.5}) == points{0, 4, 4, 7});
  CHECK(cut_points(0, std::vector<double>{1, 2}) == points{0, 0, 0});
  CHECK(cut_points(3, std::vector<double>{5}) == points{0, 3});
  random_source random(43);
  for (int n = 0; n < 5000; ++n) {
    std::vector<double> shares;
    double all = 0;
    for (int i = random.integer(1, 9); i > 0; --i) shares.push_back(random.integer(0, 3) ? random.uniform(0.001, 10) : 0);
    shares.push_back(random.uniform(0.001, 1e3));
    for (const double s : shares) all += s;
    const std::int64_t extent = random.integer(0, n % 2 ? 20 : 1'000'000);
    const auto found = cut_points(extent, shares);
    CAPTURE(n);
    REQUIRE(found.size() == shares.size() + 1);
    REQUIRE(found.front() == 0);
    REQUIRE(found.back() == extent);
    for (std::size_t i = 0; i < shares.size(); ++i)
      REQUIRE(std::abs(static_cast<double>(found[i + 1] - found[i]) - shares[i] / all * static_cast<double>(extent)) < 1);
  }
}

TEST_CASE("what lies between stages") {
  const auto parallel = boundary_layout({.data = 2, .context = 2, .tensor = 4}, 8, 64, 16);
  validate(parallel);
  CHECK(parallel.device_count() == 16);
  CHECK(slice_of(parallel, 0) == slice{{0, 4}, {0, 8}, {0, 16}});
  CHECK(slice_of(parallel, 15) == slice{{4, 8}, {56, 64}, {0, 16}});
  CHECK(slice_of(parallel, 5) == slice{{0, 4}, {40, 48}, {0, 16}});  // context 1, tensor 1
  const auto replicated = boundary_layout({.data = 2, .context = 2, .tensor = 4}, 8, 64, 16, false);
  CHECK(slice_of(replicated, 5) == slice{{0, 4}, {32, 64}, {0, 16}});
  CHECK(slice_of(replicated, 4) == slice_of(replicated, 7));
}
