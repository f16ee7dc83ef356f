// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/submesh.hpp>
#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/hetauto/search_space.hpp>

namespace hetsched {

HETSCHED_INLINE plan_count::plan_count(std::uint64_t value) { set(static_cast<double>(value), 0); }

HETSCHED_INLINE plan_count& plan_count::operator+=(const plan_count& other) {
  if (other.fraction_ == 0) return *this;
  if (fraction_ == 0) return *this = other;
  const auto& [small, large] = *this < other ? std::pair(*this, other) : std::pair(other, *this);
  const auto apart = std::min<std::int64_t>(large.exponent_ - small.exponent_, 100);  // beyond a double's digits anyway
  set(large.fraction_ + std::ldexp(small.fraction_, -static_cast<int>(apart)), large.exponent_);
  return *this;
}

HETSCHED_INLINE plan_count& plan_count::operator*=(const plan_count& other) {
  set(fraction_ * other.fraction_, exponent_ + other.exponent_);
  return *this;
}

HETSCHED_INLINE void plan_count::set(double fraction, std::int64_t exponent) {
  int more = 0;
  fraction_ = std::frexp(fraction, &more);
  exponent_ = fraction_ == 0 ? 0 : exponent + more;
}

HETSCHED_INLINE std::string short_text(const plan_count& n) {
  const bool is_word = n.exponent_ <= 63;
  const auto word = is_word ? static_cast<std::uint64_t>(std::ldexp(n.fraction_, static_cast<int>(n.exponent_))) : 0;
  const auto digits = std::to_string(word);
  if (is_word && digits.size() <= 7) return digits;
  // Words by their digits, as a logarithm does not tell halves apart.
  const double log10 = std::log10(n.fraction_) + static_cast<double>(n.exponent_) * std::log10(2.0);
  auto exponent = is_word ? static_cast<std::int64_t>(digits.size()) - 1 : static_cast<std::int64_t>(std::floor(log10));
  auto first = is_word ? (digits[0] - '0') * 10 + (digits[1] - '0') + (digits[2] >= '5' ? 1 : 0)
                       : static_cast<int>(std::floor(std::pow(10.0, log10 - static_cast<double>(exponent) + 1) + 0.5));
  if (first == 100) {
    first = 10;
    ++exponent;
  }
  return std::to_string(first / 10) + "." + std::to_string(first % 10) + "e" + std::to_string(exponent);
}

HETSCHED_INLINE plan_space plan_space_of(const cluster& hardware, const any_cost_model& costs, int operators,
                                         bool use_all_devices) {
  plan_space space{.layers = costs.layer_count(), .use_all_devices = use_all_devices};
  if (space.layers < 1) throw input_error("a cost model needs at least one layer");
  detail::validate_network(hardware, false);
  space.operators = std::max(operators, space.layers);
  for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
    const auto& s = hardware.subclusters[k];
    auto& ways = space.ways.emplace_back(as_size(s.device_count()) + 1);
    for (const auto& mesh : submeshes(s, static_cast<int>(k)))
      at(ways, mesh.device_count()) += static_cast<std::int64_t>(costs.placements(mesh).size());
  }
  return space;
}

