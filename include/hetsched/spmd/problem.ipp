// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched::spmd::detail {

HETSCHED_INLINE std::vector<char> needed_nodes(const spmd::problem& p) {
  std::vector<char> needed(p.graph.nodes.size());
  if (p.goal.loss >= 0) at(needed, p.goal.loss) = 1;
  for (const int node : p.goal.whole) at(needed, node) = 1;
  for (const auto& [parameter, gradient] : p.goal.gradients) at(needed, gradient) = 1;
  for (std::size_t i = needed.size(); i-- > 0;)
    if (needed[i])
      for (const int j : p.graph.nodes[i].inputs) at(needed, j) = 1;
  return needed;
}

HETSCHED_INLINE void expect_cost(const share_cost& cost, std::string_view what, std::size_t index) {
  if (cost.fixed_s >= 0 && cost.slope_s >= 0 && std::isfinite(cost.fixed_s + cost.slope_s)) return;
  const auto place = std::string(what) + "[" + std::to_string(index) + "]";
  hetsched::detail::expect_natural(cost.fixed_s, place + ".fixed_s");
  hetsched::detail::expect_natural(cost.slope_s, place + ".slope_s");
  throw input_error(place + ": fixed_s and slope_s together are not finite");
}

HETSCHED_INLINE void expect_kinds(const std::vector<device_kind>& kinds) {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  if (kinds.empty()) throw input_error("kinds is empty, expected at least one kind of device");
  std::int64_t all = 0;
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    hetsched::detail::expect_count(kinds[k].count, "kinds[" + std::to_string(k) + "].count", 1, most);
    all += kinds[k].count;
  }
  hetsched::detail::expect_count(all, "the number of devices", 1, most);
}

HETSCHED_INLINE void expect_shares(std::span<const double> shares, const std::vector<device_kind>& kinds, std::size_t segments,
                                   std::string_view what) {
  hetsched::detail::expect_size(shares.size(), segments * kinds.size(), what, "one for each segment and kind of device");
  hetsched::detail::expect_naturals(shares, what);
  for (std::size_t first = 0; first < shares.size(); first += kinds.size()) {
    double all = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) all += shares[first + k] * kinds[k].count;
    if (!(std::abs(all - 1) <= 1e-6))
      throw input_error(std::string(what) + " times the counts of devices add up to " + hetsched::detail::number_text(all) +
                        ", expected 1");
  }
}

}  // namespace hetsched::spmd::detail

namespace hetsched::spmd {

HETSCHED_INLINE void validate(const spmd::problem& p) {
  using namespace detail;
  validate(p.graph);
  expect_kinds(p.kinds);
  const auto nodes = p.graph.nodes.size();
  const auto expect = [&](int node, const char* what) { hetsched::detail::expect_count(node, what, 0, p.graph.size() - 1); };
  hetsched::detail::expect_count(p.goal.loss, "goal.loss", -1, p.graph.size() - 1);
  for (const int node : p.goal.whole) expect(node, "a node of goal.whole");
  for (const auto& [parameter, gradient] : p.goal.gradients) {
    expect(parameter, "a parameter of goal.gradients");
    expect(gradient, "a gradient of goal.gradients");
    if (!is_parameter(p.graph.at(parameter)) || p.graph.at(parameter).shape != p.graph.at(gradient).shape)
      throw input_error("goal.gradients: " + p.graph.at(gradient).name + " is no gradient of a parameter of its shape, " +
                        p.graph.at(parameter).name);
  }
  const auto needed = needed_nodes(p);
  for (const auto& [parameter, gradient] : p.goal.gradients)
    if (!at(needed, parameter))
      throw input_error("goal.gradients: nothing that the goal asks for depends on " + p.graph.at(parameter).name);
  hetsched::detail::expect_size(p.compute.size(), nodes * p.kinds.size(), "compute", "one for each node and kind of device");
  hetsched::detail::expect_size(p.collect.size(), nodes, "collect", "one for each node");
  if (!p.holding_s.empty()) hetsched::detail::expect_size(p.holding_s.size(), nodes, "holding_s", "one for each node, or none");
  hetsched::detail::expect_naturals(p.holding_s, "holding_s");
  double all = 0;
  for (std::size_t i = 0; i < p.compute.size(); ++i) {
    expect_cost(p.compute[i], "compute", i);
    all += p.compute[i].whole();
  }
  for (std::size_t i = 0; i < nodes; ++i)
    for (const auto& cost : {p.collect[i].all_reduce, p.collect[i].reduce_scatter, p.collect[i].padded_gather,
                             p.collect[i].broadcast_gather, p.collect[i].all_to_all}) {
      expect_cost(cost, "collect", i);
      all += cost.whole();
    }
  for (const double s : p.holding_s) all += s;
  hetsched::detail::expect_natural(all * p.device_count(), "the sum of all costs, for every device");
}

HETSCHED_INLINE int spmd::problem::device_count() const {
  return std::accumulate(kinds.begin(), kinds.end(), 0, [](int sum, const device_kind& k) { return sum + k.count; });
}

HETSCHED_INLINE int spmd::problem::segments() const { return segment_count(graph); }

HETSCHED_INLINE std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph) {
  validate(graph);
  return detail::unchecked::cut_parts(graph);
}

