// SPDX-License-Identifier: Apache-2.0
// hetsched-simulate: plays one training iteration of a pipeline under a schedule.
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <hetsched/io.hpp>
#include <hetsched/schedule.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string pipeline, plan, schedule, trace, report;
  std::vector<int> warmup;
  double epsilon = default_epsilon;
  bool json = false;
};

/// What is simulated, from either kind of file.
struct subject {
  hetsched::pipeline times;
  int microbatches = 1;
  std::string schedule;      // the plan's own
  std::vector<int> warmups;  // the plan's own
  std::optional<plan_file> plan;
};

subject read_subject(const arguments& given) {
  if (!given.pipeline.empty()) {
    auto file = read_pipeline(given.pipeline);
    return {
        .times = std::move(file.times), .microbatches = file.microbatches, .schedule = {}, .warmups = {}, .plan = std::nullopt};
  }
  auto file = read_plan(given.plan);
  if (file.plan.pipelines.size() != 1)
    throw file_error(given.plan, "/pipelines",
                     "a plan of " + std::to_string(file.plan.pipelines.size()) + " pipelines cannot be simulated yet");
  const auto& line = file.plan.pipelines.front();
  return {.times = to_pipeline(line),
          .microbatches = line.microbatches,
          .schedule = file.plan.schedule,
          .warmups = hetsched::warmups(line),
          .plan = file};
}

/// The warm-up counts that a rule, the plan or the command line asks for.
std::vector<int> choose_warmups(const arguments& given, const subject& what, const std::string& schedule) {
  const auto stages = what.times.forward_s.size();
  if (schedule == "gpipe") {
    if (!given.warmup.empty()) throw input_error("--warmup: gpipe has no warm-up counts to choose");
    return std::vector<int>(stages, what.microbatches);
  }
  std::optional<warmup_rule> rule;
  for (const auto candidate : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
    if (schedule == schedule_name(candidate)) rule = candidate;
  if (schedule == "virtual_1f1b") throw input_error("--schedule: virtual_1f1b is not available yet");
  if (!given.warmup.empty()) {
    if (given.warmup.size() != stages)
      throw input_error("--warmup: found " + std::to_string(given.warmup.size()) + " counts, expected " + std::to_string(stages) +
                        ", one per stage");
    return given.warmup;
  }
  if (what.plan && schedule == what.schedule) return what.warmups;
  if (!rule) throw input_error("--schedule: found " + schedule + ", expected gpipe, 1f1b, eager_1f1b, h1f1b or exact_1f1b");
  return warmup_counts(*rule, what.times, given.epsilon);
}

/// Steady time per microbatch. GPipe's phases follow each other, each as slow as its slowest step.
double steady_period(const hetsched::pipeline& p, const std::string& schedule, const std::vector<int>& warmups) {
  if (schedule != "gpipe") return period(p, warmups);
  double forward = 0, backward = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const bool last = i + 1 == p.stages();
    forward = std::max({forward, p.forward_s[k], last ? 0 : p.activation_s(i)});
    backward = std::max({backward, p.backward_s[k], last ? 0 : p.gradient_s(i)});
  }
  return forward + backward;
}

