// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <mutex>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/program_costs.hpp>
#include <hetsched/spmd/ratios.hpp>

namespace hetsched::spmd {

namespace detail {

[[nodiscard]] inline bytes_t nearest_bytes(double bytes) { return static_cast<bytes_t>(bytes + 0.5); }

[[nodiscard]] inline std::vector<device_group> groups_of(std::span<const stage_part> parts) {
  std::vector<device_group> groups;
  for (const auto& p : parts) groups.insert(groups.end(), p.devices.begin(), p.devices.end());
  return groups;
}

// Of a device of each kind: kinds are the parts, in their order.
[[nodiscard]] inline std::vector<double> shares_of(const spmd::problem& problem, std::span<const stage_part> parts) {
  std::vector<double> shares;
  double all = 0;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    shares.push_back(static_cast<double>(parts[k].slices));
    all += shares.back() * problem.kinds[k].count;
  }
  for (auto& s : shares) s /= all;
  return shares;
}

// Gradients are held once; of all else what the program holds at its peak, for every microbatch in flight.
[[nodiscard]] inline stage_cost memory_at(const spmd::problem& p, const spmd::program& steps, double share) {
  const double number = element_bytes(p.graph.format), state = state_bytes_of(p.graph.format, true);
  const auto memory = unchecked::memory_of(p, steps, state);
  std::vector<double> from(steps.size(), 0);  // bytes of gradients that are held from a step on
  double gradients = 0;
  for (const auto& [parameter, gradient] : p.goal.gradients)
    for (auto k = steps.size(); k-- > 0;) {
      const auto& step = steps[k];
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
  held.gradient_bytes = nearest_bytes(gradients);
  held.optimizer_bytes = nearest_bytes(memory.state.at(share) * (state - number) / state);
  held.weight_bytes = nearest_bytes(memory.state.at(share)) + held.gradient_bytes;
  held.activation_bytes = nearest_bytes(most);
  return held;
}

}  // namespace detail

struct program_costs::found_program {
  std::shared_ptr<const spmd::problem> problem{};  ///< null: there is none
  stage_goal stage{};
  spmd::program program{}, forward{};
};

struct program_costs::found_programs {
  using key = std::pair<std::pair<int, int>, std::vector<std::pair<int, int>>>;  ///< layers; subclusters and nodes

  std::mutex guard;
  std::map<key, found_program> all;
};

HETSCHED_INLINE program_costs::program_costs(const cluster& hardware, any_cost_model base, program_cost_options options)
    : hardware_(&hardware), base_(std::move(base)), options_(std::move(options)), found_(std::make_shared<found_programs>()) {
  hetsched::detail::expect_count(options_.slices, "slices", 1, 1'000'000);
  detail::expect_options(options_.search);
}

HETSCHED_INLINE parts_cost program_costs::sliced_stage(layer_range layers, std::span<const stage_part> parts) const {
  expect_stage(layers, parts);
  parts_cost all;
  for (const auto& p : parts) all.overheads.push_back(base_.overheads(p.where));
  all.parts.resize(parts.size());
  const auto mode = parts.front().where.recompute;
  const auto& one = find(layers, parts);
  if (!one.problem || mode == recomputation::selective) {
    all.slowest.forward_s = all.slowest.backward_s = infinity;
    return all;
  }
  const auto shares = detail::shares_of(*one.problem, parts);
  const double forward_s = detail::unchecked::seconds_of(detail::unchecked::stages_of(*one.problem, one.forward), shares),
               both_s = detail::unchecked::seconds_of(detail::unchecked::stages_of(*one.problem, one.program), shares),
               whole_rows_s = detail::unchecked::round_shares(*one.problem, one.program, shares).seconds;
  all.slowest.forward_s = both_s > 0 ? whole_rows_s * forward_s / both_s : 0;
  all.slowest.backward_s = whole_rows_s - all.slowest.forward_s;
  if (mode == recomputation::full) all.slowest.backward_s += all.slowest.forward_s;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    auto& held = all.parts[k];
    held = detail::memory_at(*one.problem, one.program, shares[k]);
    if (mode == recomputation::full) {
      held.temporary_bytes = held.activation_bytes;
      held.activation_bytes = detail::nearest_bytes(tensor_bytes(one.problem->graph, one.stage.input));
    }
    all.slowest.weight_bytes = std::max(all.slowest.weight_bytes, held.weight_bytes);
    all.slowest.activation_bytes = std::max(all.slowest.activation_bytes, held.activation_bytes);
    all.slowest.temporary_bytes = std::max(all.slowest.temporary_bytes, held.temporary_bytes);
  }
  return all;
}

