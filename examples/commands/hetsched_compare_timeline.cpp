// SPDX-License-Identifier: Apache-2.0
// hetsched-compare-timeline: what an iteration was predicted to take against what it took, stage by stage.
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/io/trace/kineto.hpp>
#include <hetsched/io/trace/read_trace.hpp>
#include <hetsched/plan/order.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/schedule/simulate/compare_timelines.hpp>
#include <hetsched/schedule/simulate/explain_difference.hpp>
#include <hetsched/views/schedule.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string predicted, pipeline, plan, schedule, report;
  std::vector<std::string> measured;
  bool json = false;
};

/// Simulates a pipeline under a schedule by name, or under one from a file.
timeline play(const pipeline& times, int microbatches, const std::string& name, const std::vector<int>& warmups,
              const auto_options& limits) {
  schedule order;
  if (name == auto_schedule_name) {
    auto best = auto_with_little_memory(times, microbatches, limits);
    if (!best) throw input_error("no schedule: " + best.why_not().reason);
    order = std::move(best->order);
  } else if (name.starts_with('@')) {
    order = read_schedule(name.substr(1));
    if (order.microbatches != microbatches)
      throw input_error(name.substr(1) + ": a schedule of " + std::to_string(order.microbatches) + " microbatches, expected " +
                        std::to_string(microbatches));
  } else {
    order = build_schedule(name, times, microbatches, {.warmups = warmups});
  }
  return simulate(times, order).timeline;
}

timeline read_prediction(const arguments& given) {
  if (!given.predicted.empty()) {
    if (!given.schedule.empty()) throw input_error("--schedule belongs to --pipeline or --plan");
    return read_trace(given.predicted);
  }
  if (!given.pipeline.empty()) {
    if (given.schedule.empty()) throw input_error("--schedule is required with --pipeline");
    const auto file = read_pipeline(given.pipeline);
    return play(file.times, file.microbatches, given.schedule, {}, {});
  }
  const auto file = read_plan(given.plan);
  std::vector<timeline> pipelines;
  for (auto line : file.plan.pipelines) {
    if (line.boundaries.size() + 1 != line.stages.size())
      throw file_error(given.plan, "/pipelines", "tells no times of its boundaries: hetsched-predict --plan fills them in");
    if (given.schedule.starts_with('@')) {
      pipelines.push_back(play(to_pipeline(line), line.microbatches, given.schedule, {}, {}));
      continue;
    }
    if (!given.schedule.empty() && given.schedule != line.schedule.name) {
      line.schedule = {.name = given.schedule};
      for (auto& s : line.stages) s.warmup = 0;
    }
    const auto found = order_of(line, activation_rooms(line));
    if (!found) throw input_error("no schedule: " + found.why_not().reason);
    pipelines.push_back(simulate(to_pipeline(line), found->order).timeline);
  }
  return side_by_side(pipelines);
}

std::string percent_more(double predicted, double measured) {
  return detail::print("%+.1f %%", 100 * deviation(predicted, measured));
}
std::string points_more(double predicted, double measured) { return detail::print("%+.1f", 100 * (measured - predicted)); }

std::string times_cell(double predicted, double measured) {
  return format_seconds(predicted) + " / " + format_seconds(measured) + " (" + percent_more(predicted, measured) + ")";
}
std::string shares_cell(double predicted, double measured) {
  return format_percent(predicted) + " / " + format_percent(measured) + " (" + points_more(predicted, measured) + ")";
}

/// Whether every rank computes the stage of its number only.
bool one_stage_per_rank(const timeline& t) {
  return std::all_of(t.actions.begin(), t.actions.end(), [](const timed_action& a) {
    return !is_compute(a.what.kind) || (a.what.stage == a.rank && a.what.direction == 0);
  });
}

report_table whole_table(const timeline_comparison& both) {
  const auto& p = both.predicted;
  const auto& m = both.measured;
  return {
      .heading = "Iteration",
      .note = {},
      .columns = {"iteration", ">predicted", ">measured", ">difference"},
      .rows = {{"makespan", format_seconds(p.makespan_s), format_seconds(m.makespan_s), percent_more(p.makespan_s, m.makespan_s)},
               {"period", format_seconds(p.period_s), format_seconds(m.period_s), percent_more(p.period_s, m.period_s)},
               {"bubble", format_percent(p.bubble_ratio), format_percent(m.bubble_ratio),
                points_more(p.bubble_ratio, m.bubble_ratio) + " points"},
               {"overlap", format_percent(p.overlap_ratio), format_percent(m.overlap_ratio),
                points_more(p.overlap_ratio, m.overlap_ratio) + " points"}}};
}

