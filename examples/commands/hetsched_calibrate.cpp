// SPDX-License-Identifier: Apache-2.0
// hetsched-calibrate: fits a device's few constants to operators that were measured on it, or a forest to those of several.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <CLI/App.hpp>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/operators/calibrate.hpp>
#include <hetsched/io.hpp>

#include "command.hpp"
#include "named_device.hpp"
#include "plausible.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::vector<std::string> devices, operators;  // a device for each file
  std::string cluster, out, forest;
  double added_us = 0;
  bool json = false;
};

// Operators that were measured on a device.
struct measured_file {
  hetsched::device device;
  operators_file file;
  std::vector<double> seconds;
};

measured_file read_measured(const std::string& device, const std::string& cluster, const std::string& path) {
  measured_file m{command::named_device(device, cluster), parse_operators(read_operators_text(path), path), {}};
  if (m.file.operators.empty()) throw file_error(path, {}, "expected operators, found none");
  if (m.file.measured_ms.empty()) throw file_error(path, {}, "expected a column measured_ms");
  for (const double ms : m.file.measured_ms) m.seconds.push_back(ms * 1e-3);
  const auto hardware = make_tile_device(m.device);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < m.file.operators.size(); ++i) try {
      ratios.push_back(m.seconds[i] / predict_operator(hardware, m.file.operators[i]).seconds);
    } catch (const input_error& wrong) {
      throw file_error(path, {}, "line " + std::to_string(m.file.line_numbers[i]) + ": " + m.device.name + ": " + wrong.what());
    }
  if (const auto wrong = command::implausible_times(std::move(ratios)); !wrong.empty()) throw file_error(path, {}, wrong);
  return m;
}

// A sum of |predicted / measured - 1|, and of how many.
struct error_sum {
  double sum = 0;
  int count = 0;
  void add(const operator_sample& s, const operator_correction& c) {
    const auto time = predict_operator(s.device, s.op);
    sum += std::abs((time.seconds + s.added_s) * c.factor(s.device, s.op, time) / s.seconds - 1);
    ++count;
  }
  [[nodiscard]] double mean() const { return count > 0 ? sum / count : 0; }
};

forest_options with_leaves(int least_rows) { return {.trees = 50, .least_leaf_rows = least_rows}; }

// The errors of groups of samples by forests that were grown on the others.
std::vector<error_sum> held_out(const std::vector<operator_sample>& samples, const std::vector<int>& group, int groups,
                                const forest_options& options, function_ref<void()> grown) {
  std::vector<error_sum> errors(static_cast<std::size_t>(groups));
  for (int g = 0; g < groups; ++g) {
    std::vector<operator_sample> shown;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (group[i] != g) shown.push_back(samples[i]);
    if (shown.empty()) continue;
    const auto forest = operator_correction::train(shown, options);
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (group[i] == g) errors[static_cast<std::size_t>(g)].add(samples[i], forest);
    grown();
  }
  return errors;
}

constexpr int folds = 5;

// The operators of all devices, to grow a forest on.
struct forest_samples {
  std::vector<correction_file::measured_device> devices;
  std::vector<error_sum> listed;  // by device: without a forest
  std::vector<operator_sample> samples;
  std::vector<int> of_device, of_fold;  // by sample
};

forest_samples read_samples(const arguments& given, command::outputs& files) {
  forest_samples all;
  for (std::size_t i = 0; i < given.devices.size(); ++i) {
    if (given.devices[i].ends_with(".json")) files.reads(given.devices[i]);
    files.reads(given.operators[i]);
    const auto m = read_measured(given.devices[i], given.cluster, given.operators[i]);
    if (m.device.calibration != device_calibration{})
      throw input_error("--device: " + m.device.name + " is calibrated; a forest corrects what datasheets say, so take that out");
    const auto known =
        std::find_if(all.devices.begin(), all.devices.end(), [&](const auto& one) { return one.name == m.device.name; });
    const auto number = known - all.devices.begin();
    if (known == all.devices.end()) {
      all.devices.push_back({m.device.name, 0});
      all.listed.emplace_back();
    }
    all.devices[static_cast<std::size_t>(number)].operators += static_cast<int>(m.seconds.size());
    const auto hardware = make_tile_device(m.device);
    for (std::size_t k = 0; k < m.seconds.size(); ++k) {
      all.samples.push_back({hardware, m.file.operators[k], m.seconds[k], given.added_us * 1e-6});
      all.of_device.push_back(static_cast<int>(number));
      all.of_fold.push_back(static_cast<int>(all.samples.size() % folds));
      all.listed[static_cast<std::size_t>(number)].add(all.samples.back(), {});
    }
  }
  return all;
}

error_sum sum(const std::vector<error_sum>& parts) {
  error_sum total;
  for (const auto& e : parts) total = {total.sum + e.sum, total.count + e.count};
  return total;
}

// A forest, and how far off it is.
struct grown_forest {
  operator_correction correction;
  error_sum unseen;                  // operators by forests that were not shown them
  std::vector<error_sum> by_device;  // by forests of the other devices; none: there is one alone
};

