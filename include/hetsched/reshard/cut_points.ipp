// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/reshard/cut_points.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<std::int64_t> cut_points(std::int64_t extent, std::span<const double> shares) {
  // Whole indices of larger ones are not told apart by shares.
  detail::expect_count(extent, "the extent of a dimension", 0, std::int64_t{1} << 53);
  detail::expect_naturals(shares, "shares");
  double all = 0;
  for (const double s : shares) all += s;
  detail::expect_positive(all, "the sum of shares");
  std::vector<std::int64_t> sizes;
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t left = extent;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double wanted = shares[i] / all * static_cast<double>(extent);
    sizes.push_back(std::min(static_cast<std::int64_t>(wanted), left));
    remainders.emplace_back(static_cast<double>(sizes[i]) - wanted, i);
    left -= sizes[i];
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++sizes[remainders[i].second];
  std::vector<std::int64_t> points{0};
  for (const auto size : sizes) points.push_back(points.back() + size);
  return points;
}

}  // namespace hetsched
