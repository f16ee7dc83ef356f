// SPDX-License-Identifier: Apache-2.0
// hetsched-export: what other trainers need to run a plan.
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <variant>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include <hetsched/core/printable.hpp>
#include <hetsched/io.hpp>

#include "command.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string plan, cluster, to, out;
  bool json = false;
};

int export_command(const arguments& given) {
  namespace fs = std::filesystem;
  auto file = read_any_plan(given.plan);
  const auto* trained = std::get_if<plan_file>(&file);
  const auto predicted = trained ? trained->plan.predicted : prediction{};
  const auto stack = trained ? trained->plan.setting.stack : std::nullopt;
  const auto hardware = given.cluster.empty() ? std::nullopt : std::optional(read_cluster(given.cluster));
  const auto made = export_plan(std::move(file), given.to, hardware, given.plan);
  std::error_code wrong;
  fs::create_directories(given.out, wrong);
  if (wrong) throw input_error(given.out + ": " + wrong.message());
  command::outputs files;
  files.reads(given.plan);
  files.reads(given.cluster);
  for (const auto& f : made.files) files.expect((fs::path(given.out) / f.name).string());
  for (const auto& f : made.files) files.add((fs::path(given.out) / f.name).string(), f.text);
  files.write();
  if (given.json) {
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}, {"remarks", made.remarks}});
    return command::done;
  }
  if (predicted.iteration_s > 0)
    std::cout << "the plan is worth " << format_seconds(predicted.iteration_s) << " an iteration, "
              << format_number(predicted.samples_per_s) << " samples/s" << (stack ? ", as stack " + stack->name + " has it" : "")
              << '\n';
  std::cout << files.summary();
  for (const auto& remark : made.remarks) std::cerr << "hetsched-export: " << remark << '\n';
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-export"), "hetsched-export");
  app.footer(
      "hetsched-export --plan plan.json --cluster cluster.json --to megatron --out megatron\n"
      "hetsched-export --plan plan.json --to torch --out torch");
  arguments given;
  app.add_option("--plan", given.plan, "plan.json")->required();
  app.add_option("--cluster", given.cluster, "cluster.json; for start lines of each host, and checks of its devices");
  app.add_option("--to", given.to, "megatron, torch, torchtitan, flagscale, deepspeed, or csv: the schedule as a table")
      ->required()
      ->check(CLI::IsMember(export_targets()));
  app.add_option("--out", given.out, "folder to write to; it is made")->required();
  app.add_flag("--json", given.json, "prints which files were written, and remarks, as JSON");
  return command::run(app, argc, argv, [&]() -> int {
    try {
      return export_command(given);
    } catch (const inexpressible& why) {
      std::cerr << "hetsched-export: " << printable(why.what(), true) << '\n';
      return command::infeasible;
    }
  });
}
