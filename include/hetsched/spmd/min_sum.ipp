// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/spmd/min_sum.hpp>

namespace hetsched::spmd {

namespace detail {

// Calls visit for each entry of a table of such sizes; `move(d, back)` says that dimension d goes on, or back to 0.
template <typename Visit, typename Move>
void walk_table(const std::vector<std::size_t>& sizes, Visit visit, Move move) {
  std::vector<std::size_t> digit(sizes.size());
  while (true) {
    visit();
    std::size_t d = sizes.size();
    while (d-- > 0) {
      move(d, false);
      if (++digit[d] < sizes[d]) break;
      move(d, true);
      digit[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

[[nodiscard]] inline std::size_t table_entries(const std::vector<std::size_t>& sizes) {
  std::size_t product = 1;
  for (const auto size : sizes) product *= size;
  return product;
}

}  // namespace detail

HETSCHED_INLINE min_sum::min_sum(std::vector<int> domains, const std::vector<min_sum_factor>& factors, std::size_t largest)
    : domains_(std::move(domains)) {
  constexpr double most_entries = 1e12;
  const auto given = factors.size();
  for (const int size : domains_) hetsched::detail::expect_count(size, "a domain");
  for (const auto& f : factors) {
    hetsched::detail::expect_count(f.table, "the table of a factor", 0);
    double entries = 1;
    for (const int v : f.variables) {
      hetsched::detail::expect_count(v, "a variable of a factor", 0, static_cast<std::int64_t>(domains_.size()) - 1);
      entries *= at(domains_, v);
    }
    if (entries > most_entries)
      hetsched::detail::refuse_value("the table of a factor", hetsched::detail::number_text(entries), "at most 1e12 entries");
    factors_.push_back({f.variables, -1});
    auto& scope = factors_.back().scope;
    std::sort(scope.begin(), scope.end());
    if (std::adjacent_find(scope.begin(), scope.end()) != scope.end()) throw input_error("a factor has a variable twice");
  }
  const auto sums = order(largest);
  std::vector<int> position(domains_.size());
  for (std::size_t i = 0; i < buckets_.size(); ++i) at(position, buckets_[i].variable) = static_cast<int>(i);
  // What is eliminated first lies closest together.
  for (auto& f : factors_)
    std::sort(f.scope.begin(), f.scope.end(), [&](int u, int v) { return at(position, u) > at(position, v); });
  std::map<step, int> known;
  const auto keep = [&](step s) {
    const auto [found, fresh] = known.emplace(s, static_cast<int>(steps_.size()));
    if (!fresh) return found->second;
    work_ += static_cast<double>(detail::table_entries(s.rest) * s.values);
    steps_.push_back(std::move(s));
    return found->second;
  };
  for (std::size_t i = 0; i < factors_.size(); ++i)
    factors_[i].table = keep(i < given ? copied(factors[i], factors_[i].scope) : summed(sums[i - given], factors_[i].scope));
  given_ = static_cast<int>(given);
}

HETSCHED_INLINE min_sum_solution min_sum::solve(const std::vector<std::vector<double>>& tables) const {
  std::vector<std::vector<double>> computed;
  computed.reserve(steps_.size());
  for (const auto& s : steps_) computed.push_back(s.members.empty() ? ordered(s, tables) : reduced(s, computed));
  min_sum_solution result{.values = std::vector<int>(domains_.size())};
  for (std::size_t f = 0; f < factors_.size(); ++f) {
    if (!factors_[f].scope.empty()) continue;
    const double constant = at(computed, factors_[f].table).front();
    result.bound += constant;
    if (static_cast<int>(f) < given_) result.value += constant;
  }
  for (auto b = buckets_.rbegin(); b != buckets_.rend(); ++b) result.value += assign(*b, computed, result.values);
  return result;
}

HETSCHED_INLINE std::vector<min_sum::bucket> min_sum::order(std::size_t largest) {
  std::vector<std::vector<int>> touching(domains_.size());  // the factors of a variable, ascending
  const auto touching_at = [&](int v) -> std::vector<int>& { return at(touching, v); };
  for (std::size_t f = 0; f < factors_.size(); ++f)
    for (const int v : factors_[f].scope) touching_at(v).push_back(static_cast<int>(f));
  const auto neighbours = [&](int v) {
    std::vector<int> all;
    for (const int f : touching_at(v)) all.insert(all.end(), factor(f).scope.begin(), factor(f).scope.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::erase(all, v);
    return all;
  };
  const auto tied = [&](int u, int v) {
    for (auto x = touching_at(u).begin(), y = touching_at(v).begin(); x != touching_at(u).end() && y != touching_at(v).end();) {
      if (*x == *y) return true;
      ++(*x < *y ? x : y);
    }
    return false;
  };
  // What eliminating a variable costs: the pairs of neighbours that it newly ties together, by their sizes, then the size of
  // the table.
  using weight = std::pair<double, double>;
  std::vector<double> logarithm;
  for (const int size : domains_) logarithm.push_back(std::log2(size));
  const auto log_of = [&](int v) { return at(logarithm, v); };
  const auto weight_of = [&](int v) {
    const auto near = neighbours(v);
    weight w{0, 1};
    for (std::size_t i = 0; i < near.size(); ++i) {
      w.second *= static_cast<double>(size_of(near[i]));
      for (std::size_t j = 0; j < i; ++j)
        if (!tied(near[i], near[j])) w.first += log_of(near[i]) * log_of(near[j]);
    }
    return w;
  };
  std::set<std::pair<weight, int>> queue;
  std::vector<weight> weights;
  for (int v = 0; v < static_cast<int>(domains_.size()); ++v) queue.emplace(weights.emplace_back(weight_of(v)), v);
  std::vector<bucket> sums;
  while (!queue.empty()) {
    const int v = queue.begin()->second;
    queue.erase(queue.begin());
    const auto near = neighbours(v);
    buckets_.push_back({v, std::exchange(touching_at(v), {})});
    for (const int f : buckets_.back().factors)
      for (const int u : factor(f).scope)
        if (u != v) std::erase(touching_at(u), f);
    auto groups = grouped(buckets_.back().factors, largest);
    exact_ = exact_ && groups.size() <= 1;
    for (auto& [scope, members] : groups) {
      std::erase(scope, v);
      for (const int u : scope) touching_at(u).push_back(static_cast<int>(factors_.size()));
      factors_.push_back({std::move(scope), -1});
      sums.push_back({v, std::move(members)});
    }
    for (const int u : near) {
      auto& w = at(weights, u);
      queue.erase({w, u});
      queue.emplace(w = weight_of(u), u);
    }
  }
  return sums;
}

HETSCHED_INLINE std::vector<min_sum::group> min_sum::grouped(const std::vector<int>& factors, std::size_t largest) const {
  std::vector<group> groups;
  for (const int f : factors) {
    const auto joined = [&](group& g) {
      std::vector<int> both;
      std::set_union(g.scope.begin(), g.scope.end(), factor(f).scope.begin(), factor(f).scope.end(), std::back_inserter(both));
      double size = 1;
      for (const int u : both) size *= static_cast<double>(size_of(u));
      if (size > static_cast<double>(largest)) return false;
      g.scope = std::move(both);
      g.factors.push_back(f);
      return true;
    };
    if (std::none_of(groups.begin(), groups.end(), joined)) groups.push_back({factor(f).scope, {f}});
  }
  return groups;
}

HETSCHED_INLINE min_sum::step min_sum::copied(const min_sum_factor& f, const std::vector<int>& scope) const {
  step s{.given = f.table, .rest = {}, .strides = {}, .members = {}};
  for (const int v : scope) {
    const auto after = std::find(f.variables.begin(), f.variables.end(), v) + 1;
    s.rest.push_back(size_of(v));
    s.strides.push_back(std::accumulate(after, f.variables.end(), std::size_t{1},
                                        [&](std::size_t product, int u) { return product * size_of(u); }));
  }
  return s;
}

HETSCHED_INLINE min_sum::step min_sum::summed(const bucket& of, const std::vector<int>& scope) const {
  step s{.values = size_of(of.variable), .rest = {}, .strides = {}, .members = {}};
  for (const int u : scope) s.rest.push_back(size_of(u));
  for (const int f : of.factors) {
    member m{factor(f).table, std::vector<std::size_t>(scope.size())};
    std::size_t stride = 1;
    for (auto u = factor(f).scope.rbegin(); u != factor(f).scope.rend(); ++u) {
      if (*u != of.variable) at(m.strides, std::find(scope.begin(), scope.end(), *u) - scope.begin()) = stride;
      stride *= size_of(*u);
    }
    s.members.push_back(std::move(m));
  }
  return s;
}

HETSCHED_INLINE std::vector<double> min_sum::ordered(const step& s, const std::vector<std::vector<double>>& tables) {
  hetsched::detail::expect_count(s.given, "the table of a factor", 0, static_cast<std::int64_t>(tables.size()) - 1);
  const auto& table = at(tables, s.given);
  hetsched::detail::expect_size(table.size(), detail::table_entries(s.rest), "a table", "one for each choice of its variables");
  std::vector<double> result;
  result.reserve(table.size());
  std::size_t at = 0;
  detail::walk_table(
      s.rest,
      [&] {
        const double entry = table[at];
        if (!(entry > -infinity))
          hetsched::detail::refuse_value("an entry of a table", hetsched::detail::number_text(entry), "a number, or infinity");
        result.push_back(entry);
      },
      [&](std::size_t d, bool back) { at += back ? -s.strides[d] * s.rest[d] : s.strides[d]; });
  return result;
}

template <std::size_t Values>
std::vector<double> min_sum::reduced(const step& s, const std::vector<std::vector<double>>& computed) {
  const auto values = Values > 0 ? Values : s.values;
  std::vector<double> result;
  result.reserve(detail::table_entries(s.rest));
  std::vector<const double*> from;
  for (const auto& m : s.members) from.push_back(at(computed, m.table).data());
  std::vector<std::size_t> at(from.size());
  std::vector<double> any(Values > 0 ? 0 : values);
  std::array<double, Values> fixed;
  double* const sums = Values > 0 ? fixed.data() : any.data();
  // The last of the others is walked by itself, which saves most of the counting.
  auto outer = s.rest;
  std::size_t inner = 1;
  std::vector<std::size_t> next(from.size());
  if (!outer.empty()) {
    inner = outer.back();
    outer.pop_back();
    for (std::size_t i = 0; i < from.size(); ++i) next[i] = s.members[i].strides.back();
  }
  detail::walk_table(
      outer,
      [&] {
        for (std::size_t j = 0; j < inner; ++j) {
          std::copy_n(from[0] + at[0] + j * next[0], values, sums);
          for (std::size_t i = 1; i < at.size(); ++i) {
            const double* const entry = from[i] + at[i] + j * next[i];
            for (std::size_t value = 0; value < values; ++value) sums[value] += entry[value];
          }
          double least = sums[0];
          for (std::size_t value = 1; value < values; ++value) least = std::min(least, sums[value]);
          result.push_back(least);
        }
      },
      [&](std::size_t d, bool back) {
        for (std::size_t i = 0; i < at.size(); ++i) {
          const auto stride = s.members[i].strides[d];
          at[i] += back ? -stride * s.rest[d] : stride;
        }
      });
  return result;
}

HETSCHED_INLINE std::vector<double> min_sum::reduced(const step& s, const std::vector<std::vector<double>>& computed) {
  switch (s.values) {
    case 2:
      return reduced<2>(s, computed);
    case 3:
      return reduced<3>(s, computed);
    case 4:
      return reduced<4>(s, computed);
    case 5:
      return reduced<5>(s, computed);
    case 6:
      return reduced<6>(s, computed);
    case 7:
      return reduced<7>(s, computed);
    default:
      return reduced<0>(s, computed);
  }
}

HETSCHED_INLINE double min_sum::assign(const bucket& b, const std::vector<std::vector<double>>& computed,
                                       std::vector<int>& values) const {
  const auto count = size_of(b.variable);
  std::vector<double> sums(count), given(count);
  for (const int f : b.factors) {
    std::size_t cell = 0;  // the bucket's variable is the last
    for (const int u : factor(f).scope) cell = cell * size_of(u) + (u == b.variable ? 0 : as_size(at(values, u)));
    for (std::size_t value = 0; value < count; ++value) {
      const double entry = at(computed, factor(f).table)[cell + value];
      sums[value] += entry;
      if (f < given_) given[value] += entry;
    }
  }
  const auto best = as_size(std::min_element(sums.begin(), sums.end()) - sums.begin());
  at(values, b.variable) = static_cast<int>(best);
  return given[best];
}

}  // namespace hetsched::spmd
