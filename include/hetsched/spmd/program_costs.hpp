// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/stage_part.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/spmd/costs.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/ratios.hpp>
#include <hetsched/spmd/stage_program.hpp>
#include <hetsched/spmd/synthesize.hpp>

namespace hetsched {

/// Some layers of a model as a graph of operators, for one microbatch.
struct program_graph {
  tensor_graph graph{};
  int input = 0;       ///< a placeholder
  int output = 0;      ///< a node
  bool first = false;  ///< its input is data, and nobody asks for its gradient
};

struct program_cost_options {
  int slices = 64;                ///< into how many parts planners may cut what a stage shares out
  synthesis_options search = {};  ///< of each program
};

/// A cost model whose stages of unlike devices are computed by programs: all that `base` says, but that tensor ranks with unlike
/// devices, or uneven shares, take what the cheapest program takes that was found for the stage's graph on these devices. So
/// with_mixed_stages plans such stages, evaluate prices them, and a plan tells the program by its devices and shares: program()
/// finds it again, for an spmd_layer.
/// A program is searched for with shares of its own; at other shares it stays what it is, so another may be cheaper there.
/// Seconds are those of whole rows, as they run; forward and backward are told apart by what does not need the output's gradient.
/// Base: a cost model of training, for one microbatch size. ProgramGraph: (layer_range) -> program_graph, for microbatches of
/// that size; the same for the same layers.
/// Copies share what they have found, and may be asked from several threads.
/// Source: Zhang et al., HAP (EuroSys 2024), secs. 4 and 5.
template <stage_cost_model Base, class ProgramGraph, operator_timer Timer = tile_timer>
class program_costs {
 public:
  /// Requires: the cluster outlives this. Not checked.
  program_costs(const cluster& hardware, Base base, ProgramGraph graph_of, program_cost_options options = {}, Timer timer = {})
      : hardware_(&hardware),
        base_(std::move(base)),
        graph_of_(std::move(graph_of)),
        options_(std::move(options)),
        timer_(std::move(timer)),
        found_(std::make_shared<found_programs>()) {}

  [[nodiscard]] int layer_count() const { return cost_of::layer_count(base_); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return cost_of::placements(base_, mesh); }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const requires additive_cost_model<Base> {
    return cost_of::layer(base_, index, where);
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    return cost_of::stage(base_, layers, where);
  }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return cost_of::transfer(base_, boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return cost_of::update(base_, layers, where); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return cost_of::gradient_sync(base_, layers, holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return cost_of::overheads(base_, where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return cost_of::boundary_class(base_, boundary); }

  [[nodiscard]] int slices() const { return options_.slices; }
  /// Of the cheapest program at these slices. Infinite seconds where no link joins the devices, for parts of one subcluster, and
  /// for recomputation of a part of a stage, which programs do not know. Throws: input_error for a graph in segments; as graph_of
  /// and add_stage_backward.
  /// Complexity: a synthesis for layers on devices that are asked for the first time, then O(instructions * parts).
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
    parts_cost all;
    for (const auto& p : parts) all.overheads.push_back(cost_of::overheads(base_, p.where));
    all.parts.resize(parts.size());
    const auto mode = parts.front().where.recompute;
    const auto& one = find(layers, parts);
    if (!one.problem || mode == recomputation::selective) {
      all.slowest.forward_s = all.slowest.backward_s = std::numeric_limits<double>::infinity();
      return all;
    }
    const auto shares = shares_of(*one.problem, parts);
    const double forward_s = seconds_of(stages_of(*one.problem, one.forward), shares),
                 both_s = seconds_of(stages_of(*one.problem, one.program), shares),
                 whole_rows_s = round_shares(*one.problem, one.program, shares).seconds;
    all.slowest.forward_s = whole_rows_s * forward_s / both_s;
    all.slowest.backward_s = whole_rows_s - all.slowest.forward_s;
    if (mode == recomputation::full) all.slowest.backward_s += all.slowest.forward_s;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      auto& held = all.parts[k];
      held = memory_at(one, shares[k]);
      if (mode == recomputation::full) {
        held.temporary_bytes = held.activation_bytes;
        held.activation_bytes = whole_bytes(tensor_bytes(one.problem->graph, one.stage.input));
      }
      all.slowest.weight_bytes = std::max(all.slowest.weight_bytes, held.weight_bytes);
      all.slowest.activation_bytes = std::max(all.slowest.activation_bytes, held.activation_bytes);
      all.slowest.temporary_bytes = std::max(all.slowest.temporary_bytes, held.temporary_bytes);
    }
    return all;
  }

  /// The program of a stage with these parts, as parts_of tells them, for an spmd_layer on its ranks: what sliced_stage prices.
  /// Throws: input_error where there is none: no link joins the devices, or two parts are of one subcluster.
  [[nodiscard]] spmd_stage_program program(layer_range layers, std::span<const stage_part> parts) const {
    const auto& one = find(layers, parts);
    if (!one.problem)
      throw input_error("no program: no link joins two of the stage's devices, or two parts are of one subcluster");
    return {.problem = one.problem, .stage = one.stage, .program = one.program, .shares = shares_of(*one.problem, parts)};
  }