/// What the measured makespan is longer by, and why.
report_table parts_table(const timeline_comparison& both, const difference_parts& due) {
  const auto row = [&](const char* name, double s) {
    return std::vector<std::string>{
        name, detail::print("%+.3f ms", 1e3 * s),
        detail::print("%+.1f %%", 100 * deviation(both.predicted.makespan_s, both.predicted.makespan_s + s))};
  };
  return {
      .heading = "What the difference is due to",
      .note =
          "The measured iteration, in its order of work, is played with predicted times; then measured ones take their place: of "
          "computations, of transfers, and last the gaps in which a rank had all that it needed and did not begin (host). Wait "
          "is what the order of work makes of the predicted times.",
      .columns = {"due to", ">seconds", ">of predicted"},
      .rows = {row("compute", due.compute_s), row("transport", due.transport_s), row("host", due.host_s),
               row("wait", due.wait_s)}};
}

report_table stages_table(const timeline_comparison& both, const char* what) {
  report_table table{.heading = "Predicted against measured",
                     .note =
                         "Predicted / measured (difference; of shares, in points). The span is from first to last work; overlap "
                         "is the share of the time of arriving transfers in which the receiver was not idle for them.",
                     .columns = {what, ">busy", ">span", ">period", ">bubble", ">overlap"},
                     .rows = {}};
  for (std::size_t r = 0; r < both.predicted.ranks.size(); ++r) {
    const auto& p = both.predicted.ranks[r];
    const auto& m = both.measured.ranks[r];
    table.rows.push_back({std::to_string(r), times_cell(p.busy_s, m.busy_s), times_cell(p.span_s, m.span_s),
                          times_cell(p.period_s, m.period_s), shares_cell(p.bubble_ratio, m.bubble_ratio),
                          shares_cell(p.overlap_ratio, m.overlap_ratio)});
  }
  return table;
}

/// Mean times of what the ranks do: of a forward, of what a microbatch's backward takes in all, and of a transfer to the next.
pipeline_plan mean_times(const timeline& t) {
  struct sum {
    double seconds = 0;
    int count = 0;
    void add(double s) {
      seconds += s;
      ++count;
    }
    [[nodiscard]] double mean() const { return count > 0 ? seconds / count : 0; }
  };
  pipeline_plan line;
  for (int r = 0; r < t.ranks; ++r) {
    sum forward, transfer;
    double backward = 0, weight = 0;
    int backwards = 0;
    for (const auto& a : views::actions_of(t, r)) {
      const double seconds = a.end_s - a.start_s;
      switch (a.what.kind) {
        case action_kind::forward:
          forward.add(seconds);
          break;
        case action_kind::backward_weight:
          weight += seconds;
          backward += seconds;
          break;
        case action_kind::backward:
        case action_kind::backward_input:
          ++backwards;
          backward += seconds;
          break;
        default:
          if (is_transfer(a.what.kind) && !moves_gradient(a.what.kind) && a.peer == r + 1) transfer.add(seconds);
      }
    }
    const int count = std::max(1, backwards);
    stage_plan s;
    s.cost.forward_s = forward.mean();
    s.cost.backward_s = backward / count;
    s.cost.weight_backward_s = weight / count;
    line.stages.push_back(s);
    if (r + 1 < t.ranks) line.boundaries.push_back({.forward_s = transfer.mean(), .backward_s = transfer.mean()});
  }
  return line;
}

/// Both timelines on one scale.
std::string page_text(const timeline_comparison& both, const difference_parts& due, timeline predicted, timeline measured,
                      const char* what, const std::string& source) {
  const auto& p = both.predicted;
  const auto& m = both.measured;
  report page;
  page.title = "Predicted and measured iteration";
  page.summary = std::to_string(predicted.ranks) + " " + what + "s, " + std::to_string(predicted.microbatches) +
                 " microbatches; " + source + ". Both timelines are drawn on one scale; times per microbatch are means.";
  page.figures = {{"makespan", format_seconds(m.makespan_s),
                   "predicted " + format_seconds(p.makespan_s) + ", " + percent_more(p.makespan_s, m.makespan_s)},
                  {"period", format_seconds(m.period_s),
                   "predicted " + format_seconds(p.period_s) + ", " + percent_more(p.period_s, m.period_s)},
                  {"bubble", format_percent(m.bubble_ratio), "predicted " + format_percent(p.bubble_ratio)},
                  {"overlap", format_percent(m.overlap_ratio), "predicted " + format_percent(p.overlap_ratio)}};
  const double span_s = std::max(detail::end_of(predicted), detail::end_of(measured));
  const auto section = [&](const char* heading, timeline t) {
    auto line = mean_times(t);
    return report_section{.heading = heading,
                          .line = std::move(line),
                          .timeline = std::move(t),
                          .picture = {.labels = {}, .period_s = p.period_s, .width = 1240, .compact = false, .span_s = span_s}};
  };
  page.sections.push_back(section("Predicted", std::move(predicted)));
  page.sections.push_back(section("Measured", std::move(measured)));
  page.sections.back().tables = {parts_table(both, due), stages_table(both, what)};
  return to_html(page);
}

