// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cost/concepts.hpp>

namespace hetsched::detail {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// A placement as the search sees it.
struct interop_placement {
  placement where;
  int subcluster = 0;
  int devices = 0;
  int transfer_class = 0;
  double capacity = 0;  // bytes per device
};

/// What a search needs besides the stage costs: the placements, and the transfer prices between classes of placements.
/// Two placements are of one class if no transfer price tells them apart: the search then need not either.
struct interop_problem {
  int layers = 0;
  std::vector<int> devices;                   // per subcluster
  std::vector<interop_placement> placements;  // by subcluster, then by device count
  std::vector<int> class_subcluster;
  std::vector<double> prices;  // [from][to][boundary], seconds one way

  [[nodiscard]] int classes() const { return static_cast<int>(class_subcluster.size()); }
  [[nodiscard]] const double* transfer(int from, int to) const {
    return prices.data() + static_cast<std::size_t>((from * classes() + to) * (layers - 1));
  }
};

[[nodiscard]] inline std::string describe(const cluster& hardware, const placement& p) {
  const auto& s = subcluster_of(hardware, p.mesh);
  std::string text = "subcluster " + s.name + " (" + std::to_string(p.mesh.nodes) + "x" + std::to_string(p.mesh.devices_per_node);
  const auto part = [&](int degree, const char* name) {
    if (degree > 1) text += std::string(", ") + name + " " + std::to_string(degree);
  };
  part(p.degrees.data, "data");
  part(p.degrees.context, "context");
  part(p.degrees.tensor, "tensor");
  return text + ")";
}

[[nodiscard]] inline std::string describe(layer_range r) {
  return r.size() == 1 ? "layer " + std::to_string(r.first)
                       : "layers " + std::to_string(r.first) + "-" + std::to_string(r.last - 1);
}

inline void check_cost(const stage_cost& c, const cluster& hardware, layer_range layers, const placement& where) {
  const auto is_time = [](double seconds) { return seconds >= 0 && seconds < 1e300; };
  if (is_time(c.forward_s) && is_time(c.backward_s) && c.weight_bytes >= 0 && c.activation_bytes >= 0) return;
  throw input_error("the cost of " + describe(layers) + " on " + describe(hardware, where) + " is not finite, or negative");
}

/// Collects placements and prices. O(P^2 L) calls of transfer for P placements; O(C^2 L) for C classes if the model names them.
template <stage_cost_model Costs>
[[nodiscard]] interop_problem make_interop_problem(const cluster& hardware, const Costs& costs) {
  interop_problem problem;
  problem.layers = cost_of::layer_count(costs);
  if (problem.layers < 1) throw input_error("a cost model needs at least one layer");
  const int boundaries = problem.layers - 1;
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    const auto& s = hardware.subclusters[k];
    problem.devices.push_back(s.device_count());
    for (const auto& mesh : submeshes(s, static_cast<int>(k)))
      for (const placement& p : cost_of::placements(costs, mesh)) {
        if (!(p.mesh == mesh)) throw input_error("a cost model's placements must lie on the submesh they were asked for");
        problem.placements.push_back(
            {p, static_cast<int>(k), mesh.device_count(), 0, static_cast<double>(s.device.memory_bytes)});
      }
  }
  auto& all = problem.placements;
  const auto price = [&](const interop_placement& from, const interop_placement& to, int boundary) {
    const double seconds = cost_of::transfer(costs, boundary, from.where, to.where);
    if (!(seconds >= 0))
      throw input_error("transfer of boundary " + std::to_string(boundary) + " from " + describe(hardware, from.where) + " to " +
                        describe(hardware, to.where) + " is negative or not a number");
    return seconds < 1e300 ? seconds : infinity;
  };
  const auto alike = [&](const interop_placement& a, const interop_placement& b) {
    if (a.subcluster != b.subcluster) return false;
    for (const auto& other : all)
      for (int j = 0; j < boundaries; ++j)
        if (price(a, other, j) != price(b, other, j) || price(other, a, j) != price(other, b, j)) return false;
    return true;
  };
  const auto same_class = [&](const interop_placement& a, const interop_placement& b) {
    if constexpr (cost_model::has_transfer_class<Costs>)
      return a.subcluster == b.subcluster && cost_of::transfer_class(costs, a.where) == cost_of::transfer_class(costs, b.where);
    else
      return alike(a, b);
  };
  std::vector<std::size_t> representatives;
  for (std::size_t p = 0; p < all.size(); ++p) {
    const auto found =
        std::find_if(representatives.begin(), representatives.end(), [&](std::size_t r) { return same_class(all[r], all[p]); });
    all[p].transfer_class = static_cast<int>(found - representatives.begin());
    if (found == representatives.end()) {
      representatives.push_back(p);
      problem.class_subcluster.push_back(all[p].subcluster);
    }
  }
  problem.prices.reserve(representatives.size() * representatives.size() * static_cast<std::size_t>(boundaries));
  for (const auto from : representatives)
    for (const auto to : representatives)
      for (int j = 0; j < boundaries; ++j) problem.prices.push_back(price(all[from], all[to], j));
  return problem;
}

