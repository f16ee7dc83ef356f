// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/reshard/transfer_plan.hpp>

namespace hetsched {

struct transfer_svg_options {
  std::string title = {};
  double element_bytes = 0;  ///< 0: sizes are told in elements
};

/// A picture of who sends what to whom: senders on the left, receivers on the right, a line per message, thicker for more
/// bytes, coloured by phase.
/// Requires: a message at least; as many devices as the plan has, sources first.
/// Complexity: O(messages + devices).
[[nodiscard]] std::string transfer_svg(const transfer_plan& p, const cluster& c, std::span<const device_id> devices,
                                       const transfer_svg_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/transfer_svg.ipp>
#endif
