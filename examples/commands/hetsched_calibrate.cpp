// SPDX-License-Identifier: Apache-2.0
// hetsched-calibrate: fits a device's few constants to operators that were measured on it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include <hetsched/cost/operators/calibrate.hpp>
#include <hetsched/io.hpp>

#include "command.hpp"
#include "named_device.hpp"
#include "plausible.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string device, cluster, operators, out;
  bool json = false;
};

int calibrate_command(const arguments& given) {
  command::outputs files;
  files.expect(given.out);
  for (const auto& input : {given.device.ends_with(".json") ? given.device : "", given.cluster, given.operators})
    files.reads(input);
  const auto chosen = command::named_device(given.device, given.cluster);
  const auto file = parse_operators(read_operators_text(given.operators), given.operators);
  if (file.operators.empty()) throw file_error(given.operators, {}, "expected operators, found none");
  if (file.measured_ms.empty()) throw file_error(given.operators, {}, "expected a column measured_ms");
  std::vector<double> seconds;
  for (const double ms : file.measured_ms) seconds.push_back(ms * 1e-3);
  const auto hardware = make_tile_device(chosen);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < file.operators.size(); ++i) try {
      ratios.push_back(seconds[i] / predict_operator(hardware, file.operators[i]).seconds);
    } catch (const input_error& wrong) {
      throw file_error(given.operators, {}, "line " + std::to_string(i + 2) + ": " + chosen.name + ": " + wrong.what());
    }
  if (const auto wrong = command::implausible_times(std::move(ratios)); !wrong.empty())
    throw file_error(given.operators, {}, wrong);
  command::progress_line progress;
  auto show = [&](int fits, int of) { progress.show(static_cast<double>(fits) / of, std::to_string(fits) + " fits"); };
  const auto found = calibrate_device(chosen, file.operators, seconds, {.progress = show});
  files.add(given.out, to_json(found.device));
  files.write();
  if (constexpr double poor = 0.3; found.error_after > poor)
    std::cerr << "hetsched-calibrate: the fit is off the measured times by " << format_percent(found.error_after)
              << " on average: is " << chosen.name << " the device, and are these its times?\n";
  constexpr const char* depths[calibration_depths] = {"nothing", "factors", "factors and residuals"};
  const std::string depth = depths[static_cast<std::size_t>(found.depth)];
  if (given.json) {
    nlohmann::ordered_json unseen;
    for (std::size_t i = 0; i < calibration_depths; ++i) unseen[depths[i]] = found.error_unseen[i];
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"device", nlohmann::ordered_json::parse(to_json(found.device))},
                                                               {"operators", file.operators.size()},
                                                               {"error_before", found.error_before},
                                                               {"error_after", found.error_after},
                                                               {"depth", depth},
                                                               {"share", found.share},
                                                               {"error_unseen", unseen},
                                                               {"files", files.paths()}});
    return command::done;
  }
  const auto& c = found.device.calibration;
  std::cout << format_table({"constant", ">fitted"}, {{"rate of fp32 lanes", format_number(c.lane_rate)},
                                                      {"rate of matrix units", format_number(c.matrix_rate)},
                                                      {"memory bandwidth", format_number(c.memory_bandwidth)},
                                                      {"L2 bandwidth", format_number(c.l2_bandwidth)},
                                                      {"added to each operator", format_seconds(c.launch_s)}})
            << "off the " << file.operators.size() << " measured times by " << format_percent(found.error_before)
            << " on average as listed, " << format_percent(found.error_after) << " as fitted; taken: " << depth
            << (found.share > 0 && found.share < 1 ? ", " + format_percent(found.share) + " of them" : "") << "\n"
            << "off operators that a fit was not shown by " << format_percent(found.error_unseen[0]) << " as listed, "
            << format_percent(found.error_unseen[1]) << " with factors, " << format_percent(found.error_unseen[2])
            << " with residuals too\n"
            << files.summary();
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(command::about("hetsched-calibrate"), "hetsched-calibrate");
  app.footer("hetsched-calibrate --device A100-SXM4-40GB --operators measured.csv --out device.json");
  arguments given;
  app.add_option("--device", given.device,
                 "device.json, or a name of the catalogue or of a device that a subcluster of --cluster has")
      ->required();
  app.add_option("--cluster", given.cluster, "cluster.json, for a device of its own");
  app.add_option("--operators", given.operators,
                 "CSV with the columns op,batch,m,n,k,dtype,measured_ms, or a trace of torch.profiler with record_shapes")
      ->required();
  app.add_option("--out", given.out, "device.json to write")->required();
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return calibrate_command(given); });
}
