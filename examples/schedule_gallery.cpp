// SPDX-License-Identifier: Apache-2.0
// Every schedule of the library on the same four unequal stages with one slow link: a picture of each, and a table.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io.hpp>
#include <hetsched/schedule.hpp>

#include "commands/command.hpp"

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
  std::string name, note;
  schedule order;
  simulation played;
  double bound_s = 0;
};

exhibit show(std::string name, std::string note, schedule order, double bound_s = 0) {
  const auto work = make_workload(four_stages, order);
  auto played = simulate(work, order);
  bound_s = std::max(bound_s, makespan_lower_bound(work, order));
  return {std::move(name), std::move(note), std::move(order), std::move(played), bound_s};
}

exhibit show_auto(std::string name, double held) {
  auto best = auto_schedule(four_stages, microbatches, {.memory_capacity = std::vector<double>(4, held)});
  return show(std::move(name), detail::print("at most %.0f held", held), std::move(best->order), best->lower_bound_s);
}

std::vector<exhibit> all_schedules() {
  std::vector<exhibit> all;
  const build_options options{.chunks = 2, .cross = {false, true, false}};
  for (const auto name : schedule_names())
    all.push_back(show(std::string(name), "", build_schedule(name, four_stages, microbatches, options)));
  // As much memory on every rank as the first one takes under 1F1B, and twice as much.
  all.push_back(show_auto("auto", 4));
  all.push_back(show_auto("auto_twice", 8));
  return all;
}

std::string peaks(const simulation& played) {
  std::string text;
  for (const double held : played.peak_memory_bytes) text += detail::print(text.empty() ? "%.3g" : " %.3g", held);
  return text;
}

int gallery(const std::string& folder) {
  const auto all = all_schedules();
  double longest_s = 0;
  for (const auto& e : all) longest_s = std::max(longest_s, e.played.makespan_s);
  for (const auto& e : all) {
    const timeline_svg_options look{.width = 830, .compact = true, .span_s = longest_s, .page = true};
    write_file((std::filesystem::path(folder) / (e.name + ".svg")).string(), timeline_svg(e.played.timeline, look));
  }
  std::puts("| schedule | makespan | above its bound | bubble | most held, rank by rank |\n| --- | ---: | ---: | ---: | --- |");
  for (const auto& e : all)
    std::printf("| [`%s`](#%s)%s | %s | %s | %s | %s |\n", e.name.c_str(), e.note.empty() ? e.name.c_str() : "auto",
                e.note.empty() ? "" : (", " + e.note).c_str(), format_seconds(e.played.makespan_s).c_str(),
                format_percent(e.played.makespan_s / e.bound_s - 1).c_str(), format_percent(e.played.bubble_ratio).c_str(),
                peaks(e.played).c_str());
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Draws every schedule on the same four unequal stages with one slow link, and prints a table.",
               "schedule-gallery");
  std::string folder;
  app.add_option("folder", folder, "where the pictures go")->required()->check(CLI::ExistingDirectory);
  return command::run(app, argc, argv, [&] { return gallery(folder); });
}
