// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/forest.hpp>

namespace hetsched {

namespace detail {

/// The text of a forest, line by line and number by number. Members throw input_error, with the line, for what is not expected.
struct forest_lines {
  std::string_view text, line = {};  ///< what is left of both
  int number = 0;

  [[noreturn]] void fail(const char* what) const { throw input_error("forest, line " + std::to_string(number) + ": " + what); }
  void next() {
    ++number;
    const auto end = text.find('\n');
    if (end == std::string_view::npos) fail("the text ends early");
    line = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  template <class T>
  [[nodiscard]] T take(T low, T high) {
    T x{};
    const auto [stop, problem] = std::from_chars(line.data(), line.data() + line.size(), x);
    if (problem != std::errc{} || !(x >= low && x <= high)) fail("not a number that can be here");
    line.remove_prefix(as_size(stop - line.data()));
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    return x;
  }
  void end() const {
    if (!line.empty()) fail("more than expected");
  }
};

}  // namespace detail

HETSCHED_INLINE random_forest random_forest::train(std::span<const double> features, int feature_count,
                                                   std::span<const double> targets, const forest_options& options) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(std::string("forest: ") + what);
  };
  require(feature_count >= 1 && !targets.empty(), "training needs rows with at least one feature");
  require(targets.size() < (std::size_t{1} << 30), "too many rows");
  require(features.size() == targets.size() * as_size(feature_count), "every row needs all its features and a target");
  require(options.trees >= 1 && options.least_leaf_rows >= 1 && options.most_leaves >= 1 && options.max_depth >= 0 &&
              options.features_per_split >= 0,
          "trees, rows of a leaf and leaves must be at least 1, depth and features per split not negative");
  const auto finite = [](double x) { return std::isfinite(x); };
  require(std::all_of(features.begin(), features.end(), finite) && std::all_of(targets.begin(), targets.end(), finite),
          "features and targets must be finite");
  random_forest forest;
  forest.feature_count_ = feature_count;
  grower g(features, as_size(feature_count), targets, options);
  for (int t = 0; t < options.trees; ++t) {
    require(forest.nodes_.size() + 2 * targets.size() < (std::size_t{1} << 31), "too many nodes");
    g.grow(forest);
  }
  return forest;
}

HETSCHED_INLINE std::string random_forest::text() const {
  std::string out = "hetsched-forest 1\n";
  const auto number = [&](auto x) {
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr;
    out.append(digits.data(), end);
  };
  number(feature_count_);
  out += ' ';
  number(tree_count());
  out += '\n';
  for (std::size_t t = 0; t < roots_.size(); ++t) {
    const auto begin = as_size(roots_[t]);
    const auto end = t + 1 < roots_.size() ? as_size(roots_[t + 1]) : nodes_.size();
    number(end - begin);
    out += '\n';
    for (std::size_t n = begin; n < end; ++n) {
      if (is_leaf(n)) {
        out += "- ";
        number(values_[n]);
      } else {
        number(nodes_[n].feature);
        out += ' ';
        number(as_size(nodes_[n].left) - begin);
        out += ' ';
        number(nodes_[n].threshold);
      }
      out += '\n';
    }
  }
  return out;
}

HETSCHED_INLINE random_forest random_forest::read(std::string_view text) {
  constexpr double big = std::numeric_limits<double>::max();
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() / 2;

  detail::forest_lines rest{text};
  rest.next();
  if (rest.line != "hetsched-forest 1") rest.fail("not a forest");
  random_forest forest;
  rest.next();
  forest.feature_count_ = rest.take(0, static_cast<int>(most));
  const int trees = rest.take(0, static_cast<int>(most));
  rest.end();
  std::vector<char> led;  // whether a node of the tree leads here
  for (int t = 0; t < trees; ++t) {
    if (forest.feature_count_ < 1) rest.fail("trees need features");
    rest.next();
    const std::int32_t count = rest.take(std::int32_t{1}, most - static_cast<std::int32_t>(forest.nodes_.size()));
    rest.end();
    // Every node but the root must be the child of one node before it, so that any walk ends in a leaf.
    if (as_size(count) > rest.text.size()) rest.fail("more nodes than text");
    led.assign(as_size(count), 0);
    led[0] = 1;
    const auto begin = static_cast<std::int32_t>(forest.nodes_.size());
    for (std::int32_t n = 0; n < count; ++n) {
      rest.next();
      if (!at(led, n)) rest.fail("no node leads here");
      const auto leaf = as_size(forest.add_leaf(0));
      if (rest.line.starts_with("- ")) {
        rest.line.remove_prefix(2);
        forest.values_[leaf] = rest.take(-big, big);
      } else {
        const std::int32_t feature = rest.take(std::int32_t{0}, std::int32_t{forest.feature_count_ - 1});
        const std::int32_t left = rest.take(std::int32_t{n + 1}, std::int32_t{count - 2 < n + 1 ? n : count - 2});
        const double threshold = rest.take(-big, big);
        for (const auto child : {left, left + 1}) {
          if (at(led, child)) rest.fail("two nodes lead to one");
          at(led, child) = 1;
        }
        forest.nodes_[leaf] = {threshold, feature, begin + left};
      }
      rest.end();
    }
    forest.roots_.push_back(begin);
  }
  if (!rest.text.empty()) rest.fail("text after the last tree");
  return forest;
}