HETSCHED_INLINE spmd::stage_program program_costs::program(layer_range layers, std::span<const stage_part> parts) const {
  expect_stage(layers, parts);
  const auto& one = find(layers, parts);
  if (!one.problem) throw input_error("no program: no link joins two of the stage's devices, or two parts are of one subcluster");
  return {.problem = one.problem, .stage = one.stage, .program = one.program, .shares = detail::shares_of(*one.problem, parts)};
}

HETSCHED_INLINE void program_costs::expect_stage(layer_range layers, std::span<const stage_part> parts) const {
  if (!(layers.first >= 0 && layers.first < layers.last && layers.last <= base_.layer_count()))
    throw input_error("a stage of layers " + std::to_string(layers.first) + " up to " + std::to_string(layers.last) + " of " +
                      std::to_string(base_.layer_count()));
  if (parts.empty()) throw input_error("a stage needs at least one part");
  for (const auto& p : parts) hetsched::detail::expect_count(p.slices, "slices of a part of a stage", 1);
}

HETSCHED_INLINE const program_costs::found_program& program_costs::find(layer_range layers,
                                                                        std::span<const stage_part> parts) const {
  const auto devices = devices_of(*hardware_, detail::groups_of(parts));
  found_programs::key of{{layers.first, layers.last}, {}};
  std::map<int, int> first_node;  // which nodes they are makes no difference, but which devices share one
  for (const auto& d : devices)
    of.second.emplace_back(d.subcluster, d.node - first_node.emplace(d.subcluster, d.node).first->second);
  const std::lock_guard lock(found_->guard);
  const auto known = found_->all.find(of);
  return known != found_->all.end() ? known->second
                                    : found_->all.emplace(std::move(of), made(layers, parts.size(), devices)).first->second;
}

HETSCHED_INLINE program_costs::found_program program_costs::made(layer_range layers, std::size_t parts,
                                                                 const std::vector<device_id>& devices) const {
  auto [graph, input, output, first] = graph_of_(layers);
  validate(graph);
  hetsched::detail::expect_count(input, "input of a stage's graph", 0, graph.size() - 1);
  hetsched::detail::expect_count(output, "output of a stage's graph", 0, graph.size() - 1);
  if (!is_placeholder(graph.at(input)))
    throw input_error("the input of a stage's graph, " + graph.at(input).name + ", is no placeholder");
  if (segment_count(graph) > 1) throw input_error("the graph of a stage that a program shares out has segments");
  found_program one{.stage = add_stage_backward(graph, input, output, first)};
  auto named = *hardware_;  // by subcluster, as parts are
  for (auto& s : named.subclusters) s.device.name += " of " + s.name;
  auto problem = make_problem(named, devices, std::move(graph), one.stage.goal, timer_);
  if (!problem || problem->kinds.size() != parts) return {};
  auto solution = detail::unchecked::synthesize(*problem, options_.search);
  if (!solution) return {};
  one.program = std::move(solution->program);
  std::vector<char> later(problem->graph.nodes.size(), 0);  // what needs the output's gradient
  at(later, one.stage.output_gradient) = 1;
  for (int n = 0; n < problem->graph.size(); ++n)
    for (const int from : problem->graph.at(n).inputs) at(later, n) |= at(later, from);
  for (const auto& step : one.program)
    if (!at(later, step.node)) one.forward.push_back(step);
  one.problem = std::make_shared<const spmd::problem>(*std::move(problem));
  return one;
}

}  // namespace hetsched::spmd
