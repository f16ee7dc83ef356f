// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/strategy.hpp>
#include <hetsched/reshard/transfer_plan.hpp>

namespace hetsched {

/// What a transfer plan takes.
struct reshard_price {
  double seconds = 0;     ///< from the first message to the last; infinity where a link is missing
  double occupied_s = 0;  ///< what the busiest port carries, in all phases together; at most `seconds`
  std::int64_t messages = 0;
  std::int64_t cross_bytes = 0;       ///< that leave the sending stage for the receiving one
  std::int64_t peak_extra_bytes = 0;  ///< the most that a device holds of what is neither its slice before nor after
  friend bool operator==(const reshard_price&, const reshard_price&) = default;
};

/// The devices of groups, in order.
/// Throws: input_error for devices that the cluster does not have.
[[nodiscard]] std::vector<device_id> devices_of(const cluster& c, const std::vector<device_group>& groups);

/// What a transfer plan takes on these devices (sources, then destinations), with so many bytes per element. A device's port, a
/// node's port to other nodes and each of their directions carry one message at a time, each for the latency and the bytes over
/// the bandwidth of the link between its ends; between subclusters every pair of nodes has the link's bandwidth. A phase takes as
/// long as its busiest port. Chunks overlap: each phase works on one at a time, and no port does more than it can. So do whole
/// transfers: microbatches can follow each other occupied_s apart, each on its way for `seconds`.
/// Throws: input_error for a cluster whose counts or links are not valid, for a plan whose messages are not of its devices and
/// phases, unless there are as many devices as it has, all in the cluster and no message between one and itself, and
/// element_bytes is finite and at least 0; and for more bytes than 64 bits count. Complexity: O(messages + devices log devices +
/// subclusters^2).
[[nodiscard]] reshard_price price_of(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                     double element_bytes);

/// A way to move a tensor between two stages, and what it takes.
struct reshard_choice {
  reshard_strategy strategy = reshard_strategy::direct;
  transfer_plan plan{};
  reshard_price price{};
};

struct choice_options {
  int outer = 1;                          ///< as reshard_options have it; 1 is tried too
  std::int64_t memory_bytes = INT64_MAX;  ///< that a device has for what it passes on
  std::vector<int> chunks{1, 4, 16};      ///< worth trying for strategies of several phases
  std::size_t most_messages = 1 << 22;    ///< of all chunks; of `chunks`, the first is tried anyway
  std::span<const reshard_strategy> strategies = all_reshard_strategies;
};

/// Each strategy at its best number of chunks and of outer parts, in the order of the strategies.
/// `devices`: those of both layouts, sources first.
/// Throws: as plan_transfer and price_of, and input_error for options without a number of chunks to try.
[[nodiscard]] std::vector<reshard_choice> price_strategies(const cluster& c, std::span<const device_id> devices,
                                                           const layout& from, const layout& to, double element_bytes,
                                                           const choice_options& options = {});

/// The cheapest of them that fits into memory; of equally cheap ones the first.
/// Throws: input_error unless there is one of them at least, and every price is a time of at least 0 s.
[[nodiscard]] inline const reshard_choice& cheapest(std::span<const reshard_choice> all, std::int64_t memory_bytes = INT64_MAX) {
  if (all.empty()) throw input_error("there is no way to choose from");
  for (const auto& one : all)
    if (!(one.price.seconds >= 0)) detail::expect_natural(one.price.seconds, "the price of a transfer");
  const auto rank = [&](const reshard_choice& r) { return std::pair(r.price.peak_extra_bytes > memory_bytes, r.price.seconds); };
  return *std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

/// The cheapest way, by price_of, to move a tensor from one layout on some devices to another on others that fits into their
/// memory. direct always fits. Throws: as price_strategies, and input_error for options without strategies.
/// Complexity: that of some twenty plan_transfer.
[[nodiscard]] inline reshard_choice choose_reshard(const cluster& c, std::span<const device_id> devices, const layout& from,
                                                   const layout& to, double element_bytes, const choice_options& options = {}) {
  return cheapest(price_strategies(c, devices, from, to, element_bytes, options), options.memory_bytes);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/reshard/price.ipp>
#endif
