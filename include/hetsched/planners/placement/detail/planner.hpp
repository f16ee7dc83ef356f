// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/placement/placement_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/placement/chain.hpp>

#include <hetsched/planners/placement/options.hpp>

namespace hetsched {

namespace detail {

/// A cluster and costs as a chain to place, and back.
struct placement_instance {
  placement_chain chain;
  std::vector<placement> where;    // by kind
  std::vector<int> first_of_pool;  // device
  std::vector<int> stride;         // devices from one stage of a pool to the next

  /// The devices of stages.
  [[nodiscard]] std::vector<stage_plan> stages(const placed_chain& found) const {
    std::vector<stage_plan> all;
    std::vector<int> taken(chain.pools.size(), 0);
    for (const auto& s : found.stages) {
      const auto k = as_size(s.kind);
      const auto pool = as_size(chain.kinds[k].pool);
      const auto& w = where[k];
      const int first = first_of_pool[pool] + taken[pool]++ * stride[pool];
      all.push_back(
          {.layers = s.layers, .devices = {{w.mesh, first}}, .degrees = w.degrees, .recompute = w.recompute, .zero = w.zero});
    }
    return all;
  }
};

/// Throws input_error unless the groups fit their subclusters.
inline void validate_groups(const cluster& hardware, const placement_options& options) {
  if (options.stages < 0) throw input_error("the number of stages must not be negative");
  if (options.groups.empty()) return;
  if (options.groups.size() != hardware.subclusters.size())
    throw input_error("groups: found " + std::to_string(options.groups.size()) + ", expected one for each subcluster");
  for (std::size_t k = 0; k < options.groups.size(); ++k) {
    const auto& g = options.groups[k];
    const auto& s = hardware.subclusters[k];
    if (g.subcluster != static_cast<int>(k) || g.nodes < 1 || g.devices_per_node < 1 || g.nodes > s.nodes ||
        g.devices_per_node > s.devices_per_node || (g.nodes > 1 && g.devices_per_node != s.devices_per_node))
      throw input_error("groups: that of " + s.name + " does not fit it");
  }
}

/// Whether nothing changes where two pools change places: what stages cost on them and what moves between these and all others.
[[nodiscard]] inline bool are_alike(const placement_chain& chain, int one, int other) {
  std::vector<int> swapped(chain.kinds.size());
  std::vector<int> first, second;
  for (std::size_t k = 0; k < chain.kinds.size(); ++k) {
    swapped[k] = static_cast<int>(k);
    if (chain.kinds[k].pool == one) first.push_back(static_cast<int>(k));
    if (chain.kinds[k].pool == other) second.push_back(static_cast<int>(k));
  }
  if (at(chain.pools, one).count != at(chain.pools, other).count || first.size() != second.size()) return false;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto &a = at(chain.kinds, first[i]), &b = at(chain.kinds, second[i]);
    if (a.seconds_before != b.seconds_before || a.state_before != b.state_before || a.in_flight_before != b.in_flight_before ||
        a.temporary != b.temporary || a.memory.room != b.memory.room || a.memory.scale != b.memory.scale)
      return false;
    at(swapped, first[i]) = second[i];
    at(swapped, second[i]) = first[i];
  }
  const auto equal = [&](int b, int from, int to) {
    const auto &t = chain.transfer(b, from, to), &u = chain.transfer(b, at(swapped, from), at(swapped, to));
    return t.seconds == u.seconds && t.occupied_s == u.occupied_s;
  };
  for (int b = 0; b + 1 < chain.layers; ++b)
    for (const int k : first)
      for (int x = 0; x < static_cast<int>(swapped.size()); ++x)
        if (!equal(b, k, x) || !equal(b, x, k)) return false;
  return true;
}

/// What a chain is asked for.
struct chain_question {
  bool serves = false;  ///< requests, which go one way; else microbatches of training, there and back
  std::function<double(int stages_left)> in_flight;
  bool use_all_devices = false;
  int parts = 0;  ///< as of inference_problem
  function_ref<bool()> go_on = {};

