// SPDX-License-Identifier: Apache-2.0
// The cheapest program at given shares, by trying all: every order of computations and collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/program.hpp>

namespace spmd_test {

using namespace hetsched;

/// Goes through what programs can reach, by number of instructions: per node the forms that it is there in, and the finishing
/// times of the devices. Of equal forms, only times that no others undercut are kept. A tensor is computed once and communicated
/// once.
class exhaustive_search {
 public:
  exhaustive_search(const spmd::problem& problem, std::vector<double> shares)
      : p_(problem), shares_(std::move(shares)), parts_(spmd::cut_parts(problem.graph)) {
    needed_.resize(p_.graph.nodes.size());
    if (p_.goal.loss >= 0) needed_[static_cast<std::size_t>(p_.goal.loss)] = 1;
    for (const int node : p_.goal.whole) needed_[static_cast<std::size_t>(node)] = 1;
    for (const auto& g : p_.goal.gradients) needed_[static_cast<std::size_t>(g.second)] = 1;
    for (std::size_t i = needed_.size(); i-- > 0;)
      if (needed_[i])
        for (const int j : p_.graph.nodes[i].inputs) needed_[static_cast<std::size_t>(j)] = 1;
    for (const auto& n : p_.graph.nodes) rules_.push_back(is_leaf(n) ? std::vector<spmd::rule>{} : spmd::rules_of(n));
  }

  /// Returns: none if it would have to look at more than `most` states.
  [[nodiscard]] std::optional<double> best(long most = std::numeric_limits<long>::max()) {
    add(state(p_.graph.nodes.size()), times(p_.kinds.size(), 0.0));
    double least = std::numeric_limits<double>::infinity();
    while (!layer_.empty()) {
      const auto current = std::move(layer_);
      layer_.clear();
      for (const auto& [s, all] : current) {
        for (const auto& t : all) {
          if (++visited > most) return std::nullopt;
          if (complete(s)) least = std::min(least, *std::max_element(t.begin(), t.end()));
          expand(s, t);
        }
      }
    }
    return least;
  }

  long visited = 0;

 private:
  struct held {
    std::uint32_t forms = 0;  // bits: whole, partial, cut 0, ...
    bool communicated = false;
    friend auto operator<=>(const held&, const held&) = default;
  };
  using state = std::vector<held>;
  using times = std::vector<double>;

  [[nodiscard]] static std::uint32_t bit(spmd::tensor_form f) {
    return 1u << (f.is_whole() ? 0 : f.is_partial() ? 1 : 2 + f.dimension());
  }
  [[nodiscard]] bool allowed(int node, spmd::tensor_form f) const {
    return !f.is_cut() ||
           parts_[static_cast<std::size_t>(node)][static_cast<std::size_t>(f.dimension())] >= std::max(2, p_.device_count());
  }
  [[nodiscard]] double largest_at(int node) const {
    const auto first = shares_.begin() + static_cast<std::ptrdiff_t>(p_.first_share(node));
    return *std::max_element(first, first + static_cast<std::ptrdiff_t>(p_.kinds.size()));
  }
  [[nodiscard]] bool gives(const held& h, spmd::tensor_form f) const {
    return (h.forms & (bit(f) | (f.is_cut() ? 1u : 0u))) != 0;
  }

  [[nodiscard]] bool complete(const state& s) const {
    if (p_.goal.loss >= 0 && s[static_cast<std::size_t>(p_.goal.loss)].forms == 0) return false;
    for (const int node : p_.goal.whole)
      if ((s[static_cast<std::size_t>(node)].forms & 1u) == 0) return false;
    for (const auto& [parameter, gradient] : p_.goal.gradients) {
      const auto& g = s[static_cast<std::size_t>(gradient)];
      const auto wanted = s[static_cast<std::size_t>(parameter)].forms;
      if (g.forms == 0 || ((g.forms & 1u) == 0 && (wanted & ~g.forms) != 0)) return false;
    }
    return true;
  }

