// SPDX-License-Identifier: Apache-2.0
// hetsched-predict: how long operators take on a device, or an iteration of a plan on a cluster.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <hetsched/io.hpp>

#include "command.hpp"
#include "predict/iteration.hpp"
#include "predict/operators.hpp"

namespace {

using namespace hetsched;

struct arguments {
  std::string device, operators, out;
  std::string cluster, model, plan;
  command::cost_choice costs;
  bool json = false;
};

/// The plan, its stages' subclusters counted as in the cluster. Throws file_error where it does not fit cluster and layers.
plan fitted(const arguments& given, const cluster& hardware, int layers) {
  auto file = read_plan(given.plan);
  if (file.plan.pipelines.size() != 1)
    throw file_error(given.plan, "/pipelines",
                     "a plan of " + std::to_string(file.plan.pipelines.size()) + " pipelines cannot be predicted yet");
  auto& stages = file.plan.pipelines.front().stages;
  std::vector<std::vector<std::size_t>> user;  // by subcluster and device: its stage + 1
  for (const auto& s : hardware.subclusters) user.emplace_back(static_cast<std::size_t>(s.device_count()));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto fail = [&](const std::string& key, const std::string& complaint) {
      throw file_error(given.plan, predict::stage_pointer(i) + key, complaint);
    };
    auto& mesh = stages[i].where.mesh;
    const int first = stages[i].first_device;
    const auto& name = file.subclusters[static_cast<std::size_t>(mesh.subcluster)];
    const auto position = hardware.find(name);
    if (!position) {
      const auto names = subcluster_names(hardware);
      fail("/subcluster", given.cluster + " has no subcluster \"" + detail::excerpt(name) + "\"; " +
                              detail::suggestion(name, {names.begin(), names.end()}));
    }
    mesh.subcluster = *position;
    const auto& s = subcluster_of(hardware, mesh);
    const auto at_most = [&](const char* key, int found, int most) {
      if (found > most)
        fail(key, "found " + std::to_string(found) + ", expected at most the " + std::to_string(most) + " of " + name);
    };
    at_most("/nodes", mesh.nodes, s.nodes);
    at_most("/devices_per_node", mesh.devices_per_node, s.devices_per_node);
    if (first > s.device_count() - mesh.device_count())
      fail("/first_device", "found " + std::to_string(first) + ", expected " + std::to_string(mesh.device_count()) +
                                " devices from there on, " + name + " has " + std::to_string(s.device_count()));
    for (int d = first; d < first + mesh.device_count(); ++d) {
      auto& taken = user[static_cast<std::size_t>(*position)][static_cast<std::size_t>(d)];
      if (taken > 0)
        fail("/first_device",
             "device " + std::to_string(d) + " of " + name + " belongs to stage " + std::to_string(taken - 1) + " already");
      taken = i + 1;
    }
  }
  const auto last = stages.size() - 1;
  if (stages[last].layers.last != layers)
    throw file_error(given.plan, predict::stage_pointer(last) + "/layers/1",
                     "found " + std::to_string(stages[last].layers.last - 1) + ", expected " + std::to_string(layers - 1) +
                         ", the last layer of " +
                         (given.costs.profile.empty() ? given.model + " (see --granularity)" : given.costs.profile));
  return std::move(file.plan);
}

bool fits(const predict::memory_parts& m) { return m.total <= m.capacity; }

nlohmann::ordered_json to_json(const predict::memory_parts& memory) {
  nlohmann::ordered_json out;
  for (const auto& [name, bytes] : memory.parts) out[name] = bytes;
  out["total"] = memory.total;
  return out;
}

nlohmann::ordered_json to_json(const prediction& p) {
  return {{"iteration_s", p.iteration_s},
          {"lower_bound_s", p.lower_bound_s},
          {"period_s", p.period_s},
          {"samples_per_s", p.samples_per_s},
          {"mfu", p.mfu},
          {"load_balance", p.load_balance}};
}

nlohmann::ordered_json to_json(const predict::breakdown& b) {
  return {{"stage", b.stage},
          {"compute_s", b.compute_s},
          {"collective_s", b.collective_s},
          {"transfer_s", b.transfer_s},
          {"bubble_s", b.bubble_s},
          {"gradient_reduction_s", b.gradient_reduction_s},
          {"optimizer_s", b.optimizer_s}};
}