grown_forest grow(const forest_samples& all, command::progress_line& progress) {
  const int devices = static_cast<int>(all.devices.size());
  int done = 0;
  constexpr int leaves[] = {20, 8, 3};
  const int forests = 1 + folds * static_cast<int>(std::size(leaves)) + (devices > 1 ? devices : 0);
  const auto grown = [&] {
    ++done;
    progress.show(static_cast<double>(done) / forests, std::to_string(done) + " forests");
  };
  grown_forest forest;
  int leaf = leaves[0];  // the one by which operators that were not shown come out nearest
  for (const int rows : leaves) {
    const auto found = sum(held_out(all.samples, all.of_fold, folds, with_leaves(rows), grown));
    if (forest.unseen.count > 0 && found.sum >= forest.unseen.sum) continue;
    forest.unseen = found;
    leaf = rows;
  }
  forest.correction = operator_correction::train(all.samples, with_leaves(leaf));
  grown();
  if (devices > 1) forest.by_device = held_out(all.samples, all.of_device, devices, with_leaves(leaf), grown);
  return forest;
}

std::string json_text(const forest_samples& all, const grown_forest& forest, const command::outputs& files) {
  const auto& unseen = forest.unseen;
  nlohmann::ordered_json out{{"operators", all.samples.size()},
                             {"error_before", sum(all.listed).mean()},
                             {"error_unseen", unseen.count > 0 ? nlohmann::ordered_json(unseen.mean()) : nullptr},
                             {"devices", nlohmann::ordered_json::array()},
                             {"files", files.paths()}};
  for (std::size_t d = 0; d < all.devices.size(); ++d) {
    out["devices"].push_back(
        {{"device", all.devices[d].name}, {"operators", all.devices[d].operators}, {"error_before", all.listed[d].mean()}});
    if (!forest.by_device.empty()) out["devices"].back()["error_unseen"] = forest.by_device[d].mean();
  }
  return hetsched::detail::dump(out);
}

std::string summary(const forest_samples& all, const grown_forest& forest) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t d = 0; d < all.devices.size(); ++d)
    rows.push_back({all.devices[d].name, std::to_string(all.devices[d].operators), format_percent(all.listed[d].mean()),
                    forest.by_device.empty() ? "-" : format_percent(forest.by_device[d].mean())});
  return format_table({"device", ">operators", ">off as listed", ">by a forest of the others"}, rows) + "off the " +
         std::to_string(all.samples.size()) + " measured times by " + format_percent(sum(all.listed).mean()) +
         " on average as listed" +
         (forest.unseen.count > 0
              ? "; those that a forest was not shown, a fifth at a time, by " + format_percent(forest.unseen.mean()) + " with it"
              : "") +
         '\n';
}

int forest_command(const arguments& given) {
  command::outputs files;
  files.expect(given.forest);
  files.reads(given.cluster);
  const auto all = read_samples(given, files);
  command::progress_line progress;
  const auto forest = grow(all, progress);
  files.add(given.forest, to_json(correction_file{all.devices, forest.correction}));
  files.write();
  if (forest.unseen.mean() >= sum(all.listed).mean())
    std::cerr << "hetsched-calibrate: operators that it was not shown are no nearer with the forest than without\n";
  std::cout << (given.json ? json_text(all, forest, files) : summary(all, forest) + files.summary());
  return command::done;
}

int calibrate_command(const arguments& given) {
  if (given.out.empty() == given.forest.empty()) throw input_error("give either --out or --forest");
  if (given.devices.size() != given.operators.size())
    throw input_error("--operators: found " + std::to_string(given.operators.size()) + ", expected one for each of " +
                      std::to_string(given.devices.size()) + " --device");
  if (!given.forest.empty()) return forest_command(given);
  if (given.added_us > 0) throw input_error("--added-us: is for --forest; --out fits what is added to each operator");
  if (given.devices.size() > 1) throw input_error("--out: is of one device; --forest takes several");
  const auto &device = given.devices.front(), &operators = given.operators.front();
  command::outputs files;
  files.expect(given.out);
  for (const auto& input : {device.ends_with(".json") ? device : "", given.cluster, operators}) files.reads(input);
  const auto [chosen, file, seconds] = read_measured(device, given.cluster, operators);
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
    std::cout << hetsched::detail::dump(nlohmann::ordered_json{{"device", hetsched::detail::document_of(to_json(found.device))},
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
  command::application app(command::about("hetsched-calibrate"), "hetsched-calibrate");
  app.footer(
      "hetsched-calibrate --device A100-SXM4-40GB --operators measured.csv --out device.json\n"
      "hetsched-calibrate --device T4 --operators t4.csv --device L4 --operators l4.csv --forest f.json");
  arguments given;
  const auto repeated = [](CLI::Option* option) {
    option->required()->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  };
  repeated(app.add_option("--device", given.devices,
                          "device.json, or a name of the catalogue or of a device that a subcluster of --cluster has"));
  app.add_option("--cluster", given.cluster, "cluster.json, for a device of its own");
  repeated(app.add_option("--operators", given.operators,
                          "CSV with the columns op,batch,m,n,k,dtype,measured_ms, or a trace of torch.profiler with "
                          "record_shapes; with --forest one after each --device"));
  app.add_option("--out", given.out, "device.json to write");
  app.add_option("--forest", given.forest,
                 "correction.json to write in its place: what all devices' datasheets miss, for --cost forest:F");
  app.add_option("--added-us", given.added_us,
                 "of --forest: what the way of measuring adds to each operator, launches from the host, say (0)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return calibrate_command(given); });
}
