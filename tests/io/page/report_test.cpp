// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

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

TEST_CASE("a simulated timeline is drawn whole: one box per action") {
  const auto s = make_scene(4, 16);
  const auto picture = draw_timeline(s.played.timeline);
  CHECK(picture.shown == "The whole iteration is shown.");
  CHECK(count(picture.svg, "<title>forward of") == 64);
  CHECK(count(picture.svg, "<title>backward of") == 64);
  CHECK(count(picture.svg, "<title>activation of") == 48);
  CHECK(count(picture.svg, "<title>gradient of") == 48);
}

TEST_CASE("a page on a large pipeline stays small") {
  for (const auto& [stages, microbatches] : {std::pair{4, 5000}, std::pair{64, 512}, std::pair{300, 300}}) {
    CAPTURE(stages);
    auto s = make_scene(stages, microbatches);
    const auto picture = draw_timeline(s.played.timeline, {.period_s = period(s.times, s.warmups)});
    CHECK(picture.shown.find("three windows") != std::string::npos);
    report page{.title = "t", .summary = "s", .figures = simulation_figures(s.played), .sections = {}};
    auto section = pipeline_section(s.times, s.warmups, std::move(s.played.timeline), 0);
    const auto work = make_workload(s.times, one_f_one_b(s.warmups, microbatches));
    section.memory = memory_curves(work, section.timeline);
    CHECK(section.memory.size() == static_cast<std::size_t>(stages));
    page.sections.push_back(std::move(section));
    CHECK(to_html(page).size() < 2'000'000);
  }
}

TEST_CASE("a section shows what it has: memory over time, tables, columns that are not empty") {
  auto s = make_scene(2, 4);
  auto section = pipeline_section(s.times, {}, s.played.timeline, 0);
  report page{.title = "t", .summary = "s", .figures = {}, .sections = {section}};
  const auto bare = to_html(page);
  CHECK(bare.find("Memory over time") == std::string::npos);
  CHECK(bare.find("<th>warm-up</th>") == std::string::npos);
  CHECK(bare.find("weight gradient") == std::string::npos);

  s.times.weight_backward_s = {0.5, 0.25};
  section = pipeline_section(s.times, s.warmups, s.played.timeline, 0);
  section.memory = {{.label = "rank 0", .steps = {{0, 3e9}}, .capacity = 4e9}};
  section.tables = {{.heading = "What if", .note = "a & b", .columns = {"free", ">makespan"}, .rows = {{"rank 1", "2 s"}}}};
  page.sections = {section};
  const auto full = to_html(page);
  CHECK(full.find("Memory over time") != std::string::npos);
  CHECK(full.find("peak 2.79 GiB of 3.73 GiB") != std::string::npos);
  CHECK(full.find("<th>warm-up</th>") != std::string::npos);
  CHECK(full.find("<th>weight gradient</th>") != std::string::npos);
  CHECK(full.find("<h2>What if</h2>") != std::string::npos);
  CHECK(full.find("a &amp; b") != std::string::npos);
  CHECK(full.find("<tr><th class=\"l\">free</th><th>makespan</th></tr>") != std::string::npos);
  CHECK(full.find("<tr><td class=\"l\">rank 1</td><td>2 s</td></tr>") != std::string::npos);
}

TEST_CASE("what fills the memory is drawn part by part, as wide as it is large") {
  const memory_use held{.weights = 2 * gib, .gradients = gib, .optimizer = 4 * gib, .activations = 8 * gib, .buffers = gib};
  stage_plan s{.memory_bytes = held.total(), .memory_capacity_bytes = 20 * gib};
  const auto bar = detail::memory_bar(s, &held);
  CHECK(count(bar, "<i ") == 5);
  CHECK(bar.find("width:40.0%\" title=\"activations: 8.00 GiB") != std::string::npos);
  CHECK(bar.find("width:5.0%\" title=\"buffers and other: 1.00 GiB") != std::string::npos);
  CHECK(bar.find("over") == std::string::npos);
  s.memory_capacity_bytes = 10 * gib;  // the bar is then what is held
  CHECK(detail::memory_bar(s, &held).find("width:50.0%\" title=\"activations") != std::string::npos);
  CHECK(detail::memory_bar(s, &held).find("bar over") != std::string::npos);
  const memory_use state{.weights = 6 * gib, .activations = 2 * gib};
  report_section section{.heading = "h", .line = {}, .held = {held, state}, .timeline = {}, .picture = {}};
  CHECK(detail::memory_key(section).find("activations (up to 50 %)") != std::string::npos);
  CHECK(detail::memory_bar(s, &state).find("weights and their state") != std::string::npos);
}

