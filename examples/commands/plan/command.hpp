// SPDX-License-Identifier: Apache-2.0
// hetsched-plan, for any table of planners.
#pragma once

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json/target_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/io/schedule_csv.hpp>
#include <hetsched/io/trace/chrome_trace.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../command.hpp"
#include "../names.hpp"
#include "pages.hpp"
#include "search.hpp"
#include "serving.hpp"
#include "what_if.hpp"

namespace command {

inline const std::map<std::string, hetsched::warmup_rule> warmup_rules{{"h1f1b", hetsched::warmup_rule::h1f1b},
                                                                       {"exact", hetsched::warmup_rule::exact},
                                                                       {"1f1b", hetsched::warmup_rule::one_f_one_b},
                                                                       {"eager", hetsched::warmup_rule::eager}};

/// Throws input_error unless it is auto or one that build_schedule knows.
inline void check_schedule_name(const std::string& name) {
  std::vector<std::string_view> known{hetsched::auto_schedule_name};
  for (const auto other : hetsched::schedule_names()) known.push_back(other);
  if (std::find(known.begin(), known.end(), name) == known.end()) unknown_name("--schedule", name, known);
}

/// The planner of that name. Throws input_error naming `option` if there is none.
[[nodiscard]] inline const hetsched::planner_entry& find_planner(std::span<const hetsched::planner_entry> table,
                                                                 const std::string& name,
                                                                 const std::string& option = "--planner") {
  std::vector<std::string_view> known;
  for (const auto& entry : table) {
    if (entry.name == name) return entry;
    known.push_back(entry.name);
  }
  unknown_name(option, name, known);
}

/// Takes the options of the search from their texts. Throws input_error if one is out of range.
inline void settle(plan_arguments& given) {
  if (!(given.options.epsilon >= 0 && given.options.epsilon <= 1))
    throw hetsched::input_error("--epsilon: expected a number in [0, 1]");
  given.options.warmup = warmup_rules.at(given.warmup);
  given.options.schedule = given.schedule;
  for (const auto& name : given.without) {
    if (name == "consecutive") given.options.principles.consecutive = false;
    if (name == "uniform") given.options.principles.uniform = false;
  }
}

/// The library's; but the first one that makes one pipeline where a single schedule is to be written, unless money counts, which
/// that one does not know.
[[nodiscard]] inline const hetsched::planner_entry& default_planner(const plan_arguments& given, const cost_source& source,
                                                                    std::span<const hetsched::planner_entry> table) {
  using hetsched::plan_objective;
  const bool money = given.objective == plan_objective::cost || !given.frontier.empty();
  if (!money && !given.schedule_csv.empty())
    for (const auto& entry : table)
      if (entry.one_pipeline) return entry;
  return hetsched::default_planner({.objective = money ? plan_objective::cost : given.objective, .target = given.target},
                                   source.priced(), table);
}

/// Reads the target, and takes from it what the command line leaves open.
inline void take_target(plan_arguments& given, outputs& files) {
  using namespace hetsched;
  if (!find_plan_target(given.target_name)) files.reads(given.target_name);
  given.target = read_target(given.target_name);
  if (given.costs.profile.empty() && given.costs.stack.empty()) given.costs.stack = given.target->stack;
  if (given.costs.formulas == "hexiscale")
    throw input_error("--for: HexiScale's costs leave out embedding and head, which every target has");
  if (given.costs.granularity.empty() && given.target->cuts != target_cuts::layers) given.costs.granularity = "block";
  if (const auto rule = schedule_name(given.options.warmup); given.warmup != "exact" && !allows(*given.target, rule))
    throw input_error("--warmup: " + given.target->name + " does not run " + std::string(rule));
  for (const auto& [option, asked] :
       {std::pair{"--frontier", !given.frontier.empty()}, std::pair{"--quantile", given.quantile > 0},
        std::pair{"--objective", is_inference(given.objective)}})
    if (asked) throw input_error(std::string(option) + ": does not go with --for");
  if (given.objective == plan_objective::cost && !given.target->several_pipelines)
    throw input_error("--objective cost: does not go with --for " + given.target->name + ", which runs one pipeline");
}

/// What noise makes of a plan that was chosen for it.
[[nodiscard]] inline std::string robust_rows(const plan_arguments& given, const hetsched::robust_plan& robust) {
  using namespace hetsched;
  return format_table({"noise", ">" + format_percent(given.quantile) + " quantile",
                       "where ranks and links vary by " + format_percent(given.jitter)},
                      {{"", format_seconds(robust.quantile_s),
                        std::to_string(robust.plans) + (robust.plans == 1 ? " plan" : " plans") + " looked at, " +
                            std::to_string(given.samples) + " samples"},
                       {"", format_seconds(robust.fastest_s), "by the plan that is fastest without noise"}});
}

/// What the plan loses that was chosen for devices of other speeds, and which of them to measure.
[[nodiscard]] inline std::string bias_rows(const plan_arguments& given, const hetsched::cluster& hardware,
                                           const hetsched::unbiased_plan& found) {
  using namespace hetsched;
  if (found.losses.size() == 1) return "device bias  no time was left to search for plans of other speeds\n";
  const auto all = speed_cases(hardware, given.device_bias).size();
  std::vector<std::vector<std::string>> rows{
      {"", format_percent(found.worst_loss),
       std::to_string(found.plans) + " plans looked at, " + std::to_string(found.losses.size()) +
           (found.losses.size() < all ? " of " + std::to_string(all) : "") + " cases; at worst " + format_seconds(found.worst_s)},
      {"", format_percent(found.fastest_loss), "by the plan that is fastest as priced"}};
  for (const auto& d : found.doubts)
    rows.push_back({"measure", format_percent(d.gain), "faster at the most by a plan made for how fast " + d.device + " is"});
  return format_table(
      {"device bias", ">loses",
       "at the most to the best plan, where each kind of device is " + format_percent(given.device_bias) + " faster or slower"},
      rows);
}

[[nodiscard]] inline nlohmann::ordered_json bias_json(const plan_arguments& given, const hetsched::unbiased_plan& found) {
  nlohmann::ordered_json out{{"bias", given.device_bias}, {"worst_loss", found.worst_loss}, {"fastest_loss", found.fastest_loss},
                             {"worst_s", found.worst_s},  {"cases", found.losses.size()},   {"plans", found.plans}};
  for (const auto& d : found.doubts) out["measure"].push_back({{"device", d.device}, {"gain", d.gain}});
  return out;
}

/// Throws: input_error for options of training beside an objective of inference.
inline void check_serving(const plan_arguments& given) {
  for (const auto& [option, asked] :
       {std::pair{"--without", !given.without.empty()}, std::pair{"--quantile", given.quantile > 0},
        std::pair{"--sends", !given.sends.empty()}, std::pair{"--device-bias", given.device_bias > 0},
        std::pair{"--stack", !given.costs.stack.empty()}})
    if (asked) throw hetsched::input_error(std::string(option) + ": is for training");
}

/// Throws: input_error for options that do not go with training, or with each other.
inline void check_training(const plan_arguments& given, const cost_source& source) {
  using namespace hetsched;
  if (given.global_batch < 1) throw input_error("--global-batch is required");
  const bool of_iterations = given.objective == plan_objective::iteration && given.frontier.empty();
  if (given.quantile > 0 && !of_iterations) throw input_error("--quantile: is of iterations, and knows no money");
  if (given.device_bias > 0 && !of_iterations) throw input_error("--device-bias: is of iterations, and knows no money");
  if (given.device_bias > 0 && source.measured())
    throw input_error("--device-bias: is for costs from datasheets; those of " + given.costs.profile + " are measured");
}

/// Throws: input_error for options that do not go with the planner.
inline void check_planner(const plan_arguments& given, const hetsched::planner_entry& planner) {
  using namespace hetsched;
  const auto name = std::string(planner.name);
  if (given.options.published && name != "hetauto" && name != "hexiscale")
    throw input_error("--search: published is of planners hetauto and hexiscale; this one is " + name);
  if (given.explain && !planner.explain)
    throw input_error("--explain: planner " + name + " does not count its space; hetauto and hetauto_exact do");
}

/// What of --without are devices, not principles of hetauto. Throws: input_error for what is neither.
[[nodiscard]] inline std::vector<hetsched::lost_devices> lost_of(const plan_arguments& given, const hetsched::cluster& hardware,
                                                                 const hetsched::planner_entry& planner) {
  using hetsched::input_error;
  std::vector<hetsched::lost_devices> lost;
  for (const auto& name : given.without) {
    if (name == "consecutive" || name == "uniform") {
      if (planner.name != "hetauto") throw input_error("--without: " + name + " is a principle of planner hetauto");
    } else {
      lost.push_back(parse_lost(hardware, name));
    }
  }
  if (lost.size() > 1 && !given.out.empty())
    throw input_error("--out: is for the plan that is left, of one --without; found " + std::to_string(lost.size()));
  return lost;
}

/// What the command tells of a plan that it has found.
struct plan_answer {
  hetsched::plan best = {};
  std::string unsure_text = {};  ///< what noise or biased devices make of it
  nlohmann::ordered_json noise = {}, bias = {};
  hetsched::send_mode sends = hetsched::send_mode::asynchronous;
  std::optional<double> held_up_s = {};  ///< an iteration of it whose sends hold ranks up
  std::optional<double> split_s = {};    ///< its iteration where backwards are split, if that is worth telling
  std::vector<lesser_plan> lesser = {};  ///< with some devices less
  std::vector<hetsched::plan> frontier = {};
  std::string frontier_text = {}, space_text = {};
};

/// The plan that is asked for, with what noise or biased devices make of it, told in `answer`.
[[nodiscard]] inline hetsched::outcome<hetsched::plan> search_best(const plan_arguments& given,
                                                                   const hetsched::planner_entry& planner,
                                                                   const hetsched::cluster& hardware, const cost_source& source,
                                                                   progress_line& progress, plan_answer& answer) {
  using namespace hetsched;
  if (given.device_bias > 0) {
    auto unbiased = search_unbiased(given, planner, hardware, source, progress);
    if (!unbiased) return unbiased.why_not();
    answer.unsure_text = bias_rows(given, hardware, *unbiased);
    answer.bias = bias_json(given, *unbiased);
    return std::move(unbiased->plan);
  }
  if (given.quantile == 0) return search(given, planner, hardware, source, progress);
  std::vector<plan> on_the_way;
  auto first = given;
  first.time_budget_s /= 2;  // the rest is for noise
  auto found = search(first, planner, hardware, source, progress, &on_the_way);
  if (!found) return found;
  auto robust = search_robust(given, hardware, source, std::move(on_the_way), progress);
  if (!robust) return found;
  answer.unsure_text = robust_rows(given, *robust);
  answer.noise = {{"quantile", given.quantile},       {"spread", given.jitter},         {"samples", given.samples},
                  {"quantile_s", robust->quantile_s}, {"fastest_s", robust->fastest_s}, {"plans", robust->plans}};
  return std::move(robust->plan);
}

/// Adds pictures, traces and tables of the plan to the files.
inline void draw(const plan_arguments& given, const hetsched::cluster& hardware, const cost_source& source,
                 const plan_answer& answer, outputs& files) {
  using namespace hetsched;
  const auto& best = answer.best;
  if (!given.report.empty() || !given.trace.empty()) {
    auto played = play(best);
    if (!given.trace.empty()) {
      std::vector<timeline> all;
      for (const auto& s : played) all.push_back(s.played.timeline);
      files.add(given.trace, chrome_trace(side_by_side(all)));
    }
    if (!given.report.empty()) {
      files.add(given.report, plan_page(hardware, best, origin_of(given, source, hardware), std::move(played),
                                        held_by(given, source, hardware, best), answer.held_up_s));
    }
  }
  if (given.schedule_csv.empty()) return;
  if (best.pipelines.size() > 1)
    throw input_error("--schedule-csv: the plan has " + std::to_string(best.pipelines.size()) +
                      " pipelines, whose schedules plan.json holds");
  files.add(given.schedule_csv, to_csv(order_of(best.pipelines.front(), {})->order));
}

/// Searches for the frontier, and adds its picture to the files.
inline void add_frontier(const plan_arguments& given, const hetsched::planner_entry& planner, const hetsched::cluster& hardware,
                         const cost_source& source, progress_line& progress, plan_answer& answer, outputs& files) {
  auto plans = search_frontier(given, planner, hardware, source, answer.best, progress);
  std::vector<std::optional<double>> sent_s;
  for (const auto& p : plans) sent_s.push_back(iteration_with_sends(given, hardware, source, p));
  answer.frontier = as_sent(std::move(plans), sent_s);
  answer.frontier_text = frontier_text(hardware, answer.frontier, answer.best) + "\n";
  files.add(given.frontier, frontier_picture(hardware, answer.frontier, answer.best));
}

[[nodiscard]] inline std::string answer_json(const hetsched::cluster& hardware, const cost_source& source,
                                             const plan_answer& answer, const outputs& files) {
  using namespace hetsched;
  nlohmann::ordered_json out{{"plan", hetsched::detail::document_of(to_json(answer.best, hardware))}};
  out["like_cases"] = source.like_cases_json(hardware);
  if (!answer.noise.is_null()) out["noise"] = answer.noise;
  if (!answer.bias.is_null()) out["device_bias"] = answer.bias;
  if (answer.held_up_s) {
    out["sends"] = at(send_modes, answer.sends);
    out["iteration_with_sends_s"] = *answer.held_up_s;
  }
  for (const auto& p : answer.frontier)
    out["frontier"].push_back({{"iteration_s", p.predicted.iteration_s},
                               {"cost_per_sample", *p.predicted.cost_per_sample},
                               {"cost_per_iteration", per_iteration(p, *p.predicted.cost_per_sample)},
                               {"devices", devices_in_use(hardware, p)}});
  if (!answer.lesser.empty()) out["without"] = what_if_json(hardware, answer.lesser, answer.best, answer.held_up_s);
  out["files"] = files.paths();
  return hetsched::detail::dump(out);
}

/// Prints the answer, and on standard error what to know of it.
inline void print(const plan_arguments& given, const hetsched::cluster& hardware, const cost_source& source,
                  const plan_answer& answer, const outputs& files) {
  const auto& best = answer.best;
  const auto& held_up_s = answer.held_up_s;
  if (given.json) {
    std::cout << answer_json(hardware, source, answer, files) << std::flush;
  } else {
    std::cout << answer.frontier_text << answer.space_text << summary(hardware, best, source, held_up_s, answer.split_s)
              << answer.unsure_text << source.held_up_text(answer.sends, held_up_s) << sent_cost_text(best, held_up_s)
              << files.summary() << std::flush;
    if (!answer.lesser.empty()) std::cout << '\n' << what_if_text(hardware, answer.lesser, best, held_up_s);
  }
  for (const auto& remarks : {source.remarks(hardware, best), shared_links(hardware, best)})
    for (const auto& remark : remarks) std::cerr << "hetsched-plan: " << remark << '\n';
  if (best.predicted.mfu > 1)
    std::cerr << "hetsched-plan: an MFU above 100 % cannot be: do the costs belong to microbatches of "
              << best.pipelines.front().microbatch_size << " samples, and to this model?\n";
  if (interrupted()) std::cerr << "hetsched-plan: stopped by a signal; this is the best plan until then\n";
}

/// What the plan's devices would take under `auto`, which splits backwards, where nobody has asked for a schedule and that is
/// much less; none where there is no time left, or the orders are too long to look at in passing.
[[nodiscard]] inline std::optional<double> with_split_backwards(const plan_arguments& given, const hetsched::cluster& hardware,
                                                                const cost_source& source, const progress_line& progress,
                                                                const hetsched::plan& p) {
  using namespace hetsched;
  constexpr double worth = 0.01;
  constexpr std::int64_t most_actions = 50'000;
  if (!given.schedule.empty() || given.target || given.warmup != "exact" || given.objective != plan_objective::iteration ||
      !in_time(given, progress))
    return {};
  std::int64_t actions = 0;
  for (const auto& line : p.pipelines)
    actions = std::max(actions, static_cast<std::int64_t>(line.stages.size()) * line.microbatches);
  if (actions > most_actions) return {};
  auto how = judging(given, source);
  const auto go_on = [&](double, double) { return in_time(given, progress); };
  how.progress = go_on;
  const auto split =
      plan_under_schedule(hardware, costs_on(hardware, source.priced()), p, std::string(auto_schedule_name), how, false);
  if (!split || split->predicted.iteration_s > (1 - worth) * p.predicted.iteration_s) return {};
  return split->predicted.iteration_s;
}

/// hetsched-plan under an objective of training.
[[nodiscard]] inline int plan_training(const plan_arguments& given, const hetsched::planner_entry& planner,
                                       const cost_source& source, const hetsched::cluster& hardware, outputs& files) {
  using namespace hetsched;
  const auto lost = lost_of(given, hardware, planner);
  plan_answer answer;
  check_planner(given, planner);
  progress_line progress;
  const auto problem = [&](int size) {
    return problem_of(request_for(hardware, source.priced(), request_of(given, source, hardware, progress)), size);
  };
  if (!given.frontier.empty()) {
    auto money = problem(1);
    money.objective = plan_objective::cost;
    validate(hardware, money);
  }
  auto found = search_best(given, planner, hardware, source, progress, answer);
  if (!found) {
    const auto& why = found.why_not();
    const auto ways =
        why.why == refusal::kind::infeasible && why.reason.find("GiB") != std::string::npos ? source.ways_out() : "";
    std::cerr << "hetsched-plan: no plan: " << why.reason << (ways.empty() ? "" : " (" + ways + ")") << '\n';
    return infeasible;
  }
  const auto& best = answer.best = *std::move(found);
  if (!lost.empty()) answer.lesser = plans_without(given, planner, hardware, source, lost, answer.best);
  answer.sends = source.sends(given.sends, best);
  answer.held_up_s = iteration_with_sends(given, hardware, source, best);
  if (!answer.held_up_s && !given.json) answer.split_s = with_split_backwards(given, hardware, source, progress, best);
  if (const auto* const left = answer.lesser.empty() ? nullptr : &answer.lesser.front();
      !given.out.empty() && left && !left->found) {
    std::cerr << "hetsched-plan: no plan without " << lost_of_all_text(hardware, left->lost) << ": "
              << left->found.why_not().reason << '\n';
    return infeasible;
  }
  if (!given.out.empty()) files.add(given.out, to_json(answer.lesser.empty() ? best : *answer.lesser.front().found, hardware));
  draw(given, hardware, source, answer, files);
  if (!given.frontier.empty()) add_frontier(given, planner, hardware, source, progress, answer, files);
  files.write();
  if (given.explain) {
    const int size = best.pipelines.front().microbatch_size;
    answer.space_text = planner.explain(hardware, source.costs(hardware, size), problem(size), source.part_count()) + "\n";
  }
  print(given, hardware, source, answer, files);
  return done;
}

[[nodiscard]] inline int plan_command(plan_arguments given, std::span<const hetsched::planner_entry> table) {
  using namespace hetsched;
  const auto* named = given.planner.empty() ? nullptr : &find_planner(table, given.planner);
  settle(given);
  outputs files;
  if (!given.target_name.empty()) take_target(given, files);
  for (const auto& path : {given.cluster, given.model, given.costs.profile, given.costs.stack, forest_of(given.costs.formulas)})
    files.reads(path);
  for (const auto& path : {given.out, given.report, given.trace, given.schedule_csv, given.frontier}) files.expect(path);
  if (!given.schedule.empty()) check_schedule_name(given.schedule);
  if (given.deadline_s < infinity && given.objective != plan_objective::cost)
    throw input_error("--deadline: needs --objective cost");

  const auto file = read_cluster_file(given.cluster);
  for (const auto& path : file.files) files.reads(path);
  given.costs.batch = given.global_batch;
  const cost_source source(given.costs, given.model, file.stack);
  const auto hardware = source.anchored(file);
  source.check_calibrations(hardware);
  const bool serves = is_inference(given.objective);
  if (serves) given.serving.products = source.products(given.products);
  const auto precision = serves ? source.precision_text(hardware, given.serving.products) : source.precision_text(hardware);
  for (const auto& texts : {source.anchor_warnings(file, hardware), source.warnings(hardware, precision)})
    for (const auto& text : texts) std::cerr << "hetsched-plan: " << text << '\n';
  if (serves) {
    check_serving(given);
    return plan_serving(given, source, hardware, files);
  }
  check_training(given, source);
  const auto& planner = named ? *named : default_planner(given, source, table);
  if (!given.frontier.empty() && !planner.frontier)
    throw input_error("--frontier: planner " + std::string(planner.name) + " does not know money; parallel_pipelines does");
  if (given.serving.weight_bits > 0 || given.serving.cache_bits > 0 || !given.products.empty())
    throw input_error("--weight-bits, --cache-bits and --products are of inference: --objective latency or throughput");
  const hetsched::inference_options unset;
  if (given.serving.prompt_tokens != unset.prompt_tokens || given.serving.output_tokens != unset.output_tokens ||
      given.serving.chunk_tokens != unset.chunk_tokens || given.serving.batch != unset.batch || given.in_flight != 0)
    throw input_error(
        "--prompt-tokens, --output-tokens, --chunk-tokens, --batch and --in-flight are of inference: --objective latency or "
        "throughput");
  if (given.options.stages != 0 && planner.name != "placement")
    throw input_error("--stages: planner " + std::string(planner.name) + " chooses how many; placement can be told");
  return plan_training(given, planner, source, hardware, files);
}

/// Options that say how to search.
inline void add_search_options(CLI::App& app, plan_arguments& given) {
  app.add_option("--warmup", given.warmup, "rule for the microbatches in flight")
      ->check(one_of(warmup_rules))
      ->capture_default_str();
  app.add_option("--epsilon", given.options.epsilon, "h1f1b: share of the period that a transfer may take unnoticed")
      ->capture_default_str();
  app.add_flag("--use-all-devices", given.use_all_devices, "no device may stay idle");
  app.add_flag("--mixed-stages", given.mixed_stages,
               "also stages on unlike devices of two or all subclusters, each with as many samples as its speed allows");
  app.add_flag("--all-orders", given.options.all_orders, "try all orders of up to twelve subclusters, not only of four");
  app.add_option("--seed", given.options.seed,
                 "of random numbers, which hexiscale and hetauto draw, also where another planner begins with a plan of theirs");
  static const std::map<std::string, bool> searches{{"published", true}};
  app.add_option("--search", given.options.published,
                 "published: hetauto and hexiscale search as their papers do, and hexiscale counts transfers as its paper does")
      ->transform(CLI::Transformer(searches).description(""))
      ->transform(one_of(searches));
  app.add_option("--time-budget", given.time_budget_s, "seconds after which the best plan so far is taken")
      ->check([](const std::string& text) {
        double seconds = 0;
        const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), seconds);
        const bool good = wrong == std::errc{} && end == text.data() + text.size() && seconds >= 0 && seconds <= 1e9;
        return good ? std::string() : "found " + text + ", expected seconds from 0 on";
      });
  app.add_option("--threads", given.threads, "threads to search with; the plan does not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

/// Options of requests and the model that serves them.
inline void add_inference_options(CLI::App& app, plan_arguments& given) {
  const auto tokens = CLI::Range(1, 1 << 23);
  app.add_option("--prompt-tokens", given.serving.prompt_tokens, "inference: of a request")->check(tokens)->capture_default_str();
  app.add_option("--output-tokens", given.serving.output_tokens, "inference: made for a request")
      ->check(tokens)
      ->capture_default_str();
  app.add_option("--chunk-tokens", given.serving.chunk_tokens, "inference: the prompt goes in pieces of so many")->check(tokens);
  const auto bits = CLI::Range(1.0, 32.0);
  app.add_option("--weight-bits", given.serving.weight_bits, "inference: of a weight as it is stored, scales included")
      ->check(bits);
  app.add_option("--cache-bits", given.serving.cache_bits, "inference: of keys and values in the cache")->check(bits);
  app.add_option("--products", given.products,
                 "inference: what linear layers multiply in where devices do, same (as --dtype), fp8, int8; default: as the "
                 "model file says")
      ->check(CLI::IsMember({"same", "fp8", "int8"}));
  app.add_option("--batch", given.serving.batch, "inference: requests that go through the stages together")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--in-flight", given.in_flight,
                 "inference: batches whose caches are held at once (1; for throughput as many as are best)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--stages", given.options.stages, "placement: how many; else as many as are best")->check(CLI::Range(1, 4096));
}

