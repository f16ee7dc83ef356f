// SPDX-License-Identifier: Apache-2.0
// Compares the tile model with measured operators and whole models, every device predicted with constants fitted without it, and
// prints tables in Markdown. Usage: operators FOLDER (as fit_tile, and neusight_e2e.csv and llmcompass/).
#include <cstdio>
#include <exception>

#include "tile_fit.hpp"
#include "whole_models.hpp"

using namespace validation;

namespace {

struct errors {
  double sum = 0, worst = 0;
  int count = 0;

  void add(double relative) {
    sum += std::abs(relative);
    worst = std::max(worst, std::abs(relative));
    ++count;
  }
  void add(const errors& e) {
    sum += e.sum;
    worst = std::max(worst, e.worst);
    count += e.count;
  }
  [[nodiscard]] double mean() const { return count > 0 ? 100 * sum / count : 0; }
};

// What peak and bandwidth alone say.
double roofline_s(const measurement& x, const tile_device& d) {
  const auto& op = x.op;
  return std::max(flops(op) / d.peak_flops[static_cast<std::size_t>(op.format)], op.traffic_bytes / d.memory_bandwidth);
}

// Devices with one chip.
std::set<std::string> chip_of(const std::string& device) {
  for (const auto& chip : {std::set<std::string>{"P100-PCIe-16GB", "P100-SXM2-16GB"},
                           {"V100-PCIe-32GB", "V100-SXM2-16GB"},
                           {"A100-PCIe-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB", "A100-SXM4-40GB"}})
    if (chip.contains(device)) return chip;
  return {device};
}

bool is_product(const group& g) { return g.name.ends_with("mm") || g.name.ends_with("gemm16"); }

class held_out {
 public:
  explicit held_out(const std::vector<group>& groups) : groups_(groups) {}

  const tile_constants& without(const std::set<std::string>& devices) {
    const auto found = fits_.find(devices);
    return found != fits_.end() ? found->second : fits_.emplace(devices, fit(groups_, devices)).first->second;
  }

