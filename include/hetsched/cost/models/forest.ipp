// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/forest.hpp>

namespace hetsched {

HETSCHED_INLINE random_forest random_forest::train(std::span<const double> features, int feature_count,
                                                   std::span<const double> targets, const forest_options& options) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw input_error(std::string("forest: ") + what);
  };
  require(feature_count >= 1 && !targets.empty(), "training needs rows with at least one feature");
  require(targets.size() < (std::size_t{1} << 30), "too many rows");
  require(features.size() == targets.size() * static_cast<std::size_t>(feature_count),
          "every row needs all its features and a target");
  require(options.trees >= 1 && options.least_leaf_rows >= 1 && options.most_leaves >= 1 && options.max_depth >= 0 &&
              options.features_per_split >= 0,
          "trees, rows of a leaf and leaves must be at least 1, depth and features per split not negative");
  const auto finite = [](double x) { return std::isfinite(x); };
  require(std::all_of(features.begin(), features.end(), finite) && std::all_of(targets.begin(), targets.end(), finite),
          "features and targets must be finite");
  random_forest forest;
  forest.feature_count_ = feature_count;
  grower g(features, static_cast<std::size_t>(feature_count), targets, options);
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
    const auto begin = static_cast<std::size_t>(roots_[t]);
    const auto end = t + 1 < roots_.size() ? static_cast<std::size_t>(roots_[t + 1]) : nodes_.size();
    number(end - begin);
    out += '\n';
    for (std::size_t n = begin; n < end; ++n) {
      if (is_leaf(n)) {
        out += "- ";
        number(values_[n]);
      } else {
        number(nodes_[n].feature);
        out += ' ';
        number(static_cast<std::size_t>(nodes_[n].left) - begin);
        out += ' ';
        number(nodes_[n].threshold);
      }
      out += '\n';
    }
  }
  return out;
}

HETSCHED_INLINE random_forest random_forest::read(std::string_view text) {
  int line_number = 0;
  std::string_view line;
  const auto fail = [&](const char* what) { throw input_error("forest, line " + std::to_string(line_number) + ": " + what); };
  const auto next_line = [&] {
    ++line_number;
    const auto end = text.find('\n');
    if (end == std::string_view::npos) fail("the text ends early");
    line = text.substr(0, end);
    text.remove_prefix(end + 1);
  };
  const auto number = [&]<class T>(T low, T high) {
    T x{};
    const auto [stop, problem] = std::from_chars(line.data(), line.data() + line.size(), x);
    if (problem != std::errc{} || !(x >= low && x <= high)) fail("not a number that can be here");
    line.remove_prefix(static_cast<std::size_t>(stop - line.data()));
    if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    return x;
  };
  const auto end_line = [&] {
    if (!line.empty()) fail("more than expected");
  };
  constexpr double big = std::numeric_limits<double>::max();
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() / 2;

  next_line();
  if (line != "hetsched-forest 1") fail("not a forest");
  random_forest forest;
  next_line();
  forest.feature_count_ = number(0, static_cast<int>(most));
  const int trees = number(0, static_cast<int>(most));
  end_line();
  std::vector<char> led;  // whether a node of the tree leads here
  for (int t = 0; t < trees; ++t) {
    if (forest.feature_count_ < 1) fail("trees need features");
    next_line();
    const std::int32_t count = number(std::int32_t{1}, most - static_cast<std::int32_t>(forest.nodes_.size()));
    end_line();
    // Every node but the root must be the child of one node before it, so that any walk ends in a leaf.
    if (static_cast<std::size_t>(count) > text.size()) fail("more nodes than text");
    led.assign(static_cast<std::size_t>(count), 0);
    led[0] = 1;
    const auto begin = static_cast<std::int32_t>(forest.nodes_.size());
    for (std::int32_t n = 0; n < count; ++n) {
      next_line();
      if (!led[static_cast<std::size_t>(n)]) fail("no node leads here");
      const auto at = static_cast<std::size_t>(forest.add_leaf(0));
      if (line.starts_with("- ")) {
        line.remove_prefix(2);
        forest.values_[at] = number(-big, big);
      } else {
        const std::int32_t feature = number(std::int32_t{0}, std::int32_t{forest.feature_count_ - 1});
        const std::int32_t left = number(std::int32_t{n + 1}, std::int32_t{count - 2 < n + 1 ? n : count - 2});
        const double threshold = number(-big, big);
        for (const auto child : {left, left + 1}) {
          if (led[static_cast<std::size_t>(child)]) fail("two nodes lead to one");
          led[static_cast<std::size_t>(child)] = 1;
        }
        forest.nodes_[at] = {threshold, feature, begin + left};
      }
      end_line();
    }
    forest.roots_.push_back(begin);
  }
  if (!text.empty()) fail("text after the last tree");
  return forest;
}

}  // namespace hetsched
