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
  std::vector<share_cost> compute{};  ///< per segment, in each per kind of device
  int segment = 0, other = 0;         ///< of the collective: two at a border

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

/// Whether a step exchanges a tensor between two segments. Where all data is parallel their shares are equal, and it does not.
[[nodiscard]] inline bool is_exchange(const spmd_problem& problem, const spmd_instruction& step) {
  return !step.collective && step.rule.shared && is_border(problem.graph.at(step.node)) && !problem.data_parallel_only;
}

/// The stages of a program.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 3.2 and, for segments, 5.2.
/// Complexity: O(instructions * kinds).
[[nodiscard]] inline std::vector<spmd_stage> stages_of(const spmd_problem& problem, const spmd_program& program) {
  const spmd_stage empty{.compute = std::vector<share_cost>(problem.kinds.size() * static_cast<std::size_t>(problem.segments()))};
  std::vector<spmd_stage> stages{empty};
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective || is_exchange(problem, step)) {
      stages.push_back(empty);
      auto& stage = stages.back();
      const auto& costs = problem.collect[static_cast<std::size_t>(step.node)];
      stage.collective = price_of(costs, step.collective ? step.how : spmd_collective::all_to_all);
      stage.segment = n.segment;
      stage.other = step.collective ? n.segment : problem.graph.at(n.inputs[0]).segment;
    } else if (!is_leaf(n)) {
      for (std::size_t k = 0; k < problem.kinds.size(); ++k) {
        auto& sum = stages.back().compute[problem.first_share(step.node) + k];
        const auto& one = problem.compute_of(step.node, k);
        sum.fixed_s += step.rule.shared ? one.fixed_s : one.whole();
        if (step.rule.shared) sum.slope_s += one.slope_s;
      }
    }
  }
  return stages;
}

/// Seconds of stages when a device of each kind has that share of every cut tensor of a segment: in each the collective, then the
/// slowest device. `shares`: per segment, in each per kind.
/// Complexity: O(stages * shares).
[[nodiscard]] inline double seconds_of(const std::vector<spmd_stage>& stages, const std::vector<double>& shares,
                                       int segments = 1) {
  const auto kinds = shares.size() / static_cast<std::size_t>(segments);
  std::vector<double> largest(static_cast<std::size_t>(segments));
  for (std::size_t i = 0; i < shares.size(); ++i) largest[i / kinds] = std::max(largest[i / kinds], shares[i]);
  double seconds = 0;
  for (const auto& s : stages) {
    double slowest = 0;
    for (std::size_t k = 0; k < kinds; ++k) {
      double own = 0;
      for (std::size_t i = k; i < shares.size(); i += kinds) own += s.compute[i].at(shares[i]);
      slowest = std::max(slowest, own);
    }
    seconds +=
        s.collective.at(std::max(largest[static_cast<std::size_t>(s.segment)], largest[static_cast<std::size_t>(s.other)])) +
        slowest;
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
