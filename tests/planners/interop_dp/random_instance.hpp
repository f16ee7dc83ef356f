// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "../../sanitizer_share.hpp"

namespace hetsched::test {

/// Everything a cost model is asked for, as tables: one row per placement, one price per pair of classes and boundary.
struct cost_tables {
  struct row {
    placement where;
    int price_class = 0;
    std::vector<stage_cost> layer;
    double update_s = 0;
    memory_overheads more{};
    std::vector<parameter_copy> copies{};
  };
  int layers = 0;
  int classes = 0;
  std::vector<row> rows;
  std::vector<transfer_cost> prices;  // [from][to][boundary]

  [[nodiscard]] const row& find(const placement& p) const {
    return *std::find_if(rows.begin(), rows.end(), [&](const row& r) { return r.where == p; });
  }
  [[nodiscard]] transfer_cost& price(int from, int to, int boundary) {
    return prices[static_cast<std::size_t>((from * classes + to) * (layers - 1) + boundary)];
  }

  [[nodiscard]] int layer_count() const { return layers; }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> found;
    for (const auto& r : rows)
      if (r.where.mesh == mesh) found.push_back(r.where);
    return found;
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to) const {
    return prices[static_cast<std::size_t>((find(from).price_class * classes + find(to).price_class) * (layers - 1) + boundary)];
  }
  [[nodiscard]] double update(layer_range, const placement& where) const { return find(where).update_s; }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return find(where).more; }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const { return find(where).copies; }
};

/// A stage costs the sum of its layers, and the planner may know.
struct additive_costs : cost_tables {
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    return find(where).layer[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] stage_cost stage(layer_range layers_, const placement& where) const {
    return sum_of_layers(*this, layers_, where);
  }
};

/// The same costs, but the planner is not told that they are additive.
struct opaque_costs : cost_tables {
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    stage_cost sum;
    for (int l = range.first; l < range.last; ++l) sum += find(where).layer[static_cast<std::size_t>(l)];
    drop_copies(sum, range, copies(where));
    return sum;
  }
};

/// Every interval has a price of its own: not even monotone.
struct interval_costs : cost_tables {
  std::vector<stage_cost> cells;  // [row][first][last - 1]
  [[nodiscard]] stage_cost stage(layer_range range, const placement& where) const {
    const auto r = static_cast<std::size_t>(&find(where) - rows.data());
    const auto n = static_cast<std::size_t>(layers);
    return cells[(r * n + static_cast<std::size_t>(range.first)) * n + static_cast<std::size_t>(range.last - 1)];
  }
};

/// Names the classes of transfer prices.
template <class Costs>
struct with_classes : Costs {
  [[nodiscard]] int transfer_class(const placement& where) const { return this->find(where).price_class; }
};

/// Prices between stages of one node differ from those between nodes, by the degrees of both.
template <class Costs>
struct by_node : Costs {
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    auto c = Costs::transfer(boundary, from, to);
    if (near == proximity::other_node) return c;
    const auto occupied = [](std::optional<double>& part_s, double whole_s) {
      if (part_s) part_s = std::min(*part_s, 0.75 * whole_s);
    };
    const double factor = from.degrees.data > 1 ? (to.degrees.data > 1 ? 0.125 : 0.5) : to.degrees.data > 1 ? 0.25 : 0.375;
    c.forward_s *= factor;
    c.backward_s *= boundary % 3 == 0 ? 1.5 : factor;
    occupied(c.forward_occupied_s, c.forward_s);
    occupied(c.backward_occupied_s, c.backward_s);
    return c;
  }
};

struct instance {
  cluster hardware;
  cost_tables costs;
  planning_problem problem;
  interop_options options;
};

struct instance_limits {
  int layers = 8;
  int subclusters = 2;
  int devices = 4;  // per subcluster
  bool prices_by_degrees = false;
  bool rich = false;    // see enrich
  bool shared = false;  // see share_parameters
};

