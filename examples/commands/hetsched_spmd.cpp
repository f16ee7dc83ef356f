// SPDX-License-Identifier: Apache-2.0
// hetsched-spmd: the cheapest program by which unlike devices compute a graph of operators together.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/io/json/graph_json.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/spmd.hpp>

#include "command.hpp"
#include "device_spec.hpp"
#include "spmd_picture.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string graph, cluster, devices, svg;
  int segments = 0;  // 0: those of the graph
  bool training = false, json = false, any_memory = false, fewer_devices = false;
};

/// The SPECs of a list. A SPEC may have degrees, which have commas of their own.
std::vector<std::string_view> specs_of(std::string_view list) {
  std::vector<std::string_view> specs;
  const auto* const end = list.data() + list.size();
  while (!list.empty()) {
    const auto piece = list.substr(0, list.find(','));
    if (piece.find(':') != std::string_view::npos || specs.empty())
      specs.push_back(piece);
    else
      specs.back() = {specs.back().data(), static_cast<std::size_t>(piece.data() + piece.size() - specs.back().data())};
    list.remove_prefix(std::min(piece.size() + 1, list.size()));
    if (list.empty() && *(end - 1) == ',') specs.emplace_back();
  }
  return specs;
}

/// SUBCLUSTER:FIRST:NODESxDEVICES, or with degrees as hetsched-reshard has them, which must fit and change nothing.
device_group group_of(const cluster& c, std::string_view spec) {
  const std::string option = "--devices";
  const auto last = spec.rfind(':');
  if (last == std::string_view::npos || spec.find('x', last) != std::string_view::npos)
    return command::parse_group(c, option, spec);
  const auto group = command::parse_group(c, option, spec.substr(0, last));
  static_cast<void>(command::parse_degrees(option, spec.substr(last + 1), group.mesh.device_count()));
  return group;
}

/// The devices that --devices names, else all.
std::vector<device_id> devices_of(const cluster& c, std::string_view list) {
  std::vector<device_group> groups;
  if (list.empty())
    for (std::size_t i = 0; i < c.subclusters.size(); ++i)
      groups.push_back({{static_cast<int>(i), c.subclusters[i].nodes, c.subclusters[i].devices_per_node}, 0});
  for (const auto spec : specs_of(list)) groups.push_back(group_of(c, spec));
  auto all = hetsched::devices_of(c, groups);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
        all.begin() + static_cast<std::ptrdiff_t>(i))
      throw input_error("--devices: a device of " + c.subclusters[static_cast<std::size_t>(all[i].subcluster)].name +
                        " is named twice");
  return all;
}

/// Bytes of a device of each kind.
std::vector<double> capacities(const cluster& c, const spmd::problem& p) {
  std::vector<double> bytes;
  for (const auto& kind : p.kinds) {
    const auto has = [&](const subcluster& s) { return s.device.name == kind.name; };
    const auto at = std::find_if(c.subclusters.begin(), c.subclusters.end(), has);
    bytes.push_back(static_cast<double>(at->device.memory_bytes));
  }
  return bytes;
}

/// "P100-PCIe-16GB needs 21.3 GiB of its 16.0 GiB", of all kinds that lack memory.
std::string shortage_text(const spmd::problem& p, const std::vector<double>& bytes, const std::vector<double>& capacity) {
  std::string text;
  for (std::size_t k = 0; k < bytes.size(); ++k)
    if (bytes[k] > capacity[k])
      text += (text.empty() ? "" : ", ") + p.kinds[k].name + " needs " + format_bytes(static_cast<bytes_t>(bytes[k])) +
              " of its " + format_bytes(static_cast<bytes_t>(capacity[k]));
  return text;
}

const std::string& device_name(const cluster& c, const device_id& d) {
  return c.subclusters[static_cast<std::size_t>(d.subcluster)].device.name;
}

/// All devices; with `fewer` also what is left without all devices of some kinds.
std::vector<std::vector<device_id>> device_sets(const cluster& c, const std::vector<device_id>& all, bool fewer) {
  std::vector<std::vector<device_id>> sets{all};
  if (!fewer) return sets;
  std::vector<std::string> kinds;
  const auto kind_of = [&](const device_id& d) { return std::find(kinds.begin(), kinds.end(), device_name(c, d)); };
  for (const auto& d : all)
    if (kind_of(d) == kinds.end()) kinds.push_back(device_name(c, d));
  constexpr std::size_t most = 6;
  if (kinds.size() > most)
    throw input_error("--fewer-devices: found " + std::to_string(kinds.size()) + " kinds of devices, expected " +
                      std::to_string(most) + " at most");
  for (std::size_t without = 1; without + 1 < std::size_t{1} << kinds.size(); ++without) {
    auto& rest = sets.emplace_back(all);
    std::erase_if(rest, [&](const device_id& d) { return (without >> (kind_of(d) - kinds.begin()) & 1) != 0; });
  }
  return sets;
}

/// A graph, and what is to be computed of it.
struct task {
  tensor_graph graph;
  tensor_goal goal;
};

