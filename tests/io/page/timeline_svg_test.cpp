// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/page/detail/timeline_look.hpp>
#include <hetsched/io/page/timeline_svg.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;
using enum action_kind;

namespace {

/// A box of the picture, read back from its text.
struct drawn {
  double x = 0, y = 0, width = 0, height = 0;
  std::string style, title;
};

std::vector<drawn> boxes_of(const std::string& svg) {
  std::vector<drawn> boxes;
  for (auto at = svg.find("<rect "); at != std::string::npos; at = svg.find("<rect ", at + 1)) {
    const auto end = svg.find('\n', at);
    const auto line = svg.substr(at, end - at);
    if (line.find("<title>") == std::string::npos) continue;
    const auto value = [&](const std::string& name) {
      const auto from = line.find(" " + name + "=\"") + name.size() + 3;
      return line.substr(from, line.find('"', from) - from);
    };
    const auto title = line.find("<title>") + 7;
    boxes.push_back({std::atof(value("x").c_str()), std::atof(value("y").c_str()), std::atof(value("width").c_str()),
                     std::atof(value("height").c_str()), value("class"), line.substr(title, line.find('<', title) - title)});
  }
  return boxes;
}

std::vector<drawn> titled(const std::string& svg, const std::string& start) {
  auto boxes = boxes_of(svg);
  std::erase_if(boxes, [&](const drawn& b) { return !b.title.starts_with(start); });
  return boxes;
}

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t found = 0;
  for (auto at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++found;
  return found;
}

/// One forward per rank and microbatch at `microbatch + rank`, of the stage that each rank has; and what `more` lists.
timeline staircase(int ranks, int microbatches, std::vector<timed_action> more = {}) {
  timeline t{ranks, microbatches, std::move(more)};
  for (int r = 0; r < ranks; ++r)
    for (int m = 0; m < microbatches; ++m)
      t.actions.push_back({{.kind = forward, .stage = r, .microbatch = m}, r, -1, 1.0 * (m + r), 1.0 * (m + r + 1)});
  std::stable_sort(t.actions.begin(), t.actions.end(),
                   [](const timed_action& a, const timed_action& b) { return a.rank < b.rank; });
  return t;
}

}  // namespace

TEST_CASE("boxes lie where their times are, in the lane of their rank") {
  const auto t = staircase(3, 5);
  const auto svg = timeline_svg(t, {.width = 1000});
  const auto boxes = titled(svg, "forward of");
  REQUIRE(boxes.size() == 15);
  const auto lanes = titled(svg, "stage");
  REQUIRE(lanes.size() == 3);
  const double second = lanes[0].width / 7;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    CAPTURE(boxes[i].title);
    const auto& a = t.actions[i];
    const auto& lane = lanes[static_cast<std::size_t>(a.rank)];
    // To a pixel: boxes leave a narrow gap.
    CHECK(std::abs(boxes[i].x - (lane.x + a.start_s * second)) < 0.1);
    CHECK(std::abs(boxes[i].x + boxes[i].width - (lane.x + a.end_s * second)) < 1);
    CHECK(boxes[i].y == doctest::Approx(lane.y));
    CHECK(boxes[i].height == doctest::Approx(lane.height));
  }
}

TEST_CASE("neighbours' transfers lie between their lanes, those to ranks further away beside the sender's") {
  const action sent{.kind = send_activation, .stage = 0, .microbatch = 0};
  const action back{.kind = send_gradient, .stage = 1, .microbatch = 0};
  const auto svg =
      timeline_svg(staircase(4, 6, {{sent, 0, 1, 1, 2}, {back, 1, 0, 2, 3}, {back, 0, 3, 1, 3}, {sent, 3, 0, 4, 6}}));
  const auto lanes = titled(svg, "stage");
  const auto activations = titled(svg, "activation of");
  const auto gradients = titled(svg, "gradient of");
  REQUIRE(activations.size() == 2);
  REQUIRE(gradients.size() == 2);
  CHECK(gradients[0].title.starts_with("gradient of microbatch 0, stage 0 to 3"));
  const auto below = [](const drawn& a, const drawn& b) { return a.y >= b.y + b.height - 0.05; };
  // From the top: lane 0, 0 to 3, 0 to 1, 1 to 0, lane 1 ... lane 2, 3 to 0, lane 3.
  CHECK(below(gradients[0], lanes[0]));
  CHECK(below(activations[0], gradients[0]));
  CHECK(below(gradients[1], activations[0]));
  CHECK(below(lanes[1], gradients[1]));
  CHECK(below(activations[1], lanes[2]));
  CHECK(below(lanes[3], activations[1]));
}

