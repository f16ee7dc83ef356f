// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/tolerances.hpp>

namespace hetsched {

struct forest_options {
  int trees = 100;
  int features_per_split = 0;  ///< tried at each node, more only if none of them helps; 0: a third of them, at least one
  int least_leaf_rows = 5;     ///< drawn rows in a leaf
  int most_leaves = 4000;      ///< of a tree: leaves of many rows hold more of them, so that queries take no longer
  int max_depth = 32;
  std::uint64_t seed = 1;
};

/// A regression forest (Breiman 2001): the mean of trees, each grown on rows drawn with replacement. Rows of features are
/// contiguous. To correct an analytic model train on log(measured / model) and multiply the model by exp(predict(features)).
/// Outside of the trained range it stays constant. The same rows, options and seed give the same forest on every machine
/// with IEEE doubles: only sums, quotients and squares are taken, always in the same order.
class random_forest {
 public:
  /// A forest without trees, which predicts 0 of any features.
  random_forest() = default;

  /// Rows of `features`, `feature_count` numbers each, and their targets. A split goes between two different values and takes off
  /// the most squared error; the first of equals wins. Throws input_error for no rows or features, sizes that do not match,
  /// numbers that are not finite, or options that make no sense. O(trees * depth * features * rows) after sorting.
  [[nodiscard]] static random_forest train(std::span<const double> features, int feature_count, std::span<const double> targets,
                                           const forest_options& options = {});

  [[nodiscard]] int feature_count() const { return feature_count_; }
  [[nodiscard]] int tree_count() const { return static_cast<int>(roots_.size()); }
  [[nodiscard]] std::size_t node_count() const { return nodes_.size(); }

  /// Mean of the trees. Precondition: as many features as in training, none NaN. O(trees * depth), allocates nothing.
  [[nodiscard]] double predict(std::span<const double> x) const;

  /// Text that read() turns into an equal forest: a line of sizes, then each tree's node count and nodes by number,
  /// "feature left threshold" or "- value", in shortest decimals that round-trip.
  [[nodiscard]] std::string text() const;

  /// Throws input_error, with the line, for text that no forest has.
  [[nodiscard]] static random_forest read(std::string_view text);

  friend bool operator==(const random_forest&, const random_forest&) = default;

 private:
  // x[feature] <= threshold goes to left, else to left + 1; a leaf has an infinite threshold and itself on the left.
  struct node {
    double threshold = infinity;
    std::int32_t feature = 0;
    std::int32_t left = 0;
    friend bool operator==(const node&, const node&) = default;
  };
  class grower;

  [[nodiscard]] bool is_leaf(std::size_t at) const { return nodes_[at].left == static_cast<std::int32_t>(at); }

  std::int32_t add_leaf(double value) {
    const auto at = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back({.left = at});
    values_.push_back(value);
    return at;
  }

  int feature_count_ = 0;
  std::vector<std::int32_t> roots_;
  std::vector<node> nodes_;     // all trees, one after the other, each from its root
  std::vector<double> values_;  // of leaves; 0 elsewhere
};

// Grows trees over one set of rows. Every feature keeps the rows of a tree in rising order, node by node.
class random_forest::grower {
 public:
  grower(std::span<const double> features, std::size_t feature_count, std::span<const double> targets,
         const forest_options& options);

  void grow(random_forest& forest);

 private:
  struct work {
    std::int32_t node;
    std::size_t begin, end;  // the node's part of every feature's order
    int depth;
  };
  struct split {
    double gain = 0;
    std::size_t feature = 0;
    double threshold = 0;
  };

  [[nodiscard]] double feature_at(std::int32_t row, std::size_t feature) const {
    return features_[as_size(row) * width_ + feature];
  }

  // As many rows as there are, with replacement; a row drawn twice counts twice.
  void draw();

  [[nodiscard]] split best_split(const work& w, double sum, double count);

  // Parts every feature's rows of the node into left and right, each in order; returns where right begins.
  [[nodiscard]] std::size_t divide(const work& w, const split& by);

  std::span<const double> features_, targets_;
  std::size_t width_;
  forest_options options_;
  random_source random_;
  std::size_t tried_ = 0, used_ = 0;
  double least_ = 1;                  // drawn rows in a leaf
  std::vector<std::int32_t> sorted_;  // [feature][row], all rows
  std::vector<std::int32_t> order_;   // [feature][row], the rows of this tree, those of a node side by side
  std::vector<std::int32_t> spare_;
  std::vector<double> drawn_;  // how often a row is in this tree
  std::vector<double> pull_;   // that often its target: products by themselves, which no compiler may fuse with a sum
  std::vector<std::size_t> candidates_;
  std::vector<char> goes_left_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/forest.ipp>
#endif