/// Options that say how sure prices and times are.
inline void add_doubt_options(CLI::App& app, plan_arguments& given) {
  const auto quantile =
      app.add_option("--quantile", given.quantile,
                     "share of iterations, such as 0.9, that are to be as short as possible where ranks and links "
                     "vary by --jitter: of the plans that are found and their neighbours, the best is taken")
          ->check(CLI::Range(0.01, 1.0));
  const auto jitter = app.add_option("--jitter", given.jitter,
                                     "with --quantile: standard deviation of the logarithm of each rank's and link's factor")
                          ->check(CLI::Range(0.0, 2.0))
                          ->needs(quantile);
  quantile->needs(jitter);
  app.add_option("--samples", given.samples,
                 "with --quantile: iterations with noise that plans are judged by; the last ones by four times as many")
      ->check(CLI::Range(10, 1'000'000))
      ->capture_default_str()
      ->needs(quantile);
  app.add_option("--device-bias", given.device_bias,
                 "share, such as 0.2, by which each kind of device may be faster or slower than priced: the plan that then loses "
                 "least to the best one, and which device to measure")
      ->check(CLI::Range(0.01, 0.9))
      ->excludes(quantile);
}

/// Options of who plans, for which program, and to which end.
inline void add_planner_options(CLI::App& app, plan_arguments& given, std::span<const hetsched::planner_entry> table) {
  std::vector<std::string> target_names;
  for (const auto& t : hetsched::plan_targets()) target_names.push_back(t.name);
  app.add_option("--for", given.target_name,
                 "the program that is to run the plan, among whose plans the best is searched for, priced as it runs them: " +
                     listed(target_names) + ", or a target.json");
  std::string planners;
  std::vector<std::string> planner_names;
  for (const auto& entry : table) {
    planners += (planners.empty() ? "" : "; ") + std::string(entry.name) + ": " + std::string(entry.what);
    planner_names.emplace_back(entry.name);
  }
  app.add_option("--planner", given.planner, planners)->type_name(words_type(planner_names));
  static const std::map<std::string, hetsched::plan_objective> objectives{{"iteration", hetsched::plan_objective::iteration},
                                                                          {"cost", hetsched::plan_objective::cost},
                                                                          {"latency", hetsched::plan_objective::latency},
                                                                          {"throughput", hetsched::plan_objective::throughput}};
  app.add_option("--objective", given.objective,
                 "iteration: the shortest; cost: the least money per sample, from the price_per_hour of devices or the "
                 "price_per_node_hour of nodes; for inference "
                 "latency: the soonest answer, or throughput: the most requests")
      ->transform(CLI::Transformer(objectives).description(""))
      ->transform(one_of(objectives));
}

