// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/report.hpp>
#include <hetsched/schedule.hpp>

using namespace hetsched;

namespace {

struct scene {
  pipeline times;
  std::vector<int> warmups;
  simulation played;
};

scene make_scene(int stages, int microbatches) {
  random_source random(5);
  scene s;
  for (int i = 0; i < stages; ++i) {
    s.times.forward_s.push_back(random.uniform(0.8, 1));
    s.times.backward_s.push_back(random.uniform(1.6, 2));
    if (i + 1 < stages) s.times.transfer_s.push_back(i == stages / 2 ? 1.5 : 0.1);
  }
  s.warmups = warmup_counts(warmup_rule::h1f1b, s.times);
  s.played = simulate(s.times, one_f_one_b(s.warmups, microbatches));
  return s;
}

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t found = 0;
  for (auto at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++found;
  return found;
}

}  // namespace

TEST_CASE("a short timeline is drawn whole: one box per action") {
  const auto s = make_scene(4, 16);
  const auto picture = draw_timeline(s.played.timeline);
  CHECK(picture.shown == "The whole iteration is shown.");
  CHECK(count(picture.svg, "<title>forward of") == 64);
  CHECK(count(picture.svg, "<title>backward of") == 64);
  CHECK(count(picture.svg, "<title>activation of") == 48);
  CHECK(count(picture.svg, "<title>gradient of") == 48);
}

TEST_CASE("a long timeline is windowed, says so, and stays small") {
  for (const auto& [stages, microbatches] : {std::pair{4, 5000}, std::pair{64, 512}, std::pair{300, 300}}) {
    CAPTURE(stages);
    auto s = make_scene(stages, microbatches);
    const auto picture = draw_timeline(s.played.timeline, {.labels = {}, .period_s = period(s.times, s.warmups)});
    CHECK(picture.shown.find("three windows") != std::string::npos);
    CHECK(count(picture.svg, "class=\"break\"") == 4);
    report page{.title = "t", .summary = "s", .figures = simulation_figures(s.played), .sections = {}};
    page.sections.push_back(pipeline_section(s.times, s.warmups, std::move(s.played.timeline), 0));
    CHECK(to_html(page).size() < 2'000'000);
  }
}

TEST_CASE("a page needs nothing from outside, and text cannot break out of it") {
  auto s = make_scene(2, 4);
  const std::string evil = "<script>alert('x')</script>\"&";
  report page{.title = evil, .summary = evil, .figures = {{evil, evil, evil}}, .sections = {}};
  pipeline_plan line{.microbatches = 4, .microbatch_size = 1, .stages = {}};
  for (int i = 0; i < 2; ++i) {
    stage_plan stage;
    stage.layers = {i, i + 1};
    stage.memory_bytes = 3 * gib;
    stage.memory_capacity_bytes = 2 * gib;
    line.stages.push_back(stage);
  }
  page.sections.push_back(plan_section(line, {evil}, std::move(s.played.timeline), 1));
  const auto html = to_html(page);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("&lt;script&gt;") != std::string::npos);
  CHECK(count(html, "http") == count(html, "http://www.w3.org/2000/svg"));
  CHECK(html.find("3.00 GiB of 2.00 GiB (150 %)") != std::string::npos);
  CHECK(html.find("class=\"over\"") != std::string::npos);
}

TEST_CASE("timelines without length or transfers are drawn, too") {
  const pipeline still{.forward_s = {0}, .backward_s = {0}, .transfer_s = {}, .gradient_transfer_s = {}};
  CHECK_NOTHROW((void)timeline_svg(simulate(still, one_f_one_b({1}, 3)).timeline));
  CHECK_NOTHROW((void)timeline_svg({}));
  const pipeline alone{.forward_s = {1}, .backward_s = {2}, .transfer_s = {}, .gradient_transfer_s = {}};
  CHECK(timeline_svg(simulate(alone, one_f_one_b({1}, 3)).timeline).find("activation on its way") == std::string::npos);
}