 private:
  struct found_program {
    std::shared_ptr<const spmd_problem> problem{};  ///< null: there is none
    stage_goal stage{};
    spmd_program program{}, forward{};
  };
  using key = std::pair<std::pair<int, int>, std::vector<std::pair<int, int>>>;  ///< layers; subclusters and nodes
  struct found_programs {
    std::mutex guard;
    std::map<key, found_program> all;
  };

  static bytes_t whole_bytes(double bytes) { return static_cast<bytes_t>(bytes + 0.5); }

  [[nodiscard]] const found_program& find(layer_range layers, std::span<const stage_part> parts) const {
    const auto devices = devices_of(*hardware_, groups_of(parts));
    key of{{layers.first, layers.last}, {}};
    std::map<int, int> first_node;  // which nodes they are makes no difference, but which devices share one
    for (const auto& d : devices)
      of.second.emplace_back(d.subcluster, d.node - first_node.emplace(d.subcluster, d.node).first->second);
    const std::lock_guard lock(found_->guard);
    const auto known = found_->all.find(of);
    return known != found_->all.end() ? known->second
                                      : found_->all.emplace(std::move(of), made(layers, parts.size(), devices)).first->second;
  }
  [[nodiscard]] static std::vector<device_group> groups_of(std::span<const stage_part> parts) {
    std::vector<device_group> groups;
    for (const auto& p : parts) groups.insert(groups.end(), p.devices.begin(), p.devices.end());
    return groups;
  }
  [[nodiscard]] found_program made(layer_range layers, std::size_t parts, const std::vector<device_id>& devices) const {
    auto [graph, input, output, first] = graph_of_(layers);
    if (segment_count(graph) > 1) throw input_error("the graph of a stage that a program shares out has segments");
    found_program one{.stage = add_stage_backward(graph, input, output, first)};
    auto named = *hardware_;  // by subcluster, as parts are
    for (auto& s : named.subclusters) s.device.name += " of " + s.name;
    auto problem = make_spmd_problem(named, devices, std::move(graph), one.stage.goal, timer_);
    if (!problem || problem->kinds.size() != parts) return {};
    auto solution = synthesize(*problem, options_.search);
    if (!solution) return {};
    one.program = std::move(solution->program);
    std::vector<char> later(problem->graph.nodes.size(), 0);  // what needs the output's gradient
    later[static_cast<std::size_t>(one.stage.output_gradient)] = 1;
    for (int n = 0; n < problem->graph.size(); ++n)
      for (const int from : problem->graph.at(n).inputs)
        later[static_cast<std::size_t>(n)] |= later[static_cast<std::size_t>(from)];
    for (const auto& step : one.program)
      if (!later[static_cast<std::size_t>(step.node)]) one.forward.push_back(step);
    one.problem = std::make_shared<const spmd_problem>(*std::move(problem));
    return one;
  }
  /// Of a device of each kind: kinds are the parts, in their order.
  [[nodiscard]] static std::vector<double> shares_of(const spmd_problem& problem, std::span<const stage_part> parts) {
    std::vector<double> shares;
    double all = 0;
    for (std::size_t k = 0; k < parts.size(); ++k) {
      shares.push_back(static_cast<double>(parts[k].slices));
      all += shares.back() * problem.kinds[k].count;
    }
    for (auto& s : shares) s /= all;
    return shares;
  }
  /// Gradients are held once; of all else what the program holds at its peak, for every microbatch in flight.
  [[nodiscard]] static stage_cost memory_at(const found_program& one, double share) {
    const auto& p = *one.problem;
    const double number = element_bytes(p.graph.format), state = state_bytes_of(p.graph.format, true);
    const auto memory = memory_of(p, one.program, state);
    std::vector<double> from(one.program.size(), 0);  // bytes of gradients that are held from a step on
    double gradients = 0;
    for (const auto& [parameter, gradient] : p.goal.gradients)
      for (auto k = one.program.size(); k-- > 0;) {
        const auto& step = one.program[k];
        if (step.node != gradient) continue;
        const bool is_cut = (step.collective ? step.to : step.rule.result).is_cut();
        const double bytes = (is_cut ? share : 1) * number * static_cast<double>(elements_of(p.graph.at(gradient).shape));
        from[k] += bytes;
        gradients += bytes;
        break;
      }
    double most = 0, held_now = 0;
    for (std::size_t k = 0; k < from.size(); ++k) {
      held_now += from[k];
      most = std::max(most, memory.steps[k].at(share) - held_now);
    }
    stage_cost held;
    held.gradient_bytes = whole_bytes(gradients);
    held.optimizer_bytes = whole_bytes(memory.state.at(share) * (state - number) / state);
    held.weight_bytes = whole_bytes(memory.state.at(share)) + held.gradient_bytes;
    held.activation_bytes = whole_bytes(most);
    return held;
  }

  const cluster* hardware_;
  Base base_;
  ProgramGraph graph_of_;
  program_cost_options options_;
  Timer timer_;
  std::shared_ptr<found_programs> found_;
};

}  // namespace hetsched
