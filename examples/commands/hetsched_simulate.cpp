// SPDX-License-Identifier: Apache-2.0
// hetsched-simulate: plays one training iteration of a pipeline, or microbatches of inference, under a schedule.
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/io.hpp>
#include <hetsched/io/page/distribution_svg.hpp>
#include <hetsched/schedule.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/posting.hpp>
#include <hetsched/schedule/simulate/critical_path.hpp>
#include <hetsched/schedule/simulate/jitter.hpp>
#include <hetsched/schedule/simulate/what_if.hpp>
#include <hetsched/schedule/text.hpp>

#include "command.hpp"
#include "count_text.hpp"
#include "names.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string pipeline, plan, schedule, schedule_csv, schedule_csv_comms, trace, report, jitter_svg;
  std::vector<int> warmup, cross, memory_caps;
  double epsilon = default_epsilon;
  int chunks = 0;
  bool json = false, rendezvous = false, explain = false, cut_stages = false;
  std::optional<double> jitter;  ///< spread
  int samples = 1000;
  std::uint64_t jitter_seed = 1;
};

/// One pipeline that is simulated, from either kind of file.
struct subject {
  hetsched::pipeline times;
  int microbatches = 1;
  std::string schedule;               // the plan's own
  std::optional<pipeline_plan> line;  // of the plan
  std::vector<std::string> subclusters;
};

/// A schedule by its name, and what is known of it.
struct choice {
  schedule order;
  std::optional<double> period_s;  // where there is a formula
  double bound_s = 0;              // of auto, which knows the memory
};

/// A pipeline under its schedule.
struct played_pipeline {
  subject what;
  std::string name;
  schedule order;
  workload work;
  simulation played;
  std::vector<int> counts;
  double period_s = 0, bound_s = 0;
  std::vector<timed_action> path;  // of --explain
  what_if_result free;
};

std::vector<subject> read_subjects(const arguments& given) {
  if (!given.pipeline.empty()) {
    auto file = read_pipeline(given.pipeline);
    return {{.times = std::move(file.times), .microbatches = file.microbatches, .schedule = {}, .line = {}, .subclusters = {}}};
  }
  auto file = read_pipelines(given.plan);
  std::vector<subject> found;
  for (std::size_t l = 0; l < file.plan.pipelines.size(); ++l) {
    auto& line = file.plan.pipelines[l];
    const bool timed = std::any_of(line.stages.begin(), line.stages.end(), [](const auto& s) { return s.cost.total_s() > 0; });
    if (!timed || line.boundaries.size() + 1 != line.stages.size())
      throw file_error(given.plan, "/pipelines/" + std::to_string(l),
                       "tells no times of its stages and boundaries: hetsched-predict --plan fills them in");
    found.push_back({.times = to_pipeline(line),
                     .microbatches = line.microbatches,
                     .schedule = line.schedule.name,
                     .line = std::move(line),
                     .subclusters = file.subclusters});
  }
  if (found.size() > 1) {
    const auto refuse = [&](bool asked, const char* option) {
      if (asked) throw input_error(std::string(option) + ": the plan has " + std::to_string(found.size()) + " pipelines");
    };
    refuse(!given.warmup.empty(), "--warmup");
    refuse(!given.cross.empty(), "--cross");
    refuse(given.memory_caps.size() > 1, "--memory-caps");
    refuse(!given.schedule_csv.empty(), "--schedule-csv");
    refuse(!given.schedule_csv_comms.empty(), "--schedule-csv-comms");
    refuse(given.schedule.starts_with('@'), "--schedule");
  }
  return found;
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
  if (given.cross.empty()) return what.line ? subcluster_boundaries(*what.line) : slow_boundaries(what.times, given.epsilon);
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
  if (what.line && name == what.schedule && given.cross.empty() && what.line->stages.front().warmup > 0)
    return warmups(*what.line);
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
  const auto asked = given.rendezvous ? send_semantics::rendezvous : send_semantics::buffered;
  std::string wrong;
  for (const auto& finding : check(order, {.semantics = {asked}, .most_findings = 10}))
    wrong += (wrong.empty() ? "" : "\n  ") + finding;
  if (!wrong.empty()) throw file_error(path, {}, wrong);
  if (!given.rendezvous)
    for (const auto& finding : check(order, {.semantics = {send_semantics::rendezvous}, .most_findings = 1}))
      std::cerr << "hetsched-simulate: warning: " << path << ": " << finding << "; it is played with buffered sends\n";
  return order;
}

