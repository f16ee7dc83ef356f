// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/natural.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>

namespace hetsched {

/// What decides how many plans of one pipeline there are.
struct plan_space {
  int operators = 0;  ///< between which a model can be cut at the most
  int layers = 0;     ///< whole ones
  std::vector<std::vector<std::int64_t>> ways =
      {};                        ///< by cluster and devices: placements of a stage on so many of them; [k][0] is 0
  bool use_all_devices = false;  ///< only plans that do
  friend bool operator==(const plan_space&, const plan_space&) = default;
};

/// How many plans there are, and how many each of HetAuto's principles leaves, one after the other.
struct plan_counts {
  natural all;           ///< cuts between operators; every stage takes one placement in each of some clusters
  natural whole_layers;  ///< 1: of these, those with cuts between layers
  natural one_cluster;   ///< 2: and stages on one cluster each
  natural consecutive;   ///< 3: and the stages of a cluster one after the other
  natural uniform;       ///< 4: and one placement for all stages of a cluster
};

/// The placements that a cost model offers on the shapes of each subcluster. `operators`: as many as there are layers, unless
/// more. Throws: input_error where the model has no layers.
[[nodiscard]] plan_space plan_space_of(const cluster& hardware, const any_cost_model& costs, int operators = 0,
                                       bool use_all_devices = false);

/// Counts plans exactly, by sums over the number of stages p. With C(n, k) the binomial coefficients and B_j(k) the ways to place
/// k stages in a row on cluster j within its devices:
///   cuts                 C(operators - 1, p - 1), or C(layers - 1, p - 1)
///   any set of clusters  sum over k of (-1)^(p - k) C(p, k) prod_j A_j(k), A_j(k) = sum over i of C(k, i) B_j(i): of p stages, k
///                        may take devices, and none takes none
///   one cluster each     sum over k_1 + k_2 + ... = p of p! / (k_1! k_2! ...) prod_j B_j(k_j)
///   consecutive          sum over the same, times u! for u clusters in use, of prod_j B_j(k_j)
///   uniform              the same with as many k_j in one placement
/// Microbatches are not counted.
/// Throws: input_error for fewer operators than layers, and no layers.
/// Complexity: O(operators^2 clusters) operations on numbers of that many digits, and free_placements for each cluster.
/// Source: HetAuto, appendix A, which estimates the first as 2^(layers - 1) * 7^20 * 100^20 * 30^20.
[[nodiscard]] plan_counts count_plans(const plan_space& space);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/hetauto/search_space.ipp>
#endif
