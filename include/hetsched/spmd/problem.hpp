// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_graph.hpp>

namespace hetsched::spmd {

/// How a tensor lies on the devices of a stage: whole on each; a part of a sum on each; or cut along a dimension, each device
/// with its share. What HAP writes as e | Identity, e | All-Reduce, e | All-Gather(d).
class tensor_form {
 public:
  [[nodiscard]] static constexpr tensor_form whole() { return tensor_form(-1); }
  [[nodiscard]] static constexpr tensor_form partial() { return tensor_form(-2); }
  /// Throws: input_error for a dimension below 0.
  [[nodiscard]] static constexpr tensor_form cut(int dimension) {
    if (dimension < 0) throw input_error("a tensor is cut along a dimension below 0");
    return tensor_form(dimension);
  }

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
struct problem {
  tensor_graph graph{};
  tensor_goal goal{};
  std::vector<device_kind> kinds{};
  std::vector<share_cost> compute{};        ///< node-major, a cost for each kind
  std::vector<collective_costs> collect{};  ///< per node, of its result
  /// Per node, seconds that a search adds for each device that holds all of its tensor, and in parts for one that is cut: a price
  /// of memory. Empty: none.
  std::vector<double> holding_s{};
  bool data_parallel_only = false;  ///< parameters whole, placeholders cut along their batch, no collective but all-reduce

  [[nodiscard]] int device_count() const;
  [[nodiscard]] int segments() const;
  /// Where the shares of a node's segment begin among those of all: segment by segment, in each of a device of each kind.
  [[nodiscard]] std::size_t first_share(int node) const { return as_size(graph.at(node).segment) * kinds.size(); }
  [[nodiscard]] const share_cost& compute_of(int node, std::size_t kind) const {
    return compute[as_size(node) * kinds.size() + kind];
  }
};

/// Checks that a problem makes sense.
/// Throws: input_error, naming the culprit, unless the graph does; the goal names nodes that there are, parameters that what it
/// asks for depends on, and gradients of their shapes; there are kinds, of at least one and together at most 2^20 devices; and
/// there are as many costs as nodes and kinds want, which are finite, not negative, and together finite. Complexity: O(nodes *
/// kinds + edges).
void validate(const spmd::problem& problem);

/// One way to compute an operator: the forms that its inputs must have, and the form that its result then has. A Hoare triple of
/// HAP, sec. 4.2.
struct rule {
  std::vector<tensor_form> inputs{};
  tensor_form result = tensor_form::whole();
  bool shared = false;  ///< each device computes its share; else all of it

  friend bool operator==(const rule&, const rule&) = default;
};

/// Into how many parts a dimension of a tensor can be cut such that all that is computed with it can be cut alike: per node and
/// dimension; 1 where no operator can cut it. Dimensions that a loop joins are cut alike, so they share the divisor of their
/// sizes.
/// Throws: as validate of the graph. Complexity: O(dimensions), nearly.
[[nodiscard]] std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph);

/// The ways to compute an operator that is not a leaf: all of it everywhere; a loop cut; linear in parts of sums. A border may
/// also change the dimension that is cut. Throws: input_error for a node that no graph has, whatever its inputs.
/// Complexity: O((loops + linear sets) * dimensions), of a border O(dimensions^2).
[[nodiscard]] std::vector<spmd::rule> rules_of(const tensor_node& n);

namespace detail {

// The nodes that the goal needs.
[[nodiscard]] std::vector<char> needed_nodes(const spmd::problem& p);

// Shares of at least 0 per segment and kind; times counts they add up to 1 in each.
void expect_shares(std::span<const double> shares, const std::vector<device_kind>& kinds, std::size_t segments,
                   std::string_view what);
void expect_kinds(const std::vector<device_kind>& kinds);
void expect_cost(const share_cost& cost, std::string_view what, std::size_t index);

// The same for what is valid.
namespace unchecked {
[[nodiscard]] std::vector<std::vector<std::int64_t>> cut_parts(const tensor_graph& graph);
[[nodiscard]] std::vector<spmd::rule> rules_of(const tensor_node& n);
}  // namespace unchecked

}  // namespace detail

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/problem.ipp>
#endif