task task_of(tensor_graph graph, int loss, const arguments& given) {
  tensor_goal goal{.loss = loss, .gradients = {}};
  if (!given.training) return {std::move(graph), goal};
  goal = add_backward(graph, loss);
  if (goal.gradients.empty())
    throw input_error(given.graph + ": " + graph.at(loss).name + " depends on no parameter, so there is nothing to train");
  return {std::move(graph), std::move(goal)};
}

/// The graph as it is, and in segments where these are asked for: exchanges at borders may cost more than they save.
std::vector<task> tasks_of(const graph_file& file, const arguments& given) {
  std::vector<task> tasks{task_of(file.graph, file.loss, given)};
  const auto segments = given.segments > 1 ? segments_of(file.graph, given.segments) : file.segments;
  if (segments.empty() || given.segments == 1) return tasks;
  auto [graph, now] = in_segments(file.graph, segments);
  tasks.push_back(task_of(std::move(graph), now[static_cast<std::size_t>(file.loss)], given));
  return tasks;
}

/// Some devices, and the program that was found for them.
struct attempt {
  spmd::problem problem;
  std::vector<double> capacity;  ///< bytes of a device of each kind
  spmd::fit fit;
};

/// What came of all attempts.
struct search_result {
  std::optional<attempt> best;
  std::optional<spmd::solution> even;  ///< on all devices
  bool even_fits = true;
  double bound = infinity;
  std::string shortage;
  double least = 0, room = 0;  ///< bytes, where it is proved that nothing fits
};

search_result search(const cluster& c, const graph_file& file, const std::vector<device_id>& devices, const arguments& given,
                     command::progress_line& progress) {
  const auto tasks = tasks_of(file, given);
  auto show = [&](double seconds, double bound) {
    progress.show(bound / seconds, format_seconds(seconds) + ", at least " + format_seconds(bound));
    return true;
  };
  const double parameter_bytes = spmd::state_bytes_of(file.graph.format, given.training);
  search_result found;
  for (const auto& set : device_sets(c, devices, given.fewer_devices))
    for (const auto& task : tasks) {
      auto problem = spmd::make_problem(c, set, task.graph, task.goal);
      if (!problem) continue;
      auto capacity = capacities(c, *problem);
      const auto unlimited = std::vector<double>(capacity.size(), infinity);
      const bool simple = &task == &tasks.front();
      // With segments the bound hardly gets better.
      auto fit = spmd::synthesize_within(*problem, given.any_memory ? unlimited : capacity, parameter_bytes,
                                         {.work = simple ? spmd::synthesis_options{}.work : 2e6, .progress = show});
      if (simple && set.size() == devices.size() && (found.even = spmd::even_data_parallel(*problem)))
        found.even_fits = spmd::memory_of(*problem, found.even->program, parameter_bytes).at(found.even->shares.front()) <=
                          *std::min_element(capacity.begin(), capacity.end());
      found.bound = std::min(found.bound, fit.bound);
      if (fit.none_fits && simple && set.size() == devices.size()) {
        found.least = spmd::least_bytes(*problem, parameter_bytes);
        for (std::size_t k = 0; k < capacity.size(); ++k) found.room += capacity[k] * problem->kinds[k].count;
      }
      if (!fit.solution && found.shortage.empty()) found.shortage = shortage_text(*problem, fit.bytes, capacity);
      if (fit.solution && (!found.best || fit.solution->seconds < found.best->fit.solution->seconds))
        found.best = attempt{*std::move(problem), std::move(capacity), std::move(fit)};
    }
  return found;
}

/// Why there is no program.
std::string none_text(const search_result& found) {
  if (found.shortage.empty()) return "no link joins two of the devices";
  return (found.least > 0 ? "no program fits: parameters with their state, and gradients, take " +
                                format_bytes(static_cast<bytes_t>(found.least)) + ", the devices have " +
                                format_bytes(static_cast<bytes_t>(found.room))
                          : "no program that was found fits: " + found.shortage) +
         " (--any-memory takes no account of it)";
}

std::string picture(const attempt& best, const std::string& graph) {
  const auto& program = best.fit.solution->program;
  if (static_cast<int>(program.size()) > command::most_drawn_steps)
    throw input_error("--svg: the program has " + std::to_string(program.size()) + " steps, expected " +
                      std::to_string(command::most_drawn_steps) + " at most");
  return command::spmd_picture(
      best.problem.graph, program,
      graph + " on " + std::to_string(best.problem.device_count()) + " devices: " + format_seconds(best.fit.solution->seconds));
}

/// What devices do of a program.
struct device_parts {
  std::vector<std::vector<double>> shares;     ///< of each segment, in each of each device
  std::vector<bytes_t> bytes, most;            ///< of each device
  std::vector<std::vector<std::string>> rows;  ///< of each kind
};

