// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/models/like_cases.hpp>

#include <cmath>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>

using namespace hetsched;

TEST_CASE("like cases: every line is one of a page, with figures that can be") {
  CHECK_FALSE(known_cases().empty());
  for (const auto& one : known_cases()) {
    CHECK(one.cases > 0);
    CHECK(one.mean >= std::abs(one.bias));
    CHECK(std::filesystem::exists(std::string(HETSCHED_SOURCE_DIR "/docs/accuracy/") + std::string(one.page) + ".md"));
  }
}

TEST_CASE("like cases: those of the stack, or of any; none where nothing was measured") {
  for (const auto& one : cases_like(cost_basis::datasheets, "fsdp")) CHECK(one.stack == "fsdp");
  CHECK_FALSE(cases_like(cost_basis::datasheets, "fsdp").empty());
  CHECK(cases_like(cost_basis::profile, "fsdp").size() == cases_like(cost_basis::profile, "one of my own").size());
  CHECK_FALSE(cases_like(cost_basis::profile, "fsdp").empty());
  CHECK(cases_like(cost_basis::datasheets, "one of my own").empty());
  CHECK(cases_like(cost_basis::layers, "fsdp").empty());
  CHECK(cases_text({}) == "no like cases were measured");
  const like_cases two[] = {{.what = "runs", .cases = 3, .bias = -0.026, .mean = 0.0325},
                            {.what = "layers", .cases = 1, .bias = 0.1, .mean = 0.1}};
  CHECK(cases_text({two, 1}) == "like cases -2.6 % on average, +-3.2 % (3 runs)");
  auto sent = two[0];
  sent.sends = send_mode::grouped;
  CHECK(cases_text({&sent, 1}) == "like cases -2.6 % on average, +-3.2 % (3 runs, with grouped sends)");
  CHECK(cases_text(cases_like(cost_basis::datasheets, "megatron")).ends_with(" kinds, with grouped sends)"));
  CHECK(cases_text(two) == "like cases -2.6 to +10.0 % on average, +-3.2 to +-10.0 % (4, of 2 kinds)");
}

TEST_CASE("like cases: a cluster is as sure as its least sure device") {
  const auto of = [](auto... devices) {
    cluster c;
    (c.subclusters.push_back({.name = std::to_string(c.subclusters.size()), .device = devices}), ...);
    return basis_of(c);
  };
  const auto plain = *find_device("A100-SXM4-80GB");
  auto calibrated = plain, anchored = plain, unknown = plain;
  calibrated.calibration.launch_s = 1e-6;
  anchored.speed = 0.5;
  unknown.multiprocessors = 0;
  CHECK(of(plain) == cost_basis::datasheets);
  CHECK(of(calibrated) == cost_basis::calibrated);
  CHECK(of(anchored) == cost_basis::anchored);
  CHECK(of(unknown) == cost_basis::layers);
  CHECK(of(anchored, calibrated) == cost_basis::calibrated);
  CHECK(of(anchored, plain, calibrated) == cost_basis::datasheets);
  CHECK(of(unknown, anchored) == cost_basis::layers);
}