/// What options ask for belongs to the schedule that is asked for.
void check_options_of(const arguments& given, const std::string& name, bool has_warmups, bool has_chunks) {
  const auto refuse = [&](const char* option, const char* of) {
    throw input_error(std::string(option) + ": " + name + " has no " + of + " to choose");
  };
  if (!given.warmup.empty() && !has_warmups) refuse("--warmup", "warm-up counts");
  if (given.chunks != 0 && !has_chunks) refuse("--chunks", "chunks");
  if (given.cut_stages && name != auto_schedule_name) refuse("--cut-stages", "choice of where to cut");
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
  } else if (what.line) {
    capacities = activation_rooms(*what.line);
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

  if (what.line && what.line->schedule.actions && name == what.schedule && given.chunks == 0 && given.memory_caps.empty() &&
      given.warmup.empty() && given.cross.empty() && !given.cut_stages)
    return choice{.order = *what.line->schedule.actions, .period_s = {}};
  if (name == auto_schedule_name) {
    check_options_of(given, name, false, false);
    if (cells > 200'000) std::cerr << "hetsched-simulate: auto orders " << cells << " microbatches of stages\n";
    if (what.line && capacities.empty())
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
  if (name != forward_schedule_name && std::find(names.begin(), names.end(), name) == names.end()) {
    std::vector<std::string_view> known{auto_schedule_name, "@FILE", forward_schedule_name};
    known.insert(known.end(), names.begin(), names.end());
    command::unknown_name("--schedule", name, known);
  }
  if (name == forward_schedule_name) {
    check_options_of(given, name, false, false);
    return choice{.order = forward_schedule(static_cast<int>(stages), what.microbatches), .period_s = {}};
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
  const auto& stages = what.line->stages;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const double held = held_microbatches(what, played, i);
    if (capacities.empty() ? held <= stages[i].warmup * (1 + tolerance::sums)
                           : played.peak_memory_bytes[i] <= capacities[i] * (1 + tolerance::sums))
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
    if (const double held = held_microbatches(what, played, i); held > caps[i] * (1 + tolerance::sums))
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

/// Plays a pipeline under the schedule that was asked for, or its own.
outcome<played_pipeline> play(const arguments& given, subject what) {
  const std::string name = !given.schedule.empty()  ? given.schedule
                           : !what.schedule.empty() ? what.schedule
                           : !given.warmup.empty()  ? "1f1b"
                                                    : "";
  if (name.empty()) throw input_error("--schedule is required with --pipeline");
  const auto capacities = memory_capacities(given, what);
  auto chosen = choose(given, what, name, capacities);
  if (!chosen) return chosen.why_not();
  played_pipeline p;
  p.name = name;
  p.order = std::move(chosen->order);
  if (lists(p.order, action_kind::backward_weight) && what.times.weight_backward_s.empty())
    std::cerr << "hetsched-simulate: " << name << " splits backwards, but no weight_backward_s tell how: weight gradients "
              << "are taken to cost nothing\n";
  // Transfers that are not listed are buffered by nature.
  if (given.rendezvous && !lists(p.order, action_kind::send_activation) && !lists(p.order, action_kind::send_gradient))
    p.order = split_streams(add_transfers(p.order));

  p.work = make_workload(what.times, p.order);
  p.work.memory_capacity = capacities;
  const simulate_options how{.semantics = given.rendezvous ? send_semantics::rendezvous : send_semantics::buffered};
  p.played = simulate(p.work, p.order, how);
  if (const auto wrong = beyond_caps(given, what, p.played); !wrong.empty())
    return refusal{.why = refusal::kind::infeasible, .reason = name + " on " + wrong};
  if (what.line && given.memory_caps.empty() && name != what.schedule) warn_of_memory(what, p.played, capacities);

  p.period_s = chosen->period_s.value_or(p.played.period_s);
  p.bound_s = std::max(chosen->bound_s, makespan_lower_bound(what.times, p.work, p.order));
  if (p.bound_s < p.played.makespan_s * (1 + tolerance::sums)) p.bound_s = std::min(p.bound_s, p.played.makespan_s);  // rounding
  p.counts = warmup_counts(p.order);
  if (given.explain || !given.report.empty()) p.path = critical_path(p.work, p.order, how);
  if (given.explain) p.free = what_if(p.work, p.order, how);
  p.what = std::move(what);
  return p;
}

std::vector<report_table> explanations(const arguments& given, const played_pipeline& p) {
  std::vector<report_table> tables;
  if (!p.path.empty()) tables.push_back(critical_path_table(p.path, given.explain ? 1000 : 10));
  if (given.explain) tables.push_back(what_if_table(p.free, p.work));
  return tables;
}

bool in_bytes(const played_pipeline& p) { return !p.what.times.activation_bytes.empty(); }

/// All pipelines together: the longest of them counts.
struct whole_figures {
  double makespan_s = 0, bound_s = 0, period_s = 0, bubble_ratio = 0, overlap_ratio = 1;
};

whole_figures together(const std::vector<played_pipeline>& all) {
  if (all.size() == 1) {
    const auto& p = all.front();
    return {p.played.makespan_s, p.bound_s, p.period_s, p.played.bubble_ratio, p.played.overlap_ratio};
  }
  whole_figures f;
  double busy_s = 0, rate = 0, transfer_s = 0, hidden_s = 0;
  int ranks = 0;
  for (const auto& p : all) {
    f.makespan_s = std::max(f.makespan_s, p.played.makespan_s);
    f.bound_s = std::max(f.bound_s, p.bound_s);
    rate += p.period_s > 0 ? 1 / p.period_s : 0;
    for (const double s : p.played.rank_busy_s) busy_s += s;
    for (const double s : p.played.wire_busy_s) {
      transfer_s += s;
      hidden_s += s * p.played.overlap_ratio;
    }
    ranks += p.order.ranks;
  }
  if (rate > 0) f.period_s = 1 / rate;
  if (f.makespan_s > 0) f.bubble_ratio = std::max(0.0, 1 - busy_s / (ranks * f.makespan_s));
  if (transfer_s > 0) f.overlap_ratio = hidden_s / transfer_s;
  return f;
}

std::string page_text(const arguments& given, const std::vector<played_pipeline>& all) {
  const auto whole = together(all);
  report page;
  page.title = all.size() == 1 ? "Simulated pipeline" : "Simulated pipelines";
  for (const auto& p : all)
    page.summary += (page.summary.empty() ? "" : "; ") + command::count_text(p.order.ranks, "stage") + ", " +
                    command::count_text(p.what.microbatches, "microbatch") + ", schedule " + p.name;
  page.summary += ", from " + (given.plan.empty() ? given.pipeline : given.plan) + ".";
  page.figures = {{"makespan", format_seconds(whole.makespan_s), "from first start to last end"},
                  {"lower bound", format_seconds(whole.bound_s), gap_text(whole.makespan_s, whole.bound_s)},
                  {"period", format_seconds(whole.period_s), "per microbatch, pipeline full"}};
  if (all.size() == 1)
    for (auto& figure : simulation_figures(all.front().played)) page.figures.push_back(std::move(figure));
  const auto longest = std::max_element(all.begin(), all.end(),
                                        [](const auto& a, const auto& b) { return a.played.makespan_s < b.played.makespan_s; });
  if (!longest->path.empty()) page.figures.push_back(bottleneck_figure(longest->path));
  for (std::size_t l = 0; l < all.size(); ++l) {
    const auto& p = all[l];
    auto section = p.what.line ? plan_section(*p.what.line, p.what.subclusters, p.played.timeline, p.period_s)
                               : pipeline_section(p.what.times, p.counts, p.played.timeline, p.period_s);
    for (std::size_t i = 0; i < p.counts.size(); ++i) section.line.stages[i].warmup = p.counts[i];
    section.in_flight = p.played.peak_in_flight;
    section.memory = memory_curves(p.work, p.played.timeline);
    section.memory_in_bytes = in_bytes(p);
    section.picture.critical = p.path;
    section.tables = explanations(given, p);
    if (all.size() > 1) {
      section.heading = "Pipeline " + std::to_string(l);
      section.picture.span_s = whole.makespan_s;
    }
    page.sections.push_back(std::move(section));
  }
  return to_html(page);
}

nlohmann::ordered_json to_json(const arguments& given, const played_pipeline& p) {
  nlohmann::ordered_json out{{"makespan_s", p.played.makespan_s},
                             {"period_s", p.period_s},
                             {"lower_bound_s", p.bound_s},
                             {"bubble_ratio", p.played.bubble_ratio},
                             {"overlap_ratio", p.played.overlap_ratio},
                             {"warmup", p.counts},
                             {"peak_in_flight", p.played.peak_in_flight}};
  if (in_bytes(p)) out["peak_memory_bytes"] = p.played.peak_memory_bytes;
  if (given.explain) {
    out["critical_path"] = to_json(p.path);
    out["free_rank_s"] = p.free.free_rank_s;
    for (std::size_t k = 0; k < p.free.free_wire_s.size(); ++k) out["free_wire_s"][p.work.wires[k].name] = p.free.free_wire_s[k];
  }
  return out;
}

/// Of several pipelines: the figures of all, warm-ups and peaks rank after rank, and each by itself.
nlohmann::ordered_json to_json(const arguments& given, const std::vector<played_pipeline>& all) {
  if (all.size() == 1) return to_json(given, all.front());
  const auto whole = together(all);
  nlohmann::ordered_json out{{"makespan_s", whole.makespan_s},
                             {"period_s", whole.period_s},
                             {"lower_bound_s", whole.bound_s},
                             {"bubble_ratio", whole.bubble_ratio},
                             {"overlap_ratio", whole.overlap_ratio}};
  auto &warmup = out["warmup"] = nlohmann::ordered_json::array(),
       &peaks = out["peak_in_flight"] = nlohmann::ordered_json::array();
  auto pipelines = nlohmann::ordered_json::array();
  for (const auto& p : all) {
    for (const int n : p.counts) warmup.push_back(n);
    for (const int n : p.played.peak_in_flight) peaks.push_back(n);
    pipelines.push_back(to_json(given, p));
  }
  out["pipelines"] = std::move(pipelines);
  return out;
}

std::string text_of(const arguments& given, const played_pipeline& p) {
  std::vector<std::vector<std::string>> rows{
      {"makespan", format_seconds(p.played.makespan_s) +
                       (p.what.line && !is_forward_only(p.order) ? " (without gradient reduction and optimizer step)" : "")},
      {"lower bound", format_seconds(p.bound_s) + " (" + gap_text(p.played.makespan_s, p.bound_s) + ")"},
      {"period", format_seconds(p.period_s)},
      {"bubble", format_percent(p.played.bubble_ratio)},
      {"overlap", format_percent(p.played.overlap_ratio)},
      {"warm-up", joined(p.counts)},
      {"in flight", joined(p.played.peak_in_flight)}};
  if (given.explain && !p.path.empty()) {
    const auto most = bottleneck_figure(p.path);
    rows.push_back({most.label, most.value + " (" + most.note + ")"});
  }
  if (in_bytes(p))
    rows.push_back({"memory", memory_text(p.played, true)});
  else if (!one_stage_per_rank(p.order))
    rows.push_back({"held", memory_text(p.played, false) + " microbatches of a whole rank"});
  std::string text = format_table({"schedule", p.name + ", " + command::count_text(p.order.ranks, "stage") + ", " +
                                                   command::count_text(p.what.microbatches, "microbatch")},
                                  rows);
  if (given.explain)
    for (const auto& table : explanations(given, p)) text += '\n' + table_text(table);
  return text;
}

/// Makespans of all pipelines together under noise, in order; empty unless asked for.
std::vector<double> noisy_makespans(const arguments& given, const std::vector<played_pipeline>& all) {
  if (!given.jitter) return {};
  std::vector<double> whole_s(static_cast<std::size_t>(given.samples));
  command::progress_line progress;
  for (std::size_t l = 0; l < all.size(); ++l) {
    const double work = static_cast<double>(given.samples) * static_cast<double>(all.size());
    const auto show = [&](int done) {
      const double share = (static_cast<double>(l) * given.samples + done) / work;
      if (done % 64 == 0) progress.show(share, std::to_string(done) + " of " + std::to_string(given.samples) + " samples");
    };
    const jitter_options how{.spread = *given.jitter,
                             .samples = given.samples,
                             .seed = given.jitter_seed + l,
                             .semantics = given.rendezvous ? send_semantics::rendezvous : send_semantics::buffered,
                             .progress = show};
    const auto own_s = makespans_under_jitter(all[l].work, all[l].order, how);
    for (std::size_t i = 0; i < whole_s.size(); ++i) whole_s[i] = std::max(whole_s[i], own_s[i]);
  }
  std::sort(whole_s.begin(), whole_s.end());
  return whole_s;
}

constexpr double told_shares[] = {0.1, 0.5, 0.9, 0.99};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<std::vector<std::string>> jitter_rows(const arguments& given, const std::vector<double>& noisy_s) {
  std::vector<std::vector<std::string>> rows{
      {"jitter", format_percent(*given.jitter) + " on every rank and link, " + command::count_text(given.samples, "sample")},
      {"mean", format_seconds(mean_of(noisy_s))}};
  for (const double share : told_shares)
    rows.push_back({detail::print("%.0f %%", share * 100) + " within", format_seconds(quantile(noisy_s, share))});
  return rows;
}

nlohmann::ordered_json jitter_json(const arguments& given, const std::vector<double>& noisy_s) {
  nlohmann::ordered_json quantiles;
  for (const double share : told_shares) quantiles[detail::print("%g", share)] = quantile(noisy_s, share);
  return {{"spread", *given.jitter},
          {"samples", given.samples},
          {"seed", given.jitter_seed},
          {"mean_s", mean_of(noisy_s)},
          {"quantiles_s", quantiles}};
}

int simulate_command(const arguments& given) {
  if (given.pipeline.empty() == given.plan.empty()) throw input_error("give either --pipeline or --plan");
  if (!(given.epsilon >= 0 && given.epsilon <= 1)) throw input_error("--epsilon: expected a number in [0, 1]");
  command::outputs files;
  for (const auto& path : {given.pipeline, given.plan, command::schedule_file(given.schedule)}) files.reads(path);
  for (const auto& path : {given.trace, given.report, given.schedule_csv, given.schedule_csv_comms, given.jitter_svg})
    files.expect(path);

  std::vector<played_pipeline> all;
  for (auto& what : read_subjects(given)) {
    auto played = play(given, std::move(what));
    if (!played) {
      std::cerr << "hetsched-simulate: no schedule: " << played.why_not().reason << '\n';
      return command::infeasible;
    }
    all.push_back(*std::move(played));
  }
  const auto noisy_s = noisy_makespans(given, all);
  if (given.jitter) files.add(given.jitter_svg, distribution_svg(noisy_s, together(all).makespan_s));
  if (!given.schedule_csv.empty()) files.add(given.schedule_csv, to_csv(all.front().order));
  if (!given.schedule_csv_comms.empty()) files.add(given.schedule_csv_comms, to_csv(torch_order(all.front().order)));
  if (!given.trace.empty()) {
    std::vector<timeline> parts;
    for (const auto& p : all) parts.push_back(p.played.timeline);
    files.add(given.trace, chrome_trace(side_by_side(parts)));
  }
  if (!given.report.empty()) files.add(given.report, page_text(given, all));
  files.write();

  if (given.json) {
    auto out = to_json(given, all);
    if (given.jitter) out["jitter"] = jitter_json(given, noisy_s);
    std::cout << out.dump() << '\n';
    return command::done;
  }
  for (std::size_t l = 0; l < all.size(); ++l) {
    if (all.size() > 1) std::cout << (l > 0 ? "\n" : "") << "pipeline " << l << ":\n";
    std::cout << text_of(given, all[l]);
  }
  if (given.jitter) {
    std::cout << '\n';
    for (const auto& row : jitter_rows(given, noisy_s)) std::cout << detail::print("%-14s", row[0].c_str()) << row[1] << '\n';
  }
  if (given.explain && !files.summary().empty()) std::cout << '\n';
  std::cout << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-simulate"), "hetsched-simulate");
  app.footer(
      "hetsched-simulate --pipeline pipeline.json --schedule 1f1b\n"
      "hetsched-simulate --plan plan.json --schedule auto --report report.html");
  arguments given;
  std::vector<std::string> names{std::string(auto_schedule_name), std::string(forward_schedule_name)};
  for (const auto name : schedule_names()) names.emplace_back(name);
  app.add_option("--pipeline", given.pipeline, "pipeline.json: the bare times of a pipeline");
  app.add_option("--plan", given.plan, "plan.json: its stages, and its schedule and warm-ups unless told otherwise");
  app.add_option("--schedule", given.schedule,
                 "auto: the best that is found; forward: inference; @FILE: a schedule in text form; or by name")
      ->type_name(command::words_type(names));
  app.add_option("--schedule-csv", given.schedule_csv, "write the schedule in text form");
  app.add_option("--schedule-csv-comms", given.schedule_csv_comms,
                 "write it with sends, receives and waits, as PyTorch's compute_comms format has it");
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
  const auto jitter = app.add_option("--jitter", given.jitter,
                                     "also plays iterations in which each rank and link is slower or faster: by so much, "
                                     "as the standard deviation of the logarithm")
                          ->check(CLI::Range(0.0, 10.0));
  app.add_option("--samples", given.samples, "such iterations")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str()
      ->needs(jitter);
  app.add_option("--jitter-seed", given.jitter_seed, "of the samples")->capture_default_str()->needs(jitter);
  app.add_option("--jitter-svg", given.jitter_svg, "picture of how many have ended after a time, to write")->needs(jitter);
  app.add_flag("--json", given.json, "print one JSON object");
  app.add_option("--trace", given.trace, "write a Chrome trace (for ui.perfetto.dev)");
  app.add_option("--report", given.report, "write an HTML report");
  return command::run(app, argc, argv, [&] { return simulate_command(given); });
}