TEST_CASE("the phases of a transfer are three lines, the sender's side next to the sender") {
  std::vector<timed_action> phases;
  const action_kind down[] = {d2h_activation, network_activation, h2d_activation};
  const action_kind up[] = {d2h_gradient, network_gradient, h2d_gradient};
  for (int k = 0; k < 3; ++k) {
    phases.push_back({{.kind = down[k], .stage = 0, .microbatch = 0}, 0, 1, 1.0 + k, 2.0 + k});
    phases.push_back({{.kind = up[k], .stage = 1, .microbatch = 0}, 1, 0, 2.0 + k, 3.0 + k});
  }
  const auto svg = timeline_svg(staircase(2, 6, phases));
  const auto activations = titled(svg, "activation of");
  const auto gradients = titled(svg, "gradient of");
  REQUIRE(activations.size() == 3);
  REQUIRE(gradients.size() == 3);
  for (std::size_t k = 1; k < 3; ++k) {
    CHECK(activations[k].y > activations[k - 1].y);
    CHECK(gradients[k].y < gradients[k - 1].y);
  }
  CHECK(gradients[2].y > activations[2].y);
  CHECK(activations[0].style == activations[2].style);
  CHECK(activations[0].style != activations[1].style);
  CHECK(activations[1].title.find("(network)") != std::string::npos);
}

TEST_CASE("fused computations share the lane; joined ones that follow each other do not") {
  timeline t{1, 2, {}};
  t.actions = {{{.kind = forward, .stage = 0, .microbatch = 1}, 0, -1, 0, 3},
               {{.kind = backward, .joined = true, .stage = 3, .microbatch = 0}, 0, -1, 0, 3},
               {{.kind = forward, .stage = 0, .microbatch = 0}, 0, -1, 3, 4},
               {{.kind = backward, .joined = true, .stage = 3, .microbatch = 1}, 0, -1, 4, 6}};
  const auto svg = timeline_svg(t);
  const auto lane = titled(svg, "rank 0").at(0);
  const auto forwards = titled(svg, "forward of"), backwards = titled(svg, "backward of");
  REQUIRE(forwards.size() == 2);
  REQUIRE(backwards.size() == 2);
  CHECK(forwards[0].height == doctest::Approx(lane.height / 2).epsilon(0.05));
  CHECK(backwards[0].y == doctest::Approx(lane.y + lane.height / 2));
  CHECK(forwards[1].height == doctest::Approx(lane.height));
  CHECK(backwards[1].height == doctest::Approx(lane.height));
}

TEST_CASE("the virtual stages and directions of a rank have shades of their own") {
  timeline t{2, 2, {}};
  for (int r = 0; r < 2; ++r)
    for (int chunk = 0; chunk < 2; ++chunk)
      t.actions.push_back({{.kind = forward, .stage = 2 * chunk + r, .microbatch = 0}, r, -1, 1.0 * chunk, 1.0 * chunk + 1});
  const auto chunks = timeline_svg(t);
  CHECK(chunks.find("second stage of a rank") != std::string::npos);
  auto boxes = titled(chunks, "forward of");
  REQUIRE(boxes.size() == 4);
  CHECK(boxes[0].style == boxes[2].style);
  CHECK(boxes[1].style == boxes[3].style);
  CHECK(boxes[0].style != boxes[1].style);
  CHECK(boxes[3].title.starts_with("forward of microbatch 0, stage 3 on rank 1"));

  for (auto& a : t.actions) {
    a.what.direction = static_cast<std::int16_t>(a.what.stage / 2);
    a.what.stage = a.what.direction == 0 ? a.rank : 1 - a.rank;
  }
  const auto directions = timeline_svg(t);
  CHECK(directions.find("the other direction") != std::string::npos);
  boxes = titled(directions, "forward of");
  CHECK(boxes[0].style == boxes[2].style);
  CHECK(boxes[0].style != boxes[1].style);
}

