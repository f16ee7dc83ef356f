// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/hexiscale/polish_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/link_index.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/planners/hexiscale/hand_out.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/search/problem.hpp>

namespace hetsched {

/// Devices of one pipeline: pieces of nodes, each on one node.
using pipeline_devices = std::vector<device_group>;

namespace detail {

/// Throws input_error unless devices are ones of the cluster.
inline void validate_devices(const cluster& hardware, const pipeline_devices& devices) {
  for (const auto& g : devices) {
    const auto& s = subcluster_of(hardware, g.mesh);
    expect_count(g.mesh.nodes, "nodes of a stage's devices", 1, s.nodes);
    expect_count(g.mesh.devices_per_node, "devices_per_node of a stage's devices", 1, s.devices_per_node);
    expect_count(g.first_device, "the first of a stage's devices", 0, s.device_count() - g.mesh.device_count());
  }
}

}  // namespace detail

/// The devices of a pipeline's stages, by node; what lies side by side is one piece.
/// Throws: input_error for devices that the cluster does not have.
[[nodiscard]] inline pipeline_devices devices_of(const cluster& hardware, const pipeline_plan& line) {
  detail::validate_network(hardware, false);
  for (const auto& s : line.stages) detail::validate_devices(hardware, s.devices);
  std::vector<std::pair<int, int>> all;  // subcluster, device
  for (const auto& s : line.stages)
    for (const auto& g : s.devices)
      for (int d = 0; d < g.mesh.device_count(); ++d) all.emplace_back(g.mesh.subcluster, g.first_device + d);
  std::sort(all.begin(), all.end());
  pipeline_devices pieces;
  for (const auto& [k, d] : all) {
    const int per_node = at(hardware.subclusters, k).devices_per_node;
    if (!pieces.empty()) {
      auto& last = pieces.back();
      if (last.mesh.subcluster == k && last.first_device + last.mesh.devices_per_node == d && d % per_node != 0) {
        ++last.mesh.devices_per_node;
        continue;
      }
    }
    pieces.push_back({{k, 1, 1}, d});
  }
  return pieces;
}

namespace detail {

/// Some devices of a cluster as a cluster of their own: pieces of one subcluster and size are the nodes of a subcluster.
struct cut_out {
  cluster hardware;
  std::vector<int> origin;                       // of each subcluster
  std::vector<std::vector<device_group>> nodes;  // the piece that is each node

  cut_out(const cluster& whole, const pipeline_devices& pieces) {
    std::map<std::pair<int, int>, std::vector<device_group>> alike;
    for (const auto& p : pieces) alike[{p.mesh.subcluster, p.mesh.devices_per_node}].push_back(p);
    for (auto& [key, all] : alike) {
      auto s = at(whole.subclusters, key.first);
      s.name += "/" + std::to_string(key.second);
      s.nodes = static_cast<int>(all.size());
      s.devices_per_node = key.second;
      if (at(whole.subclusters, key.first).nodes == 1) s.inter_node = s.intra_node;
      hardware.subclusters.push_back(std::move(s));
      origin.push_back(key.first);
      nodes.push_back(std::move(all));
    }
    const int count = static_cast<int>(origin.size());
    const link_index links(whole);
    for (int b = 0; b < count; ++b)
      for (int a = 0; a < b; ++a) {
        const int x = at(origin, a), y = at(origin, b);
        const auto way = [&](int from, int to) {
          if (from != to) return links.between(from, to);
          const int devices =
              std::min(at(hardware.subclusters, a).devices_per_node, at(hardware.subclusters, b).devices_per_node);
          const auto& own = at(whole.subclusters, from);
          return std::optional(own.nodes == 1 ? own.intra_node : own.between_nodes(devices));
        };
        if (const auto over = way(x, y)) hardware.links.push_back({a, b, *over, {}, way(y, x)->bandwidth});
      }
  }

  [[nodiscard]] submesh in_whole(submesh mesh) const {
    mesh.subcluster = at(origin, mesh.subcluster);
    return mesh;
  }
  [[nodiscard]] placement in_whole(placement p) const {
    p.mesh = in_whole(p.mesh);
    return p;
  }
  /// A stage's devices in the whole cluster.
  [[nodiscard]] std::vector<device_group> in_whole(const device_group& g) const {
    const auto k = as_size(g.mesh.subcluster);
    const int per_node = hardware.subclusters[k].devices_per_node;
    std::vector<device_group> found;
    for (int n = 0; n < g.mesh.nodes; ++n) {
      const auto& piece = at(nodes[k], g.first_device / per_node + n);
      found.push_back({{origin[k], 1, g.mesh.devices_per_node}, piece.first_device + g.first_device % per_node});
    }
    return found;
  }
};

/// The costs of a cluster, asked about a part of it. A stage's update ends with the gradients that it shares with the other
/// pipelines.
struct cut_out_costs {
  const cut_out& part;
  any_cost_model costs;
  std::vector<std::vector<placement>> others = {};  // by layer: what holds it in other pipelines; none: nothing does

