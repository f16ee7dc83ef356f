// SPDX-License-Identifier: Apache-2.0
// hetsched-predict: how long operators take on a device, or an iteration of a plan on a cluster.
#include <string>

#include "command.hpp"
#include "predict/operators.hpp"
#include "predict/plan.hpp"

namespace {

struct arguments {
  predict::operators_arguments list;
  predict::plan_arguments plan;
};

int predict_command(const arguments& given) {
  using hetsched::input_error;
  const bool operators = !given.list.operators.empty(), whole = !given.plan.plan.empty();
  if (operators == whole) throw input_error("give either --operators with --device, or --plan with --cluster");
  if (operators) {
    if (given.list.device.empty()) throw input_error("--operators needs --device");
    auto list = given.list;
    list.cluster = given.plan.cluster;
    list.out = given.plan.out;
    list.costs = given.plan.costs.formulas;
    list.json = given.plan.json;
    return predict::operators_command(list);
  }
  if (given.plan.cluster.empty()) throw input_error("--plan needs --cluster");
  return predict::plan_command(given.plan);
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-predict"), "hetsched-predict");
  app.footer(
      "hetsched-predict --device A100-SXM4-40GB --operators operators.csv\n"
      "hetsched-predict --cluster cluster.json --model model.json --plan plan.json");
  arguments given;
  app.add_option("--out", given.plan.out,
                 "operators: CSV to write, in place of standard output; plan: plan.json to write, complete");
  app.add_flag("--json", given.plan.json, "print one JSON object");
  const auto one = app.add_option_group("operators", "Operators on one device");
  one->add_option("--operators", given.list.operators, "CSV with the columns op,batch,m,n,k,dtype");
  const auto device = one->add_option(
      "--device", given.list.device, "device.json, or a name of the catalogue or of a device that a subcluster of --cluster has");
  one->add_flag("--strict", given.list.strict, "a row in which something is wrong is an error; else it is left out, and told");
  const auto all = app.add_option_group("plan", "An iteration of a plan");
  all->add_option("--plan", given.plan.plan, "plan.json: its stages, and its schedule and warm-ups")->excludes(device);
  all->add_option("--cluster", given.plan.cluster, "cluster.json: what hardware there is");
  all->add_option("--model", given.plan.model,
                  "model.json or a Hugging Face config.json: what is trained; with --profile only for the MFU");
  given.plan.costs.add_options(*all, false);
  all->add_option("--recompute", given.plan.recompute,
                  "what backward computes again on all stages, in place of what the plan says")
      ->check(CLI::IsMember({"none", "selective", "full"}))
      ->excludes(all->get_option("--profile"));
  all->add_option("--zero", given.plan.zero, "ZeRO stage of all stages, in place of what the plan says")
      ->check(CLI::Range(0, 3))
      ->excludes(all->get_option("--profile"));
  all->add_option("--sends", given.plan.sends,
                  "also the iteration of ranks that wait for what they send: grouped, or one by one, blocking (the stack's)")
      ->check(CLI::IsMember({"asynchronous", "grouped", "blocking"}));
  for (const auto option : all->get_options())
    if (option->get_name() != "--cluster" && option->get_name() != "--cost") device->excludes(option);
  return command::run(app, argc, argv, [&] { return predict_command(given); });
}