  void add(const state& s, const times& t) {
    auto& all = layer_[s];
    for (const auto& other : all) {
      bool worse = true;
      for (std::size_t k = 0; k < t.size(); ++k) worse = worse && other[k] <= t[k];
      if (worse) return;
    }
    std::erase_if(all, [&](const times& other) {
      bool worse = true;
      for (std::size_t k = 0; k < t.size(); ++k) worse = worse && t[k] <= other[k];
      return worse;
    });
    all.push_back(t);
  }

  // Tries all ways to read the leaves that a rule needs, then adds what the rule makes.
  void read_and_add(const state& s, const times& t, int node, const spmd::rule& rule, std::size_t input) {
    const auto& n = p_.graph.at(node);
    if (input == n.inputs.size()) {
      auto next = s;
      auto later = t;
      next[static_cast<std::size_t>(node)].forms = bit(rule.result);
      if (is_border(n) && rule.shared) {
        const double largest = std::max(largest_at(node), largest_at(n.inputs[0]));
        const double met =
            *std::max_element(t.begin(), t.end()) + p_.collect[static_cast<std::size_t>(node)].all_to_all.at(largest);
        later.assign(t.size(), met);
      } else {
        for (std::size_t k = 0; k < later.size(); ++k) {
          const auto& one = p_.compute_of(node, k);
          later[k] += rule.shared ? one.at(shares_[p_.first_share(node) + k]) : one.whole();
        }
      }
      add(next, later);
      return;
    }
    const int from = n.inputs[input];
    const auto f = rule.inputs[input];
    const auto& h = s[static_cast<std::size_t>(from)];
    if (gives(h, f)) return read_and_add(s, t, node, rule, input + 1);
    if (!is_leaf(p_.graph.at(from)) || f.is_partial()) return;
    for (const auto as : {f, spmd::tensor_form::whole()}) {
      auto next = s;
      next[static_cast<std::size_t>(from)].forms |= bit(as);
      read_and_add(next, t, node, rule, input + 1);
      if (as == spmd::tensor_form::whole()) break;
    }
  }

  void expand(const state& s, const times& t) {
    for (int i = 0; i < p_.graph.size(); ++i) {
      const auto& n = p_.graph.at(i);
      const auto& h = s[static_cast<std::size_t>(i)];
      if (!needed_[static_cast<std::size_t>(i)] || is_leaf(n)) continue;
      if (h.forms == 0) {
        for (const auto& rule : rules_[static_cast<std::size_t>(i)]) {
          bool possible = allowed(i, rule.result);
          for (std::size_t k = 0; k < n.inputs.size(); ++k) possible = possible && allowed(n.inputs[k], rule.inputs[k]);
          if (possible) read_and_add(s, t, i, rule, 0);
        }
      } else if (!h.communicated && h.forms != 1u) {
        const auto& costs = p_.collect[static_cast<std::size_t>(i)];
        const double largest = largest_at(i);
        const auto together = *std::max_element(t.begin(), t.end());
        const auto to = [&](spmd::tensor_form f, double seconds) {
          if (!allowed(i, f)) return;
          auto next = s;
          next[static_cast<std::size_t>(i)].forms |= bit(f);
          next[static_cast<std::size_t>(i)].communicated = true;
          add(next, times(t.size(), together + seconds));
        };
        const bool sum = (h.forms & 2u) != 0;
        to(spmd::tensor_form::whole(),
           sum ? costs.all_reduce.at(largest) : std::min(costs.padded_gather.at(largest), costs.broadcast_gather.at(largest)));
        for (std::size_t d = 0; d < n.shape.size(); ++d) {
          const auto f = spmd::tensor_form::cut(static_cast<int>(d));
          if ((h.forms & bit(f)) == 0) to(f, sum ? costs.reduce_scatter.at(largest) : costs.all_to_all.at(largest));
        }
      }
    }
  }

  const spmd::problem& p_;
  std::vector<double> shares_;
  std::vector<std::vector<std::int64_t>> parts_;
  std::vector<char> needed_;
  std::vector<std::vector<spmd::rule>> rules_;
  std::map<state, std::vector<times>> layer_;
};

}  // namespace spmd_test