TEST_CASE("the legend names what occurs and nothing else") {
  CHECK(timeline_svg(staircase(2, 2)).find(">backward<") == std::string::npos);
  CHECK(timeline_svg(staircase(2, 2)).find(" sent<") == std::string::npos);
  const std::pair<action_kind, const char*> kinds[] = {
      {backward, ">backward<"},       {backward_input, ">input gradient<"},   {backward_weight, ">weight gradient<"},
      {recompute, ">recomputation<"}, {all_gather, ">parameters gathered<"},  {reduce_scatter, ">gradients reduced<"},
      {optimizer, ">optimizer<"},     {send_activation, ">activation sent<"}, {send_gradient, ">gradient sent<"}};
  for (const auto& [kind, name] : kinds) {
    CAPTURE(name);
    const int microbatch = is_parameter(kind) ? no_microbatch : 0;
    const int peer = is_transfer(kind) ? 1 : -1;
    const auto svg = timeline_svg(staircase(2, 2, {{{.kind = kind, .stage = 0, .microbatch = microbatch}, 0, peer, 2, 3}}));
    CHECK(svg.find(name) != std::string::npos);
    // Every style that is used is defined, for boxes on a light page at least.
    for (const auto& box : boxes_of(svg))
      if (box.style != "idle") CHECK(svg.find("rect." + box.style + "{fill:#") != std::string::npos);
  }
}

TEST_CASE("what is drawn stands out against an idle lane, its text against it, in light and dark pages") {
  // The known ends of the scale, and a pair with a known ratio (WCAG's example of grey on white).
  CHECK(detail::contrast(0x000000, 0xffffff) == doctest::Approx(21));
  CHECK(detail::contrast(0x777777, 0xffffff) == doctest::Approx(4.48).epsilon(0.001));
  for (std::size_t look = 0; look < detail::timeline_look_count; ++look) {
    const auto& l = detail::timeline_looks[look];
    CAPTURE(l.name);
    for (const unsigned page : {detail::idle_light, 0xffffffu}) CHECK(detail::contrast(l.light, page) >= 3);
    for (const unsigned page : {detail::idle_dark, 0x0d1117u, 0x14181du}) CHECK(detail::contrast(l.dark, page) >= 3);
    for (std::size_t step = 0; step < detail::timeline_shades; ++step) {
      CAPTURE(step);
      const unsigned light = detail::shade(l.light, step), dark = detail::shade(l.dark, step);
      CHECK(detail::contrast(dark, detail::idle_dark) >= 3);
      for (const unsigned fill : {light, dark}) CHECK(detail::contrast(detail::ink_on(fill), fill) >= 3.5);
      // Lighter shades have an outline.
      const auto rule = detail::look_rule(look, step, false);
      if (detail::contrast(light, detail::idle_light) < 3)
        CHECK(rule.find(detail::print(";stroke:#%06x", l.light)) != std::string::npos);
    }
  }
}

TEST_CASE("a picture that zooms has the numbers that are too small for it, hidden") {
  const auto t = staircase(2, 60);
  const auto plain = timeline_svg(t, {.width = 900}), zooming = timeline_svg(t, {.width = 900, .zooms = true});
  CHECK(count(plain, " t\"") == 0);
  CHECK(count(plain, "<text") + 120 == count(zooming, "<text"));
  CHECK(zooming.find(".hs text.t{display:none}") != std::string::npos);
}

TEST_CASE("the critical path is outlined, no matter in which order it comes") {
  const auto t = staircase(2, 4);
  const std::vector<timed_action> path{t.actions[6], t.actions[0], t.actions[4]};
  const auto svg = timeline_svg(t, {.critical = path});
  CHECK(svg.find(">critical path<") != std::string::npos);
  const auto boxes = titled(svg, "forward of");
  for (std::size_t i = 0; i < boxes.size(); ++i) CHECK(boxes[i].style.ends_with(" k") == (i == 0 || i == 4 || i == 6));
  CHECK(timeline_svg(t).find("critical path") == std::string::npos);
}

