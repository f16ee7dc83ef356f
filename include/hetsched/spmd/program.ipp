// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched {

HETSCHED_INLINE bool is_exchange(const spmd_problem& problem, const spmd_instruction& step) {
  return !step.collective && step.rule.shared && is_border(problem.graph.at(step.node)) && !problem.data_parallel_only;
}

HETSCHED_INLINE std::vector<spmd_stage> stages_of(const spmd_problem& problem, const spmd_program& program) {
  const spmd_stage empty{.compute = std::vector<share_cost>(problem.kinds.size() * as_size(problem.segments()))};
  std::vector<spmd_stage> stages{empty};
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective || is_exchange(problem, step)) {
      stages.push_back(empty);
      auto& stage = stages.back();
      const auto& costs = at(problem.collect, step.node);
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

HETSCHED_INLINE double seconds_of(const std::vector<spmd_stage>& stages, const std::vector<double>& shares, int segments) {
  const auto kinds = shares.size() / as_size(segments);
  std::vector<double> largest(as_size(segments));
  for (std::size_t i = 0; i < shares.size(); ++i) largest[i / kinds] = std::max(largest[i / kinds], shares[i]);
  double seconds = 0;
  for (const auto& s : stages) {
    double slowest = 0;
    for (std::size_t k = 0; k < kinds; ++k) {
      double own = 0;
      for (std::size_t i = k; i < shares.size(); i += kinds) own += s.compute[i].at(shares[i]);
      slowest = std::max(slowest, own);
    }
    seconds += s.collective.at(std::max(at(largest, s.segment), at(largest, s.other))) + slowest;
  }
  return seconds;
}

HETSCHED_INLINE std::string text_of(tensor_form form) {
  return form.is_whole() ? "whole" : form.is_partial() ? "partial" : "cut " + std::to_string(form.dimension());
}

HETSCHED_INLINE std::string text_of(const tensor_graph& graph, const spmd_instruction& step) {
  const auto& n = graph.at(step.node);
  if (step.collective)
    return n.name + " = " + name_of(step.how) + "(" + n.name + ": " + text_of(step.from) + "): " + text_of(step.to);
  std::string text = n.name + " = " + n.op + "(";
  for (std::size_t i = 0; i < n.inputs.size(); ++i)
    text += (i > 0 ? ", " : "") + graph.at(n.inputs[i]).name + ": " + text_of(step.rule.inputs[i]);
  return text + "): " + text_of(step.rule.result);
}

}  // namespace hetsched
