// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void refuse_ends(device_id a, device_id b) {
  throw input_error("no link is between node " + std::to_string(a.node) + " of subcluster " + std::to_string(a.subcluster) +
                    " and node " + std::to_string(b.node) + " of subcluster " + std::to_string(b.subcluster) +
                    ", expected two devices of the cluster");
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void connect(cluster& c, std::string_view a, std::string_view b, const link& over) {
  const auto position = [&](std::string_view name) {
    const auto found = c.find(name);
    if (!found) throw input_error("no subcluster is named " + std::string(name));
    return *found;
  };
  const int from = position(a), to = position(b);
  if (from == to) throw input_error("a link must join two different subclusters, not " + std::string(a) + " with itself");
  detail::expect_natural(over.latency_s, "the latency of a link");
  if (!(over.bandwidth > 0)) detail::expect_positive(over.bandwidth, "the bandwidth of a link");
  c.links.push_back({from, to, over});
}

}  // namespace hetsched