namespace detail {

/// Binomial coefficients up to n over n.
[[nodiscard]] inline std::vector<std::vector<plan_count>> pascal(std::size_t n) {
  std::vector<std::vector<plan_count>> rows(n + 1);
  for (std::size_t i = 0; i <= n; ++i) {
    rows[i].assign(i + 1, 1);
    for (std::size_t j = 1; j < i; ++j) rows[i][j] = rows[i - 1][j - 1] + rows[i - 1][j];
  }
  return rows;
}

/// By number of stages up to `most`: in how many ways they, in a given order, get placements on a cluster of ways.size() - 1
/// devices. Complexity: O(most * devices * numbers of devices with any way).
[[nodiscard]] inline std::vector<plan_count> free_placements(const std::vector<std::int64_t>& ways, std::size_t most,
                                                             bool use_all) {
  std::vector<plan_count> by_devices(ways.size()), counts;
  by_devices[0] = 1;
  for (std::size_t stages = 0; stages <= most; ++stages) {
    plan_count sum = use_all ? by_devices.back() : plan_count{};
    if (!use_all)
      for (const auto& n : by_devices) sum += n;
    counts.push_back(std::move(sum));
    std::vector<plan_count> next(ways.size());
    for (std::size_t n = 1; n < ways.size(); ++n) {
      if (ways[n] == 0) continue;
      for (std::size_t used = stages; used + n < ways.size(); ++used)
        next[used + n] += by_devices[used] * static_cast<std::uint64_t>(ways[n]);
    }
    by_devices = std::move(next);
  }
  return counts;
}

/// The same where all stages have one placement.
[[nodiscard]] inline std::vector<plan_count> uniform_placements(const std::vector<std::int64_t>& ways, std::size_t most,
                                                                bool use_all) {
  std::vector<plan_count> counts{use_all && ways.size() > 1 ? 0u : 1u};
  for (std::size_t stages = 1; stages <= most; ++stages) {
    plan_count sum;
    for (std::size_t n = 1; n * stages < ways.size(); ++n)
      if (!use_all || n * stages == ways.size() - 1) sum += static_cast<std::uint64_t>(ways[n]);
    counts.push_back(std::move(sum));
  }
  return counts;
}

/// Placements by number of stages, up to `most`, each of which has devices on one of the clusters or on several. `placed`: those
/// on each cluster, by number of stages there.
[[nodiscard]] inline std::vector<plan_count> on_several_clusters(const std::vector<std::vector<plan_count>>& placed,
                                                                 std::size_t most,
                                                                 const std::vector<std::vector<plan_count>>& choose) {
  std::vector<plan_count> several(most + 1);
  several[0] = 1;
  for (const auto& ways : placed) {
    // `fresh` stages get their first devices here; any of the `known` ones may get more.
    std::vector<plan_count> here(most + 1);
    for (std::size_t n = 0; n < std::min(ways.size(), here.size()); ++n) here[n] = ways[n];
    std::vector<plan_count> next(most + 1);
    for (std::size_t known = 0; known <= most; ++known) {
      for (std::size_t fresh = 0; known + fresh <= most; ++fresh)
        next[known + fresh] += choose[known + fresh][known] * several[known] * here[fresh];
      for (std::size_t n = 0; n < most; ++n) here[n] += here[n + 1];  // by Pascal's rule
    }
    several = std::move(next);
  }
  return several;
}

/// The same with each stage on one cluster, in any order of clusters, stage by stage.
[[nodiscard]] inline std::vector<plan_count> on_one_cluster_each(const std::vector<std::vector<plan_count>>& placed,
                                                                 std::size_t most,
                                                                 const std::vector<std::vector<plan_count>>& choose) {
  std::vector<plan_count> mixed(most + 1);
  mixed[0] = 1;
  for (const auto& ways : placed) {
    std::vector<plan_count> next(most + 1);
    for (std::size_t p = 0; p <= most; ++p)
      for (std::size_t k = 0; k <= p && k < ways.size(); ++k) next[p] += choose[p][k] * mixed[p - k] * ways[k];
    mixed = std::move(next);
  }
  return mixed;
}

/// The same with the stages of a cluster in a row: u clusters in use have u! orders.
[[nodiscard]] inline std::vector<plan_count> in_runs(const std::vector<std::vector<plan_count>>& placed, std::size_t most) {
  std::vector<std::vector<plan_count>> known(1, std::vector<plan_count>(most + 1));  // by clusters in use, then by stages
  known[0][0] = 1;
  for (const auto& ways : placed) {
    std::vector<std::vector<plan_count>> next(known.size() + 1, std::vector<plan_count>(most + 1));
    for (std::size_t used = 0; used < known.size(); ++used)
      for (std::size_t p = 0; p <= most; ++p)
        for (std::size_t k = 0; k < ways.size() && p + k <= most; ++k)
          next[used + (k > 0 ? 1 : 0)][p + k] += known[used][p] * ways[k];
    known = std::move(next);
  }
  std::vector<plan_count> sum(most + 1);
  plan_count orders = 1;
  for (std::size_t used = 1; used < known.size(); ++used) {
    orders *= used;
    for (std::size_t p = 0; p <= most; ++p) sum[p] += orders * known[used][p];
  }
  return sum;
}

}  // namespace detail

HETSCHED_INLINE plan_counts count_plans(const plan_space& space) {
  if (space.layers < 1 || space.operators < space.layers)
    throw input_error("plans are counted of at least one layer, and at least as many operators");
  for (const auto& ways : space.ways)
    if (ways.empty() || ways[0] != 0 || std::any_of(ways.begin(), ways.end(), [](auto n) { return n < 0; }))
      throw input_error("ways: expected numbers of at least 0 by devices of each cluster, of which the first is 0");
  std::size_t devices = 0;
  for (const auto& ways : space.ways) devices += ways.size() - 1;
  const auto count_of = [&](int parts) { return std::min(as_size(parts), devices); };
  const auto layers = as_size(space.layers), operators = as_size(space.operators);
  const auto most = count_of(space.operators);  // stages
  const auto choose = detail::pascal(std::max(operators, most));

  std::vector<std::vector<plan_count>> free, uniform;
  for (const auto& ways : space.ways) {
    const auto own = std::min(most, ways.size() - 1);
    free.push_back(detail::free_placements(ways, own, space.use_all_devices));
    uniform.push_back(detail::uniform_placements(ways, own, space.use_all_devices));
  }

  const auto several = detail::on_several_clusters(free, most, choose);
  const auto mixed = detail::on_one_cluster_each(free, most, choose);
  const auto consecutive = detail::in_runs(free, most), alike = detail::in_runs(uniform, most);

  plan_counts counts;
  for (std::size_t p = 1; p <= most; ++p) {
    counts.all += choose[operators - 1][p - 1] * several[p];
    if (p > layers) continue;
    const auto& cuts = choose[layers - 1][p - 1];
    counts.whole_layers += cuts * several[p];
    counts.one_cluster += cuts * mixed[p];
    counts.consecutive += cuts * consecutive[p];
    counts.uniform += cuts * alike[p];
  }
  return counts;
}

}  // namespace hetsched