/// Data to build an instance again by hand.
inline std::string text(const instance& i) {
  std::ostringstream out;
  out.precision(17);
  const auto& o = i.options;
  out << "\nrule " << schedule_name(o.warmup) << " microbatches " << i.problem.microbatches << " epsilon " << o.epsilon
      << " use_all_devices " << i.problem.use_all_devices << " order " << static_cast<int>(o.order) << "\n";
  for (const auto& s : i.hardware.subclusters)
    out << s.name << ": " << s.nodes << " x " << s.devices_per_node << ", " << s.device.memory_bytes << " bytes, "
        << s.device.flops(precision::fp16) << " FLOP/s\n";
  for (const auto& r : i.costs.rows) {
    const auto& m = r.where.mesh;
    out << "placement " << m.subcluster << ": " << m.nodes << " x " << m.devices_per_node << " data " << r.where.degrees.data
        << " tensor " << r.where.degrees.tensor << " recompute " << name_of(r.where.recompute) << " ZeRO " << r.where.zero
        << " class " << r.price_class << " overheads {" << r.more.runtime_bytes << ", " << r.more.buffer_bytes << ", "
        << r.more.fragmentation << ", " << r.more.margin << "} copies";
    for (const auto& c : r.copies) out << " {" << c.owner << ", " << c.layer << ", " << c.weight_bytes << "}";
    out << " {forward, backward, weight, activation, temporary}:";
    for (const auto& c : r.layer)
      out << " {" << c.forward_s << ", " << c.backward_s << ", " << c.weight_bytes << ", " << c.activation_bytes << ", "
          << c.temporary_bytes << "}";
    out << "\n";
  }
  for (int from = 0; from < i.costs.classes; ++from)
    for (int to = 0; to < i.costs.classes; ++to) {
      out << "transfer of class " << from << " to " << to << ":";
      const int boundaries = i.costs.layers - 1;
      for (int b = 0; b < boundaries; ++b) {
        const auto& c = i.costs.prices[static_cast<std::size_t>((from * i.costs.classes + to) * boundaries + b)];
        out << " {" << c.forward_s << ", " << c.backward_s;
        if (c.forward_occupied_s || c.backward_occupied_s)
          out << "; " << c.forward_occupied_s.value_or(c.forward_s) << ", " << c.backward_occupied_s.value_or(c.backward_s);
        out << "}";
      }
      out << "\n";
    }
  return out.str();
}

inline std::string text(const cost_tables&) { return ""; }  // all in the instance

inline std::string text(const interval_costs& costs) {
  std::ostringstream out;
  out.precision(17);
  std::size_t cell = 0;
  for (std::size_t r = 0; r < costs.rows.size(); ++r)
    for (int first = 0; first < costs.layers; ++first)
      for (int last = 0; last < costs.layers; ++last, ++cell)
        if (const auto& c = costs.cells[cell]; last >= first)
          out << "placement row " << r << " layers " << first << "-" << last << ": {" << c.forward_s << ", " << c.backward_s
              << ", " << c.weight_bytes << ", " << c.activation_bytes << ", " << c.temporary_bytes << "}\n";
  return out.str();
}

inline subcluster random_subcluster(random_source& random, int position, int most_devices) {
  int nodes = 1, per_node = 1;
  do {
    nodes = random.integer(1, 4);
    per_node = random.integer(1, 8);
  } while (nodes * per_node > most_devices);
  subcluster s{std::string(1, static_cast<char>('a' + position)), {}, nodes, per_node, {0, 1e9}, {0, 1e9}};
  s.device = {.name = "d" + s.name,
              .peak_flops = {1e12, 0, 2e12 * random.uniform(0.5, 4), 0},
              .memory_bytes = 1,
              .memory_bandwidth = 1e12};
  return s;
}

