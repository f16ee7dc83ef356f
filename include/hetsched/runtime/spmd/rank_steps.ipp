// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/runtime/spmd/rank_steps.hpp>
#include <hetsched/spmd/ratios.hpp>

namespace hetsched {

HETSCHED_INLINE spmd_parts::spmd_parts(const spmd::problem& problem, const spmd::program& program,
                                       const std::vector<double>& shares) {
  const auto numbers = spmd::cut_parts(problem.graph);
  auto whole = spmd::round_shares(problem, program, shares).parts;
  for (std::size_t node = 0; node < numbers.size(); ++node) {
    points_.emplace_back();
    for (std::size_t d = 0; d < numbers[node].size(); ++d) {
      const auto number = numbers[node][d];
      const std::pair of{problem.graph.nodes[node].segment, number};
      auto found = whole.find(of);
      if (found == whole.end()) {
        const auto first = shares.begin() + static_cast<std::ptrdiff_t>(problem.first_share(static_cast<int>(node)));
        const std::vector<double> own{first, first + static_cast<std::ptrdiff_t>(problem.kinds.size())};
        found = whole.emplace(of, spmd::whole_parts(number, problem.kinds, own)).first;
      }
      const auto rows = problem.graph.nodes[node].shape[d] / number;
      auto& points = points_.back().emplace_back(part_points{0});
      for (const auto parts : found->second) points.push_back(points.back() + as_size(parts * rows));
    }
  }
}

namespace detail {

HETSCHED_INLINE rank_steps::rank_steps(const spmd::problem& problem, const spmd::program& program, const spmd_parts& parts,
                                       int device, int late_leaf) {
  source from{problem, parts, device, std::vector<char>(problem.graph.nodes.size())};
  if (late_leaf >= 0) at(from.late, late_leaf) = 1;
  std::map<int, spmd::tensor_form> leaves;
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective || !is_leaf(n)) continue;
    auto& form = leaves.try_emplace(step.node, step.rule.result).first->second;
    if (is_placeholder(n) || step.rule.result.is_whole()) form = spmd::tensor_form::whole();
  }
  for (const auto& [node, form] : leaves) given_[node] = hold(from, node, form);
  for (const auto& step : program) {
    const auto& n = problem.graph.at(step.node);
    if (step.collective) {
      add(from, {.what = rank_step::kind::change, .node = step.node, .inputs = {tensor_of(from, step.node, step.from)}}, step.to);
    } else if (is_border(n)) {
      if (at(from.late, n.inputs[0])) at(from.late, step.node) = 1;
      const int input = tensor_of(from, n.inputs[0], step.rule.inputs[0]);
      if (step.rule.shared)
        add(from, {.what = rank_step::kind::change, .node = step.node, .inputs = {input}}, step.rule.result);
      else
        known_[{step.node, step.rule.result}] = input;
    } else if (!is_leaf(n)) {
      rank_step made{.node = step.node};
      for (std::size_t i = 0; i < n.inputs.size(); ++i) {
        made.inputs.push_back(tensor_of(from, n.inputs[i], step.rule.inputs[i]));
        if (at(from.late, n.inputs[i])) at(from.late, step.node) = 1;
      }
      if (n.op == "embedding" && step.rule.inputs[1] == spmd::tensor_form::cut(0))
        made.row = static_cast<std::int64_t>(parts.first(n.inputs[1], 0, device));
      if (n.op == "embedding_grad" && step.rule.result == spmd::tensor_form::cut(0))
        made.row = static_cast<std::int64_t>(parts.first(step.node, 0, device));
      add(from, std::move(made), step.rule.result);
    }
  }
  for (const auto& [parameter, gradient] : problem.goal.gradients)
    if (const auto leaf = leaf_of(parameter); leaf >= 0) (void)tensor_of(from, gradient, at(held_, leaf).form);
}

HETSCHED_INLINE int rank_steps::leaf_of(int node) const {
  const auto found = given_.find(node);
  return found == given_.end() ? -1 : found->second;
}

HETSCHED_INLINE int rank_steps::find(int node, spmd::tensor_form form) const {
  const auto found = known_.find({node, form});
  return found == known_.end() ? -1 : found->second;
}

HETSCHED_INLINE int rank_steps::hold(const source& from, int node, spmd::tensor_form form) {
  tensor_shape shape;
  for (const auto extent : from.problem.graph.at(node).shape) shape.push_back(as_size(extent));
  if (form.is_cut()) at(shape, form.dimension()) = from.parts.size(node, form.dimension(), from.device);
  held_.push_back({node, form, std::move(shape)});
  return known_[{node, form}] = static_cast<int>(held_.size()) - 1;
}

HETSCHED_INLINE void rank_steps::add(const source& from, rank_step step, spmd::tensor_form form) {
  step.late = at(from.late, step.node) != 0;
  step.result = hold(from, step.node, form);
  steps_.push_back(std::move(step));
}

HETSCHED_INLINE int rank_steps::tensor_of(const source& from, int node, spmd::tensor_form form) {
  if (const int here = find(node, form); here >= 0) return here;
  const int whole = find(node, spmd::tensor_form::whole());
  rank_step step{.node = node};
  if (form.is_cut() && whole >= 0) {
    step.what = rank_step::kind::part;
    step.inputs = {whole};
  } else if (form.is_cut() && given_.count(node) != 0) {
    step.what = rank_step::kind::change;
    step.inputs = {given_[node]};
  } else {
    throw input_error("the program reads " + from.problem.graph.at(node).name + " as " + spmd::text_of(form) +
                      ", which it does not have");
  }
  add(from, std::move(step), form);
  return steps_.back().result;
}

}  // namespace detail
}  // namespace hetsched