/// Stage costs as prefix sums: for additive models. Memory O(P L).
class additive_table {
 public:
  static constexpr bool additive = true;

  template <additive_cost_model Costs>
  additive_table(const cluster& hardware, const Costs& costs, const interop_problem& problem)
      : layers_(problem.layers), sums_(problem.placements.size() * static_cast<std::size_t>(layers_ + 1)) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      auto* row = sums_.data() + p * static_cast<std::size_t>(layers_ + 1);
      const auto& where = problem.placements[p].where;
      for (int l = 0; l < layers_; ++l) {
        const stage_cost c = cost_of::layer(costs, l, where);
        check_cost(c, hardware, {l, l + 1}, where);
        row[l + 1] = {row[l].time + c.total_s(), row[l].weight + static_cast<double>(c.weight_bytes),
                      row[l].activation + static_cast<double>(c.activation_bytes)};
      }
    }
  }

  struct sums {
    double time = 0, weight = 0, activation = 0;
  };
  [[nodiscard]] const sums* prefix(int p) const {
    return sums_.data() + static_cast<std::size_t>(p) * static_cast<std::size_t>(layers_ + 1);
  }
  [[nodiscard]] double time(int p, int first, int last) const { return prefix(p)[last].time - prefix(p)[first].time; }
  [[nodiscard]] double memory(int p, int first, int last, double warmup) const {
    const auto& a = prefix(p)[first];
    const auto& b = prefix(p)[last];
    return b.weight - a.weight + warmup * (b.activation - a.activation);
  }

  /// For every first layer a: the furthest `last` of a stage that starts at a or before and takes at most `period` and
  /// `capacity`.
  void furthest(int p, double period, double capacity, double warmup, int* out) const {
    int last = 0;
    for (int a = 0; a <= layers_; ++a) {
      last = std::max(last, a);
      while (last < layers_ && time(p, a, last + 1) <= period && memory(p, a, last + 1, warmup) <= capacity) ++last;
      out[a] = last;
    }
  }

 private:
  int layers_;
  std::vector<sums> sums_;
};

/// Stage costs as a table over all intervals: for models of any kind. Memory O(P L^2), as many calls of stage.
class interval_table {
 public:
  static constexpr bool additive = false;

  template <stage_cost_model Costs>
  interval_table(const cluster& hardware, const Costs& costs, const interop_problem& problem)
      : layers_(problem.layers),
        stride_(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(layers_ + 1) / 2),
        cells_(problem.placements.size() * stride_) {
    for (std::size_t p = 0; p < problem.placements.size(); ++p) {
      const auto& where = problem.placements[p].where;
      for (int a = 0; a < layers_; ++a)
        for (int b = a + 1; b <= layers_; ++b) {
          const stage_cost c = cost_of::stage(costs, layer_range{a, b}, where);
          check_cost(c, hardware, {a, b}, where);
          cells_[index(static_cast<int>(p), a, b)] = {c.total_s(), static_cast<double>(c.weight_bytes),
                                                      static_cast<double>(c.activation_bytes)};
        }
    }
  }

  [[nodiscard]] double time(int p, int first, int last) const { return first == last ? 0 : cells_[index(p, first, last)].time; }
  [[nodiscard]] double memory(int p, int first, int last, double warmup) const {
    const auto& c = cells_[index(p, first, last)];
    return c.weight + warmup * c.activation;
  }
  void furthest(int p, double period, double capacity, double warmup, int* out) const {
    int furthest_yet = 0;
    for (int a = 0; a <= layers_; ++a) {
      furthest_yet = std::max(furthest_yet, a);
      for (int b = layers_; b > furthest_yet; --b)
        if (time(p, a, b) <= period && memory(p, a, b, warmup) <= capacity) {
          furthest_yet = b;
          break;
        }
      out[a] = furthest_yet;
    }
  }

 private:
  struct cell {
    double time = 0, weight = 0, activation = 0;
  };
  [[nodiscard]] std::size_t index(int p, int first, int last) const {
    const auto a = static_cast<std::size_t>(first);
    const auto row = a * static_cast<std::size_t>(layers_) - a * (a - 1) / 2;  // cells before row a: sum of layers - a'
    return static_cast<std::size_t>(p) * stride_ + row + static_cast<std::size_t>(last - first - 1);
  }

  int layers_;
  std::size_t stride_;
  std::vector<cell> cells_;
};

}  // namespace hetsched::detail
