// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/network/collective.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

using namespace hetsched;

namespace {

using row = std::map<std::string, std::string>;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::vector<row> rows() {
  std::ifstream file(HETSCHED_SOURCE_DIR "/tests/data/sailor_iterations.csv");
  REQUIRE(file);
  std::string line;
  std::getline(file, line);
  const auto names = split(line, ',');
  std::vector<row> found;
  while (std::getline(file, line)) {
    const auto cells = split(line, ',');
    auto& r = found.emplace_back();
    for (std::size_t i = 0; i < cells.size(); ++i) r[names[i]] = cells[i];
  }
  return found;
}

int number(const row& r, const char* name) { return std::stoi(r.at(name)); }

// The seconds of every layer, of which equal neighbours are counted.
std::vector<double> by_layer(const row& r) {
  const auto counts = split(r.at("layers"), '-'), seconds = split(r.at("seconds"), ' ');
  std::vector<double> all;
  for (std::size_t i = 0; i < counts.size(); ++i) all.insert(all.end(), std::stoul(counts[i]), std::stod(seconds[i]));
  return all;
}

constexpr double hidden = 1024, sequence = 2048, words = 50304;
constexpr int layer_count = 26;
constexpr int fp32 = 4;

// A subcluster of one node for every device, what was measured on it with this microbatch and tensor-parallel size, and links of
// `bandwidth` between nodes.
struct site {
  cluster hardware{};
  profile measured{.layers = std::vector<profiled_layer>(layer_count), .entries = {}};
};

site make_site(const std::vector<row>& data, int mbs, int tp, double bandwidth) {
  site s;
  for (auto& l : s.measured.layers) l.boundary_bytes = static_cast<bytes_t>(fp32 * mbs * sequence * hidden);
  const hetsched::link between{0, bandwidth};
  for (const auto& r : data) {
    if (r.at("kind") == "plan" || number(r, "mbs") != mbs || number(r, "tp") != tp) continue;
    if (r.at("kind") == "backward") {
      s.measured.entries.back().backward_s = by_layer(r);
      continue;
    }
    const auto& gpu = r.at("gpu");
    device d{.name = gpu, .memory_bytes = 1, .memory_bandwidth = 1};
    d.peak_flops.fill(1);
    for (const auto& other : s.hardware.subclusters)
      s.hardware.links.push_back({s.hardware.find(other.name).value(), static_cast<int>(s.hardware.subclusters.size()), between});
    s.hardware.subclusters.push_back({.name = gpu, .device = d, .nodes = 1, .devices_per_node = tp, .intra_node = between});
    s.measured.entries.push_back({.subcluster = gpu,
                                  .devices = tp,
                                  .forward_s = by_layer(r),
                                  .weight_bytes = std::vector<bytes_t>(layer_count),
                                  .activation_bytes = std::vector<bytes_t>(layer_count)});
  }
  return s;
}

double gradient_bytes(layer_range layers, int tp) {
  double parameters = 0;
  for (int l = layers.first; l < layers.last; ++l)
    parameters += l == 0 ? (words + sequence) * hidden : l < layer_count - 1 ? 12 * hidden * hidden : words * hidden;
  return fp32 * parameters / tp;
}

std::vector<layer_range> stages_of(const row& plan) {
  std::vector<layer_range> stages;
  for (const auto& n : split(plan.at("layers"), '-')) {
    const int first = stages.empty() ? 0 : stages.back().last;
    stages.push_back({first, first + std::stoi(n)});
  }
  return stages;
}

double reduction_s(const row& plan, double device_bandwidth) {
  const rank_group<> group{.nodes = number(plan, "dp"), .per_node = 1, .across = {0, device_bandwidth}};
  double longest = 0;
  for (const auto& layers : stages_of(plan))
    longest = std::max(longest, collective_s(collective::all_reduce, collective_algorithm::ring, group,
                                             gradient_bytes(layers, number(plan, "tp"))));
  return longest;
}

// Devices that share a port to the network.
int sharers(const row& plan) { return plan.at("site") == "mit" ? number(plan, "tp") : 1; }

// Bytes/s of a site's network ports: the median of what its reductions of gradients say.
double port_bandwidth(const std::vector<row>& data, const std::string& site) {
  std::vector<double> found;
  for (const auto& r : data)
    if (r.at("kind") == "plan" && r.at("site") == site && number(r, "dp") > 1)
      found.push_back(reduction_s(r, 1) * sharers(r) / std::stod(r.at("reduce_s")));
  std::sort(found.begin(), found.end());
  return (found[(found.size() - 1) / 2] + found[found.size() / 2]) / 2;
}

double predict(const std::vector<row>& data, const row& plan) {
  const int mbs = number(plan, "mbs"), tp = number(plan, "tp");
  const double of_device = port_bandwidth(data, plan.at("site")) / sharers(plan);
  const auto s = make_site(data, mbs, tp, of_device * tp);
  const profile_cost_model costs(s.hardware, s.measured);
  const auto gpus = split(plan.at("gpu"), '-');
  const auto stages = stages_of(plan);
  const auto on = [&](std::size_t i) { return placement{{s.hardware.find(gpus[i]).value(), 1, tp}, {.tensor = tp}}; };
  pipeline line{.forward_s = {}, .backward_s = {}, .transfer_s = {}};
  std::vector<int> warmups;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto cost = costs.stage(stages[i], on(i));
    line.forward_s.push_back(cost.forward_s);
    line.backward_s.push_back(cost.backward_s);
    if (i + 1 < stages.size()) line.transfer_s.push_back(costs.transfer(stages[i].last - 1, on(i), on(i + 1)).forward_s);
    warmups.push_back(static_cast<int>(stages.size() - i));
  }
  const auto order = add_transfers(one_f_one_b(warmups, number(plan, "microbatches")));
  return simulate(line, order, {.semantics = send_semantics::rendezvous, .timeline = false}).makespan_s +
         reduction_s(plan, of_device);
}

}  // namespace

TEST_CASE("sailor: iterations from measured layers and one network constant per site") {
  const auto data = rows();
  double sum = 0;
  int count = 0;
  std::vector<std::pair<double, double>> times;  // measured and predicted
  for (const auto& r : data) {
    if (r.at("kind") != "plan") continue;
    const double measured = std::stod(r.at("seconds")), predicted = predict(data, r);
    CAPTURE(r.at("site"));
    CAPTURE(r.at("config"));
    CAPTURE(measured);
    CAPTURE(predicted);
    // Small messages of many devices that share a port overlap with computation: not modelled.
    const bool small = number(r, "tp") == 8 && stages_of(r).size() > 1;
    CHECK(std::abs(predicted / measured - 1) < (small ? 0.28 : 0.08));
    sum += std::abs(predicted / measured - 1);
    ++count;
    times.emplace_back(measured, predicted);
  }
  REQUIRE(count == 9);
  CHECK(sum / count < 0.1);
  // Plans that differ by a tenth or more are ranked as measured.
  for (const auto& a : times)
    for (const auto& b : times) {
      CAPTURE(a.first);
      CAPTURE(b.first);
      if (a.first > 1.1 * b.first) CHECK(a.second > b.second);
    }
}
