// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched {

/// How a tensor changes its form: a part of a sum becomes whole, or cut; a cut one whole, in one of two ways, or cut elsewhere.
enum class spmd_collective { all_reduce, reduce_scatter, padded_gather, broadcast_gather, all_to_all };

[[nodiscard]] constexpr const char* name_of(spmd_collective c) {
  return c == spmd_collective::all_reduce         ? "all_reduce"
         : c == spmd_collective::reduce_scatter   ? "reduce_scatter"
         : c == spmd_collective::padded_gather    ? "all_gather"
         : c == spmd_collective::broadcast_gather ? "grouped_broadcast"
                                                  : "all_to_all";
}

/// One step that all devices take: they compute a node by a rule, read a leaf in the rule's form, or change a tensor's form
/// together.
struct spmd_instruction {
  int node = 0;
  bool collective = false;
  spmd_rule rule{};  ///< of a computation
  spmd_collective how = spmd_collective::all_reduce;
  tensor_form from = tensor_form::whole(), to = tensor_form::whole();  ///< of a collective

  friend bool operator==(const spmd_instruction&, const spmd_instruction&) = default;
};

/// What every device of the stage does, in order. Where a rule needs a cut input of which the device has all, it takes its part.
using spmd_program = std::vector<spmd_instruction>;

/// What happens between two meetings of the devices: the collective that begins it, if any, and each kind's computation.
struct spmd_stage {
  share_cost collective{};
  std::vector<share_cost> compute{};  ///< per kind of device

  friend bool operator==(const spmd_stage&, const spmd_stage&) = default;
};

[[nodiscard]] inline const share_cost& price_of(const collective_costs& costs, spmd_collective how) {
  switch (how) {
    case spmd_collective::all_reduce:
      return costs.all_reduce;
    case spmd_collective::reduce_scatter:
      return costs.reduce_scatter;
    case spmd_collective::padded_gather:
      return costs.padded_gather;
    case spmd_collective::broadcast_gather:
      return costs.broadcast_gather;
    case spmd_collective::all_to_all:
      break;
  }
  return costs.all_to_all;
}

/// The stages of a program.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 3.2.
/// Complexity: O(instructions * kinds).
[[nodiscard]] inline std::vector<spmd_stage> stages_of(const spmd_problem& problem, const spmd_program& program) {
  const spmd_stage empty{.compute = std::vector<share_cost>(problem.kinds.size())};
  std::vector<spmd_stage> stages{empty};
  for (const auto& step : program) {
    if (step.collective) {
      stages.push_back(empty);
      stages.back().collective = price_of(problem.collect[static_cast<std::size_t>(step.node)], step.how);
    } else if (!is_leaf(problem.graph.at(step.node))) {
      for (std::size_t k = 0; k < problem.kinds.size(); ++k) {
        auto& sum = stages.back().compute[k];
        const auto& one = problem.compute_of(step.node, k);
        sum.fixed_s += step.rule.shared ? one.fixed_s : one.whole();
        if (step.rule.shared) sum.slope_s += one.slope_s;
      }
    }
  }
  return stages;
}

/// Seconds of stages when a device of each kind has that share of every cut tensor: in each the collective, then the slowest
/// device.
/// Complexity: O(stages * kinds).
[[nodiscard]] inline double seconds_of(const std::vector<spmd_stage>& stages, const std::vector<double>& shares) {
  const double largest = *std::max_element(shares.begin(), shares.end());
  double seconds = 0;
  for (const auto& s : stages) {
    double slowest = 0;
    for (std::size_t k = 0; k < shares.size(); ++k) slowest = std::max(slowest, s.compute[k].at(shares[k]));
    seconds += s.collective.at(largest) + slowest;
  }
  return seconds;
}

[[nodiscard]] inline std::string text_of(tensor_form form) {
  return form.is_whole() ? "whole" : form.is_partial() ? "partial" : "cut " + std::to_string(form.dimension());
}

/// One line for an instruction, as in `h = matmul(x: cut 0, w: whole): cut 0`.
[[nodiscard]] inline std::string text_of(const tensor_graph& graph, const spmd_instruction& step) {
  const auto& n = graph.at(step.node);
  if (step.collective)
    return n.name + " = " + name_of(step.how) + "(" + n.name + ": " + text_of(step.from) + "): " + text_of(step.to);
  std::string text = n.name + " = " + n.op + "(";
  for (std::size_t i = 0; i < n.inputs.size(); ++i)
    text += (i > 0 ? ", " : "") + graph.at(n.inputs[i]).name + ": " + text_of(step.rule.inputs[i]);
  return text + "): " + text_of(step.rule.result);
}

}  // namespace hetsched
