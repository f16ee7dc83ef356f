// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/axis_group.hpp>

#include "../runtime/dense.hpp"

// Collectives with parts of different sizes, some of them empty, by threads of hosts.
namespace hetsched::test {

using host_threads = thread_communicator<matrix<double>>;
using part_counts = std::vector<std::size_t>;

inline matrix<double> row_of(random_source& random, std::size_t n) { return random_matrix<double>(random, 1, n); }
inline std::size_t total_of(const part_counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::size_t{0}); }

/// What each rank puts in: a part of its own, parts for all, and parts for each other.
struct uneven_task {
  int ranks = 2;
  part_counts counts;           ///< of parts
  std::vector<part_counts> to;  ///< [from][to]
  std::vector<matrix<double>> mine, all, sends;

  explicit uneven_task(std::uint64_t seed) {
    random_source random(seed);
    ranks = random.integer(2, 5);
    const auto n = static_cast<std::size_t>(ranks);
    const auto draw = [&] { return static_cast<std::size_t>(std::max(0, random.integer(-2, 9))); };
    counts.resize(n);
    for (auto& c : counts) c = draw();
    to.assign(n, part_counts(n));
    for (auto& row : to)
      for (auto& c : row) c = draw();
    for (std::size_t r = 0; r < n; ++r) {
      mine.push_back(row_of(random, counts[r]));
      all.push_back(row_of(random, total_of(counts)));
      sends.push_back(row_of(random, total_of(to[r])));
    }
  }
  [[nodiscard]] part_counts from(std::size_t rank) const {
    part_counts column;
    for (const auto& row : to) column.push_back(row[rank]);
    return column;
  }
};

using collected = std::vector<std::vector<double>>;

inline collected on_threads(const uneven_task& t) {
  collected found(static_cast<std::size_t>(3 * t.ranks));
  std::vector<int> members(static_cast<std::size_t>(t.ranks));
  std::iota(members.begin(), members.end(), 0);
  run_on_threads(host_threads::connect(t.ranks), [&](host_threads& end) {
    const auto r = static_cast<std::size_t>(end.rank());
    const axis_group<matrix<double>, host_threads> axis(end, members);
    const auto in = [](const matrix<double>& m) { return std::span<const double>(m.data(), m.rows() * m.columns()); };
    std::vector<double> gathered(total_of(t.counts)), scattered(t.counts[r]), exchanged(total_of(t.from(r)));
    axis.all_gather(in(t.mine[r]), gathered, t.counts);
    axis.reduce_scatter(in(t.all[r]), scattered, t.counts);
    axis.all_to_all(in(t.sends[r]), t.to[r], exchanged, t.from(r));
    found[3 * r] = std::move(gathered);
    found[3 * r + 1] = std::move(scattered);
    found[3 * r + 2] = std::move(exchanged);
  });
  return found;
}

}  // namespace hetsched::test
