// SPDX-License-Identifier: Apache-2.0
// Every schedule of the library on the same four unequal stages with one slow link: a picture of each, and a table.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io.hpp>
#include <hetsched/schedule.hpp>

namespace {

using namespace hetsched;

constexpr int microbatches = 8;

// About half of a backward is the weight gradient. Activations count in microbatches.
const pipeline four_stages{.forward_s = {0.010, 0.014, 0.012, 0.008},
                           .backward_s = {0.020, 0.026, 0.024, 0.018},
                           .transfer_s = {0.001, 0.012, 0.001},
                           .weight_backward_s = {0.010, 0.013, 0.012, 0.009}};

/// A schedule and what came of it.
struct exhibit {
  std::string name, link, note;
  simulation played;
  double bound_s = 0;
};

exhibit show(std::string name, const schedule& order) {
  const auto work = make_workload(four_stages, order);
  return {name, name, "", simulate(work, order), makespan_lower_bound(work, order)};
}

/// The best schedule that the search finds for so many microbatches of memory on every rank.
exhibit show_auto(std::string name, int held) {
  const auto best = auto_schedule(four_stages, microbatches, {.memory_capacity = std::vector<double>(4, held)});
  auto shown = show(std::move(name), best->order);
  shown.link = "auto";
  shown.note = ", at most " + std::to_string(held) + " held";
  shown.bound_s = std::max(shown.bound_s, best->lower_bound_s);
  return shown;
}

std::string peaks(const simulation& played) {
  std::ostringstream text;
  text.precision(3);
  for (const double held : played.peak_memory_bytes) text << (text.tellp() > 0 ? " " : "") << held;
  return text.str();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw input_error("give the folder for the pictures, and nothing else");
  std::vector<exhibit> all;
  for (const auto name : schedule_names())
    all.push_back(show(std::string(name), build_schedule(name, four_stages, microbatches, {.cross = {false, true, false}})));
  // As much memory on every rank as the first one takes under 1F1B, and twice as much.
  all.push_back(show_auto("auto", 4));
  all.push_back(show_auto("auto_twice", 8));

  double longest_s = 0;
  for (const auto& e : all) longest_s = std::max(longest_s, e.played.makespan_s);
  std::puts("| schedule | makespan | above its bound | bubble | most held, rank by rank |\n| --- | ---: | ---: | ---: | --- |");
  for (const auto& e : all) {
    const timeline_svg_options look{.width = 830, .compact = true, .span_s = longest_s, .page = true};
    write_file(argv[1] + ("/" + e.name) + ".svg", timeline_svg(e.played.timeline, look));
    std::printf("| [`%s`](#%s)%s | %s | %s | %s | %s |\n", e.name.c_str(), e.link.c_str(), e.note.c_str(),
                format_seconds(e.played.makespan_s).c_str(), format_percent(e.played.makespan_s / e.bound_s - 1).c_str(),
                format_percent(e.played.bubble_ratio).c_str(), peaks(e.played).c_str());
  }
  return 0;
} catch (const error& wrong) {
  std::fprintf(stderr, "schedule-gallery: %s\n", wrong.what());
  return 2;
}