nlohmann::ordered_json to_json(const predict::iteration& found, const plan& planned, const std::string& costs,
                               const std::vector<std::string>& subclusters) {
  const auto& line = found.plan.pipelines.front();
  auto out = to_json(found.plan.predicted);
  out["fits"] = std::all_of(found.memory.begin(), found.memory.end(), fits);
  out["costs"] = costs;
  out["schedule"] = found.plan.schedule;
  out["microbatches"] = line.microbatches;
  out["microbatch_size"] = line.microbatch_size;
  out["breakdown"] = to_json(found.parts);
  for (std::size_t i = 0; i < line.stages.size(); ++i) {
    const auto &s = line.stages[i], &old = planned.pipelines.front().stages[i];
    const auto& mesh = s.where.mesh;
    nlohmann::ordered_json stage;
    stage["layers"] = {s.layers.first, s.layers.last - 1};
    stage["subcluster"] = subclusters[static_cast<std::size_t>(mesh.subcluster)];
    stage["first_device"] = s.first_device;
    stage["nodes"] = mesh.nodes;
    stage["devices_per_node"] = mesh.devices_per_node;
    stage["in_flight"] = found.in_flight[i];
    stage["forward_s"] = s.forward_s;
    stage["backward_s"] = s.backward_s;
    stage["transfer_s"] = s.transfer_s;
    stage["update_s"] = s.update_s;
    stage["memory_bytes"] = to_json(found.memory[i]);
    stage["memory_capacity_bytes"] = s.memory_capacity_bytes;
    stage["fits"] = fits(found.memory[i]);
    stage["plan"] = {{"forward_s", old.forward_s},
                     {"backward_s", old.backward_s},
                     {"transfer_s", old.transfer_s},
                     {"memory_bytes", old.memory_bytes}};
    out["stages"].push_back(std::move(stage));
  }
  out["plan"] = to_json(planned.predicted);
  return out;
}

using table_rows = std::vector<std::vector<std::string>>;

std::string stage_table(const predict::iteration& found, const plan& planned, const std::vector<std::string>& subclusters) {
  table_rows rows;
  const auto& stages = found.plan.pipelines.front().stages;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto &s = stages[i], &old = planned.pipelines.front().stages[i];
    const bool last = i + 1 == stages.size();
    rows.push_back({std::to_string(i), layers_text(s.layers),
                    devices_text(s, subclusters[static_cast<std::size_t>(s.where.mesh.subcluster)]),
                    degrees_text(s.where.degrees), format_seconds(s.forward_s), format_seconds(old.forward_s),
                    format_seconds(s.backward_s), format_seconds(old.backward_s), last ? "-" : format_seconds(s.transfer_s),
                    last ? "-" : format_seconds(old.transfer_s), format_seconds(s.update_s)});
  }
  return format_table({">stage", ">layers", "devices", "degrees", ">forward", ">(plan)", ">backward", ">(plan)", ">transfer",
                       ">(plan)", ">update"},
                      rows);
}

std::string memory_table(const predict::iteration& found, const plan& planned) {
  std::vector<std::string> heading{">stage", ">in flight"};
  for (const auto& [name, ignored] : found.memory.front().parts) heading.push_back(">" + name);
  heading.insert(heading.end(), {">memory / device", ">(plan)"});
  table_rows rows;
  for (std::size_t i = 0; i < found.memory.size(); ++i) {
    const auto& m = found.memory[i];
    rows.push_back({std::to_string(i), detail::print("%.4g", found.in_flight[i])});
    for (const auto& [ignored, bytes] : m.parts) rows.back().push_back(format_bytes(bytes));
    rows.back().push_back(format_bytes(m.total) + " / " + format_bytes(m.capacity));
    rows.back().push_back(format_bytes(planned.pipelines.front().stages[i].memory_bytes));
  }
  return format_table(heading, rows);
}

std::string figures_table(const predict::iteration& found, const plan& planned) {
  const auto &now = found.plan.predicted, &then = planned.predicted;
  return format_table(
      {"", ">predicted", ">(plan)", ""},
      {{"iteration", format_seconds(now.iteration_s), format_seconds(then.iteration_s), "simulated"},
       {"lower bound", format_seconds(now.lower_bound_s), format_seconds(then.lower_bound_s), "of the schedule"},
       {"period", format_seconds(now.period_s), format_seconds(then.period_s), "per microbatch, pipeline full"},
       {"throughput", format_number(now.samples_per_s), format_number(then.samples_per_s), "samples per second"},
       {"MFU", format_percent(now.mfu), format_percent(then.mfu), "of the peak of the devices in use"},
       {"load balance", format_percent(now.load_balance), format_percent(then.load_balance), "over the devices in use"}});
}