nlohmann::ordered_json to_json(const timeline_figures& f) {
  nlohmann::ordered_json out{{"makespan_s", f.makespan_s},
                             {"period_s", f.period_s},
                             {"bubble_ratio", f.bubble_ratio},
                             {"overlap_ratio", f.overlap_ratio},
                             {"ranks", nlohmann::ordered_json::array()}};
  for (const auto& r : f.ranks)
    out["ranks"].push_back({{"busy_s", r.busy_s},
                            {"span_s", r.span_s},
                            {"period_s", r.period_s},
                            {"bubble_ratio", r.bubble_ratio},
                            {"overlap_ratio", r.overlap_ratio}});
  return out;
}

/// Of times as shares of what was predicted, of shares as they are.
nlohmann::ordered_json differences(const timeline_comparison& both) {
  const auto& p = both.predicted;
  const auto& m = both.measured;
  nlohmann::ordered_json out{{"makespan", deviation(p.makespan_s, m.makespan_s)},
                             {"period", deviation(p.period_s, m.period_s)},
                             {"bubble", m.bubble_ratio - p.bubble_ratio},
                             {"overlap", m.overlap_ratio - p.overlap_ratio},
                             {"ranks", nlohmann::ordered_json::array()}};
  for (std::size_t r = 0; r < p.ranks.size(); ++r)
    out["ranks"].push_back({{"busy", deviation(p.ranks[r].busy_s, m.ranks[r].busy_s)},
                            {"span", deviation(p.ranks[r].span_s, m.ranks[r].span_s)},
                            {"period", deviation(p.ranks[r].period_s, m.ranks[r].period_s)},
                            {"bubble", m.ranks[r].bubble_ratio - p.ranks[r].bubble_ratio},
                            {"overlap", m.ranks[r].overlap_ratio - p.ranks[r].overlap_ratio}});
  return out;
}

int compare_command(const arguments& given) {
  const int sources = !given.predicted.empty() + !given.pipeline.empty() + !given.plan.empty();
  if (sources != 1) throw input_error("give one of --predicted, --pipeline and --plan");
  command::outputs files;
  files.expect(given.report);
  for (const auto& path : {given.predicted, given.pipeline, given.plan, command::schedule_file(given.schedule)})
    files.reads(path);
  std::string measured_in;
  for (const auto& path : given.measured) {
    files.reads(path);
    measured_in += (measured_in.empty() ? "" : ", ") + path;
  }

  auto predicted = read_prediction(given);
  auto measured = from_departure(read_measured_traces(given.measured));
  const auto both = compare_timelines(predicted, measured);
  const auto has_transfers = [](const timeline& t) {
    return std::any_of(t.actions.begin(), t.actions.end(), [](const auto& a) { return is_transfer(a.what.kind); });
  };
  if (has_transfers(predicted) && !has_transfers(measured))
    std::cerr << "hetsched-compare-timeline: " << measured_in
              << ": tells no transfers; overlap, host and wait are what is left without them\n";
  const auto due = explain_difference(predicted, measured);
  const char* what = one_stage_per_rank(predicted) && one_stage_per_rank(measured) ? "stage" : "rank";
  const auto whole = whole_table(both), stages = stages_table(both, what), parts = parts_table(both, due);
  if (!given.report.empty()) {
    const auto& source = !given.predicted.empty() ? given.predicted : !given.pipeline.empty() ? given.pipeline : given.plan;
    files.add(given.report, page_text(both, due, std::move(predicted), std::move(measured), what,
                                      "predicted from " + source + ", measured in " + measured_in));
  }
  files.write();

  if (given.json) {
    const nlohmann::ordered_json out{
        {"predicted", to_json(both.predicted)},
        {"measured", to_json(both.measured)},
        {"difference", differences(both)},
        {"due_to",
         {{"compute_s", due.compute_s}, {"transport_s", due.transport_s}, {"host_s", due.host_s}, {"wait_s", due.wait_s}}}};
    std::cout << out.dump() << '\n';
    return command::done;
  }
  std::cout << format_table(whole.columns, whole.rows) << "\nPredicted / measured (difference):\n"
            << format_table(stages.columns, stages.rows) << "\nThe difference is due to:\n"
            << format_table(parts.columns, parts.rows) << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-compare-timeline"), "hetsched-compare-timeline");
  app.footer("hetsched-compare-timeline --plan plan.json --measured trace.json --report report.html");
  arguments given;
  app.add_option("--predicted", given.predicted, "trace of a simulated iteration, as hetsched-simulate --trace writes");
  app.add_option("--pipeline", given.pipeline, "in its place, pipeline.json: simulated under --schedule");
  app.add_option("--plan", given.plan, "in its place, plan.json: simulated under its schedule, or under --schedule");
  app.add_option("--schedule", given.schedule, "auto, @FILE or a name that hetsched-simulate knows");
  app.add_option("--measured", given.measured,
                 "trace of the iteration that was run, or one from each rank as torch.profiler writes them")
      ->required();
  app.add_flag("--json", given.json, "print the figures as JSON");
  app.add_option("--report", given.report, "write a page with both timelines");
  return command::run(app, argc, argv, [&] { return compare_command(given); });
}