HETSCHED_INLINE std::vector<spmd::rule> rules_of(const tensor_node& n) {
  hetsched::detail::expect_node(n);
  return detail::unchecked::rules_of(n);
}

}  // namespace hetsched::spmd

namespace hetsched::spmd::detail::unchecked {

HETSCHED_INLINE std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph) {
  std::vector<std::size_t> first;  // of a node's dimensions
  std::size_t dimensions = 0;
  for (const auto& n : graph.nodes) {
    first.push_back(dimensions);
    dimensions += n.shape.size();
  }
  std::vector<std::size_t> parent(dimensions);
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto find = [&](std::size_t d) {
    while (parent[d] != d) d = parent[d] = parent[parent[d]];
    return d;
  };
  std::vector<std::int64_t> parts;
  for (const auto& n : graph.nodes) parts.insert(parts.end(), n.shape.begin(), n.shape.end());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& n = graph.nodes[i];
    if (is_border(n)) continue;
    for (std::size_t loop = 0; loop < n.loops.size(); ++loop) {
      std::size_t joined = dimensions;
      const auto join = [&](std::size_t node, const std::vector<int>& follows) {
        for (std::size_t d = 0; d < follows.size(); ++d) {
          if (follows[d] != static_cast<int>(loop)) continue;
          const auto root = find(first[node] + d);
          parts[root] = std::gcd(parts[root], n.loops[loop].size);
          if (joined != dimensions && find(joined) != root) {
            const auto other = find(joined);
            parts[other] = std::gcd(parts[other], parts[root]);
            parent[root] = other;
          }
          joined = first[node] + d;
        }
      };
      for (std::size_t input = 0; input < n.inputs.size(); ++input) join(as_size(n.inputs[input]), n.input_loops[input]);
      join(i, n.result_loops);
    }
  }
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    all.emplace_back();
    for (std::size_t d = 0; d < graph.nodes[i].shape.size(); ++d) all.back().push_back(parts[find(first[i] + d)]);
  }
  return all;
}

HETSCHED_INLINE std::vector<spmd::rule> rules_of(const tensor_node& n) {
  std::vector<spmd::rule> rules{{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole())}};
  const auto form_in = [](const std::vector<int>& follows, int loop, tensor_form otherwise) {
    const auto at = std::find(follows.begin(), follows.end(), loop);
    return at == follows.end() ? otherwise : tensor_form::cut(static_cast<int>(at - follows.begin()));
  };
  for (std::size_t i = 0; i < n.loops.size(); ++i) {
    if (!n.loops[i].cut || n.loops[i].size < 2) continue;
    const int loop = static_cast<int>(i);
    spmd::rule rule{.result = form_in(n.result_loops, loop, tensor_form::partial()), .shared = true};
    for (const auto& follows : n.input_loops) rule.inputs.push_back(form_in(follows, loop, tensor_form::whole()));
    rules.push_back(std::move(rule));
  }
  for (const auto& set : n.linear) {
    spmd::rule rule{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole()), .result = tensor_form::partial()};
    for (const int input : set) at(rule.inputs, input) = tensor_form::partial();
    rules.push_back(std::move(rule));
  }
  for (int from = 0; is_border(n) && from < static_cast<int>(n.shape.size()); ++from)
    for (int to = 0; to < static_cast<int>(n.shape.size()); ++to)
      if (from != to && std::min(at(n.shape, from), at(n.shape, to)) > 1)
        rules.push_back({.inputs = {tensor_form::cut(from)}, .result = tensor_form::cut(to), .shared = true});
  return rules;
}

}  // namespace hetsched::spmd::detail::unchecked
