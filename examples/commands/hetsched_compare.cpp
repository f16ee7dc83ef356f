// SPDX-License-Identifier: Apache-2.0
// hetsched-compare: all planners on one input, judged alike.
#include <algorithm>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/evaluate/sends.hpp>
#include <hetsched/io.hpp>
#include <hetsched/views/plan.hpp>

#include "command.hpp"
#include "compare/rows.hpp"
#include "plan/command.hpp"

namespace {

using namespace hetsched;
using namespace command;

struct comparison {
  plan_arguments input;
  std::vector<std::string> planners;
  bool json = false;
};

comparison_row row_of(const planner_entry& planner, const plan_arguments& input, const cluster& hardware,
                      const cost_source& source) {
  comparison_row row{.planner = std::string(planner.name)};
  progress_line progress;
  auto found = [&]() -> outcome<plan> {
    try {
      return search(input, planner, hardware, source, progress);
    } catch (const std::bad_alloc&) {  // the others may need less
      return refusal{refusal::kind::stopped, "not enough memory for its search"};
    }
  }();
  row.search_s = progress.elapsed_s();
  if (!found) {
    row.reason = found.why_not().reason;
    return row;
  }
  const auto evidence = found->evidence;
  const auto costs = source.costs(hardware, found->pipelines.front().microbatch_size);
  auto judged = evaluate(hardware, costs, *std::move(found), judging(input, source));
  if (!judged) {
    row.reason = judged.why_not().reason;
    return row;
  }
  const auto sends = source.sends(input.sends, judged->plan);
  if (sends != send_mode::asynchronous) row.held_up_s = iteration_under(*judged, sends);
  row.plan = std::move(judged->plan);
  row.plan.evidence = evidence;
  for (const auto& g : views::device_groups(row.plan)) row.devices += g.mesh.device_count();
  return row;
}

int compare_command(const comparison& given) {
  outputs files;
  const auto& input = given.input;
  for (const auto& path : {input.cluster, input.model, input.costs.profile, input.costs.stack, forest_of(input.costs.formulas)})
    files.reads(path);
  files.expect(input.report);
  std::vector<const planner_entry*> chosen;
  for (const auto& name : given.planners) {
    const auto& entry = find_planner(hetsched::planners_and_baselines(), name, "--planners");
    if (std::find(chosen.begin(), chosen.end(), &entry) != chosen.end())
      throw input_error("--planners: " + name + " is named twice");
    chosen.push_back(&entry);
  }
  if (chosen.empty())
    for (const auto& entry : hetsched::planners()) chosen.push_back(&entry);
  const auto file = read_cluster_file(input.cluster);
  for (const auto& path : file.files) files.reads(path);
  auto costs = input.costs;
  costs.batch = input.global_batch;
  const cost_source source(costs, input.model, file.stack);
  const auto hardware = source.anchored(file);
  source.check_calibrations(hardware);
  for (const auto& text : source.anchor_warnings(file, hardware)) std::cerr << "hetsched-compare: " << text << '\n';
  for (const auto& text : source.warnings(hardware)) std::cerr << "hetsched-compare: " << text << '\n';
  std::vector<comparison_row> rows;
  for (const auto* planner : chosen) {
    if (interrupted()) break;
    rows.push_back(row_of(*planner, input, hardware, source));
  }
  const bool any = best_of(rows) != nullptr;
  const int devices = hardware.device_count();
  if (any && !input.report.empty()) {
    const auto what = input.model.empty() ? input.costs.profile : input.model;
    files.add(input.report, comparison_page(rows, devices,
                                            what + " on " + input.cluster + ", " + std::to_string(input.global_batch) +
                                                " samples per iteration (" + source.text(hardware) + ")"));
  }
  files.write();
  if (given.json)
    std::cout << comparison_json(rows);
  else if (any)
    std::cout << comparison_text(rows, devices) << files.summary();
  if (!any) {
    std::cerr << "hetsched-compare: no planner has a plan\n";
    for (const auto& r : rows) std::cerr << "hetsched-compare: " << r.planner << ": " << r.reason << '\n';
    return infeasible;
  }
  if (interrupted()) std::cerr << "hetsched-compare: stopped by a signal; these are the best plans until then\n";
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-compare"), "hetsched-compare");
  app.footer(
      "hetsched-compare --cluster cluster.json --model model.json --global-batch 256\n"
      "hetsched-compare --cluster cluster.json --model model.json --global-batch 256 --report page.html");
  comparison given;
  auto& input = given.input;
  app.add_option("--cluster", input.cluster, "cluster.json: what hardware there is")->required();
  app.add_option("--model", input.model,
                 "model.json or a Hugging Face config.json: what is trained; with --profile it may be missing");
  input.costs.add_options(app, true);
  app.add_option("--global-batch", input.global_batch, "samples per iteration")->required()->check(CLI::Range(1, 1'000'000));
  app.add_option("--microbatch-size", input.microbatch_size,
                 "samples per microbatch, or auto: the best divisor of the batch (default; with a profile of version 1: 1)");
  app.add_option("--planners", given.planners,
                 "a,b,...: which, in that order (all but the baselines uniform, amp, metis_like and alpa_like)")
      ->delimiter(',');
  app.add_option("--sends", input.sends,
                 "also the iteration of ranks that wait for what they send: grouped, or one by one, blocking (the stack's)")
      ->check(CLI::IsMember({"asynchronous", "grouped", "blocking"}));
  add_search_options(app, input);
  app.add_option("--report", input.report, "HTML page with a picture, to write");
  app.add_flag("--json", given.json, "prints the result as JSON");
  return run(app, argc, argv, [&] {
    settle(input);
    return compare_command(given);
  });
}
