// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measured operators as the tile model sees them, and the fit of its constants.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/operators/tile.hpp>

#include "csv.hpp"

namespace validation {

using namespace hetsched;

struct measurement {
  std::string set, device, kind;
  operator_shape op;
  double seconds;
  double host_s;  // what the way of measuring adds
};

// What the shortest times of each set amount to: both time one launch at a time, not kernels back to back.
inline constexpr double neusight_host_s = 28e-6;
inline constexpr double deepbench_host_s = 6e-6;

inline std::string neusight_device(const std::string& name) {
  if (name.starts_with("P4")) return "P4";
  if (name.starts_with("P100")) return "P100-PCIe-16GB";
  if (name.starts_with("V100")) return "V100-PCIe-32GB";
  if (name.starts_with("T4")) return "T4";
  if (name.starts_with("H100")) return "H100-SXM5-80GB";
  return name.find("80GB") != std::string::npos ? "A100-PCIe-80GB" : "A100-PCIe-40GB";
}

inline void read_neusight(const std::string& path, std::vector<measurement>& all) {
  const auto rows = csv_lines(path);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& r = rows[i];
    const auto number = [&](std::size_t c) { return static_cast<std::int64_t>(std::stod(r[c])); };
    const std::int64_t batch = number(2), m = number(3), reduced = number(4), n = number(5);
    const auto f = number_format::fp32;
    measurement x{"NeuSight", neusight_device(r[1]), "gemm", {}, std::stod(r[10]) * 1e-3, neusight_host_s};
    if (r[0] == "linear")
      x.op = gemm(batch * m, n, reduced, f);
    else if (r[0] == "bmm")
      x.op = batched_gemm(batch, m, n, reduced, f), x.kind = "bmm";
    else if (r[0] == "softmax")
      x.op = softmax(batch * m, n, f), x.kind = "softmax";
    else if (r[0] == "ln")
      x.op = norm(batch * m, n, f), x.kind = "norm";
    else {
      const bool two = r[0] == "add" || r[0] == "mul" || r[0] == "div" || r[0] == "pow";
      x.op = elementwise(batch * m * n, two ? 2 : 1, 1, f);
      x.kind = "elementwise";
    }
    all.push_back(x);
  }
}

inline void read_vidur(const std::string& path, std::vector<measurement>& all) {
  const auto rows = csv_lines(path);
  const auto f = number_format::fp16;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& r = rows[i];
    const auto number = [&](std::size_t c) { return static_cast<std::int64_t>(std::stod(r[c])); };
    const auto heads = number(2), kv = number(3), width = number(4), wide = number(5), tp = number(8), tokens = number(9);
    const bool gated = r[7] == "True";
    const auto head = width / heads, here = heads / tp, kv_here = std::max<std::int64_t>(1, kv / tp);
    const auto add = [&](std::size_t column, const char* kind, const operator_shape& op) {
      if (!r[column].empty() && std::stod(r[column]) > 0)
        all.push_back({"Vidur", r[0] == "a40" ? "A40" : "A100-SXM4-80GB", kind, op, std::stod(r[column]) * 1e-3, 0});
    };
    add(12, "gemm", gemm(tokens, (here + 2 * kv_here) * head, width, f));
    add(14, "gemm", gemm(tokens, width, here * head, f));
    add(16, "gemm", gemm(tokens, (gated ? 2 : 1) * wide / tp, width, f));
    add(18, "gemm", gemm(tokens, width, wide / tp, f));
    add(11, "norm", norm(tokens, width, f, true));
    add(15, "norm", norm(tokens, width, f, true));
    // Without a gate attention and the inner layers lie side by side, and two sums take the place of one.
    add(19, "elementwise", elementwise(tokens * width, gated ? 2 : 4, gated ? 1 : 2, f));
    if (gated)
      add(17, "rowwise", rowwise(tokens, wide / tp, 2, f));
    else
      add(17, "elementwise", elementwise(tokens * (wide / tp), 1, 1, f));
    add(13, "rowwise", rowwise(tokens, (here + kv_here) * head, 1, f));
    add(10, "embedding", embedding(tokens, width, f));
  }
}

