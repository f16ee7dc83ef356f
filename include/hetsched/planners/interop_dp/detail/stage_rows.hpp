// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/planners/parallel_pipelines/detail/stage_orders_test.cpp.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/planners/interop_dp/detail/problem.hpp>

namespace hetsched::detail {

/// Calls visit(placements) for rows of placements that differ little from this one, until it returns false: itself; one less; one
/// another, or another in place of two neighbours of a subcluster; two exchanged; one put elsewhere; one more, or two in place of
/// one of their subcluster. A row may come back to a subcluster. Returns false where visit did.
/// Complexity: O(n^2 + n P^2) calls for n stages and P placements.
template <class Visit>
bool for_each_stage_order(const interop_problem& problem, const std::vector<int>& from, Visit visit) {
  const auto count = from.size(), all = problem.placements.size();
  const auto offered = [&](std::size_t p) { return !problem.placements[p].dominated && !problem.placements[p].barred; };
  const auto subcluster_of = [&](int p) { return at(problem.placements, p).subcluster; };
  const auto at = [](auto& row, std::size_t i) { return row.begin() + static_cast<std::ptrdiff_t>(i); };
  if (!visit(from)) return false;
  auto row = from;
  for (std::size_t i = 0; i < count && count > 1; ++i) {
    row = from;
    row.erase(at(row, i));
    if (!visit(row)) return false;
  }
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t p = 0; p < all; ++p) {
      if (!offered(p)) continue;
      row = from;
      row[i] = static_cast<int>(p);
      if (!visit(row)) return false;
      if (i + 1 == count || subcluster_of(from[i]) != subcluster_of(from[i + 1]) ||
          subcluster_of(from[i]) != problem.placements[p].subcluster)
        continue;
      row.erase(at(row, i + 1));
      if (!visit(row)) return false;
    }
  for (std::size_t apart = 1; apart < count; ++apart)
    for (std::size_t i = 0; i + apart < count; ++i) {
      row = from;
      std::swap(row[i], row[i + apart]);
      if (!visit(row)) return false;
      row = from;
      std::rotate(at(row, i), at(row, i + 1), at(row, i + apart + 1));
      if (!visit(row)) return false;
      row = from;
      std::rotate(at(row, i), at(row, i + apart), at(row, i + apart + 1));
      if (!visit(row)) return false;
    }
  for (std::size_t i = 0; i <= count; ++i)
    for (std::size_t p = 0; p < all; ++p) {
      if (!offered(p)) continue;
      row = from;
      row.insert(at(row, i), static_cast<int>(p));
      if (!visit(row)) return false;
      if (i == count || problem.placements[p].subcluster != subcluster_of(from[i])) continue;
      for (std::size_t q = 0; q < all; ++q) {
        if (!offered(q) || problem.placements[q].subcluster != problem.placements[p].subcluster) continue;
        row[i + 1] = static_cast<int>(q);
        if (!visit(row)) return false;
      }
    }
  return true;
}

}  // namespace hetsched::detail