  [[nodiscard]] bool additive() const { return costs.additive(); }
  [[nodiscard]] bool has_transfer_class() const { return costs.has_transfer_class(); }
  [[nodiscard]] int layer_count() const { return costs.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    std::vector<placement> found = costs.placements(part.in_whole(mesh));
    for (auto& p : found) p.mesh.subcluster = mesh.subcluster;
    return found;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& p) const { return costs.stage(layers, part.in_whole(p)); }
  [[nodiscard]] stage_cost layer(int index, const placement& p) const { return costs.layer(index, part.in_whole(p)); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs.transfer(boundary, part.in_whole(from), part.in_whole(to), near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& p) const {
    double seconds = costs.update(layers, part.in_whole(p));
    if (others.empty()) return seconds;
    for (int l = layers.first; l < layers.last; ++l) {
      auto holders = at(others, l);
      holders.push_back(part.in_whole(p));
      const reduction_cost c = costs.gradient_sync(layer_range{l, l + 1}, holders);
      if (c.seconds < longest_time_s) seconds += c.seconds;  // where no link leads, evaluate refuses
    }
    return seconds;
  }
  [[nodiscard]] memory_overheads overheads(const placement& p) const { return costs.overheads(part.in_whole(p)); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& p) const { return costs.copies(part.in_whole(p)); }
  [[nodiscard]] std::int64_t transfer_class(const placement& p) const { return costs.transfer_class(part.in_whole(p)); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return costs.boundary_class(boundary); }
};

/// What a pipeline of an evaluated plan takes, updates left out.
[[nodiscard]] inline line_pace pace_of(const pipeline_plan& line) {
  const auto bare = to_pipeline(line);
  line_pace pace;
  for (int i = 0; i < bare.stages(); ++i)
    pace.latency_s += bare.compute_s(i) + (i + 1 < bare.stages() ? bare.round_trip_s(i) : 0.0);
  pace.period_s = hetsched::period(bare, warmups(line));
  return pace;
}

/// Whether two pipelines' devices are as many of the same kinds.
[[nodiscard]] inline bool alike(const pipeline_devices& a, const pipeline_devices& b) {
  const auto shapes = [](const pipeline_devices& all) {
    std::vector<std::pair<int, int>> found;
    for (const auto& d : all) found.emplace_back(d.mesh.subcluster, d.mesh.devices_per_node);
    std::sort(found.begin(), found.end());
    return found;
  };
  return shapes(a) == shapes(b);
}

/// A pipeline on the devices of one cut-out, moved to those of another like it.
[[nodiscard]] inline pipeline_plan moved(pipeline_plan line, const cut_out& from, const cut_out& to) {
  for (auto& s : line.stages)
    for (auto& g : s.devices)
      for (std::size_t k = 0; k < from.nodes.size(); ++k)
        for (std::size_t n = 0; n < from.nodes[k].size(); ++n) {
          const auto& piece = from.nodes[k][n];
          const int offset = g.first_device - piece.first_device;
          if (piece.mesh.subcluster != g.mesh.subcluster || offset < 0 || offset >= piece.mesh.devices_per_node) continue;
          g.first_device = to.nodes[k][n].first_device + offset;
          k = from.nodes.size() - 1;
          break;
        }
  return line;
}

/// By layer: the placements that hold it in all pipelines but one.
[[nodiscard]] inline std::vector<std::vector<placement>> other_holders(const plan& p, std::size_t but) {
  std::vector<std::vector<placement>> holders;
  if (p.pipelines.size() < 2) return holders;
  holders.resize(as_size(p.pipelines.front().stages.back().layers.last));
  for (std::size_t l = 0; l < p.pipelines.size(); ++l)
    for (const auto& s : p.pipelines[l].stages)
      for (int layer = s.layers.first; l != but && layer < s.layers.last; ++layer) at(holders, layer).push_back(s.where());
  return holders;
}

/// Puts these pipelines into a plan, with its microbatches handed out anew, if evaluate finds that better.
inline void replace_if_better(const cluster& hardware, const any_cost_model& costs, const planning_problem& problem,
                              double epsilon, const std::vector<pipeline_plan>& lines, plan& best) {
  plan next = best;
  next.pipelines = lines;
  std::vector<line_pace> paces;
  for (const auto& line : lines) paces.push_back(pace_of(line));
  const auto counts = hand_out(microbatch_count(best), paces);
  for (std::size_t l = 0; l < counts.size(); ++l) next.pipelines[l].microbatches = counts[l];
  auto judged = evaluate(hardware, costs, std::move(next),
                         {.flops_per_sample = problem.flops_per_sample, .arithmetic = problem.arithmetic, .epsilon = epsilon});
  if (judged && judged->shortage.empty() && judged->plan.predicted.iteration_s < best.predicted.iteration_s)
    best = std::move(judged->plan);
}

}  // namespace detail

/// Solves each pipeline of a plan anew on devices of its own, by interop_dp, which is told what the gradients take that it shares
/// with the others as they are; and hands out the microbatches again. All pipelines are replaced at once, or else one by one, as
/// long as that helps; two rounds of it. Warm-ups are exact ones: options.warmup is not looked at.
/// `devices`: of each pipeline; those that its stages use and more.
/// Requires: an evaluated plan under exact_1f1b, and devices that no two pipelines share.
/// Throws: input_error for a plan that evaluate refuses or has not seen, devices that the cluster does not have, of other
/// pipelines than the plan's, or of several nodes; and as interop_dp. Returns: the better of what was found and what was given,
/// as evaluate has it. Determinism: by the arguments.
[[nodiscard]] inline plan polish_pipelines(const cluster& hardware, const any_cost_model& costs, plan given,
                                           const std::vector<pipeline_devices>& devices, const planning_problem& problem,
                                           const interop_options& options = {}) {
  validate_iteration(hardware, problem, "polish_pipelines");
  validate(hardware, given, costs.layer_count());
  detail::expect_size(devices.size(), given.pipelines.size(), "devices", "a list for each pipeline");
  for (std::size_t l = 0; l < devices.size(); ++l) {
    const auto& line = given.pipelines[l];
    detail::expect_count(static_cast<std::int64_t>(devices[l].size()), "devices of a pipeline");
    detail::validate_devices(hardware, devices[l]);
    for (const auto& g : devices[l]) detail::expect_count(g.mesh.nodes, "nodes of a piece of devices", 1, 1);
    detail::expect_size(line.boundaries.size() + 1, line.stages.size(), "boundaries and one more", "one per stage");
  }
  bool stopped = false;
  auto exactly = options;
  exactly.warmup = warmup_rule::exact;
  exactly.prove = false;  // of other costs than the plan's
  for (int round = 0; round < 2 && !stopped; ++round) {
    std::vector<pipeline_plan> solved;
    for (std::size_t l = 0; l < devices.size(); ++l) {
      if (stopped = stopped || !problem.may_go_on(); stopped) return given;
      auto one = problem;
      one.microbatches = given.pipelines[l].microbatches;
      one.beat = infinity;
      one.progress = [&](const search_progress& at) {
        if (problem.progress && !problem.progress({at.steps, at.unit, given.predicted.iteration_s, 0})) stopped = true;
        return !stopped;
      };
      // Equal pipelines on equal devices have equal ones.
      std::size_t twin = l;
      for (std::size_t k = 0; k < l && twin == l; ++k)
        if (detail::alike(devices[k], devices[l]) && given.pipelines[k].microbatches == one.microbatches) twin = k;
      const detail::cut_out part(hardware, devices[l]);
      if (twin < l) {
        solved.push_back(detail::moved(solved[twin], detail::cut_out(hardware, devices[twin]), part));
        continue;
      }
      solved.push_back(given.pipelines[l]);
      if (stopped) continue;
      auto found = interop_dp(part.hardware, detail::cut_out_costs{part, costs, detail::other_holders(given, l)}, one, exactly);
      if (!found) continue;
      solved.back() = std::move(found->pipelines.front());
      for (auto& s : solved.back().stages) s.devices = part.in_whole(s.devices.front());
    }
    const double before = given.predicted.iteration_s;
    detail::replace_if_better(hardware, costs, problem, options.epsilon, solved, given);
    for (std::size_t l = 0; l < solved.size() && given.predicted.iteration_s == before; ++l) {
      auto lines = given.pipelines;
      lines[l] = solved[l];
      detail::replace_if_better(hardware, costs, problem, options.epsilon, lines, given);
    }
    if (given.predicted.iteration_s == before) break;
  }
  return given;
}

/// The same with the devices that each pipeline uses.
[[nodiscard]] inline plan polish_pipelines(const cluster& hardware, const any_cost_model& costs, plan given,
                                           const planning_problem& problem, const interop_options& options = {}) {
  std::vector<pipeline_devices> devices;
  for (const auto& line : given.pipelines) devices.push_back(devices_of(hardware, line));
  return polish_pipelines(hardware, costs, std::move(given), devices, problem, options);
}

}  // namespace hetsched
