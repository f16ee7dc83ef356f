// SPDX-License-Identifier: Apache-2.0
// hetsched-plan, for any table of planners.
#pragma once

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

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

/// The first one. The first one that makes one pipeline, where a single schedule is to be written, and where costs do not say
/// what several pipelines have to add up; but not where money counts, which that one does not know.
[[nodiscard]] inline const hetsched::planner_entry& default_planner(const plan_arguments& given, const cost_source& source,
                                                                    std::span<const hetsched::planner_entry> table) {
  const bool money = given.objective == hetsched::plan_objective::cost || !given.frontier.empty();
  const bool one = given.target && !given.target->several_pipelines;
  if (!money && (!given.schedule_csv.empty() || source.of_shapes() || one))
    for (const auto& entry : table)
      if (entry.one_pipeline) return entry;
  return table.front();
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
  if (given.deadline_s < std::numeric_limits<double>::infinity() && given.objective != plan_objective::cost)
    throw input_error("--deadline: needs --objective cost");

  const auto file = read_cluster_file(given.cluster);
  for (const auto& path : file.files) files.reads(path);
  given.costs.batch = given.global_batch;
  const cost_source source(given.costs, given.model, file.stack);
  const auto hardware = source.anchored(file);
  source.check_calibrations(hardware);
  for (const auto& text : source.anchor_warnings(file, hardware)) std::cerr << "hetsched-plan: " << text << '\n';
  const bool serves = is_inference(given.objective);
  if (serves) given.serving.products = source.products(given.products);
  for (const auto& text :
       serves ? source.warnings(hardware, source.precision_text(hardware, given.serving.products)) : source.warnings(hardware))
    std::cerr << "hetsched-plan: " << text << '\n';
  if (serves) {
    if (!given.without.empty()) throw input_error("--without: is for training");
    if (given.quantile > 0) throw input_error("--quantile: is for training");
    if (!given.sends.empty()) throw input_error("--sends: is for training");
    if (given.device_bias > 0) throw input_error("--device-bias: is for training");
    if (!given.costs.stack.empty()) throw input_error("--stack: is for training");
    return plan_serving(given, source, hardware, files);
  }
  if (given.global_batch < 1) throw input_error("--global-batch is required");
  if (given.quantile > 0 && (given.objective != plan_objective::iteration || !given.frontier.empty()))
    throw input_error("--quantile: is of iterations, and knows no money");
  if (given.device_bias > 0 && (given.objective != plan_objective::iteration || !given.frontier.empty()))
    throw input_error("--device-bias: is of iterations, and knows no money");
  if (given.device_bias > 0 && source.measured())
    throw input_error("--device-bias: is for costs from datasheets; those of " + given.costs.profile + " are measured");
  const auto& planner = named ? *named : default_planner(given, source, table);
  if (!given.frontier.empty() && !planner.frontier)
    throw input_error("--frontier: planner " + std::string(planner.name) + " does not know money; parallel_pipelines does");
  if (given.serving.weight_bits > 0 || given.serving.cache_bits > 0 || !given.products.empty())
    throw input_error("--weight-bits, --cache-bits and --products are of inference: --objective latency or throughput");
  std::vector<std::string> lost;
  for (const auto& name : given.without) {
    if (name == "consecutive" || name == "uniform") {
      if (planner.name != "hetauto") throw input_error("--without: " + name + " is a principle of planner hetauto");
    } else {
      static_cast<void>(parse_lost(hardware, name));
      lost.push_back(name);
    }
  }
  if (lost.size() > 1 && !given.out.empty())
    throw input_error("--out: is for the plan that is left, of one --without; found " + std::to_string(lost.size()));
  if (given.options.published && planner.name != "hetauto" && planner.name != "hexiscale")
    throw input_error("--search: published is of planners hetauto and hexiscale; this one is " + std::string(planner.name));
  if (given.explain && !planner.explain)
    throw input_error("--explain: planner " + std::string(planner.name) +
                      " does not count its space; hetauto and hetauto_exact do");
  progress_line progress;
  if (!given.frontier.empty()) {
    auto money = problem_of(request_of(given, source, hardware, progress), 1);
    money.objective = plan_objective::cost;
    validate(hardware, money);
  }
  std::vector<plan> on_the_way;
  auto first = given;
  if (given.quantile > 0) first.time_budget_s /= 2;  // the rest is for noise
  std::string robust_text;
  nlohmann::ordered_json noise, bias;
  auto found = [&]() -> outcome<plan> {
    if (given.device_bias == 0)
      return search(first, planner, hardware, source, progress, given.quantile > 0 ? &on_the_way : nullptr);
    auto unbiased = search_unbiased(given, planner, hardware, source, progress);
    if (!unbiased) return unbiased.why_not();
    robust_text = bias_rows(given, hardware, *unbiased);
    bias = bias_json(given, *unbiased);
    return std::move(unbiased->plan);
  }();
  if (found && given.quantile > 0) {
    auto robust = search_robust(given, hardware, source, std::move(on_the_way), progress);
    if (robust) {
      robust_text = robust_rows(given, *robust);
      noise = {{"quantile", given.quantile},       {"spread", given.jitter},         {"samples", given.samples},
               {"quantile_s", robust->quantile_s}, {"fastest_s", robust->fastest_s}, {"plans", robust->plans}};
      found = std::move(robust->plan);
    }
  }
  if (!found) {
    const auto& why = found.why_not();
    const auto ways =
        why.why == refusal::kind::infeasible && why.reason.find("GiB") != std::string::npos ? source.ways_out() : "";
    std::cerr << "hetsched-plan: no plan: " << why.reason << (ways.empty() ? "" : " (" + ways + ")") << '\n';
    return infeasible;
  }
  const auto& best = *found;
  const auto sends = source.sends(given.sends, best);
  const auto held_up_s = iteration_with_sends(sends, hardware, source, best, given.options.epsilon);
  const auto lesser = plans_without(given, planner, hardware, source, lost);
  if (!given.out.empty() && !lesser.empty() && !lesser.front().found) {
    std::cerr << "hetsched-plan: no plan without " << lesser.front().text << ": " << lesser.front().found.why_not().reason
              << '\n';
    return infeasible;
  }
  files.add(given.out, to_json(lesser.empty() ? best : *lesser.front().found, hardware));
  if (!given.report.empty() || !given.trace.empty()) {
    auto played = play(best);
    if (!given.trace.empty()) {
      std::vector<timeline> all;
      for (const auto& s : played) all.push_back(s.played.timeline);
      files.add(given.trace, chrome_trace(side_by_side(all)));
    }
    if (!given.report.empty()) {
      files.add(given.report, plan_page(hardware, best, origin_of(given, source, hardware), std::move(played),
                                        held_by(given, source, hardware, best), held_up_s));
    }
  }
  if (!given.schedule_csv.empty()) {
    if (best.pipelines.size() > 1)
      throw input_error("--schedule-csv: the plan has " + std::to_string(best.pipelines.size()) +
                        " pipelines, whose schedules plan.json holds");
    files.add(given.schedule_csv, to_csv(order_of(best.pipelines.front(), {})->order));
  }
  std::string frontier;
  std::vector<plan> on_frontier;
  if (!given.frontier.empty()) {
    on_frontier = search_frontier(given, planner, hardware, source, best, progress);
    std::vector<std::optional<double>> sent_s;
    for (const auto& p : on_frontier)
      sent_s.push_back(iteration_with_sends(source.sends(given.sends, p), hardware, source, p, given.options.epsilon));
    const auto& plans = on_frontier = as_sent(std::move(on_frontier), sent_s);
    frontier = frontier_text(hardware, plans, best) + "\n";
    files.add(given.frontier, frontier_picture(hardware, plans, best));
  }
  files.write();
  std::string space;
  if (given.explain) {
    const int size = best.pipelines.front().microbatch_size;
    space = planner.explain(hardware, source.costs(hardware, size),
                            problem_of(request_of(given, source, hardware, progress), size), source.part_count()) +
            "\n";
  }
  if (given.json) {
    nlohmann::ordered_json out{{"plan", hetsched::detail::document_of(to_json(best, hardware))}};
    out["like_cases"] = source.like_cases_json(hardware);
    if (!noise.is_null()) out["noise"] = std::move(noise);
    if (!bias.is_null()) out["device_bias"] = std::move(bias);
    if (held_up_s) {
      out["sends"] = at(send_modes, sends);
      out["iteration_with_sends_s"] = *held_up_s;
    }
    for (const auto& p : on_frontier)
      out["frontier"].push_back({{"iteration_s", p.predicted.iteration_s},
                                 {"cost_per_sample", *p.predicted.cost_per_sample},
                                 {"cost_per_iteration", per_iteration(p, *p.predicted.cost_per_sample)},
                                 {"devices", devices_in_use(hardware, p)}});
    if (!lost.empty()) out["without"] = what_if_json(hardware, lesser, best, held_up_s);
    out["files"] = files.paths();
    std::cout << hetsched::detail::dump(out) << std::flush;
  } else {
    std::cout << frontier << space << summary(hardware, best, source, held_up_s) << robust_text
              << source.held_up_text(sends, held_up_s) << sent_cost_text(best, held_up_s) << files.summary() << std::flush;
    if (!lost.empty()) std::cout << '\n' << what_if_text(hardware, lesser, best, held_up_s);
  }
  for (const auto& remarks : {source.remarks(hardware, best), shared_links(hardware, best)})
    for (const auto& remark : remarks) std::cerr << "hetsched-plan: " << remark << '\n';
  if (best.predicted.mfu > 1)
    std::cerr << "hetsched-plan: an MFU above 100 % cannot be: do the costs belong to microbatches of "
              << best.pipelines.front().microbatch_size << " samples, and to this model?\n";
  if (interrupted()) std::cerr << "hetsched-plan: stopped by a signal; this is the best plan until then\n";
  return done;
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
  std::vector<std::string> target_names;
  for (const auto& t : hetsched::plan_targets()) target_names.push_back(t.name);
  app.add_option("--for", given.target_name,
                 "the program that is to run the plan, among whose plans the best is searched for, priced as it runs them: " +
                     listed(target_names) + ", or a target.json");
  std::string planners;
  std::vector<std::string> planner_names, schedule_names{std::string(hetsched::auto_schedule_name)};
  for (const auto& entry : table) {
    planners += (planners.empty() ? "" : "; ") + std::string(entry.name) + ": " + std::string(entry.what);
    planner_names.emplace_back(entry.name);
  }
  for (const auto name : hetsched::schedule_names()) schedule_names.emplace_back(name);
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
  app.add_option("--deadline", given.deadline_s, "with --objective cost: seconds that an iteration may take")
      ->check(CLI::PositiveNumber);
  app.add_option("--frontier", given.frontier,
                 "picture (SVG) to write of time against cost: the cheapest plan for every deadline; also printed as a table");
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
  app.add_option("--out", given.out, "plan.json to write");
  app.add_option("--report", given.report, "HTML report to write");
  app.add_option("--trace", given.trace, "Chrome trace to write (for ui.perfetto.dev)");
  app.add_flag("--json", given.json, "prints the plan, what noise, biased and lost devices make of it, and the frontier as JSON");
  return run(app, argc, argv, [&] { return plan_command(given, table); });
}

}  // namespace command