TEST_CASE("a timeline can be made larger, each picture by buttons of its own") {
  auto s = make_scene(2, 4);
  auto section = pipeline_section(s.times, {}, s.played.timeline, 0);
  const auto html = to_html({.title = "t", .summary = "s", .figures = {}, .sections = {section, section}});
  CHECK(count(html, "<input type=\"radio\" name=\"zoom0\"") == 4);
  CHECK(count(html, "<input type=\"radio\" name=\"zoom1\"") == 4);
  CHECK(count(html, " checked>") == 2);
  for (const char* id : {"zoom0x1", "zoom0x8", "zoom1x8"}) {
    CHECK(count(html, std::string("id=\"") + id) == 1);
    CHECK(count(html, std::string("for=\"") + id) == 1);
  }
  // Everything wide scrolls inside its own region, by keys too.
  CHECK(count(html, "class=\"wide\" tabindex=\"0\"") == count(html, "class=\"wide\""));
}

TEST_CASE("a page needs nothing from outside, and text cannot break out of it") {
  auto s = make_scene(2, 4);
  const std::string evil = "<script>alert('x')</script>\"&";
  report page{.title = evil, .summary = evil, .figures = {{evil, evil, evil}}, .sections = {}};
  pipeline_plan line{.microbatches = 4, .microbatch_size = 1, .stages = {}};
  for (int i = 0; i < 2; ++i) {
    stage_plan stage;
    stage.layers = {i, i + 1};
    stage.devices = {{.mesh = {}, .first_device = i}};
    stage.memory_bytes = 3 * gib;
    stage.memory_capacity_bytes = 2 * gib;
    line.stages.push_back(stage);
  }
  auto section = plan_section(line, {evil}, std::move(s.played.timeline), 1);
  section.memory = {{.label = evil, .steps = {{0, 1}}, .capacity = 0}};
  section.tables = {{.heading = evil, .note = evil, .columns = {evil}, .rows = {{evil}}}};
  page.sections.push_back(std::move(section));
  const auto html = to_html(page);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("&lt;script&gt;") != std::string::npos);
  CHECK(count(html, "http") == count(html, "http://www.w3.org/2000/svg"));
  CHECK(html.find("3.00 GiB of 2.00 GiB (150 %)") != std::string::npos);
  CHECK(html.find("class=\"over\"") != std::string::npos);
}

