// SPDX-License-Identifier: Apache-2.0
// hetsched-export: what Megatron-LM or PyTorch's pipelining need to run a plan.
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/plan/target.hpp>

#include "command.hpp"
#include "export/megatron.hpp"
#include "export/placed_plan.hpp"
#include "export/torch.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string plan, to, out;
  bool json = false;
};

/// What the target does its own way. Throws inexpressible for what it cannot run at all.
std::vector<std::string> remarks_on(const plan& p, const plan_target& t) {
  std::vector<std::string> found;
  std::string refused;
  for (const auto& gap : gaps(p, t)) {
    if (gap.runs_anyway)
      found.push_back(to_text(gap) + ": " + t.program + " runs it in its own way, and time and memory are not those predicted");
    else
      refused += (refused.empty() ? "" : "; ") + to_text(gap);
  }
  if (!refused.empty())
    throw command::inexpressible(t.program + " cannot run this plan: " + refused + " (hetsched-plan --for " + t.name +
                                 " finds one that it can)");
  return found;
}

int export_command(const arguments& given) {
  namespace fs = std::filesystem;
  auto file = read_plan(given.plan);
  const auto known = find_plan_target(given.to);
  const auto remarks = known ? remarks_on(file.plan, *known) : std::vector<std::string>{};
  const auto placed = command::place_plan(std::move(file));
  command::exported_files texts;
  if (given.to == "megatron") {
    texts = command::export_megatron(placed);
  } else if (given.to == "torch") {
    texts = command::export_torch(placed);
  } else {
    texts = {{"schedule.csv", to_csv(placed.order())}, {"ranks.json", command::ranks_json(placed)}};
  }
  std::error_code wrong;
  fs::create_directories(given.out, wrong);
  if (wrong) throw input_error(given.out + ": " + wrong.message());
  command::outputs files;
  files.reads(given.plan);
  for (const auto& [name, text] : texts) files.expect((fs::path(given.out) / name).string());
  for (const auto& [name, text] : texts) files.add((fs::path(given.out) / name).string(), text);
  files.write();
  if (given.json) {
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"files", files.paths()}, {"remarks", remarks}});
    return command::done;
  }
  std::cout << files.summary();
  for (const auto& remark : remarks) std::cerr << "hetsched-export: " << remark << '\n';
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(command::about("hetsched-export"), "hetsched-export");
  app.footer(
      "hetsched-export --plan plan.json --to megatron --out megatron\n"
      "hetsched-export --plan plan.json --to torch --out torch");
  arguments given;
  app.add_option("--plan", given.plan, "plan.json")->required();
  app.add_option("--to", given.to, "megatron, torch, or csv: the schedule as a table")
      ->required()
      ->check(CLI::IsMember({"megatron", "torch", "csv"}));
  app.add_option("--out", given.out, "folder to write to; it is made")->required();
  app.add_flag("--json", given.json, "prints which files were written, and remarks, as JSON");
  return command::run(app, argc, argv, [&]() -> int {
    try {
      return export_command(given);
    } catch (const command::inexpressible& why) {
      std::cerr << "hetsched-export: " << why.what() << '\n';
      return command::infeasible;
    }
  });
}