template <class T>
std::string joined(const std::vector<T>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

/// A plan's memory was checked for its own warm-ups; a plan.json does not tell what others would take.
void warn_of_memory(const pipeline_plan& planned, const std::vector<int>& in_flight) {
  for (std::size_t i = 0; i < in_flight.size(); ++i)
    if (in_flight[i] > planned.stages[i].warmup) {
      std::cerr << "hetsched-simulate: stage " << i << " holds " << in_flight[i] << " microbatches, in the plan "
                << planned.stages[i].warmup << ": they may not fit in memory\n";
      return;
    }
}

int simulate_command(const arguments& given) {
  if (given.pipeline.empty() == given.plan.empty()) throw input_error("give either --pipeline or --plan");
  if (!(given.epsilon >= 0 && given.epsilon <= 1)) throw input_error("--epsilon: expected a number in [0, 1]");
  command::outputs files;
  files.expect(given.trace);
  files.expect(given.report);

  const auto what = read_subject(given);
  const std::string schedule = !given.schedule.empty()  ? given.schedule
                               : !what.schedule.empty() ? what.schedule
                               : !given.warmup.empty()  ? "1f1b"
                                                        : "";
  if (schedule.empty()) throw input_error("--schedule is required with --pipeline");
  const auto stages = what.times.forward_s.size();
  constexpr std::size_t most = 4'000'000;
  if (stages * static_cast<std::size_t>(what.microbatches) > most)
    throw input_error("stages x microbatches is " + std::to_string(stages * static_cast<std::size_t>(what.microbatches)) +
                      ", expected at most " + std::to_string(most));
  auto counts = choose_warmups(given, what, schedule);

  const bool is_gpipe = schedule == "gpipe";
  auto played = simulate(what.times,
                         is_gpipe ? gpipe(static_cast<int>(stages), what.microbatches) : one_f_one_b(counts, what.microbatches));
  const double period_s = steady_period(what.times, schedule, counts);
  const double bound_s = makespan_lower_bound(what.times, what.microbatches);
  for (auto& count : counts) count = std::min(count, what.microbatches);
  if (what.plan) warn_of_memory(what.plan->plan.pipelines.front(), played.peak_in_flight);

  if (!given.trace.empty()) files.add(given.trace, chrome_trace(played.timeline));
  if (!given.report.empty()) {
    report page;
    page.title = "Simulated pipeline";
    page.summary = std::to_string(stages) + " stages, " + std::to_string(what.microbatches) + " microbatches, schedule " +
                   schedule + ", from " + (given.plan.empty() ? given.pipeline : given.plan) + ".";
    page.figures = {{"makespan", format_seconds(played.makespan_s), "from first forward to last backward"},
                    {"lower bound", format_seconds(bound_s), gap_text(played.makespan_s, bound_s)},
                    {"period", format_seconds(period_s), "per microbatch, pipeline full"}};
    for (auto& figure : simulation_figures(played)) page.figures.push_back(std::move(figure));
    auto section =
        what.plan ? plan_section(what.plan->plan.pipelines.front(), what.plan->subclusters, std::move(played.timeline), period_s)
                  : pipeline_section(what.times, counts, std::move(played.timeline), period_s);
    for (std::size_t i = 0; i < stages; ++i) section.stages[i].warmup = counts[i];
    page.sections.push_back(std::move(section));
    files.add(given.report, to_html(page));
  }
  files.write();

  if (given.json) {
    const nlohmann::ordered_json out{{"makespan_s", played.makespan_s},
                                     {"period_s", period_s},
                                     {"lower_bound_s", bound_s},
                                     {"bubble_ratio", played.bubble_ratio},
                                     {"overlap_ratio", played.overlap_ratio},
                                     {"warmup", counts},
                                     {"peak_in_flight", played.peak_in_flight}};
    std::cout << out.dump() << '\n';
    return command::done;
  }
  std::cout << format_table({"schedule", schedule + ", " + std::to_string(stages) + " stages, " +
                                             std::to_string(what.microbatches) + " microbatches"},
                            {{"makespan", format_seconds(played.makespan_s) +
                                              (what.plan ? " (without gradient reduction and optimizer step)" : "")},
                             {"lower bound", format_seconds(bound_s) + " (" + gap_text(played.makespan_s, bound_s) + ")"},
                             {"period", format_seconds(period_s)},
                             {"bubble", format_percent(played.bubble_ratio)},
                             {"overlap", format_percent(played.overlap_ratio)},
                             {"warm-up", joined(counts)},
                             {"in flight", joined(played.peak_in_flight)}})
            << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays one training iteration of a pipeline under a schedule and tells how long it takes.", "hetsched-simulate");
  arguments given;
  app.add_option("--pipeline", given.pipeline, "pipeline.json: the bare times of a pipeline");
  app.add_option("--plan", given.plan, "plan.json: its stages, and its schedule and warm-ups unless told otherwise");
  app.add_option("--schedule", given.schedule, "gpipe, 1f1b, eager_1f1b, h1f1b or exact_1f1b");
  app.add_option("--warmup", given.warmup, "forwards that each stage starts before its first backward: N,N,...")->delimiter(',');
  app.add_option("--epsilon", given.epsilon, "h1f1b: share of the period that a transfer may take unnoticed")
      ->capture_default_str();
  app.add_flag("--json", given.json, "print one JSON object");
  app.add_option("--trace", given.trace, "write a Chrome trace (for ui.perfetto.dev)");
  app.add_option("--report", given.report, "write an HTML report");
  return command::run(app, argc, argv, [&] { return simulate_command(given); });
}
