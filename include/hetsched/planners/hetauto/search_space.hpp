// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
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

/// A number of plans, however large: exact up to 2^53, from there on to the precision of a double.
class plan_count {
 public:
  plan_count() = default;
  plan_count(std::uint64_t value);  // NOLINT: every number is one

  plan_count& operator+=(const plan_count& other);
  plan_count& operator*=(const plan_count& other);
  friend plan_count operator+(plan_count a, const plan_count& b) { return a += b; }
  friend plan_count operator*(plan_count a, const plan_count& b) { return a *= b; }

  friend bool operator==(const plan_count&, const plan_count&) = default;
  friend bool operator<(const plan_count& a, const plan_count& b) {
    if (a.fraction_ == 0 || b.fraction_ == 0) return a.fraction_ < b.fraction_;
    return a.exponent_ != b.exponent_ ? a.exponent_ < b.exponent_ : a.fraction_ < b.fraction_;
  }

  /// In decimal digits, or rounded to two where that is shorter, as 1.4e110.
  friend std::string short_text(const plan_count& n);

 private:
  void set(double fraction, std::int64_t exponent);

  // fraction * 2^exponent, the fraction from 0.5 to 1; both 0 for none.
  double fraction_ = 0;
  std::int64_t exponent_ = 0;
};

[[nodiscard]] std::string short_text(const plan_count& n);

/// How many plans there are, and how many each of HetAuto's principles leaves, one after the other.
struct plan_counts {
  plan_count all;           ///< cuts between operators; every stage takes one placement in each of some clusters
  plan_count whole_layers;  ///< 1: of these, those with cuts between layers
  plan_count one_cluster;   ///< 2: and stages on one cluster each
  plan_count consecutive;   ///< 3: and the stages of a cluster one after the other
  plan_count uniform;       ///< 4: and one placement for all stages of a cluster
};

/// The placements that a cost model offers on the shapes of each subcluster. `operators`: as many as there are layers, unless
/// more. Throws: input_error where the model has no layers.
[[nodiscard]] plan_space plan_space_of(const cluster& hardware, const any_cost_model& costs, int operators = 0,
                                       bool use_all_devices = false);

/// Counts plans without listing them, by sums over the number of stages p. With C(n, k) the binomial coefficients and B_j(k) the
/// ways to place k stages in a row on cluster j within its devices:
///   cuts                 C(operators - 1, p - 1), or C(layers - 1, p - 1)
///   any set of clusters  G(p) by cluster, at first G(0) = 1: the next one's is sum over v of C(p, v) G(v) D(v, p - v), where v
///                        stages had devices before and D(v, n) = sum over i of C(v, i) B_j(n + i): i of these take some here,
///                        too
///   one cluster each     sum over k_1 + k_2 + ... = p of p! / (k_1! k_2! ...) prod_j B_j(k_j)
///   consecutive          sum over the same, times u! for u clusters in use, of prod_j B_j(k_j)
///   uniform              the same with as many k_j in one placement
/// Microbatches are not counted.
/// Throws: input_error for fewer operators than layers, no layers, and ways that are not numbers by devices from 0 on.
/// Terms are never negative, so that sums lose nothing but what rounding takes.
/// Complexity: O(operators^2 clusters), and free_placements for each cluster.
/// Source: HetAuto, appendix A, which estimates the first as 2^(layers - 1) * 7^20 * 100^20 * 30^20.
[[nodiscard]] plan_counts count_plans(const plan_space& space);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/hetauto/search_space.ipp>
#endif
