// SPDX-License-Identifier: Apache-2.0
// Operators of a CSV on one device.
#pragma once

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include <hetsched/cost/tile.hpp>
#include <hetsched/io.hpp>

#include "../command.hpp"
#include "../named_device.hpp"

namespace predict {

using namespace hetsched;

inline std::vector<double> operator_times_ms(const device& d, const operators_file& file, const std::string& path) {
  const auto hardware = make_tile_device(d);
  command::progress_line progress;
  std::vector<double> times;
  times.reserve(file.operators.size());
  for (const auto& op : file.operators) {
    if (times.size() % 4096 == 0)
      progress.show(static_cast<double>(times.size()) / static_cast<double>(file.operators.size()),
                    std::to_string(times.size()) + " of " + std::to_string(file.operators.size()) + " operators");
    try {
      times.push_back(predict_operator(hardware, op).seconds * 1e3);
    } catch (const input_error& wrong) {
      throw file_error(path, {}, "line " + std::to_string(times.size() + 2) + ": " + d.name + ": " + wrong.what());
    }
  }
  return times;
}

/// The rows with their predicted times, on standard output or in a file; how far off the measured ones they are, on standard
/// error.
inline int operators_command(const std::string& device_name, const std::string& cluster_path, const std::string& path,
                             const std::string& out) {
  command::outputs files;
  files.expect(out);
  for (const auto& input : {device_name.ends_with(".json") ? device_name : "", cluster_path, path}) files.reads(input);
  const auto chosen = command::named_device(device_name, cluster_path);
  const auto file = read_operators(path);
  const auto times = operator_times_ms(chosen, file, path);
  const auto multiplies = [](const operator_shape& op, precision p) {
    return (op.kind == operator_kind::gemm || op.kind == operator_kind::flash_attention) && op.format == format_of(p);
  };
  for (const auto p : {precision::tf32, precision::fp16, precision::bf16}) {
    const auto used = chosen.computes_in(p);
    if (used != p && std::any_of(file.operators.begin(), file.operators.end(), [&](const auto& op) { return multiplies(op, p); }))
      std::cerr << "hetsched-predict: " << chosen.name << " has no " << name_of(p) << ": priced in " << name_of(used) << '\n';
  }
  const auto text = to_csv(file, times);
  if (out.empty()) {
    std::cout << text;
  } else {
    files.add(out, text);
    files.write();
    std::cout << files.summary();
  }
  if (file.measured_ms.empty()) return command::done;
  double sum = 0, worst = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double off = std::abs(times[i] / file.measured_ms[i] - 1);
    sum += off;
    worst = std::max(worst, off);
  }
  std::cerr << "off the measured times by " << format_percent(sum / static_cast<double>(times.size())) << " on average, "
            << format_percent(worst) << " at most\n";
  return command::done;
}

}  // namespace predict