std::string breakdown_table(const predict::iteration& found) {
  const auto& b = found.parts;
  const double whole_s = found.plan.predicted.iteration_s;
  table_rows rows;
  const auto row = [&](const char* name, double seconds) {
    rows.push_back({name, format_seconds(seconds), format_percent(whole_s > 0 ? seconds / whole_s : 0)});
  };
  row("computing", b.compute_s);
  row("collectives", b.collective_s);
  row("waiting for transfers", b.transfer_s);
  row("bubble", b.bubble_s);
  row("gradient reduction", b.gradient_reduction_s);
  row("optimizer step", b.optimizer_s);
  return format_table({"busiest stage: " + std::to_string(b.stage), ">time", ">share"}, rows);
}

/// The stage that lacks most memory, as a sentence; empty if all fit.
std::string shortage(const predict::iteration& found, const cluster& hardware) {
  std::string text;
  double worst = 1;
  for (std::size_t i = 0; i < found.memory.size(); ++i) {
    const auto& m = found.memory[i];
    const double share = static_cast<double>(m.total) / static_cast<double>(m.capacity);
    if (share <= worst) continue;
    worst = share;
    text = "stage " + std::to_string(i) + " needs " + format_bytes(m.total) + " of the " + format_bytes(m.capacity) + " of " +
           subcluster_of(hardware, found.plan.pipelines.front().stages[i].where.mesh).device.name + ":";
    for (const auto& [name, bytes] : m.parts) text += " " + name + " " + format_bytes(bytes) + ",";
    text.back() = ' ';
    text += "with " + detail::print("%.4g", found.in_flight[i]) + " microbatches in flight";
  }
  return text;
}

int plan_command(arguments given) {
  const auto hardware = read_cluster(given.cluster);
  const auto model = given.costs.read_model(given.model);
  if (given.costs.profile.empty() && given.costs.formulas.empty()) given.costs.formulas = model.family ? "tile" : "analytic";
  const int layers = given.costs.profile.empty() ? model.chain.size() : given.costs.costs(hardware, model, 1).layer_count();
  const auto planned = fitted(given, hardware, layers);
  const auto found = predict::predict_iteration(given.costs, hardware, model, planned, given.plan);
  if (!found) {
    std::cerr << "hetsched-predict: no schedule: " << found.why_not().reason << '\n';
    return command::infeasible;
  }
  const auto names = subcluster_names(hardware);
  const auto& line = planned.pipelines.front();
  if (given.json)
    std::cout << to_json(*found, planned, given.costs.profile.empty() ? given.costs.formulas : "profile", names).dump() << '\n';
  else
    std::cout << stage_table(*found, planned, names) << '\n'
              << memory_table(*found, planned) << '\n'
              << "schedule " << planned.schedule << ", " << line.microbatches << " microbatches of " << line.microbatch_size
              << "; " << given.costs.text() << "\n\n"
              << figures_table(*found, planned) << '\n'
              << breakdown_table(*found);
  if (const auto lacking = shortage(*found, hardware); !lacking.empty()) {
    std::cerr << "hetsched-predict: the plan does not fit: " << lacking << '\n';
    return command::infeasible;
  }
  return command::done;
}

int predict_command(const arguments& given) {
  const bool operators = !given.operators.empty(), whole = !given.plan.empty();
  if (operators == whole) throw input_error("give either --operators with --device, or --plan with --cluster and --model");
  if (operators) {
    if (given.device.empty()) throw input_error("--operators needs --device");
    return predict::operators_command(given.device, given.cluster, given.operators, given.out);
  }
  if (given.cluster.empty() || given.model.empty()) throw input_error("--plan needs --cluster and --model");
  return plan_command(given);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Predicts how long operators take on a device, or an iteration of a plan on a cluster and what memory it takes.",
               "hetsched-predict");
  arguments given;
  const auto one = app.add_option_group("operators", "Operators on one device");
  one->add_option("--operators", given.operators, "CSV with the columns op,batch,m,n,k,dtype");
  const auto device =
      one->add_option("--device", given.device, "a name of the catalogue, or of a device that a subcluster of --cluster has");
  const auto out = one->add_option("--out", given.out, "CSV to write, in place of standard output");
  const auto all = app.add_option_group("plan", "An iteration of a plan");
  all->add_option("--plan", given.plan, "plan.json: its stages, and its schedule and warm-ups")->excludes(device)->excludes(out);
  all->add_option("--cluster", given.cluster, "cluster.json: what hardware there is");
  all->add_option("--model", given.model, "model.json or a Hugging Face config.json: what is trained");
  given.costs.add_options(*all);
  all->add_flag("--json", given.json, "print one JSON object");
  for (const auto option : all->get_options())
    if (option->get_name() != "--cluster") device->excludes(option);
  return command::run(app, argc, argv, [&] { return predict_command(given); });
}