TEST_CASE("a stage's devices, degrees and transfers as text") {
  stage_plan s{.layers = {3, 8}, .devices = {{{1, 2, 4}, 8}}, .degrees = {.data = 2, .tensor = 4}};
  const std::vector<std::string> names{"v100", "a100"};
  CHECK(layers_text(s.layers) == "3-7");
  CHECK(layers_text({3, 4}) == "3");
  CHECK(devices_text(s, names) == "a100 2x4 [8-15]");
  CHECK(degrees_text(s) == "data 2, tensor 4");
  s.devices = {{{0, 1, 1}, 0}, {{0, 1, 1}, 5}};
  s.degrees = {.context = 2};
  s.zero = 1;
  s.recompute = recomputation::full;
  CHECK(devices_text(s, names) == "v100 1x1 [0] + v100 1x1 [5]");
  CHECK(degrees_text(s) == "context 2, ZeRO 1, recompute full");
  CHECK(degrees_text({}) == "none");
  CHECK(degrees_text({.degrees = {.data = 3}, .shares = {.data = {0.25, 0.25, 0.5}}}) == "data 3 (2 x 25.0 %, 1 x 50.0 %)");
  CHECK(degrees_text({.degrees = {.tensor = 2}, .shares = {.tensor = {0.75, 0.25}}}) == "tensor 2 (1 x 75.0 %, 1 x 25.0 %)");
  CHECK(transfer_text({.forward_s = 0.5, .backward_s = 0.5}) == "500 ms");
  CHECK(transfer_text({.forward_s = 0.5, .backward_s = 2}) == "500 ms / 2.00 s");
  CHECK(next_transfer_text({.forward_s = 0.5, .backward_s = 2}) == "");
  CHECK(next_transfer_text({.forward_s = 0.5, .backward_s = 2, .backward_occupied_s = 1}) == ", next after 500 ms / 1.00 s");
  CHECK(next_transfer_text({.forward_s = 2, .backward_s = 2, .forward_occupied_s = 1, .backward_occupied_s = 1}) ==
        ", next after 1.00 s");

  auto scene = make_scene(2, 4);
  pipeline_plan line{.microbatches = 4, .stages = {s, s}, .boundaries = {{.forward_s = 0.5, .backward_s = 2}}};
  const auto section = plan_section(line, names, std::move(scene.played.timeline), 1);
  CHECK(section.picture.labels == std::vector<std::string>{"0 v100", "1 v100"});
  const auto html = to_html({.title = "t", .summary = "s", .figures = {}, .sections = {section}});
  for (const char* cell :
       {">v100 1x1 [0] + v100 1x1 [5]<", ">context 2, ZeRO 1, recompute full<", "<td>500 ms / 2.00 s</td>", "<td>-</td>"})
    CHECK(html.find(cell) != std::string::npos);
  CHECK(html.find("After it") == std::string::npos);

  // A stage of unlike devices has the names of all, and what the picture does not show is said.
  line.stages[1].devices = {{{0, 1, 1}, 0}, {{1, 1, 2}, 0}, {{0, 1, 1}, 1}};
  line.stages[0].update_s = 0.25;
  line.stages[1].update_s = 0.5;
  const auto unlike = plan_section(line, names, make_scene(2, 4).played.timeline, 1);
  CHECK(unlike.picture.labels == std::vector<std::string>{"0 v100", "1 v100+a100"});
  CHECK(to_html({.title = "t", .summary = "s", .figures = {}, .sections = {unlike}})
            .find("After it, stages add up the gradients of their replicas and update their weights, which takes up to 500 "
                  "ms.</p>") != std::string::npos);
}

TEST_CASE("the tables on the critical path and on what would be won add up") {
  // Two ranks, one microbatch: 1, 2 (link), 3, 4, 2 (link), 5.
  const pipeline p{.forward_s = {1, 3}, .backward_s = {5, 4}, .transfer_s = {2}};
  const auto order = one_f_one_b({1, 1}, 1);
  const auto work = make_workload(p, order);
  const auto path = critical_path_table(critical_path(work, order));
  REQUIRE(path.rows.size() == 4);
  CHECK(path.rows[0] == std::vector<std::string>{"rank 1", "2", "7.00 s", "41.2 %"});
  CHECK(path.rows[1] == std::vector<std::string>{"rank 0", "2", "6.00 s", "35.3 %"});
  CHECK(path.rows[2] == std::vector<std::string>{"rank 0 to 1", "1", "2.00 s", "11.8 %"});
  const auto found = critical_path(work, order);
  CHECK(bottleneck_figure(found).value == "rank 1");
  CHECK(bottleneck_figure(found, {"0 a100", "1 v100"}).value == "stage 1 v100");
  CHECK(bottleneck_figure(found).note == "its computations are 41.2 % of the critical path");
  const pipeline slow{.forward_s = {1, 3}, .backward_s = {5, 4}, .transfer_s = {20}};
  const auto link = bottleneck_figure(critical_path(make_workload(slow, order), order));
  CHECK(link.value == "rank 0 to 1");
  CHECK(link.note == "these transfers are 37.7 % of the critical path");  // 20 of 53
  CHECK(critical_path_table(found, 2).rows.size() == 2);
  CHECK(path.rows[3] == std::vector<std::string>{"rank 1 to 0", "1", "2.00 s", "11.8 %"});
  const auto gains = what_if_table(what_if(work, order), work);
  REQUIRE(gains.rows.size() == 4);
  CHECK(gains.rows[0] == std::vector<std::string>{"computations of rank 1", "10.0 s", "41.2 %"});
  CHECK(gains.rows[3] == std::vector<std::string>{"wire rank 1 to 0", "15.0 s", "11.8 %"});
  CHECK(what_if_table(what_if(work, order), work, 2).rows.size() == 2);
}