TEST_CASE("labels, scale, size and background are the caller's") {
  const auto t = staircase(2, 4);
  CHECK(timeline_svg(t, {.labels = {"<a>", "b"}}).find("&lt;a&gt;") != std::string::npos);
  const auto whole = titled(timeline_svg(t), "stage").at(0), half = titled(timeline_svg(t, {.span_s = 10}), "stage").at(0);
  CHECK(half.width == doctest::Approx(whole.width / 2).epsilon(0.001));
  CHECK(titled(timeline_svg(t, {.compact = true}), "stage").at(0).height < whole.height);
  CHECK(timeline_svg(t).find("class=\"page\"") == std::string::npos);
  CHECK(timeline_svg(t, {.page = true}).find("class=\"page\"") != std::string::npos);
  CHECK(timeline_svg(t, {.width = 830}).find("width=\"830\"") != std::string::npos);
}

TEST_CASE("a long timeline is windowed, says so, and stays small") {
  for (const auto& [ranks, microbatches] : {std::pair{4, 5000}, std::pair{64, 1024}, std::pair{1000, 300}}) {
    CAPTURE(ranks);
    timeline t{ranks, microbatches, {}};  // all ranks at once: as many boxes as there can be
    for (int r = 0; r < ranks; ++r)
      for (int m = 0; m < microbatches; ++m)
        t.actions.push_back({{.kind = forward, .stage = r, .microbatch = m}, r, -1, 1.0 * m, 1.0 * m + 1});
    const auto picture = draw_timeline(t, {.period_s = 1});
    CHECK(picture.shown.find("three windows") != std::string::npos);
    CHECK(count(picture.svg, "class=\"break\"") == 4);
    CHECK(picture.svg.size() < 1'250'000);
  }
}

TEST_CASE("timelines without length, actions or ranks are drawn, too") {
  CHECK_NOTHROW((void)timeline_svg({}));
  CHECK_NOTHROW((void)timeline_svg({3, 2, {}}));
  auto t = staircase(2, 2);
  for (auto& a : t.actions) a.start_s = a.end_s = 0;
  CHECK_NOTHROW((void)timeline_svg(t));
}

namespace {

/// Boxes may touch (to rounding), but not cover each other. Returns in how many rows they lie.
std::size_t rows_without_overlap(const std::string& svg) {
  auto boxes = boxes_of(svg);
  std::erase_if(boxes, [](const drawn& b) { return b.style == "idle"; });
  std::set<std::pair<double, double>> rows;
  std::string overlaps;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const auto& a = boxes[i];
    rows.insert({a.y, a.height});
    for (std::size_t k = 0; k < i; ++k) {
      const auto& b = boxes[k];
      const double wide = std::min(a.x + a.width, b.x + b.width) - std::max(a.x, b.x);
      const double high = std::min(a.y + a.height, b.y + b.height) - std::max(a.y, b.y);
      if (wide > 0.11 && high > 0.11) overlaps += a.title + "; " + b.title + "\n";
    }
  }
  CHECK(overlaps == "");
  return rows.size();
}

}  // namespace

TEST_CASE("what a rank sends to several others has a row each") {
  std::vector<timed_action> sent;
  for (int m = 0; m < 12; ++m)
    for (const int peer : {0, 1, 3, 4}) {
      const auto kind = peer < 2 ? send_gradient : send_activation;
      sent.push_back({{.kind = kind, .stage = 2, .microbatch = m}, 2, peer, m + 0.1 * peer, m + 0.1 * peer + 0.9});
    }
  for (const bool compact : {false, true})
    CHECK(rows_without_overlap(timeline_svg(staircase(5, 12, sent), {.compact = compact})) == 5 + 4);
}

TEST_CASE("every named schedule is drawn: all its actions, none over another") {
  const pipeline p{.forward_s = {0.010, 0.008, 0.014, 0.012},
                   .backward_s = {0.020, 0.016, 0.028, 0.024},
                   .transfer_s = {0.002, 0.015, 0.002},
                   .weight_backward_s = {0.009, 0.007, 0.013, 0.011}};
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto played = simulate(p, build_schedule(name, p, 8));
    for (const bool compact : {false, true}) {
      const auto svg = timeline_svg(played.timeline, {.width = compact ? 830 : 1240, .compact = compact});
      rows_without_overlap(svg);
      CHECK(count(svg, "<title>") == 1 + 4 + played.timeline.actions.size());
      CHECK(svg.size() < 100'000);
    }
  }
}
