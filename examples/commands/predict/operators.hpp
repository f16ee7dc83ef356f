// SPDX-License-Identifier: Apache-2.0
// Operators of a CSV on one device.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/io.hpp>

#include "../command.hpp"
#include "../costs.hpp"
#include "../named_device.hpp"
#include "../plausible.hpp"
#include "../skipped_rows.hpp"

namespace predict {

using namespace hetsched;

struct operators_arguments {
  std::string device, cluster, operators, out, costs;
  bool strict = false, json = false;
};

/// Milliseconds of each operator. Rows that the device cannot compute are taken out of the file.
inline std::vector<double> operator_times_ms(const device& d, const operator_correction& correction, operators_file& file,
                                             const std::string& path, command::skipped_rows& skipped) {
  const auto hardware = make_tile_device(d);
  command::progress_line progress;
  std::vector<double> times;
  const auto all = file.operators.size();
  for (std::size_t i = 0; i < all; ++i) {
    if (i % 4096 == 0)
      progress.show(static_cast<double>(i) / static_cast<double>(all),
                    std::to_string(i) + " of " + std::to_string(all) + " operators");
    const auto kept = times.size();
    try {
      const auto time = predict_operator(hardware, file.operators[i]);
      times.push_back(time.seconds * correction.factor(hardware, file.operators[i], time) * 1e3);
    } catch (const input_error& wrong) {
      skipped(file_error(path, {}, "line " + std::to_string(file.line_numbers[i]) + ": " + d.name + ": " + wrong.what()));
      continue;
    }
    if (kept == i) continue;
    file.rows[kept] = file.rows[i];
    file.operators[kept] = file.operators[i];
    file.lines[kept] = std::move(file.lines[i]);
    if (!file.measured_ms.empty()) file.measured_ms[kept] = file.measured_ms[i];
  }
  file.rows.resize(times.size());
  file.operators.resize(times.size());
  file.lines.resize(times.size());
  if (!file.measured_ms.empty()) file.measured_ms.resize(times.size());
  return times;
}

/// The cells of each row by the heading's names, with what was predicted.
inline std::string operators_json(const device& d, const operators_file& file, const std::vector<double>& times_ms, int skipped) {
  const auto value = [](std::string_view cell) -> nlohmann::ordered_json {
    double number = 0;
    const auto [end, wrong] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
    if (cell.empty() || wrong != std::errc{} || end != cell.data() + cell.size()) return std::string(cell);
    if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<std::int64_t>(number);
    return number;
  };
  const auto names = hetsched::detail::csv_cells(file.heading);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < times_ms.size(); ++i) {
    const auto row = hetsched::detail::csv_cells(file.lines[i]);
    nlohmann::ordered_json one;
    for (std::size_t c = 0; c < names.size(); ++c) one[std::string(names[c])] = value(row[c]);
    one["predicted_ms"] = times_ms[i];
    if (!file.measured_ms.empty()) one["error_percent"] = (times_ms[i] / file.measured_ms[i] - 1) * 100;
    rows.push_back(std::move(one));
  }
  const nlohmann::ordered_json out{{"device", d.name}, {"operators", std::move(rows)}, {"skipped", skipped}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

/// The rows with their predicted times, on standard output or in a file; how far off the measured ones they are, on standard
/// error.
inline int operators_command(const operators_arguments& given) {
  command::outputs files;
  files.expect(given.out);
  const auto forest = command::forest_of(given.costs);
  if (!given.costs.empty() && given.costs != "tile" && forest.empty())
    throw input_error("--cost: operators are priced by tile or forest:F, found " + given.costs);
  for (const auto& input : {given.device.ends_with(".json") ? given.device : "", given.cluster, given.operators, forest})
    files.reads(input);
  const auto chosen = command::named_device(given.device, given.cluster);
  if (!forest.empty() && chosen.calibration != device_calibration{})
    throw input_error("--cost: the calibration of " + chosen.name + " does not go with " + forest +
                      ", which corrects what datasheets say: take one of them out");
  const auto correction = forest.empty() ? operator_correction{} : read_correction(forest).correction;
  command::skipped_rows skipped("hetsched-predict", given.strict);
  auto file = parse_operators(read_operators_text(given.operators), given.operators, skipped);
  const auto times = operator_times_ms(chosen, correction, file, given.operators, skipped);
  skipped.sum_up(times.size(), given.operators);
  const auto multiplies = [](const operator_shape& op, precision p) {
    return (op.kind == operator_kind::gemm || op.kind == operator_kind::flash_attention) && op.format == format_of(p);
  };
  for (const auto p : {precision::tf32, precision::fp16, precision::bf16}) {
    const auto used = chosen.computes_in(p);
    if (used != p && std::any_of(file.operators.begin(), file.operators.end(), [&](const auto& op) { return multiplies(op, p); }))
      std::cerr << "hetsched-predict: " << chosen.name << " has no " << name_of(p) << ": priced in " << name_of(used) << '\n';
  }
  const auto text = given.json ? operators_json(chosen, file, times, skipped.count()) : to_csv(file, times);
  if (given.out.empty()) {
    std::cout << text;
  } else {
    files.add(given.out, text);
    files.write();
    std::cout << files.summary();
  }
  if (file.measured_ms.empty()) return command::done;
  double sum = 0, worst = 0;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.size(); ++i) {
    ratios.push_back(file.measured_ms[i] / times[i]);
    const double off = std::abs(times[i] / file.measured_ms[i] - 1);
    sum += off;
    worst = std::max(worst, off);
  }
  std::cerr << "off the measured times by " << format_percent(sum / static_cast<double>(times.size())) << " on average, "
            << format_percent(worst) << " at most\n";
  if (const auto wrong = command::implausible_times(std::move(ratios)); !wrong.empty())
    std::cerr << "hetsched-predict: " << wrong << '\n';
  return command::done;
}

}  // namespace predict