inline void read_deepbench(const std::string& path, std::vector<measurement>& all) {
  const auto rows = csv_lines(path);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& r = rows[i];
    std::string name;
    if (r[0] == "train/DeepBench_NV_P100") name = "P100-SXM2-16GB";
    if (r[0] == "train/DeepBench_NV_V100") name = "V100-SXM2-16GB";
    if (r[0] == "train/DeepBench_NV_T4") name = "T4";
    const bool half = r[1].find("FP16 ip") != std::string::npos;
    if (name.empty() || (!half && r[1].find("FP32") == std::string::npos)) continue;
    const auto number = [&](std::size_t c) { return static_cast<std::int64_t>(std::stod(r[c])); };
    all.push_back({"DeepBench", name, half ? "gemm16" : "gemm",
                   gemm(number(3), number(2), number(4), half ? number_format::fp16 : number_format::fp32),
                   std::stod(r[7]) * 1e-3, deepbench_host_s});
  }
}

// Products as inference engines launch them, in CUDA graphs, on six weights in turn.
inline void read_engines(const std::string& path, std::vector<measurement>& all) {
  const auto rows = csv_lines(path);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& r = rows[i];
    const auto number = [&](std::size_t c) { return static_cast<std::int64_t>(std::stod(r[c])); };
    const bool fp8 = r[2] == "fp8";
    measurement x{"engines", r[0], fp8 ? "fp8" : "bf16", {}, std::stod(r[6]) * 1e-3, 0};
    x.op = fp8 ? quantised_gemm(number(3), number(4), number(5)) : gemm(number(3), number(4), number(5), number_format::bf16);
    x.op.repeated = true;
    all.push_back(x);
  }
}

struct group {
  std::string name, device;
  tile_device hardware;
  std::vector<measurement> rows;
  std::vector<std::vector<std::size_t>> strata{};  // rows that the fit looks at, by how long they take
};

// Rows of about equal length count as much as all longer or shorter ones, however many there are: a table says how often a shape
// was measured and not how often anybody runs it. At most 200 rows each, evenly spread; fewer than 10 go to the next longer ones.
inline void stratify(group& g) {
  constexpr double ends[] = {20e-6, 200e-6, 2e-3, std::numeric_limits<double>::infinity()};
  std::vector<std::size_t> found;
  double from = 0;
  for (const double end : ends) {
    for (std::size_t i = 0; i < g.rows.size(); ++i)
      if (g.rows[i].seconds >= from && g.rows[i].seconds < end) found.push_back(i);
    from = end;
    const bool last = !std::isfinite(end);
    if (found.empty() || (!last && found.size() < 10)) continue;
    const std::size_t stride = std::max<std::size_t>(1, found.size() / 200);
    auto& stratum = g.strata.emplace_back();
    for (std::size_t i = 0; i < found.size(); i += stride) stratum.push_back(found[i]);
    found.clear();
  }
}

inline std::vector<group> grouped(const std::vector<measurement>& all) {
  std::map<std::pair<std::string, std::string>, group> groups;
  for (const auto& x : all) {
    auto& g = groups[{x.set + " " + x.kind, x.device}];
    if (g.rows.empty())
      g.name = x.set + " " + x.kind, g.device = x.device, g.hardware = make_tile_device(catalogue_device(x.device));
    g.rows.push_back(x);
  }
  std::vector<group> list;
  for (auto& [key, g] : groups) {
    stratify(g);
    list.push_back(std::move(g));
  }
  return list;
}

inline double relative_error(const group& g, const measurement& x, const tile_constants& c) {
  return (predict_operator(g.hardware, x.op, c).seconds + x.host_s) / x.seconds - 1;
}

// A value is a whole number of steps of unit / parts, which makes it exact in decimal.
struct constant {
  const char* name;
  double tile_constants::*value;
  double unit, parts;
  long start, most;

  [[nodiscard]] double at(long steps) const { return static_cast<double>(steps) * unit / parts; }
};