 private:
  const std::vector<group>& groups_;
  std::map<std::set<std::string>, tile_constants> fits_;
};

void operators(const std::vector<group>& groups, held_out& fits, const tile_constants& shipped) {
  std::puts(
      "| set, operator | device | rows | without device, mean | max | without its chip, mean | fitted with it, mean | roofline, "
      "mean |");
  std::puts("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
  std::map<std::pair<std::string, std::string>, std::array<errors, 4>> totals;
  const auto line = [](const std::string& name, const std::string& device, const std::array<errors, 4>& e) {
    std::printf("| %s | %s | %d | %.1f %% | %.0f %% | %.1f %% | %.1f %% | %.1f %% |\n", name.c_str(), device.c_str(), e[0].count,
                e[0].mean(), 100 * e[0].worst, e[1].mean(), e[2].mean(), e[3].mean());
  };
  for (const auto& g : groups) {
    const auto &alone = fits.without({g.device}), &chip = fits.without(chip_of(g.device));
    std::array<errors, 4> e;
    for (const auto& x : g.rows) {
      e[0].add(relative_error(g, x, alone));
      e[1].add(relative_error(g, x, chip));
      e[2].add(relative_error(g, x, shipped));
      e[3].add(roofline_s(x, g.hardware) / x.seconds - 1);
    }
    line(g.name, g.device, e);
    auto& total = totals[{g.name.substr(0, g.name.find(' ')) + (is_product(g) ? " products" : " vectors"), g.device}];
    auto& whole = totals[{g.name.substr(0, g.name.find(' ')) + " together", g.device}];
    for (std::size_t i = 0; i < e.size(); ++i) total[i].add(e[i]), whole[i].add(e[i]);
  }
  for (const auto& [key, e] : totals) line("**" + key.first + "**", key.second, e);
}

// A set that no fit has seen, with the shipped constants.
void unseen(const std::string& folder, const tile_constants& shipped) {
  std::vector<measurement> all;
  read_llmcompass(folder, all);
  std::puts("\n| not in the fit | device | rows | mean | max | roofline, mean |\n| --- | --- | ---: | ---: | ---: | ---: |");
  for (const auto& g : grouped(all)) {
    errors model, roofline;
    for (const auto& x : g.rows) {
      model.add(relative_error(g, x, shipped));
      roofline.add(roofline_s(x, g.hardware) / x.seconds - 1);
    }
    std::printf("| %s | %s | %d | %.1f %% | %.0f %% | %.1f %% |\n", g.name.c_str(), g.device.c_str(), model.count, model.mean(),
                100 * model.worst, roofline.mean());
  }
}

void worst_ten(const std::vector<group>& groups, held_out& fits) {
  struct bad {
    double error;
    const group* where;
    const measurement* row;
  };
  std::vector<bad> all;
  for (const auto& g : groups)
    for (const auto& x : g.rows) all.push_back({relative_error(g, x, fits.without({g.device})), &g, &x});
  // By factor, whichever way it is off.
  const auto factor = [](const bad& b) { return std::abs(std::log(1 + b.error)); };
  std::partial_sort(all.begin(), all.begin() + 10, all.end(), [&](const bad& a, const bad& b) { return factor(a) > factor(b); });
  std::puts(
      "\n| worst | device | batch | m | n | k | measured | predicted / measured |\n| --- | --- | ---: | ---: | ---: | ---: | "
      "---: | ---: |");
  for (std::size_t i = 0; i < 10; ++i) {
    const auto& op = all[i].row->op;
    std::printf("| %s | %s | %lld | %lld | %lld | %lld | %.4g ms | %.2f |\n", all[i].where->name.c_str(),
                all[i].where->device.c_str(), static_cast<long long>(op.batch), static_cast<long long>(op.m),
                static_cast<long long>(op.n), static_cast<long long>(op.k), 1e3 * all[i].row->seconds, 1 + all[i].error);
  }
}

std::string whole_model_device(const std::string& name) {
  if (name == "Tesla_P4") return "P4";
  if (name == "Tesla_P100-PCIE-16GB") return "P100-PCIe-16GB";
  if (name == "Tesla_V100-PCIE-32GB") return "V100-PCIe-32GB";
  if (name == "Tesla_T4") return "T4";
  if (name == "NVIDIA_A100-PCIE-40GB") return "A100-PCIe-40GB";
  if (name == "NVIDIA_A100-SXM4-40GB") return "A100-SXM4-40GB";
  return name == "NVIDIA_A100_80GB_PCIe" ? "A100-PCIe-80GB" : "";
}

void whole_models(const std::string& path, held_out& fits, const tile_constants& shipped) {
  std::puts("\n| model | tokens | device | mode | measured ms | predicted | forward | backward | NeuSight | roofline |");
  std::puts("| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |");
  const auto rows = read_csv(path);
  errors ours, with, neusight, roofline;
  std::map<std::string, errors> by_device;
  std::vector<double> sorted;
  int left_out = 0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& r = rows[i];
    if (r[3].starts_with("AMD")) continue;
    whole_model m{};
    const auto device = whole_model_device(r[3]);
    if (device.empty() || !find_model(r[0], m)) {
      ++left_out;
      continue;
    }
    const bool training = r[4] == "train";
    // Four devices: one sample each; all of it in four parts; or one stage after the other, which takes what one device takes.
    const auto batch = std::stoll(r[2]), sequence = std::stoll(r[1]);
    const auto kernels =
        kernels_of(m, r[5] == "dp4" ? batch / 4 : batch, sequence, training, r[5] == "fusion", r[5] == "tp4" ? 4 : 1);
    const auto hardware = make_tile_device(catalogue_device(device));
    const double ring = 2 * 3.0 / 4 / 300e9, h = static_cast<double>(m.hidden), layers = static_cast<double>(m.layers);
    const double parameters = layers * 12 * h * h + static_cast<double>(m.vocab) * h;
    const double communication = r[5] == "dp4"   ? 4 * parameters * ring
                                 : r[5] == "tp4" ? 4 * layers * 4 * static_cast<double>(batch * sequence) * h * ring
                                                 : 0;
    const auto off = [&](const tile_constants& constants, int part) {
      const double forward = seconds(hardware, kernels.forward, constants);
      const double backward = training ? seconds(hardware, kernels.backward, constants) : 0;
      return 1e3 *
                 (part == 0   ? forward + backward + communication
                  : part == 1 ? forward
                              : backward) /
                 std::stod(r[6 + static_cast<std::size_t>(part)]) -
             1;
    };
    const auto& c = fits.without(device == "A100-SXM4-40GB" ? chip_of(device) : std::set<std::string>{device});
    const double e = off(c, 0), n = std::stod(r[9]) / std::stod(r[6]) - 1;
    ours.add(e);
    with.add(off(shipped, 0));
    neusight.add(n);
    by_device[device + (training ? ", training" : ", inference")].add(e);
    sorted.push_back(std::abs(e));
    std::printf("| %s | %s x %s | %s | %s %s | %.1f | %+.1f %% | ", r[0].c_str(), r[2].c_str(), r[1].c_str(), device.c_str(),
                r[4].c_str(), r[5].c_str(), std::stod(r[6]), 100 * e);
    if (training && std::stod(r[7]) > 0)
      std::printf("%+.1f %% | %+.1f %% | ", 100 * off(c, 1), 100 * off(c, 2));
    else
      std::printf("| | ");
    std::printf("%+.1f %% | ", 100 * n);
    if (r[12].empty())
      std::puts("|");
    else {
      roofline.add(std::stod(r[12]) / std::stod(r[6]) - 1);
      std::printf("%+.1f %% |\n", 100 * (std::stod(r[12]) / std::stod(r[6]) - 1));
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::printf(
      "\n%d rows, each without its device: mean %.1f %%, median %.1f %%, max %.1f %% (fitted with it: mean %.1f %%); NeuSight "
      "%.1f %%, roofline %.1f %%;"
      " left out: %d\n",
      ours.count, ours.mean(), 100 * sorted[sorted.size() / 2], 100 * ours.worst, with.mean(), neusight.mean(), roofline.mean(),
      left_out);
  for (const auto& [name, e] : by_device)
    std::printf("* %s: %d rows, mean %.1f %%, max %.1f %%\n", name.c_str(), e.count, e.mean(), 100 * e.worst);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw input_error("usage: operators FOLDER");
  const std::string folder = argv[1];
  const auto groups = read_operators(folder);
  held_out fits(groups);
  const tile_constants shipped;
  operators(groups, fits, shipped);
  unseen(folder + "/llmcompass", shipped);
  worst_ten(groups, fits);
  whole_models(folder + "/neusight_e2e.csv", fits, shipped);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