/// Makes transfers take up to four times as long, and lets the next one begin before they arrive.
inline void let_transfers_overlap(instance& given, random_source& random) {
  const double longer = random.integer(1, 4), whole = random.integer(1, 3);  // on the grid, where ties occur
  for (auto& c : given.costs.prices) {
    if (!(c.round_trip_s() < std::numeric_limits<double>::infinity())) continue;
    c.forward_s *= longer;
    c.backward_s *= longer;
    const auto part = [&] { return std::min(1.0, 0.25 * random.integer(0, 4) * whole); };
    if (random.integer(0, 4) > 0) c.forward_occupied_s = c.forward_s * part();
    if (random.integer(0, 4) > 0) c.backward_occupied_s = c.backward_s * part();
  }
}

/// Random costs that do not scale perfectly, transfers from none to 1.5 stages, memory from loose to far too small. Half of the
/// instances have all times on a grid of 1/64 s, so that sums are exact and ties occur; in a third, transfers overlap.
inline instance random_instance(random_source& random, const instance_limits& limits = {}) {
  instance made;
  const bool grid = random.integer(0, 1) == 0;
  const double unit = random.integer(0, 5) == 0 ? std::ldexp(1, random.integer(-30, 20)) : 1;  // from ns to days
  const auto time = [&](double x) { return (grid ? std::round(x * 64) / 64 : x) * unit; };
  auto& costs = made.costs;
  const int layers = costs.layers = random.integer(random.integer(0, 3) == 0 ? 1 : std::max(1, limits.layers / 2), limits.layers);

  const int subclusters = random.integer(random.integer(0, 4) == 0 ? 1 : limits.subclusters, limits.subclusters);
  for (int k = 0; k < subclusters; ++k) made.hardware.subclusters.push_back(random_subcluster(random, k, limits.devices));

  // Every third instance is all activations, with slow links inside too: there the warm-ups decide.
  const bool deep = random.integer(0, 2) == 0;
  std::vector<double> work, weight, activation;
  double total_weight = 0, total_activation = 0, total_work = 0;
  const bool idle = random.integer(0, 199) == 0;  // nothing takes time but transfers
  for (int l = 0; l < layers; ++l) {
    work.push_back(idle || random.integer(0, 15) == 0 ? 0 : random.uniform(0.2, 2));
    weight.push_back(random.integer(0, 9) == 0 ? 0 : random.uniform(0, deep ? 2e4 : 1e6));
    activation.push_back(random.integer(0, 9) == 0 ? 0 : random.uniform(0, 5e5));
    total_work += work.back();
    total_weight += weight.back();
    total_activation += activation.back();
  }

  int devices = 0;
  double fastest = 0;
  for (int k = 0; k < subclusters; ++k) {
    const auto& s = made.hardware.subclusters[static_cast<std::size_t>(k)];
    devices += s.device_count();
    const double speed = random.uniform(0.5, 2.5), scaling = deep ? random.uniform(-0.3, 0.7) : random.uniform(0.4, 1);
    fastest = std::max(fastest, speed);
    const int first_class = costs.classes;
    for (const auto& mesh : submeshes(s, k)) {
      const int n = mesh.device_count();
      std::vector<degrees> ways{{1, 1, n}};
      if (n > 1 && random.integer(0, 1) == 0) ways.push_back({n, 1, 1});
      if (random.integer(0, 11) == 0) ways.clear();  // a shape that may not be used
      for (const auto& d : ways) {
        const int kind = limits.prices_by_degrees ? (d.data > 1 ? 1 : 0) : 0;
        costs.classes = std::max(costs.classes, first_class + kind + 1);
        cost_tables::row row{{mesh, d}, first_class + kind, {}, random.uniform(0, 1), {}};
        const double share = std::pow(n, scaling * (d.data > 1 ? 1.1 : 1));
        for (std::size_t l = 0; l < work.size(); ++l) {
          const double forward = time(work[l] * random.uniform(0.3, 0.5) / speed / share);
          const double backward = time(work[l] * random.uniform(0.5, 0.8) / speed / share);
          row.layer.push_back({forward, backward, static_cast<bytes_t>(std::ceil(weight[l] / d.tensor)),
                               static_cast<bytes_t>(std::ceil(activation[l] / n * random.uniform(0.8, 1.2)))});
        }
        costs.rows.push_back(std::move(row));
      }
    }
    if (costs.classes == first_class) ++costs.classes;
  }

  const double stage = std::max(1.0, total_work) / fastest / std::min(layers, 4);
  const double reach = random.uniform(0, 1.5) * stage;
  costs.prices.resize(static_cast<std::size_t>(costs.classes * costs.classes * std::max(0, layers - 1)));
  std::vector<int> subcluster_of(static_cast<std::size_t>(costs.classes), -1);
  for (const auto& r : costs.rows) subcluster_of[static_cast<std::size_t>(r.price_class)] = r.where.mesh.subcluster;
  const bool cut_off = random.integer(0, 19) == 0;
  std::vector<double> volume;
  for (int b = 0; b + 1 < layers; ++b) volume.push_back(random.integer(0, 5) == 0 ? 0 : random.uniform());
  for (int from = 0; from < costs.classes; ++from)
    for (int to = 0; to < costs.classes; ++to) {
      const bool inside = subcluster_of[static_cast<std::size_t>(from)] == subcluster_of[static_cast<std::size_t>(to)];
      const double pace = inside ? random.uniform(0, deep ? 1 : 0.4) : random.uniform(0.5, 1);
      for (int b = 0; b + 1 < layers; ++b)
        costs.price(from, to, b) = !inside && cut_off ? std::numeric_limits<double>::infinity()
                                                      : time(reach * pace * volume[static_cast<std::size_t>(b)]);
    }

  made.options.near_tie = 0;
  made.options.gap = 0;
  made.options.enumeration = 0;
  made.problem.microbatches = random.integer(0, 4) == 0 ? random.integer(1, 3) : random.integer(4, 32);
  made.options.epsilon = std::vector<double>{0, 0.1, 0.1, 0.3}[static_cast<std::size_t>(random.integer(0, 3))];
  made.problem.use_all_devices = random.integer(0, 3) == 0;
  const double generosity = std::exp(random.uniform(std::log(0.3), std::log(10.0)));
  for (auto& s : made.hardware.subclusters) {
    const double even = (total_weight + 2.5 * total_activation) / devices;
    s.device.memory_bytes = std::max<bytes_t>(1, static_cast<bytes_t>(even * generosity * random.uniform(0.6, 1.4)));
  }
  if (auto more = random; more.integer(0, 2) == 0) let_transfers_overlap(made, more);  // what `random` gives stays as it is
  return made;
}