inline constexpr constant constants[] = {
    // clang-format off
    {"lane_share", &tile_constants::lane_share, 1, 100, 97, 100},
    {"lane_feed", &tile_constants::lane_feed, 1, 2, 58, 200},
    {"matrix_feed", &tile_constants::matrix_feed, 1, 2, 100, 400},
    {"flops_per_watt", &tile_constants::flops_per_watt, 1e9, 1, 60, 1000},
    {"step_cycles", &tile_constants::step_cycles, 1, 10, 30, 100},
    {"fill_cycles", &tile_constants::fill_cycles, 100, 1, 20, 100},
    {"wave_loss", &tile_constants::wave_loss, 1, 20, 6, 20},
    {"matrix_wave_loss", &tile_constants::matrix_wave_loss, 1, 20, 6, 20},
    {"memory_share", &tile_constants::memory_share, 1, 100, 90, 100},
    {"early_memory_share", &tile_constants::early_memory_share, 1, 100, 80, 100},
    {"matrix_memory_share", &tile_constants::matrix_memory_share, 1, 100, 85, 100},
    {"exposed", &tile_constants::exposed, 1, 50, 10, 50},
    {"matrix_exposed", &tile_constants::matrix_exposed, 1, 50, 10, 50},
    {"split_traffic", &tile_constants::split_traffic, 1, 2, 8, 100},
    {"matrix_split_traffic", &tile_constants::matrix_split_traffic, 1, 2, 8, 100},
    {"split_cycles", &tile_constants::split_cycles, 500, 1, 10, 100},
    {"quantise_s", &tile_constants::quantise_s, 1, 1e7, 20, 100},
    {"quantise_row_s", &tile_constants::quantise_row_s, 1, 1e10, 60, 200},
    {"page_misses", &tile_constants::page_misses, 1, 100, 30, 200},
    {"row_reread", &tile_constants::row_reread, 1, 20, 10, 100},
    {"memory_wait", &tile_constants::memory_wait, 1, 20, 10, 100},
    {"row_cycles", &tile_constants::row_cycles, 1, 100, 30, 200},
    {"norm_cycles", &tile_constants::norm_cycles, 1, 20, 20, 100},
    {"pass_cycles", &tile_constants::pass_cycles, 1, 100, 15, 100},
    {"softmax_cycles", &tile_constants::softmax_cycles, 1, 50, 25, 100},
    {"gather_cycles", &tile_constants::gather_cycles, 1, 10, 20, 100},
    {"l2_reach", &tile_constants::l2_reach, 1, 20, 20, 30},
    {"l2_cycle_bytes", &tile_constants::l2_cycle_bytes, 1, 1, 18, 100},
    {"launch_s", &tile_constants::launch_s, 1, 2e6, 4, 100},
    // clang-format on
};

// Mean over groups of the mean relative error, squared below the knee and straight above; groups count alike, so that no device
// decides by its rows.
// At most 400 rows of a group, evenly spread.
inline constexpr double knee = 0.3;

inline double loss(const std::vector<group>& groups, const tile_constants& c, const std::set<std::string>& without) {
  double sum = 0;
  int count = 0;
  for (const auto& g : groups) {
    if (without.contains(g.device)) continue;
    for (const auto& s : g.strata) {
      double mean = 0;
      for (const std::size_t i : s) {
        const double e = relative_error(g, g.rows[i], c);
        mean += std::sqrt(e * e + knee * knee) - knee;
      }
      sum += mean / static_cast<double>(s.size() * g.strata.size());
    }
    ++count;
  }
  return sum / count;
}

// Coordinate search over whole steps of each constant, from coarse to single ones, starting from round numbers.
inline tile_constants fit(const std::vector<group>& groups, const std::set<std::string>& without) {
  constexpr std::size_t count = std::size(constants);
  std::array<long, count> steps{};
  tile_constants c;
  for (std::size_t i = 0; i < count; ++i) c.*constants[i].value = constants[i].at(steps[i] = constants[i].start);
  double best = loss(groups, c, without);
  for (long stride = 8; stride >= 1;) {
    bool better = false;
    for (std::size_t i = 0; i < count; ++i)
      for (const long move : {stride, -stride}) {
        const long next = steps[i] + move;
        if (next < 0 || next > constants[i].most) continue;
        c.*constants[i].value = constants[i].at(next);
        const double value = loss(groups, c, without);
        if (value < best - 1e-7)
          best = value, steps[i] = next, better = true;
        else
          c.*constants[i].value = constants[i].at(steps[i]);
      }
    if (!better) stride /= 2;
  }
  return c;
}

inline std::vector<group> read_operators(const std::string& folder) {
  std::vector<measurement> all;
  read_neusight(folder + "/neusight_test.csv", all);
  read_vidur(folder + "/vidur_mlp.csv", all);
  read_deepbench(folder + "/deepbench_gemm.csv", all);
  read_engines(folder + "/aiconfigurator/gemm.csv", all);
  return grouped(all);
}

}  // namespace validation
