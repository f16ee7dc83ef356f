// SPDX-License-Identifier: Apache-2.0
// Operators of a CSV on one device.
#pragma once

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/tile.hpp>
#include <hetsched/io.hpp>

#include "../command.hpp"

namespace predict {

using namespace hetsched;

/// The device of that name: of a cluster file's subclusters, if one is given, else of the catalogue.
inline device named_device(const std::string& name, const std::string& cluster_path) {
  std::vector<device> known;
  if (!cluster_path.empty())
    for (const auto& s : read_cluster(cluster_path).subclusters) known.push_back(s.device);
  known.insert(known.end(), device_catalogue().begin(), device_catalogue().end());
  for (const auto& d : known)
    if (d.name == name) return d;

  const auto lower = [](std::string_view text) {
    std::string result(text);
    for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return result;
  };
  std::vector<std::string_view> names;
  std::string alike;
  for (const auto& d : known) {
    if (std::find(names.begin(), names.end(), d.name) != names.end()) continue;
    names.push_back(d.name);
    if (!name.empty() && lower(d.name).find(lower(name)) != std::string::npos)
      alike += (alike.empty() ? "did you mean " : " or ") + d.name;
  }
  throw input_error("--device: there is no device \"" + detail::excerpt(name) + "\"; " + (alike.empty() ? "" : alike + "? ") +
                    detail::suggestion(alike.empty() ? name : "", names));
}

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
  for (const auto& input : {cluster_path, path}) files.reads(input);
  const auto chosen = named_device(device_name, cluster_path);
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