/// Adds to an instance what plain ones lack, each in half of them: temporary bytes, overheads, placements that differ only in how
/// they save memory, and transfers that are dearer one way than the other.
inline void enrich(instance& given, random_source& random) {
  auto& rows = given.costs.rows;
  const auto share = [&](bytes_t bytes, double least, double most) {
    return static_cast<bytes_t>(static_cast<double>(bytes) * random.uniform(least, most));
  };
  if (random.integer(0, 1) == 0)
    for (auto& r : rows)
      for (auto& c : r.layer) c.temporary_bytes = random.integer(0, 3) == 0 ? 0 : share(c.activation_bytes, 0, 3);
  if (random.integer(0, 1) == 0) {
    const std::size_t plain = rows.size();
    for (std::size_t i = 0; i < plain; ++i) {
      if (random.integer(0, 1) == 0) {
        auto again = rows[i];
        again.where.recompute = random.integer(0, 1) == 0 ? recomputation::full : recomputation::selective;
        for (auto& c : again.layer) {
          c.backward_s += c.forward_s;
          const bytes_t kept = share(c.activation_bytes, 0, 0.5);
          c.temporary_bytes += c.activation_bytes - kept;
          c.activation_bytes = kept;
        }
        rows.push_back(std::move(again));
      }
      if (rows[i].where.degrees.data > 1) {
        auto sharded = rows[i];
        sharded.where.zero = random.integer(1, 3);
        for (auto& c : sharded.layer) {
          c.weight_bytes = share(c.weight_bytes, 0.2, 1);
          if (sharded.where.zero == 3) c.forward_s *= 1.25;
        }
        rows.push_back(std::move(sharded));
      }
    }
  }
  if (random.integer(0, 1) == 0) {
    // Devices have room for most of it, else hardly an instance would have a plan; and for the planner's roundings.
    const double fragmentation = random.uniform(0, 0.3), margin = random.uniform(0, 0.2);
    bytes_t most = 0;
    for (auto& r : rows) {
      const bytes_t memory = subcluster_of(given.hardware, r.where.mesh).device.memory_bytes;
      r.more = {.runtime_bytes = share(memory, 0, 0.5),
                .buffer_bytes = share(memory, 0, 0.2),
                .fragmentation = fragmentation,
                .margin = random.integer(0, 3) == 0 ? 0 : margin};
      most = std::max(most, r.more.runtime_bytes + r.more.buffer_bytes);
    }
    for (auto& s : given.hardware.subclusters)
      s.device.memory_bytes = 16 + static_cast<bytes_t>(static_cast<double>(s.device.memory_bytes + most) * (1 + margin));
  }
  if (random.integer(0, 1) == 0) {
    // Halves and doubles keep times on the grid, where ties occur.
    const bool grid = random.integer(0, 1) == 0;
    for (auto& c : given.costs.prices) {
      const double factor = grid ? std::ldexp(1, random.integer(-1, 1)) : random.uniform(0, 2);
      const bool there = random.integer(0, 1) == 0;
      (there ? c.forward_s : c.backward_s) *= factor;
      if (auto& occupied_s = there ? c.forward_occupied_s : c.backward_occupied_s) *occupied_s *= factor;
    }
  }
}

