// SPDX-License-Identifier: Apache-2.0
#include "communication_tables.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include <hetsched/cost/network/measured_collectives.hpp>
#include <nlohmann/json.hpp>

#include "csv.hpp"
#include "text.hpp"

namespace validation {

namespace {

using namespace hetsched;

using machines = std::map<std::string, std::vector<collective_measurements>>;

constexpr const char* names[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send"};

collective_measurements& group(machines& data, const std::string& machine, collective kind, int nodes, int per_node) {
  auto& groups = data[machine];
  for (auto& g : groups)
    if (g.collective == kind && g.nodes == nodes && g.per_node == per_node) return g;
  return groups.emplace_back(collective_measurements{kind, nodes, per_node, {}});
}

void read_vidur(const std::string& data, machines& all) {
  for (auto& r : csv_rows(data + "/vidur_network.csv")) {
    const int ranks = std::stoi(r["num_workers"]), per_node = std::stoi(r["devices_per_node"]);
    const auto name = r["cluster"] == "a100_dgx"              ? "A100, NVSwitch"
                      : r["cluster"] == "a40_pairwise_nvlink" ? "A40, NVLink in pairs"
                                                              : "A100, NVLink in pairs";
    group(all, std::string("Vidur ") + name,
          r["collective"] == "all_reduce" ? collective::all_reduce : collective::point_to_point, ranks / per_node, per_node)
        .samples.push_back({std::stod(r["size_bytes"]), std::stod(r["median_ms"]) * 1e-3});
  }
  // NVLink of an A100, and PCIe 4.0 with 16 lanes.
  for (auto& g : all["Vidur A100, NVLink in pairs"])
    if (g.nodes == 1) g.link_bandwidth = g.per_node == 2 ? 300e9 : 31.5e9;
}

// One node up to 8 ranks; the sheets do not tell how more of them are spread.
void read_deepbench(const std::string& data, machines& all) {
  for (auto& r : csv_rows(data + "/deepbench_allreduce.csv")) {
    const int ranks = std::stoi(r["gpus"]);
    const auto device = r["result_file"].substr(r["result_file"].rfind("DeepBench_") + 13);
    const int nodes = device.starts_with("KNL") ? ranks : ranks > 8 ? ranks / 8 : 1;
    group(all, "DeepBench " + device + (r["lib"].empty() ? "" : ", " + r["lib"]), collective::all_reduce, nodes, ranks / nodes)
        .samples.push_back({4 * std::stod(r["size_floats"]), std::stod(r["time_ms"]) * 1e-3});
  }
}

// Shares of the peak bus bandwidth; a peak of 100 GB/s does for relative errors.
void read_simai(const std::string& data, machines& all) {
  for (const auto& [file, name] :
       {std::pair{"nic_ratio", "SimAI, network ports"}, {"nvlink_ratio", "SimAI, NVLink"}, {"ata_ratio", "SimAI, all-to-all"}}) {
    const auto table = csv_lines(data + "/simai/" + file + ".csv");
    const auto kind = std::string(file) == "ata_ratio" ? collective::all_to_all : collective::all_reduce;
    for (std::size_t i = 1; i < table.size(); ++i)
      for (std::size_t column = 1; column <= 8 && column < table[i].size(); ++column)
        if (!table[i][column].empty()) {
          const int nodes = 1 << (column - 1);
          const double bytes = std::stod(table[i][0]), share = std::stod(table[i][column]);
          group(all, name, kind, nodes, 8).samples.push_back({bytes, wire_share(kind, 8 * nodes) * bytes / (share * 100e9)});
        }
  }
}

// Times by size inside a node, and bus bandwidths in GB/s of one size that is not told, taken as 256 MB.
void read_galvatron(const std::string& data, machines& all) {
  const auto read = [&](const std::string& name) {
    std::ifstream file(data + "/galvatron/" + name + ".json");
    if (!file) throw input_error("cannot read " + name + " of " + data + "/galvatron");
    return nlohmann::ordered_json::parse(file);
  };
  const auto times = read("sp_time_1nodes_8gpus_per_node"), bandwidths = read("allreduce_bandwidth_2nodes_8gpus_per_node");
  for (const auto& [key, value] : times.items()) {
    int ranks = 0, megabytes = 0;
    const bool reduce = std::sscanf(key.c_str(), "allreduce_size_%d_%dMB_time", &ranks, &megabytes) == 2;
    if (!reduce && std::sscanf(key.c_str(), "all2all_size_%d_%dMB_time", &ranks, &megabytes) != 2) continue;
    group(all, "Galvatron A100", reduce ? collective::all_reduce : collective::all_to_all, 1, ranks)
        .samples.push_back({megabytes * 1048576.0, value.get<double>() * 1e-3});
  }
  constexpr double bytes = 256e6;
  for (const auto& [key, value] : bandwidths.items()) {
    int ranks = 0, consecutive = 0;
    if (std::sscanf(key.c_str(), "allreduce_size_%d_consec_%d", &ranks, &consecutive) != 2) continue;
    const int nodes = consecutive && ranks <= 8 ? 1 : 2;
    group(all, "Galvatron A100, bandwidths", collective::all_reduce, nodes, ranks / nodes)
        .samples.push_back({bytes, wire_share(collective::all_reduce, ranks) * bytes / (value.get<double>() * 1e9)});
  }
}

prediction_case compare(const std::string& machine, const collective_measurements& g, const transfer_sample& s,
                        double predicted) {
  return {.set = names[static_cast<int>(g.collective)],
          .group = machine,
          .what = text("%d x %d ranks, ", g.nodes, g.per_node) + number(s.bytes / 1e6) + " MB",
          .measured = 1e3 * s.seconds,
          .predicted = 1e3 * predicted};
}

constexpr double least_bytes = 1e6;

// Each size by a curve without it; sizes in at most 100 folds that lie in comb: as good as one by one, and quick.
void predict_sizes(const std::string& machine, const collective_measurements& g, std::vector<prediction_case>& cases) {
  for (std::size_t fold = 0; fold < 100 && fold < g.samples.size(); ++fold) {
    std::vector<transfer_sample> rest;
    for (std::size_t i = 0; i < g.samples.size(); ++i)
      if (i % 100 != fold) rest.push_back(g.samples[i]);
    if (rest.size() < 2) return;
    const auto curve = fit_transfer_curve(rest);
    for (std::size_t i = fold; i < g.samples.size(); i += 100)
      if (g.samples[i].bytes >= least_bytes)
        cases.push_back(compare(machine, g, g.samples[i], curve.transfer_s(g.samples[i].bytes)));
  }
}

void predict_group(const std::string& machine, const collective_measurements& g, const std::vector<collective_measurements>& all,
                   std::vector<prediction_case>& cases) {
  std::vector<collective_measurements> others;
  for (const auto& o : all)
    if (&o != &g) others.push_back(o);
  const measured_collectives model(others);
  for (const auto& s : g.samples)
    if (const auto seconds = model.seconds(g.collective, g.nodes, g.per_node, s.bytes, g.link_bandwidth);
        seconds && s.bytes >= least_bytes) {
      cases.push_back(compare(machine, g, s, *seconds));
      cases.back().set += text(", %d x %d", g.nodes, g.per_node);
    }
}

}  // namespace

std::vector<validation_part> communication_parts(const std::string& data) {
  machines all;
  read_vidur(data, all);
  read_deepbench(data, all);
  read_simai(data, all);
  read_galvatron(data, all);
  const std::string sizes =
                        "Every size from 1 MB up is predicted by a curve (`fit_transfer_curve`) fitted to the other sizes of "
                        "the same group of ranks, as where a user has measured a machine. Groups are machines; `2 x 8 ranks` "
                        "are two nodes with eight each.",
                    groups =
                        "Every group of ranks is predicted by `measured_collectives` from the machine's other groups of the "
                        "same kind, from 1 MB up.";
  validation_part inside{.title = "Collectives inside a node, sizes held out",
                         .compared = "message sizes, by a curve through the other sizes of the same ranks",
                         .unit = "ms",
                         .method = sizes,
                         .goal_mean_percent = 8,
                         .remarks =
                             "Sizes at which a library changes its algorithm or protocol are off most, where the change falls "
                             "into the gap that a held-out size leaves: below 2 MB for Vidur, at the ends of Galvatron's "
                             "all-to-all, whose eleven sizes double and whose times up to 8 MB grow little or even fall.",
                         .goal_of_all = true},
      across{.title = "Collectives across nodes, sizes held out",
             .compared = "message sizes, by a curve through the other sizes of the same ranks",
             .unit = "ms",
             .method = sizes,
             .goal_mean_percent = 12,
             .remarks =
                 "Between 8 and 21 MB the bus bandwidth of NCCL on two nodes jumps by a factor of two, up and down again. "
                 "SimAI's and DeepBench's tables have seven to eleven sizes, each twice the last or more, and theirs jump as "
                 "well; two of DeepBench's sheets (KNL, and P100 on 16 ranks) are irregular throughout, and so is Vidur's "
                 "send between nodes of A100s with NVLink in pairs, which slows down from 8 to 2 GB/s as messages grow.",
             .goal_of_all = true},
      inside_groups{.title = "Collectives inside a node, groups held out",
                    .compared = "groups of ranks, from the other groups of the machine",
                    .unit = "ms",
                    .method = groups,
                    .goal_mean_percent = 20,
                    .remarks =
                        "With NVLink in pairs two ranks have NVLink and four go over PCIe: each is predicted from the other "
                        "by the datasheets' bandwidths, 300 and 31.5 GB/s.",
                    .goal_of_all = true},
      across_groups{
          .title = "Collectives across nodes, groups held out",
          .compared = "groups of ranks, from the other groups of the machine",
          .unit = "ms",
          .method = groups,
          .goal_mean_percent = 12,
          .remarks =
              "More nodes with as many ranks each are predicted well (SimAI, M40, TITAN X: 4 - 9 %). Other ranks per node are "
              "not: bus bandwidths on Vidur's two nodes are 5.8, 5.9, 21 and 17 GB/s with 1, 2, 4 and 8 ranks per node, "
              "Galvatron's 8, 16, 21 and 45 GB/s; which ranks share a network port, and how many rings the library makes of "
              "them, decide. Five rules were compared on all-reduces, each group held out: the geometric mean of the "
              "neighbours (mean of 15 groups 19 %), the nearest group (27 %), the neighbours' trend (28 %), hierarchical "
              "with the time across nodes taken from the nearest group (27 %) and the same with a port for each rank (32 %). "
              "The first is the library's, with the trend on more nodes than were measured (128 nodes: 34 to 17 %).",
          .goal_of_all = true};
  for (auto& [machine, list] : all)
    for (auto& g : list) {
      std::sort(g.samples.begin(), g.samples.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
      predict_sizes(machine, g, (g.nodes == 1 ? inside : across).cases);
      predict_group(machine, g, list, (g.nodes == 1 ? inside_groups : across_groups).cases);
    }
  return {inside, across, inside_groups, across_groups};
}

}  // namespace validation
