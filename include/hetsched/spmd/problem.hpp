// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/model/tensor_segments.hpp>

namespace hetsched {

/// How a tensor lies on the devices of a stage: whole on each; a part of a sum on each; or cut along a dimension, each device
/// with its share. What HAP writes as e | Identity, e | All-Reduce, e | All-Gather(d).
class tensor_form {
 public:
  [[nodiscard]] static constexpr tensor_form whole() { return tensor_form(-1); }
  [[nodiscard]] static constexpr tensor_form partial() { return tensor_form(-2); }
  [[nodiscard]] static constexpr tensor_form cut(int dimension) { return tensor_form(dimension); }

  [[nodiscard]] constexpr bool is_whole() const { return code_ == -1; }
  [[nodiscard]] constexpr bool is_partial() const { return code_ == -2; }
  [[nodiscard]] constexpr bool is_cut() const { return code_ >= 0; }
  /// Requires: is_cut().
  [[nodiscard]] constexpr int dimension() const { return code_; }

  friend constexpr bool operator==(const tensor_form&, const tensor_form&) = default;
  friend constexpr auto operator<=>(const tensor_form&, const tensor_form&) = default;

 private:
  explicit constexpr tensor_form(int code) : code_(code) {}
  int code_;
};

/// Seconds that depend on a share of a tensor: of a device's part for computation, of the largest part for communication.
struct share_cost {
  double fixed_s = 0;
  double slope_s = 0;  ///< of the whole tensor

  [[nodiscard]] constexpr double at(double share) const { return fixed_s + slope_s * share; }
  [[nodiscard]] constexpr double whole() const { return fixed_s + slope_s; }
  friend constexpr bool operator==(const share_cost&, const share_cost&) = default;
};

/// What the collectives of one tensor cost, by the largest share.
struct collective_costs {
  share_cost all_reduce{}, reduce_scatter{};
  share_cost padded_gather{};     ///< all parts as large as the largest, then an all-gather
  share_cost broadcast_gather{};  ///< every device broadcasts its part
  share_cost all_to_all{};
  friend constexpr bool operator==(const collective_costs&, const collective_costs&) = default;
};

/// Devices that are alike to the program.
struct device_kind {
  std::string name{};
  int count = 1;
  friend bool operator==(const device_kind&, const device_kind&) = default;
};

/// A graph, a goal, and what everything costs on the devices of a stage: all that synthesis and ratios look at.
struct spmd_problem {
  tensor_graph graph{};
  tensor_goal goal{};
  std::vector<device_kind> kinds{};
  std::vector<share_cost> compute{};        ///< node-major, a cost for each kind
  std::vector<collective_costs> collect{};  ///< per node, of its result
  /// Per node, seconds that a search adds for each device that holds all of its tensor, and in parts for one that is cut: a price
  /// of memory. Empty: none.
  std::vector<double> holding_s{};
  bool data_parallel_only = false;  ///< parameters whole, placeholders cut along their batch, no collective but all-reduce

  [[nodiscard]] int device_count() const {
    return std::accumulate(kinds.begin(), kinds.end(), 0, [](int sum, const device_kind& k) { return sum + k.count; });
  }
  [[nodiscard]] int segments() const { return segment_count(graph); }
  /// Where the shares of a node's segment begin among those of all: segment by segment, in each of a device of each kind.
  [[nodiscard]] std::size_t first_share(int node) const {
    return static_cast<std::size_t>(graph.at(node).segment) * kinds.size();
  }
  [[nodiscard]] const share_cost& compute_of(int node, std::size_t kind) const {
    return compute[static_cast<std::size_t>(node) * kinds.size() + kind];
  }
};

/// One way to compute an operator: the forms that its inputs must have, and the form that its result then has. A Hoare triple of
/// HAP, sec. 4.2.
struct spmd_rule {
  std::vector<tensor_form> inputs{};
  tensor_form result = tensor_form::whole();
  bool shared = false;  ///< each device computes its share; else all of it

  friend bool operator==(const spmd_rule&, const spmd_rule&) = default;
};

/// Into how many parts a dimension of a tensor can be cut such that all that is computed with it can be cut alike: per node and
/// dimension; 1 where no operator can cut it. Dimensions that a loop joins are cut alike, so they share the divisor of their
/// sizes.
/// Complexity: O(dimensions), nearly.
[[nodiscard]] inline std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph) {
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
      for (std::size_t input = 0; input < n.inputs.size(); ++input)
        join(static_cast<std::size_t>(n.inputs[input]), n.input_loops[input]);
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

/// The ways to compute an operator that is not a leaf: all of it everywhere; a loop cut; linear in parts of sums. A border may
/// also change the dimension that is cut.
/// Complexity: O((loops + linear sets) * dimensions), of a border O(dimensions^2).
[[nodiscard]] inline std::vector<spmd_rule> rules_of(const tensor_node& n) {
  std::vector<spmd_rule> rules{{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole())}};
  const auto form_in = [](const std::vector<int>& follows, int loop, tensor_form otherwise) {
    const auto at = std::find(follows.begin(), follows.end(), loop);
    return at == follows.end() ? otherwise : tensor_form::cut(static_cast<int>(at - follows.begin()));
  };
  for (std::size_t i = 0; i < n.loops.size(); ++i) {
    if (!n.loops[i].cut || n.loops[i].size < 2) continue;
    const int loop = static_cast<int>(i);
    spmd_rule rule{.result = form_in(n.result_loops, loop, tensor_form::partial()), .shared = true};
    for (const auto& follows : n.input_loops) rule.inputs.push_back(form_in(follows, loop, tensor_form::whole()));
    rules.push_back(std::move(rule));
  }
  for (const auto& set : n.linear) {
    spmd_rule rule{.inputs = std::vector<tensor_form>(n.inputs.size(), tensor_form::whole()), .result = tensor_form::partial()};
    for (const int input : set) rule.inputs[static_cast<std::size_t>(input)] = tensor_form::partial();
    rules.push_back(std::move(rule));
  }
  for (int from = 0; is_border(n) && from < static_cast<int>(n.shape.size()); ++from)
    for (int to = 0; to < static_cast<int>(n.shape.size()); ++to)
      if (from != to && std::min(n.shape[static_cast<std::size_t>(from)], n.shape[static_cast<std::size_t>(to)]) > 1)
        rules.push_back({.inputs = {tensor_form::cut(from)}, .result = tensor_form::cut(to), .shared = true});
  return rules;
}

}  // namespace hetsched