HETSCHED_INLINE double random_forest::predict(std::span<const double> x) const {
  HETSCHED_EXPECTS(roots_.empty() || static_cast<int>(x.size()) == feature_count_);
  if (roots_.empty()) return 0;
  constexpr std::size_t together = 16;
  const node* const nodes = nodes_.data();
  const double* const features = x.data();
  double sum = 0;
  // Trees go down together, so that their loads overlap, until all are in leaves: a leaf leads to itself.
  for (std::size_t first = 0; first < roots_.size(); first += together) {
    const std::size_t trees = std::min(together, roots_.size() - first);
    std::array<std::int32_t, together> reached;
    for (std::size_t t = 0; t < together; ++t) reached[t] = roots_[first + std::min(t, trees - 1)];
    for (std::int32_t moved = 1; moved != 0;) {
      moved = 0;
      for (auto& n : reached) {
        const node& here = nodes[n];
        const auto to = here.left + static_cast<std::int32_t>(features[here.feature] > here.threshold);
        moved |= n ^ to;
        n = to;
      }
    }
    for (std::size_t t = 0; t < trees; ++t) sum += at(values_, reached[t]);
  }
  return sum / static_cast<double>(roots_.size());
}

HETSCHED_INLINE random_forest::grower::grower(std::span<const double> features, std::size_t feature_count,
                                              std::span<const double> targets, const forest_options& options)
    : features_(features), targets_(targets), width_(feature_count), options_(options), random_(options.seed) {
  const std::size_t rows = targets.size();
  sorted_.resize(width_ * rows);
  for (std::size_t f = 0; f < width_; ++f) {
    const auto column = sorted_.begin() + static_cast<std::ptrdiff_t>(f * rows);
    std::iota(column, column + static_cast<std::ptrdiff_t>(rows), 0);
    std::sort(column, column + static_cast<std::ptrdiff_t>(rows), [&](std::int32_t a, std::int32_t b) {
      return feature_at(a, f) != feature_at(b, f) ? feature_at(a, f) < feature_at(b, f) : a < b;
    });
  }
  candidates_.resize(width_);
  std::iota(candidates_.begin(), candidates_.end(), std::size_t{0});
  tried_ = options.features_per_split > 0 ? std::min(width_, as_size(options.features_per_split))
                                          : std::max<std::size_t>(1, width_ / 3);
  const auto most = as_size(options.most_leaves);
  least_ = std::max(static_cast<double>(options.least_leaf_rows), static_cast<double>((rows + most - 1) / most));
  drawn_.resize(rows);
  pull_.resize(rows);
  order_.resize(width_ * rows);
  spare_.resize(rows);
  goes_left_.resize(rows);
}

HETSCHED_INLINE void random_forest::grower::grow(random_forest& forest) {
  draw();
  std::vector<work> open;
  const auto first_node = static_cast<std::int32_t>(forest.nodes_.size());
  open.push_back({forest.add_leaf(0), 0, used_, 0});
  while (!open.empty()) {
    const work w = open.back();
    open.pop_back();
    double sum = 0, count = 0;
    for (std::size_t i = w.begin; i < w.end; ++i) {
      const auto row = as_size(order_[i]);
      sum += pull_[row];
      count += drawn_[row];
    }
    const auto place = as_size(w.node);
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

HETSCHED_INLINE void random_forest::grower::draw() {
  const std::size_t rows = targets_.size();
  std::fill(drawn_.begin(), drawn_.end(), 0);
  for (std::size_t i = 0; i < rows; ++i) at(drawn_, random_.integer(0, static_cast<int>(rows) - 1)) += 1;
  for (std::size_t i = 0; i < rows; ++i) pull_[i] = drawn_[i] * targets_[i];
  for (std::size_t f = 0; f < width_; ++f) {
    used_ = 0;
    for (std::size_t i = 0; i < rows; ++i)
      if (const auto row = sorted_[f * rows + i]; at(drawn_, row) > 0) order_[f * rows + used_++] = row;
  }
}

HETSCHED_INLINE random_forest::grower::split random_forest::grower::best_split(const work& w, double sum, double count) {
  split best;
  if (count < 2 * least_) return best;
  // Rounding must not pass for a gain: equal targets give none.
  const double floor = sum * sum / count * (1 + tolerance::rounding);
  double most = floor;
  // Features that cannot part these rows do not count as tried.
  for (std::size_t k = 0; k < width_ && (k < tried_ || best.gain <= 0); ++k) {
    std::swap(candidates_[k], at(candidates_, random_.integer(static_cast<int>(k), static_cast<int>(width_) - 1)));
    const std::size_t f = candidates_[k];
    const auto* rows = order_.data() + f * targets_.size();
    double left = 0, left_count = 0;
    for (std::size_t i = w.begin; i + 1 < w.end; ++i) {
      const auto row = as_size(rows[i]);
      left += pull_[row];
      left_count += drawn_[row];
      if (left_count < least_) continue;
      if (count - left_count < least_) break;
      const double low = feature_at(rows[i], f), high = feature_at(rows[i + 1], f);
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

HETSCHED_INLINE std::size_t random_forest::grower::divide(const work& w, const split& by) {
  const std::size_t rows = targets_.size();
  std::size_t middle = w.begin;
  for (std::size_t i = w.begin; i < w.end; ++i) {
    const auto row = order_[i];
    at(goes_left_, row) = feature_at(row, by.feature) <= by.threshold;
    middle += at(goes_left_, row) != 0;
  }
  for (std::size_t f = 0; f < width_; ++f) {
    auto* order = order_.data() + f * rows;
    std::size_t left = w.begin, right = 0;
    for (std::size_t i = w.begin; i < w.end; ++i) {
      if (at(goes_left_, order[i]))
        order[left++] = order[i];
      else
        spare_[right++] = order[i];
    }
    std::copy(spare_.begin(), spare_.begin() + static_cast<std::ptrdiff_t>(right), order + left);
  }
  return middle;
}

}  // namespace hetsched
