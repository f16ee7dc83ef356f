// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>

namespace hetsched::spmd {

/// A cost of several variables together.
struct min_sum_factor {
  std::vector<int> variables{};  ///< each once
  int table = 0;                 ///< which of the tables, row-major in the order of the variables; factors may share one

  friend bool operator==(const min_sum_factor&, const min_sum_factor&) = default;
};

/// Values of all variables with the least sum of costs.
struct min_sum_solution {
  double bound = 0;  ///< no sum is less; infinity if nothing is allowed
  double value = 0;  ///< of the values; the bound where nothing was relaxed, infinity where none that is allowed was found
  std::vector<int> values{};  ///< of each variable
};

/// Finds the values of variables, each below its domain's size, with the least sum of factors. What does not depend on the tables
/// is done once: in which order variables are eliminated, and which of the eliminations are equal, so that a model of repeated
/// blocks costs what one of each costs. Exact unless a table would have more than `largest` entries: then factors of a variable
/// choose it apart, in groups, which can only lessen the sum.
/// Determinism: equal input, equal values; of equal sums the first values.
/// Source: Dechter, Bucket elimination (1999); Dechter and Rish, Mini-buckets (2003).
class min_sum {
 public:
  /// Throws: input_error unless domains are at least 1, and factors are of variables that exist, each once, and of a table, whose
  /// entries are at most 1e12.
  /// Complexity: O(factors * log variables * scopes^2).
  min_sum(std::vector<int> domains, const std::vector<min_sum_factor>& factors, std::size_t largest = std::size_t{1} << 20);

  /// Whether no table was too large.
  [[nodiscard]] bool exact() const { return exact_; }
  /// Sums of table entries that solve() looks at.
  [[nodiscard]] double work() const { return work_; }

  /// `tables`: infinity for what is not allowed. Throws: input_error unless there is each table that factors name, with as many
  /// entries as they want, none of which is no number or minus infinity. Complexity: O(work()).
  [[nodiscard]] min_sum_solution solve(const std::vector<std::vector<double>>& tables) const;

 private:
  // A table that a step reads, and how far apart its entries are along the dimensions of the step's own. The variable that is
  // eliminated is its last.
  struct member {
    int table;
    std::vector<std::size_t> strides;

    friend auto operator<=>(const member&, const member&) = default;
  };
  // A table: of others, their least sum over a variable; or a given one, with its dimensions in another order.
  struct step {
    int given = -1;
    std::size_t values = 1;            // of the variable that is eliminated
    std::vector<std::size_t> rest;     // sizes of the others
    std::vector<std::size_t> strides;  // of the given one
    std::vector<member> members;

    friend auto operator<=>(const step&, const step&) = default;
  };
  struct placed {
    std::vector<int> scope;
    int table;
  };
  struct bucket {
    int variable;
    std::vector<int> factors;
  };
  // Factors that one table holds, and the variables of all of them.
  struct group {
    std::vector<int> scope, factors;
  };

  [[nodiscard]] std::size_t size_of(int v) const { return as_size(at(domains_, v)); }
  [[nodiscard]] const placed& factor(int f) const { return at(factors_, f); }

  // Eliminates variables, which adds the factors that come of it, and returns of which factors each of them is the sum.
  std::vector<bucket> order(std::size_t largest);

  // Puts each factor to the first group whose table then has no more than so many entries, or to a new one.
  [[nodiscard]] std::vector<group> grouped(const std::vector<int>& factors, std::size_t largest) const;

  // A given table in the order of a scope.
  [[nodiscard]] step copied(const min_sum_factor& f, const std::vector<int>& scope) const;

  // The least sum of factors over a variable.
  [[nodiscard]] step summed(const bucket& of, const std::vector<int>& scope) const;

  [[nodiscard]] static std::vector<double> ordered(const step& s, const std::vector<std::vector<double>>& tables);

  // Values: how many the variable has that is eliminated; 0 for any number.
  template <std::size_t Values>
  [[nodiscard]] static std::vector<double> reduced(const step& s, const std::vector<std::vector<double>>& computed);

  [[nodiscard]] static std::vector<double> reduced(const step& s, const std::vector<std::vector<double>>& computed);

  // Gives the bucket's variable its best value, all that its factors reach having theirs, and returns what the given factors are
  // then.
  [[nodiscard]] double assign(const bucket& b, const std::vector<std::vector<double>>& computed, std::vector<int>& values) const;

  std::vector<int> domains_;
  int given_ = 0;  // factors
  bool exact_ = true;
  double work_ = 0;
  std::vector<placed> factors_;
  std::vector<step> steps_;
  std::vector<bucket> buckets_;
};

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/min_sum.ipp>
#endif