  [[nodiscard]] bool may_go_on() const { return !go_on || go_on(); }
};

/// The pools: a whole subcluster, or each node of it where stages of one node have another link than those of two. Where
/// go_on ends it, it leaves the rest out.
[[nodiscard]] inline placement_instance make_instance(price_book& book, const chain_question& asked,
                                                      const placement_options& options) {
  const auto& hardware = book.hardware();
  placement_instance made;
  auto& chain = made.chain;
  chain.layers = book.layers();
  std::vector<int> in_book;       // by kind
  std::vector<bool> on_one_node;  // by pool: all of it
  std::vector<char> nodes_apart;  // by pool: its subcluster has others
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    const auto& s = hardware.subclusters[k];
    const submesh mesh = options.groups.empty() ? submesh{static_cast<int>(k), 1, 1} : options.groups[k];
    const int on_node = s.devices_per_node / mesh.devices_per_node;
    const bool by_node = s.nodes > 1 && on_node > 1;
    const auto& ways = book.placements(mesh);
    for (int node = 0; node < (by_node ? s.nodes : 1); ++node) {
      if (!asked.may_go_on()) return made;
      if (asked.parts > 0 && static_cast<int>(chain.pools.size()) == asked.parts) break;
      const int pool = static_cast<int>(chain.pools.size());
      chain.pools.push_back(
          {.count = by_node || s.nodes == 1 ? on_node : s.nodes / mesh.nodes, .twin = node > 0 ? pool - 1 : -1});
      on_one_node.push_back(by_node || s.nodes == 1);
      nodes_apart.push_back(by_node);
      made.first_of_pool.push_back(node * s.devices_per_node);
      made.stride.push_back(by_node || s.nodes == 1 ? mesh.devices_per_node : mesh.nodes * s.devices_per_node);
      for (const int p : ways) {
        placement_kind kind{.pool = pool,
                            .seconds_before = {0},
                            .state_before = {0},
                            .in_flight_before = {0},
                            .memory = book[p].memory,
                            .copies = book[p].copies};
        for (const stage_cost& c : book.layers_on(p)) {
          const auto add = [](std::vector<double>& sums, double x) { sums.push_back(sums.back() + x); };
          add(kind.seconds_before, asked.serves ? c.forward_s : c.total_s());
          add(kind.state_before, static_cast<double>(c.weight_bytes));
          add(kind.in_flight_before, static_cast<double>(c.activation_bytes));
          kind.temporary.push_back(static_cast<double>(c.temporary_bytes));
        }
        chain.kinds.push_back(std::move(kind));
        made.where.push_back(book[p].where);
        in_book.push_back(p);
      }
    }
  }
  const auto kinds = chain.kinds.size();
  chain.boundary_kinds = book.boundary_kinds();
  for (const int b : book.first_boundaries())
    for (std::size_t from = 0; from < kinds; ++from) {
      if (!asked.may_go_on()) return made;
      for (std::size_t to = 0; to < kinds; ++to) {
        const int pool = chain.kinds[from].pool;
        const bool near = pool == chain.kinds[to].pool && at(on_one_node, pool);
        const auto& c = book.transfer(b, in_book[from], in_book[to], near ? proximity::same_node : proximity::other_node);
        if (asked.serves)
          chain.transfers.push_back({c.forward_s, c.forward_occupied_s.value_or(c.forward_s)});
        else
          chain.transfers.push_back({c.round_trip_s(), c.occupied_s()});
      }
    }
  // Of subclusters that are alike, as machines of one kind in one network are, the first ones are used first.
  for (int p = 1; p < static_cast<int>(chain.pools.size()); ++p)
    for (int other = p - 1; other >= 0 && at(chain.pools, p).twin < 0 && at(nodes_apart, p) == 0; --other)
      if (at(nodes_apart, other) == 0 && are_alike(chain, other, p)) at(chain.pools, p).twin = other;
  chain.in_flight = asked.in_flight;
  chain.stages = options.stages;
  if (asked.use_all_devices) {
    int all = 0;
    for (const auto& p : chain.pools) all += p.count;
    if (chain.stages > 0 && chain.stages != all) throw input_error("all devices make " + std::to_string(all) + " stages");
    chain.stages = all;
  }
  return made;
}

}  // namespace detail
}  // namespace hetsched
