// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/random.hpp>

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
  [[nodiscard]] double predict(std::span<const double> x) const {
    HETSCHED_EXPECTS(roots_.empty() || static_cast<int>(x.size()) == feature_count_);
    if (roots_.empty()) return 0;
    constexpr std::size_t together = 16;
    const node* const nodes = nodes_.data();
    const double* const features = x.data();
    double sum = 0;
    // Trees go down together, so that their loads overlap, until all are in leaves: a leaf leads to itself.
    for (std::size_t first = 0; first < roots_.size(); first += together) {
      const std::size_t trees = std::min(together, roots_.size() - first);
      std::array<std::int32_t, together> at;
      for (std::size_t t = 0; t < together; ++t) at[t] = roots_[first + std::min(t, trees - 1)];
      for (std::int32_t moved = 1; moved != 0;) {
        moved = 0;
        for (auto& n : at) {
          const node& here = nodes[n];
          const auto to = here.left + static_cast<std::int32_t>(features[here.feature] > here.threshold);
          moved |= n ^ to;
          n = to;
        }
      }
      for (std::size_t t = 0; t < trees; ++t) sum += values_[static_cast<std::size_t>(at[t])];
    }
    return sum / static_cast<double>(roots_.size());
  }

  /// Text that read() turns into an equal forest: a line of sizes, then each tree's node count and nodes by number,
  /// "feature left threshold" or "- value", in shortest decimals that round-trip.
  [[nodiscard]] std::string text() const;

  /// Throws input_error, with the line, for text that no forest has.
  [[nodiscard]] static random_forest read(std::string_view text);

  friend bool operator==(const random_forest&, const random_forest&) = default;

 private:
  // x[feature] <= threshold goes to left, else to left + 1; a leaf has an infinite threshold and itself on the left.
  struct node {
    double threshold = std::numeric_limits<double>::infinity();
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
         const forest_options& options)
      : features_(features), targets_(targets), width_(feature_count), options_(options), random_(options.seed) {
    const std::size_t rows = targets.size();
    sorted_.resize(width_ * rows);
    for (std::size_t f = 0; f < width_; ++f) {
      const auto column = sorted_.begin() + static_cast<std::ptrdiff_t>(f * rows);
      std::iota(column, column + static_cast<std::ptrdiff_t>(rows), 0);
      std::sort(column, column + static_cast<std::ptrdiff_t>(rows),
                [&](std::int32_t a, std::int32_t b) { return at(a, f) != at(b, f) ? at(a, f) < at(b, f) : a < b; });
    }
    candidates_.resize(width_);
    std::iota(candidates_.begin(), candidates_.end(), std::size_t{0});
    tried_ = options.features_per_split > 0 ? std::min(width_, static_cast<std::size_t>(options.features_per_split))
                                            : std::max<std::size_t>(1, width_ / 3);
    const auto most = static_cast<std::size_t>(options.most_leaves);
    least_ = std::max(static_cast<double>(options.least_leaf_rows), static_cast<double>((rows + most - 1) / most));
    drawn_.resize(rows);
    pull_.resize(rows);
    order_.resize(width_ * rows);
    spare_.resize(rows);
    goes_left_.resize(rows);
  }

  void grow(random_forest& forest) {
    draw();
    std::vector<work> open;
    const auto first_node = static_cast<std::int32_t>(forest.nodes_.size());
    open.push_back({forest.add_leaf(0), 0, used_, 0});
    while (!open.empty()) {
      const work w = open.back();
      open.pop_back();
      double sum = 0, count = 0;
      for (std::size_t i = w.begin; i < w.end; ++i) {
        const auto row = static_cast<std::size_t>(order_[i]);
        sum += pull_[row];
        count += drawn_[row];
      }
      const auto place = static_cast<std::size_t>(w.node);
      const split best = w.depth < options_.max_depth ? best_split(w, sum, count) : split{};
      if (best.gain <= 0) {
        forest.values_[place] = sum / count;
        continue;
      }
      const std::size_t middle = divide(w, best);
      const auto left = forest.add_leaf(0);
      const auto right = forest.add_leaf(0);
      forest.nodes_[place] = {best.threshold, static_cast<std::int32_t>(best.feature), left};
      open.push_back({right, middle, w.end, w.depth + 1});
      open.push_back({left, w.begin, middle, w.depth + 1});
    }
    forest.roots_.push_back(first_node);
  }

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

  [[nodiscard]] double at(std::int32_t row, std::size_t feature) const {
    return features_[static_cast<std::size_t>(row) * width_ + feature];
  }

  // As many rows as there are, with replacement; a row drawn twice counts twice.
  void draw() {
    const std::size_t rows = targets_.size();
    std::fill(drawn_.begin(), drawn_.end(), 0);
    for (std::size_t i = 0; i < rows; ++i) drawn_[static_cast<std::size_t>(random_.integer(0, static_cast<int>(rows) - 1))] += 1;
    for (std::size_t i = 0; i < rows; ++i) pull_[i] = drawn_[i] * targets_[i];
    for (std::size_t f = 0; f < width_; ++f) {
      used_ = 0;
      for (std::size_t i = 0; i < rows; ++i)
        if (const auto row = sorted_[f * rows + i]; drawn_[static_cast<std::size_t>(row)] > 0) order_[f * rows + used_++] = row;
    }
  }

  [[nodiscard]] split best_split(const work& w, double sum, double count) {
    split best;
    if (count < 2 * least_) return best;
    // Rounding must not pass for a gain: equal targets give none.
    const double floor = sum * sum / count * (1 + 1e-12);
    double most = floor;
    // Features that cannot part these rows do not count as tried.
    for (std::size_t k = 0; k < width_ && (k < tried_ || best.gain <= 0); ++k) {
      std::swap(candidates_[k],
                candidates_[static_cast<std::size_t>(random_.integer(static_cast<int>(k), static_cast<int>(width_) - 1))]);
      const std::size_t f = candidates_[k];
      const auto* rows = order_.data() + f * targets_.size();
      double left = 0, left_count = 0;
      for (std::size_t i = w.begin; i + 1 < w.end; ++i) {
        const auto row = static_cast<std::size_t>(rows[i]);
        left += pull_[row];
        left_count += drawn_[row];
        if (left_count < least_) continue;
        if (count - left_count < least_) break;
        const double low = at(rows[i], f), high = at(rows[i + 1], f);
        if (low == high) continue;
        const double right = sum - left;
        const double score = left * left / left_count + right * right / (count - left_count);
        if (score > most) {
          most = score;
          const double middle = low / 2 + high / 2;
          best = {score - floor, f, middle >= low && middle < high ? middle : low};
        }
      }
    }
    return best;
  }

  // Parts every feature's rows of the node into left and right, each in order; returns where right begins.
  [[nodiscard]] std::size_t divide(const work& w, const split& by) {
    const std::size_t rows = targets_.size();
    std::size_t middle = w.begin;
    for (std::size_t i = w.begin; i < w.end; ++i) {
      const auto row = order_[i];
      goes_left_[static_cast<std::size_t>(row)] = at(row, by.feature) <= by.threshold;
      middle += goes_left_[static_cast<std::size_t>(row)] != 0;
    }
    for (std::size_t f = 0; f < width_; ++f) {
      auto* order = order_.data() + f * rows;
      std::size_t left = w.begin, right = 0;
      for (std::size_t i = w.begin; i < w.end; ++i) {
        if (goes_left_[static_cast<std::size_t>(order[i])])
          order[left++] = order[i];
        else
          spare_[right++] = order[i];
      }
      std::copy(spare_.begin(), spare_.begin() + static_cast<std::ptrdiff_t>(right), order + left);
    }
    return middle;
  }

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
