// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/planners/placement/chain.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void validate(const placement_chain& chain) {
  expect_count(chain.layers, "layers of the chain");
  expect_count(chain.stages, "stages", 0);
  // Without kinds, as where a profile has no row for single devices, there is no placement.
  if (chain.pools.empty() || !chain.in_flight) throw input_error("a chain needs pools of devices and what is in flight");
  const auto layers = as_size(chain.layers);
  const auto pools = static_cast<std::int64_t>(chain.pools.size());
  for (std::int64_t i = 0; i < pools; ++i) {
    const auto& pool = at(chain.pools, i);
    expect_count(pool.count, "count of a pool", 0, INT16_MAX);
    expect_count(pool.twin, "twin of a pool", -1, pools - 1);
    if (pool.twin == i) throw input_error("a pool is its own twin");
  }
  for (const auto& kind : chain.kinds) {
    expect_count(kind.pool, "pool of a kind", 0, pools - 1);
    for (const auto* sums : {&kind.seconds_before, &kind.state_before, &kind.in_flight_before}) {
      expect_size(sums->size(), layers + 1, "the sums of a kind", "one per layer and one more");
      expect_naturals(*sums, "the sums of a kind");
      if (!std::is_sorted(sums->begin(), sums->end())) throw input_error("the sums of a kind fall");
    }
    expect_size(kind.temporary.size(), layers, "temporary", "one per layer");
    expect_naturals(kind.temporary, "temporary");
    expect_natural(kind.memory.scale, "scale of a kind's memory");
    if (std::isnan(kind.memory.room)) throw input_error("room of a kind's memory is not a number");
    for (const auto& c : kind.copies) {
      expect_count(c.owner, "owner of a copy", 0, chain.layers - 1);
      expect_count(c.layer, "layer of a copy", 0, chain.layers - 1);
      expect_count(c.weight_bytes, "weight_bytes of a copy", 0);
    }
  }
  auto boundaries = layers - 1;
  if (!chain.boundary_kinds.empty()) {
    expect_size(chain.boundary_kinds.size(), layers - 1, "boundary_kinds", "one per boundary");
    for (const int k : chain.boundary_kinds) expect_count(k, "a boundary's kind", 0, chain.layers - 2);
    boundaries = as_size(*std::max_element(chain.boundary_kinds.begin(), chain.boundary_kinds.end())) + 1;
  }
  expect_size(chain.transfers.size(), boundaries * chain.kinds.size() * chain.kinds.size(), "transfers",
              "one per kind of boundary and two kinds of stages");
  for (const auto& t : chain.transfers)
    if (!(t.seconds >= 0 && t.occupied_s >= 0)) throw input_error("a transfer takes less than 0 s, or is not a number");
}

}  // namespace hetsched::detail
