// SPDX-License-Identifier: Apache-2.0
// Compares predicted collectives with measured ones: curves with sizes held out, and groups predicted from other groups.
// Usage: collectives FOLDER, where FOLDER holds vidur_network.csv, deepbench_allreduce.csv and simai/.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cost/measured_collectives.hpp>

using namespace hetsched;

namespace {

using row = std::vector<std::string>;

std::vector<row> read_csv(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw input_error("cannot read " + path);
  std::vector<row> rows;
  for (std::string line; std::getline(file, line);) {
    row& cells = rows.emplace_back();
    std::stringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) {
      if (!cell.empty() && cell.back() == '\r') cell.pop_back();
      cells.push_back(cell);
    }
  }
  return rows;
}

using machine = std::map<std::pair<std::string, std::string>, std::vector<collective_measurements>>;  // by data set and machine

collective_measurements& group(machine& data, const std::string& set, const std::string& name, collective kind, int nodes,
                               int per_node) {
  auto& groups = data[{set, name}];
  for (auto& g : groups)
    if (g.collective == kind && g.nodes == nodes && g.per_node == per_node) return g;
  return groups.emplace_back(collective_measurements{kind, nodes, per_node, {}});
}

machine read_all(const std::string& folder) {
  machine data;
  const auto vidur = read_csv(folder + "/vidur_network.csv");
  for (std::size_t i = 1; i < vidur.size(); ++i) {
    const auto& r = vidur[i];
    const int ranks = std::stoi(r[2]), per_node = std::stoi(r[3]);
    group(data, "vidur", r[0], r[1] == "all_reduce" ? collective::all_reduce : collective::point_to_point, ranks / per_node,
          per_node)
        .samples.push_back({std::stod(r[4]), std::stod(r[5]) * 1e-3});
  }
  // One node up to 8 ranks; the sheets do not tell how more of them are spread.
  const auto deepbench = read_csv(folder + "/deepbench_allreduce.csv");
  for (std::size_t i = 1; i < deepbench.size(); ++i) {
    const auto& r = deepbench[i];
    const int ranks = std::stoi(r[3]);
    const bool hosts = r[0].find("KNL") != std::string::npos;
    const int nodes = hosts ? ranks : ranks > 8 ? ranks / 8 : 1;
    const std::string library = r.size() > 6 ? r[6] : "";
    group(data, "deepbench", r[0].substr(r[0].find('_') + 1) + " " + library, collective::all_reduce, nodes, ranks / nodes)
        .samples.push_back({4 * std::stod(r[2]), std::stod(r[4]) * 1e-3});
  }
  // Shares of the peak bus bandwidth; a peak of 1 byte/s does for relative errors.
  for (const std::string file : {"nic_ratio", "nvlink_ratio", "ata_ratio"}) {
    const auto table = read_csv(folder + "/simai/" + file + ".csv");
    const auto kind = file == "ata_ratio" ? collective::all_to_all : collective::all_reduce;
    for (std::size_t i = 1; i < table.size(); ++i)
      for (std::size_t column = 1; column <= 8 && column < table[i].size(); ++column)
        if (!table[i][column].empty()) {
          const int nodes = 1 << (column - 1);
          const double bytes = std::stod(table[i][0]), share = std::stod(table[i][column]);
          group(data, "simai", file, kind, nodes, 8).samples.push_back({bytes, wire_share(kind, 8 * nodes) * bytes / share});
        }
  }
  return data;
}

struct errors {
  double sum = 0, worst = 0;
  int count = 0;

  void add(double predicted, double measured) {
    const double e = std::abs(predicted / measured - 1);
    sum += e;
    worst = std::max(worst, e);
    ++count;
  }
  void add(const errors& other) {
    sum += other.sum;
    worst = std::max(worst, other.worst);
    count += other.count;
  }
  [[nodiscard]] std::string text() const {
    if (count == 0) return "              -";
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%6.1f%% %7.1f%%", 100 * sum / count, 100 * worst);
    return buffer;
  }
};

// Errors from 1 MB up of predictions by a curve fitted without the fold that the sample is in.
template <class Fold>
errors held_out(const std::vector<transfer_sample>& samples, const transfer_fit_options& options, Fold fold) {
  std::map<long, std::vector<std::size_t>> folds;
  for (std::size_t i = 0; i < samples.size(); ++i) folds[fold(i)].push_back(i);
  errors e;
  for (const auto& [name, held] : folds) {
    std::vector<transfer_sample> rest;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (!std::binary_search(held.begin(), held.end(), i)) rest.push_back(samples[i]);
    if (rest.size() < 2) continue;
    const auto curve = fit_transfer_curve(rest, options);
    for (const auto i : held)
      if (samples[i].bytes >= 1e6) e.add(curve.transfer_s(samples[i].bytes), samples[i].seconds);
  }
  return e;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw input_error("usage: collectives FOLDER");
  auto data = read_all(argv[1]);
  const char* names[] = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send"};
  std::printf(
      "mean and largest relative error from 1 MB up; held out: every size by itself | a range of sizes (half an octave) | the "
      "whole group\n");
  std::printf("%-34s %-10s %-7s %5s | %-15s | %-15s | %-15s | %-15s\n", "machine", "collective", "ranks", "rows",
              "one pair, size", "curve, size", "curve, range", "other groups");
  std::map<std::pair<std::string, bool>, std::vector<errors>> total;
  for (auto& [where, groups] : data)
    for (auto& g : groups) {
      std::sort(g.samples.begin(), g.samples.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
      const auto range = [&](std::size_t i) { return std::lround(std::floor(2 * std::log2(g.samples[i].bytes))); };
      // Sizes of their own, in at most 100 folds that lie in comb: as good as one by one, and quick.
      const auto comb = [&](std::size_t i) { return static_cast<long>(i % 100); };
      std::vector<errors> e{
          held_out(g.samples, {.max_pieces = 1}, comb), held_out(g.samples, {}, comb), held_out(g.samples, {}, range), {}};
      std::vector<collective_measurements> others;
      for (const auto& o : groups)
        if (&o != &g) others.push_back(o);
      const measured_collectives model(others);
      for (const auto& s : g.samples)
        if (s.bytes >= 1e6)
          if (const auto seconds = model.seconds(g.collective, g.nodes, g.per_node, s.bytes)) e[3].add(*seconds, s.seconds);
      char ranks[32];
      std::snprintf(ranks, sizeof ranks, "%dx%d", g.nodes, g.per_node);
      std::printf("%-34s %-10s %-7s %5zu | %s | %s | %s | %s\n", (where.first + " " + where.second).c_str(),
                  names[static_cast<int>(g.collective)], ranks, g.samples.size(), e[0].text().c_str(), e[1].text().c_str(),
                  e[2].text().c_str(), e[3].text().c_str());
      auto& sums = total[{where.first, g.nodes > 1}];
      sums.resize(e.size());
      for (std::size_t i = 0; i < e.size(); ++i) sums[i].add(e[i]);
    }
  for (const auto& [key, e] : total)
    std::printf("%-59s | %s | %s | %s | %s\n", (key.first + (key.second ? ", across nodes" : ", inside a node")).c_str(),
                e[0].text().c_str(), e[1].text().c_str(), e[2].text().c_str(), e[3].text().c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