/// The whole program.
[[nodiscard]] inline int plan_main(int argc, char** argv, std::span<const hetsched::planner_entry> table) {
  application app(command::about("hetsched-plan"), "hetsched-plan");
  app.footer(
      "hetsched-plan --cluster cluster.json --model model.json --global-batch 256 --out plan.json\n"
      "hetsched-plan --cluster cluster.json --profile profile.json --global-batch 256 --report plan.html");
  plan_arguments given;
  app.add_option("--cluster", given.cluster, "cluster.json: what hardware there is")->required();
  app.add_option("--model", given.model,
                 "model.json or a Hugging Face config.json: what is trained; with --profile only for the MFU");
  given.costs.add_options(app, true);
  app.add_option("--global-batch", given.global_batch, "samples per iteration; required for training")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--microbatch-size", given.microbatch_size,
                 "samples per microbatch, or auto: the best divisor of the batch (default; with a profile of version 1: 1)");
  add_planner_options(app, given, table);
  add_inference_options(app, given);
  app.add_option("--deadline", given.deadline_s, "with --objective cost: seconds that an iteration may take")
      ->check(CLI::PositiveNumber);
  app.add_option("--frontier", given.frontier,
                 "picture (SVG) to write of time against cost: the cheapest plan for every deadline; also printed as a table");
  std::vector<std::string> schedule_names{std::string(hetsched::auto_schedule_name)};
  for (const auto name : hetsched::schedule_names()) schedule_names.emplace_back(name);
  app.add_option("--schedule", given.schedule,
                 "what the planned stages run, and what hetauto plans for, if it is of the 1F1B family; auto: the best that is "
                 "found; else the rule of --warmup")
      ->type_name(words_type(schedule_names));
  app.add_option("--schedule-csv", given.schedule_csv, "the schedule to write, one row per stage");
  app.add_option("--sends", given.sends,
                 "also the iteration of ranks that wait for what they send: grouped, or one by one, blocking (the stack's)")
      ->check(CLI::IsMember({"asynchronous", "grouped", "blocking"}));
  add_search_options(app, given);
  app.add_option(
         "--without", given.without,
         "SUBCLUSTER, SUBCLUSTER:N or SUBCLUSTER:all: also plans without one, N or all of its devices, and prints what that "
         "costs and the plan that is left, which --out then writes; or, with hetauto, "
         "a principle to do without: consecutive (a subcluster's stages follow each other), uniform (they have one placement)")
      ->delimiter(',');
  app.add_flag("--explain", given.explain,
               "hetauto, hetauto_exact: how many plans there are, and how many each principle leaves");
  add_doubt_options(app, given);
  app.add_option("--out", given.out, "plan.json to write");
  app.add_option("--report", given.report, "HTML report to write");
  app.add_option("--trace", given.trace, "Chrome trace to write (for ui.perfetto.dev)");
  app.add_flag("--json", given.json, "prints the plan, what noise, biased and lost devices make of it, and the frontier as JSON");
  return run(app, argc, argv, [&] { return plan_command(given, table); });
}

}  // namespace command
