// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>

namespace hetsched::spmd {

HETSCHED_INLINE void detail::expect_stage(const spmd::stage& stage, std::size_t shares, int segments) {
  hetsched::detail::expect_size(stage.compute.size(), shares, "compute of a stage", "one for each share");
  hetsched::detail::expect_count(stage.segment, "segment of a stage", 0, segments - 1);
  hetsched::detail::expect_count(stage.other, "other of a stage", 0, segments - 1);
  expect_cost(stage.collective, "collective of a stage", 0);
  for (std::size_t i = 0; i < shares; ++i) expect_cost(stage.compute[i], "compute of a stage", i);
}

HETSCHED_INLINE void validate(const spmd::problem& problem, const spmd::program& steps) {
  validate(problem);
  const auto& graph = problem.graph;
  std::vector<std::vector<tensor_form>> there(graph.nodes.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    const auto require = [&](bool holds, const std::string& what) {
      if (!holds) throw input_error("instruction " + std::to_string(i) + " of the program: " + what);
    };
    require(step.node >= 0 && step.node < graph.size(),
            "node " + std::to_string(step.node) + " of " + std::to_string(graph.size()));
    const auto& n = graph.at(step.node);
    const auto exists = [&](tensor_form f) { return !f.is_cut() || as_size(f.dimension()) < n.shape.size(); };
    const auto has = [&](int node, tensor_form f) {
      const auto& forms = at(there, node);
      return std::find(forms.begin(), forms.end(), f) != forms.end();
    };
    if (step.collective) {
      constexpr auto whole = tensor_form::whole();
      require(has(step.node, step.from), n.name + " is not there as " + text_of(step.from));
      require(exists(step.to), n.name + " has no dimension " + text_of(step.to));
      const auto from = step.from, to = step.to;
      const bool can = step.how == spmd::collective::all_reduce       ? from.is_partial() && to == whole
                       : step.how == spmd::collective::reduce_scatter ? from.is_partial() && to.is_cut()
                       : step.how == spmd::collective::all_to_all     ? from.is_cut() && to.is_cut() && from != to
                       : step.how == spmd::collective::padded_gather || step.how == spmd::collective::broadcast_gather
                           ? from.is_cut() && to == whole
                           : false;
      require(can, std::string(name_of(step.how)) + " does not turn " + text_of(from) + " into " + text_of(to));
      at(there, step.node).push_back(to);
      continue;
    }
    const auto& rule = step.rule;
    if (is_leaf(n)) {
      require(rule.inputs.empty() && !rule.result.is_partial() && exists(rule.result),
              n.name + " is read as " + text_of(rule.result));
    } else {
      const auto rules = detail::unchecked::rules_of(n);
      require(std::find(rules.begin(), rules.end(), rule) != rules.end(), n.name + " has no such rule");
      for (std::size_t k = 0; k < n.inputs.size(); ++k)
        require(has(n.inputs[k], rule.inputs[k]) || (rule.inputs[k].is_cut() && has(n.inputs[k], tensor_form::whole())),
                graph.at(n.inputs[k]).name + " is not there as " + text_of(rule.inputs[k]));
    }
    at(there, step.node).push_back(rule.result);
  }
}

HETSCHED_INLINE bool is_exchange(const spmd::problem& problem, const spmd::instruction& step) {
  hetsched::detail::expect_count(step.node, "the node of an instruction", 0, problem.graph.size() - 1);
  return detail::unchecked::is_exchange(problem, step);
}

HETSCHED_INLINE std::vector<spmd::stage> stages_of(const spmd::problem& problem, const spmd::program& steps) {
  validate(problem, steps);
  return detail::unchecked::stages_of(problem, steps);
}

HETSCHED_INLINE double seconds_of(const std::vector<spmd::stage>& stages, const std::vector<double>& shares, int segments) {
  hetsched::detail::expect_count(segments, "segments");
  if (shares.empty() || shares.size() % as_size(segments) != 0)
    throw input_error("shares has " + std::to_string(shares.size()) + " values, expected as many in each of " +
                      std::to_string(segments) + " segments");
  hetsched::detail::expect_naturals(shares, "shares");
  for (const auto& s : stages) detail::expect_stage(s, shares.size(), segments);
  return detail::unchecked::seconds_of(stages, shares, segments);
}

HETSCHED_INLINE std::vector<spmd::stage> detail::unchecked::stages_of(const spmd::problem& problem, const spmd::program& steps) {
  const spmd::stage empty{.compute = std::vector<share_cost>(problem.kinds.size() * as_size(problem.segments()))};
  std::vector<spmd::stage> stages{empty};
  for (const auto& step : steps) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective || unchecked::is_exchange(problem, step)) {
      stages.push_back(empty);
      auto& stage = stages.back();
      const auto& costs = at(problem.collect, step.node);
      stage.collective = price_of(costs, step.collective ? step.how : spmd::collective::all_to_all);
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

HETSCHED_INLINE double detail::unchecked::seconds_of(const std::vector<spmd::stage>& stages, const std::vector<double>& shares,
                                                     int segments) {
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

HETSCHED_INLINE std::string text_of(const tensor_graph& graph, const spmd::instruction& step) {
  hetsched::detail::expect_count(step.node, "the node of an instruction", 0, graph.size() - 1);
  const auto& n = graph.at(step.node);
  if (!step.collective) {
    hetsched::detail::expect_size(step.rule.inputs.size(), n.inputs.size(), "a rule of " + n.name, "one form for each input");
    for (const int input : n.inputs) hetsched::detail::expect_count(input, "an input of " + n.name, 0, step.node - 1);
  }
  if (step.collective)
    return n.name + " = " + name_of(step.how) + "(" + n.name + ": " + text_of(step.from) + "): " + text_of(step.to);
  std::string text = n.name + " = " + n.op + "(";
  for (std::size_t i = 0; i < n.inputs.size(); ++i)
    text += (i > 0 ? ", " : "") + graph.at(n.inputs[i]).name + ": " + text_of(step.rule.inputs[i]);
  return text + "): " + text_of(step.rule.result);
}

}  // namespace hetsched::spmd