device_parts parts_of(const cluster& c, const std::vector<device_id>& devices, const attempt& best) {
  const auto& [problem, capacity, fit] = best;
  const auto segments = static_cast<std::size_t>(problem.segments());
  device_parts parts;
  parts.shares.resize(segments);
  for (const auto& d : devices) {
    const auto& name = device_name(c, d);
    const auto kind = std::find_if(problem.kinds.begin(), problem.kinds.end(), [&](const auto& k) { return k.name == name; });
    const auto k = static_cast<std::size_t>(kind - problem.kinds.begin());
    const bool used = kind != problem.kinds.end();
    std::string share_text;
    for (std::size_t s = 0; s < segments; ++s) {
      parts.shares[s].push_back(used ? fit.solution->shares[s * problem.kinds.size() + k] : 0);
      share_text += (s > 0 ? ", " : "") + format_percent(parts.shares[s].back());
    }
    parts.bytes.push_back(used ? static_cast<bytes_t>(std::ceil(fit.bytes[k])) : 0);
    parts.most.push_back(c.subclusters[static_cast<std::size_t>(d.subcluster)].device.memory_bytes);
    const auto row = std::find_if(parts.rows.begin(), parts.rows.end(), [&](const auto& r) { return r[0] == name; });
    if (row == parts.rows.end())
      parts.rows.push_back({name, "1", used ? share_text : "left out",
                            format_bytes(parts.bytes.back()) + " / " + format_bytes(parts.most.back())});
    else
      (*row)[1] = std::to_string(std::stoi((*row)[1]) + 1);
  }
  return parts;
}

std::string json_text(const search_result& found, const device_parts& parts, double rounded_s) {
  const auto& best = *found.best->fit.solution;
  auto program = nlohmann::ordered_json::array();
  for (const auto& step : best.program) program.push_back(spmd::text_of(found.best->problem.graph, step));
  nlohmann::ordered_json result{{"program", std::move(program)}, {"ratios", parts.shares},       {"cost_s", best.seconds},
                                {"rounded_s", rounded_s},        {"lower_bound_s", found.bound}, {"data_parallel_s", nullptr}};
  if (found.even) result["data_parallel_s"] = found.even->seconds;
  result["memory_bytes"] = parts.bytes;
  result["memory_capacity_bytes"] = parts.most;
  return hetsched::detail::dump(result);
}

std::string summary(const search_result& found, const device_parts& parts, double rounded_s) {
  const auto& best = *found.best->fit.solution;
  std::string text;
  for (const auto& step : best.program) text += spmd::text_of(found.best->problem.graph, step) + '\n';
  const auto even_text =
      !found.even ? "not possible" : format_seconds(found.even->seconds) + (found.even_fits ? "" : ", does not fit");
  return text + '\n' + format_table({"device", ">count", ">share of each", ">memory / device"}, parts.rows) + '\n' +
         format_table({"", ">takes"}, {{"program", format_seconds(best.seconds)},
                                       {"with whole rows", format_seconds(rounded_s)},
                                       {"lower bound", format_seconds(found.bound)},
                                       {"even data parallelism", even_text}});
}

int spmd_command(const arguments& given) {
  command::outputs files;
  files.expect(given.svg);
  files.reads(given.cluster);
  files.reads(given.graph);
  const auto c = read_cluster(given.cluster);
  const auto file = read_graph(given.graph);
  const auto devices = devices_of(c, given.devices);
  command::progress_line progress;
  const auto found = search(c, file, devices, given, progress);
  if (!found.best) {
    std::cerr << "hetsched-spmd: " << none_text(found) << '\n';
    return command::infeasible;
  }
  const auto& best = *found.best;
  const double rounded_s = spmd::round_shares(best.problem, best.fit.solution->program, best.fit.solution->shares).seconds;
  if (!given.svg.empty()) files.add(given.svg, picture(best, given.graph));
  files.write();
  const auto parts = parts_of(c, devices, best);
  std::cout << (given.json ? json_text(found, parts, rounded_s) : summary(found, parts, rounded_s) + files.summary());
  return command::done;
}

}  // namespace

int main(int argc, char** argv) {
  command::application app(command::about("hetsched-spmd"), "hetsched-spmd");
  app.footer("hetsched-spmd --graph graph.json --cluster cluster.json --training");
  arguments given;
  app.add_option("--graph", given.graph, "graph.json")->required();
  app.add_option("--cluster", given.cluster, "cluster.json")->required();
  app.add_option("--devices", given.devices, "SUBCLUSTER:FIRST:NODESxDEVICES,... (all)");
  app.add_option("--segments", given.segments, "parts of the model with shares of their own (those of the graph)")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--training", given.training, "with the backward: the loss and every parameter's gradient");
  app.add_flag("--fewer-devices", given.fewer_devices,
               "also without all devices of some kinds, where a program on the others is faster");
  app.add_flag("--any-memory", given.any_memory, "also a program that takes more memory than the devices have");
  app.add_option("--svg", given.svg, "picture of the graph with cuts and collectives, to write");
  app.add_flag("--json", given.json, "prints the result as JSON");
  return command::run(app, argc, argv, [&] { return spmd_command(given); });
}
