// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/detail/shape.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void shape_findings(const schedule& order, finding_list& findings) {
  if (order.ranks < 1) findings.add("the schedule has no ranks");
  if (order.stages < 1) findings.add("the schedule has no stages");
  if (order.microbatches < 1) findings.add("the schedule has no microbatches");
  if (order.directions < 1) findings.add("the schedule has no directions");
  if (!findings.empty()) return;
  const auto ranks = as_size(order.ranks);
  if (order.rank_of.size() != as_size(order.directions) * as_size(order.stages))
    findings.add("the stage map has " + std::to_string(order.rank_of.size()) + " entries for " + std::to_string(order.stages) +
                 " stages of " + std::to_string(order.directions) + " directions");
  for (const int r : order.rank_of)
    if (r < 0 || r >= order.ranks) findings.add("the stage map names rank " + std::to_string(r));
  if (order.lanes.size() < ranks) findings.add("the schedule has fewer lanes than ranks");
  if (order.directions > INT16_MAX) findings.add("the schedule has " + std::to_string(order.directions) + " directions");
  for (std::size_t i = 0; i < order.lanes.size(); ++i) {
    const auto& l = order.lanes[i];
    const bool compute = l.stream == stream::compute;
    if (i < ranks ? !compute || l.rank != static_cast<int>(i) : compute || l.rank < 0 || l.rank >= order.ranks)
      findings.add("lane " + std::to_string(i) + " is not " +
                   (i < ranks ? "the compute stream of " + rank_text(static_cast<int>(i)) : "another stream of a rank"));
    const bool pairwise = l.stream == stream::send || l.stream == stream::receive || l.stream == stream::network;
    if (pairwise ? l.peer < 0 || l.peer >= order.ranks || l.peer == l.rank : l.peer != -1)
      findings.add("lane " + std::to_string(i) + " has peer " + std::to_string(l.peer));
  }
}

HETSCHED_INLINE void validate_shape(const schedule& order) {
  finding_list findings(1);
  shape_findings(order, findings);
  if (!findings.empty()) throw input_error(findings.first());
}

}  // namespace hetsched::detail
