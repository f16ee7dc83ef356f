// SPDX-License-Identifier: Apache-2.0
// hetsched-simulate: plays one training iteration of a pipeline under a schedule.
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io.hpp>
#include <hetsched/schedule.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string pipeline, plan, schedule, schedule_csv, trace, report;
  std::vector<int> warmup, cross, memory_caps;
  double epsilon = default_epsilon;
  int chunks = 0;
  bool json = false, rendezvous = false, explain = false, cut_stages = false;
};

/// What is simulated, from either kind of file.
struct subject {
  hetsched::pipeline times;
  int microbatches = 1;
  std::string schedule;      // the plan's own
  std::vector<int> warmups;  // the plan's own
  std::optional<plan_file> plan;
};

/// A schedule by its name, and what is known of it.
struct choice {
  schedule order;
  std::optional<double> period_s;  // where there is a formula
  double bound_s = 0;              // of auto, which knows the memory
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

/// One number per stage, or one for all of them.
std::vector<int> per_stage(const std::vector<int>& numbers, std::size_t stages, const std::string& option, bool one_for_all) {
  if (one_for_all && numbers.size() == 1) return std::vector<int>(stages, numbers.front());
  if (numbers.size() != stages && !numbers.empty())
    throw input_error(option + ": found " + std::to_string(numbers.size()) + " counts, expected " + std::to_string(stages) +
                      ", one per stage" + (one_for_all ? ", or one for all" : ""));
  return numbers;
}

/// Boundaries between clusters: those of --cross; or else of the plan; or else those whose transfer H-1F1B takes notice of.
std::vector<bool> crossings(const arguments& given, const subject& what) {
  if (given.cross.empty())
    return what.plan ? subcluster_boundaries(what.plan->plan.pipelines.front()) : slow_boundaries(what.times, given.epsilon);
  std::vector<bool> cross(what.times.forward_s.size() - 1, false);
  for (const int at : given.cross) {
    if (at < 0 || static_cast<std::size_t>(at) >= cross.size())
      throw input_error("--cross: found " + std::to_string(at) + ", expected numbers below " + std::to_string(cross.size()) +
                        ": boundary i lies between stages i and i + 1");
    cross[static_cast<std::size_t>(at)] = true;
  }
  return cross;
}

/// The warm-up counts of a schedule of the 1F1B family, else none: of the command line, the plan or the rule.
std::vector<int> family_warmups(const arguments& given, const subject& what, const std::string& name) {
  const bool is_virtual = name == "virtual_1f1b";
  std::optional<warmup_rule> rule;
  for (const auto candidate : {warmup_rule::one_f_one_b, warmup_rule::eager, warmup_rule::h1f1b, warmup_rule::exact})
    if (name == schedule_name(candidate)) rule = candidate;
  if (!rule && !is_virtual) return {};
  if (!given.warmup.empty()) return per_stage(given.warmup, what.times.forward_s.size(), "--warmup", false);
  if (what.plan && name == what.schedule && given.cross.empty()) return what.warmups;
  return is_virtual ? virtual_1f1b_warmups(crossings(given, what)) : warmup_counts(*rule, what.times, given.epsilon);
}

schedule read_own_schedule(const arguments& given, const subject& what) {
  const std::string path = given.schedule.substr(1);
  auto order = read_schedule(path);
  const auto ranks = static_cast<std::size_t>(order.ranks);
  if (ranks != what.times.forward_s.size() || order.microbatches != what.microbatches)
    throw file_error(path, {},
                     "a schedule of " + std::to_string(ranks) + " ranks and " + std::to_string(order.microbatches) +
                         " microbatches, expected " + std::to_string(what.times.forward_s.size()) + " and " +
                         std::to_string(what.microbatches));
  const auto asked = given.rendezvous ? channels::rendezvous : channels::buffered;
  std::string wrong;
  for (const auto& finding : check(order, {.semantics = {asked}, .most_findings = 10}))
    wrong += (wrong.empty() ? "" : "\n  ") + finding;
  if (!wrong.empty()) throw file_error(path, {}, wrong);
  if (!given.rendezvous)
    for (const auto& finding : check(order, {.semantics = {channels::rendezvous}, .most_findings = 1}))
      std::cerr << "hetsched-simulate: warning: " << path << ": " << finding << "; it is played with buffered sends\n";
  return order;
}

/// GPipe's phases follow each other, each as slow as its slowest step.
double gpipe_period(const hetsched::pipeline& p) {
  double forward = 0, backward = 0;
  for (int i = 0; i < p.stages(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const bool last = i + 1 == p.stages();
    forward = std::max({forward, p.forward_s[k], last ? 0 : p.activation_s(i)});
    backward = std::max({backward, p.backward_s[k], last ? 0 : p.gradient_s(i)});
  }
  return forward + backward;
}

/// What options ask for belongs to the schedule that is asked for.
void check_options_of(const arguments& given, const std::string& name, bool has_warmups, bool has_chunks) {
  const auto refuse = [&](const char* option, const char* of) {
    throw input_error(std::string(option) + ": " + name + " has no " + of + " to choose");
  };
  if (!given.warmup.empty() && !has_warmups) refuse("--warmup", "warm-up counts");
  if (given.chunks != 0 && !has_chunks) refuse("--chunks", "chunks");
  if (given.cut_stages && name != "auto") refuse("--cut-stages", "choice of where to cut");
  if (!given.cross.empty() && name != "virtual_1f1b") refuse("--cross", "boundaries between clusters");
}

/// Memory of every stage in the unit of its activations: of --memory-caps, or what a plan with activation_bytes tells.
std::vector<double> memory_capacities(const arguments& given, const subject& what) {
  const auto stages = what.times.forward_s.size();
  const auto& activation = what.times.activation_bytes;
  std::vector<double> capacities;
  if (!given.memory_caps.empty()) {
    for (const int count : per_stage(given.memory_caps, stages, "--memory-caps", true)) {
      if (count < 1) throw input_error("--memory-caps: found " + std::to_string(count) + ", expected at least 1");
      const auto i = capacities.size();
      capacities.push_back(count * (activation.empty() ? 1 : activation[i]));
    }
  } else if (what.plan && !activation.empty()) {
    const auto& planned = what.plan->plan.pipelines.front().stages;
    if (std::all_of(planned.begin(), planned.end(), [](const auto& s) { return s.weight_bytes > 0; }))
      capacities = activation_capacities(what.plan->plan.pipelines.front());
  }
  return capacities;
}

outcome<choice> choose(const arguments& given, const subject& what, const std::string& name,
                       const std::vector<double>& capacities) {
  const auto names = schedule_names();
  const bool has_chunks = name == "interleaved_1f1b" || name == "looped_bfs";
  const auto stages = what.times.forward_s.size();
  constexpr std::size_t most = 4'000'000;
  const auto cells = stages * static_cast<std::size_t>(what.microbatches) * static_cast<std::size_t>(std::max(1, given.chunks));
  if (cells > most)
    throw input_error("stages x microbatches is " + std::to_string(cells) + ", expected at most " + std::to_string(most));

  if (name == "auto") {
    check_options_of(given, name, false, false);
    if (cells > 200'000) std::cerr << "hetsched-simulate: auto orders " << cells << " microbatches of stages\n";
    if (what.plan && capacities.empty())
      std::cerr
          << "hetsched-simulate: warning: this plan does not tell weight gradients and memory, so auto splits no backward and "
          << "knows no limits; hetsched-plan --schedule auto does\n";
    const auto_options options{.memory_capacity = capacities, .cut_stages = given.cut_stages};
    // What a plan leaves is much at times; what is asked for is meant to be used.
    auto best = given.memory_caps.empty() ? auto_with_little_memory(what.times, what.microbatches, options)
                                          : auto_schedule(what.times, what.microbatches, options);
    if (!best) return best.why_not();
    return choice{.order = std::move(best->order), .period_s = {}, .bound_s = best->lower_bound_s};
  }
  if (name.starts_with('@')) {
    check_options_of(given, name, false, false);
    return choice{.order = read_own_schedule(given, what), .period_s = {}};
  }
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known = "auto, @FILE";
    for (const auto known_name : names) known += ", " + std::string(known_name);
    throw input_error("--schedule: found " + name + ", expected one of " + known);
  }
  auto counts = family_warmups(given, what, name);
  check_options_of(given, name, !counts.empty(), has_chunks);
  if (!counts.empty()) {
    if (!given.memory_caps.empty()) {
      const auto caps = per_stage(given.memory_caps, stages, "--memory-caps", true);
      const bool chosen_by_rule = name == schedule_name(warmup_rule::exact) && given.warmup.empty();
      counts = chosen_by_rule ? exact_warmups_within(what.times, caps) : capped_warmups(std::move(counts), caps);
    }
    return choice{.order = one_f_one_b(counts, what.microbatches), .period_s = period(what.times, counts)};
  }
  build_options options;
  if (given.chunks != 0) options.chunks = given.chunks;
  choice built{.order = build_schedule(name, what.times, what.microbatches, options), .period_s = {}};
  if (name == "gpipe") built.period_s = gpipe_period(what.times);
  return built;
}

bool lists(const schedule& order, action_kind kind) {
  return std::any_of(order.lanes.begin(), order.lanes.end(), [&](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(), [&](const action& a) { return a.kind == kind; });
  });
}

bool one_stage_per_rank(const schedule& order) {
  for (int s = 0; s < order.stages; ++s)
    if (order.rank(0, s) != s) return false;
  return order.replicas == 1;
}

/// No order of the same actions on the same ranks ends earlier.
double lower_bound(const hetsched::pipeline& p, const workload& work, const schedule& order) {
  if (!one_stage_per_rank(order)) return makespan_lower_bound(work, order);
  if (!lists(order, action_kind::backward_weight)) return makespan_lower_bound(p, order.microbatches);
  return std::max(split_backward_lower_bound(p, order.microbatches), makespan_lower_bound(work, order));
}

template <class T>
std::string joined(const std::vector<T>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

std::string memory_text(const simulation& played, bool in_bytes) {
  std::string text;
  for (const double held : played.peak_memory_bytes) {
    if (!text.empty()) text += in_bytes ? ", " : " ";
    text += in_bytes ? format_bytes(static_cast<bytes_t>(held + 0.5)) : detail::print("%.4g", held);
  }
  return text;
}

/// The most that a stage holds, in microbatches.
double held_microbatches(const subject& what, const simulation& played, std::size_t stage) {
  const double each = what.times.activation_bytes.empty() ? 1 : what.times.activation_bytes[stage];
  return each > 0 ? played.peak_memory_bytes[stage] / each : 0;
}

/// A plan's memory was checked for its own schedule; without activation_bytes a plan.json does not tell what others take.
void warn_of_memory(const subject& what, const simulation& played, const std::vector<double>& capacities) {
  const auto& stages = what.plan->plan.pipelines.front().stages;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double held = held_microbatches(what, played, i);
    if (capacities.empty() ? held <= stages[i].warmup * (1 + 1e-9) : played.peak_memory_bytes[i] <= capacities[i] * (1 + 1e-9))
      continue;
    std::cerr << "hetsched-simulate: stage " << i << " holds " << detail::print("%.4g", held)
              << " microbatches, starts in the plan with " << stages[i].warmup << ": they may not fit in memory\n";
    return;
  }
}

/// The first stage that holds more than --memory-caps allows, as a sentence.
std::string beyond_caps(const arguments& given, const subject& what, const simulation& played) {
  const auto caps = per_stage(given.memory_caps, what.times.forward_s.size(), "--memory-caps", true);
  for (std::size_t i = 0; i < caps.size(); ++i)
    if (const double held = held_microbatches(what, played, i); held > caps[i] * (1 + 1e-9))
      return "stage " + std::to_string(i) + " holds " + detail::print("%.4g", held) + " microbatches, its cap is " +
             std::to_string(caps[i]);
  return {};
}

std::string table_text(const report_table& table) {
  return table.rows.empty() ? table.heading + ": nothing.\n"
                            : table.heading + ": " + table.note + '\n' + format_table(table.columns, table.rows);
}

nlohmann::ordered_json to_json(const std::vector<timed_action>& path) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& a : path)
    out.push_back({{"action", to_text(a.what)}, {"rank", a.rank}, {"start_s", a.start_s}, {"end_s", a.end_s}});
  return out;
}