/// Lets up to two pairs of layers share most of the smaller one's weights.
inline void share_parameters(instance& given, random_source& random) {
  const int layers = given.costs.layers;
  for (int n = layers < 2 ? 0 : random.integer(1, 2); n > 0; --n) {
    const int owner = random.integer(0, 1) == 0 ? 0 : random.integer(0, layers - 2),
              layer = random.integer(owner + 1, layers - 1);
    const bool turned = random.integer(0, 3) == 0;
    const double share = random.uniform(0.5, 1) / 2;  // of two pairs with one layer
    for (auto& r : given.costs.rows) {
      const auto bytes = [&](int l) { return static_cast<double>(r.layer[static_cast<std::size_t>(l)].weight_bytes); };
      r.copies.push_back({.owner = turned ? layer : owner,
                          .layer = turned ? owner : layer,
                          .weight_bytes = static_cast<bytes_t>(share * std::min(bytes(owner), bytes(layer)))});
    }
  }
}

/// Cells that have little to do with one another.
inline interval_costs random_intervals(random_source& random, const cost_tables& tables) {
  interval_costs costs{tables, {}};
  const auto n = static_cast<std::size_t>(tables.layers);
  costs.cells.resize(tables.rows.size() * n * n);
  for (std::size_t r = 0; r < tables.rows.size(); ++r)
    for (std::size_t a = 0; a < n; ++a) {
      stage_cost sum;
      for (std::size_t b = a; b < n; ++b) {
        sum += tables.rows[r].layer[b];
        auto& cell = costs.cells[(r * n + a) * n + b];
        cell.forward_s = sum.forward_s * random.uniform(0.4, 1.2);
        cell.backward_s = sum.backward_s * random.uniform(0.4, 1.2);
        cell.weight_bytes = static_cast<bytes_t>(static_cast<double>(sum.weight_bytes) * random.uniform(0.5, 1.2));
        cell.activation_bytes = static_cast<bytes_t>(static_cast<double>(sum.activation_bytes) * random.uniform(0.5, 1.2));
        if (sum.temporary_bytes > 0)
          cell.temporary_bytes = static_cast<bytes_t>(static_cast<double>(sum.temporary_bytes) * random.uniform(0.5, 1.2));
      }
    }
  return costs;
}

}  // namespace hetsched::test