int simulate_command(const arguments& given) {
  if (given.pipeline.empty() == given.plan.empty()) throw input_error("give either --pipeline or --plan");
  if (!(given.epsilon >= 0 && given.epsilon <= 1)) throw input_error("--epsilon: expected a number in [0, 1]");
  command::outputs files;
  for (const auto& path : {given.trace, given.report, given.schedule_csv}) files.expect(path);

  const auto what = read_subject(given);
  const std::string name = !given.schedule.empty()  ? given.schedule
                           : !what.schedule.empty() ? what.schedule
                           : !given.warmup.empty()  ? "1f1b"
                                                    : "";
  if (name.empty()) throw input_error("--schedule is required with --pipeline");
  const auto capacities = memory_capacities(given, what);
  auto chosen = choose(given, what, name, capacities);
  if (!chosen) {
    std::cerr << "hetsched-simulate: no schedule: " << chosen.why_not().reason << '\n';
    return command::infeasible;
  }
  auto order = std::move(chosen->order);
  const bool split = lists(order, action_kind::backward_weight), in_bytes = !what.times.activation_bytes.empty();
  if (split && what.times.weight_backward_s.empty())
    std::cerr << "hetsched-simulate: " << name << " splits backwards, but no weight_backward_s tell how: weight gradients "
              << "are taken to cost nothing\n";
  // Transfers that are not listed are buffered by nature.
  if (given.rendezvous && !lists(order, action_kind::send_activation) && !lists(order, action_kind::send_gradient))
    order = split_streams(add_transfers(order));

  auto work = make_workload(what.times, order);
  work.memory_capacity = capacities;
  const simulate_options how{.channels = given.rendezvous ? channels::rendezvous : channels::buffered};
  auto played = simulate(work, order, how);
  if (const auto wrong = beyond_caps(given, what, played); !wrong.empty()) {
    std::cerr << "hetsched-simulate: no schedule: " << name << " on " << wrong << '\n';
    return command::infeasible;
  }
  if (what.plan && given.memory_caps.empty() && name != what.schedule) warn_of_memory(what, played, capacities);

  const double period_s = chosen->period_s.value_or(played.period_s);
  double bound_s = std::max(chosen->bound_s, lower_bound(what.times, work, order));
  if (bound_s < played.makespan_s * (1 + 1e-9)) bound_s = std::min(bound_s, played.makespan_s);  // rounding
  const auto counts = warmup_counts(order);

  std::vector<timed_action> path;
  std::vector<report_table> tables;
  what_if_result free;
  if (given.explain) {
    path = critical_path(work, order, how);
    free = what_if(work, order, how);
    tables = {critical_path_table(path), what_if_table(free, work)};
  }
  if (!given.schedule_csv.empty()) files.add(given.schedule_csv, to_csv(order));
  if (!given.trace.empty()) files.add(given.trace, chrome_trace(played.timeline));
  if (!given.report.empty()) {
    report page;
    page.title = "Simulated pipeline";
    page.summary = std::to_string(order.ranks) + " stages, " + std::to_string(what.microbatches) + " microbatches, schedule " +
                   name + ", from " + (given.plan.empty() ? given.pipeline : given.plan) + ".";
    page.figures = {{"makespan", format_seconds(played.makespan_s), "from first forward to last backward"},
                    {"lower bound", format_seconds(bound_s), gap_text(played.makespan_s, bound_s)},
                    {"period", format_seconds(period_s), "per microbatch, pipeline full"}};
    for (auto& figure : simulation_figures(played)) page.figures.push_back(std::move(figure));
    auto memory = memory_curves(work, played.timeline);
    auto section =
        what.plan ? plan_section(what.plan->plan.pipelines.front(), what.plan->subclusters, std::move(played.timeline), period_s)
                  : pipeline_section(what.times, counts, std::move(played.timeline), period_s);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      section.stages[i].warmup = counts[i];
      section.stages[i].in_flight = played.peak_in_flight[i];
    }
    section.memory = std::move(memory);
    section.memory_in_bytes = in_bytes;
    section.picture.critical = path;
    section.tables = tables;
    page.sections.push_back(std::move(section));
    files.add(given.report, to_html(page));
  }
  files.write();

  if (given.json) {
    nlohmann::ordered_json out{{"makespan_s", played.makespan_s},
                               {"period_s", period_s},
                               {"lower_bound_s", bound_s},
                               {"bubble_ratio", played.bubble_ratio},
                               {"overlap_ratio", played.overlap_ratio},
                               {"warmup", counts},
                               {"peak_in_flight", played.peak_in_flight}};
    if (in_bytes) out["peak_memory_bytes"] = played.peak_memory_bytes;
    if (given.explain) {
      out["critical_path"] = to_json(path);
      out["free_rank_s"] = free.free_rank_s;
      for (std::size_t k = 0; k < free.free_wire_s.size(); ++k) out["free_wire_s"][work.wires[k].name] = free.free_wire_s[k];
    }
    std::cout << out.dump() << '\n';
    return command::done;
  }
  std::vector<std::vector<std::string>> rows{
      {"makespan", format_seconds(played.makespan_s) + (what.plan ? " (without gradient reduction and optimizer step)" : "")},
      {"lower bound", format_seconds(bound_s) + " (" + gap_text(played.makespan_s, bound_s) + ")"},
      {"period", format_seconds(period_s)},
      {"bubble", format_percent(played.bubble_ratio)},
      {"overlap", format_percent(played.overlap_ratio)},
      {"warm-up", joined(counts)},
      {"in flight", joined(played.peak_in_flight)}};
  if (in_bytes)
    rows.push_back({"memory", memory_text(played, true)});
  else if (!one_stage_per_rank(order))
    rows.push_back({"held", memory_text(played, false) + " microbatches of a whole rank"});
  std::cout << format_table(
      {"schedule", name + ", " + std::to_string(order.ranks) + " stages, " + std::to_string(what.microbatches) + " microbatches"},
      rows);
  for (const auto& table : tables) std::cout << '\n' << table_text(table);
  if (!tables.empty() && !files.summary().empty()) std::cout << '\n';
  std::cout << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays one training iteration of a pipeline under a schedule and tells how long it takes.", "hetsched-simulate");
  arguments given;
  std::string names = "auto (the best that is found), @FILE (a schedule in text form)";
  for (const auto name : schedule_names()) names += ", " + std::string(name);
  app.add_option("--pipeline", given.pipeline, "pipeline.json: the bare times of a pipeline");
  app.add_option("--plan", given.plan, "plan.json: its stages, and its schedule and warm-ups unless told otherwise");
  app.add_option("--schedule", given.schedule, names);
  app.add_option("--schedule-csv", given.schedule_csv, "write the schedule in text form");
  app.add_option("--warmup", given.warmup, "1F1B family: forwards that each stage starts before its first backward: N,N,...")
      ->delimiter(',');
  app.add_option("--epsilon", given.epsilon, "h1f1b: share of the period that a transfer may take unnoticed")
      ->capture_default_str();
  app.add_option("--chunks", given.chunks, "interleaved_1f1b, looped_bfs: virtual stages per rank, by default 2")
      ->check(CLI::Range(1, 1000));
  app.add_option("--cross", given.cross, "virtual_1f1b: boundaries between clusters, I,I,...; I lies between stages I and I + 1")
      ->delimiter(',');
  app.add_option("--memory-caps", given.memory_caps, "auto, 1F1B family: most microbatches that stages may hold: N,N,... or N")
      ->delimiter(',');
  app.add_flag("--rendezvous", given.rendezvous, "a send waits for its receive");
  app.add_flag("--cut-stages", given.cut_stages,
               "auto: may cut every stage into equal parts (interleaved, V-shaped, bidirectional)");
  app.add_flag("--explain", given.explain, "critical path, and how long it would take if one rank or link took no time");
  app.add_flag("--json", given.json, "print one JSON object");
  app.add_option("--trace", given.trace, "write a Chrome trace (for ui.perfetto.dev)");
  app.add_option("--report", given.report, "write an HTML report");
  return command::run(app, argc, argv, [&] { return simulate_command(given); });
}
