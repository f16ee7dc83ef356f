// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched::detail {

HETSCHED_INLINE schedule_shape shape_of(const std::vector<lane>& lanes) {
  schedule_shape shape;
  std::size_t actions = 0;
  for (const auto& l : lanes)
    for (const auto& a : l.actions) {
      if (a.stage < 0 || a.direction < 0 || a.microbatch < no_microbatch || a.microbatch == std::numeric_limits<int>::max() ||
          a.stage == std::numeric_limits<int>::max()) {
        shape.problem = "the schedule lists " + to_text(a);
        return shape;
      }
      shape.stages = std::max(shape.stages, a.stage + 1);
      shape.directions = std::max(shape.directions, a.direction + 1);
      shape.microbatches = std::max(shape.microbatches, a.microbatch + 1);
      ++actions;
    }
  const auto stages = static_cast<std::size_t>(shape.stages);
  if (stages == 0 || stages * static_cast<std::size_t>(shape.directions) > actions) {
    shape.problem = "the rows list " + std::to_string(actions) + " actions, too few for " + std::to_string(stages) +
                    " stages of " + std::to_string(shape.directions) + " directions";
    return shape;
  }
  if (static_cast<std::size_t>(shape.microbatches) > actions) {
    shape.problem = "the rows list " + std::to_string(actions) + " actions, too few for " + std::to_string(shape.microbatches) +
                    " microbatches";
    return shape;
  }
  shape.rank_of.assign(stages * static_cast<std::size_t>(shape.directions), -1);
  for (const auto& l : lanes)
    for (const auto& a : l.actions) {
      if (!is_compute(a.kind)) continue;
      int& rank = shape.rank_of[static_cast<std::size_t>(a.direction) * stages + static_cast<std::size_t>(a.stage)];
      if (rank < 0) rank = l.rank;
      if (rank != l.rank) {
        shape.problem = "ranks " + std::to_string(rank) + " and " + std::to_string(l.rank) + " both compute stage " +
                        std::to_string(a.stage) + " of direction " + std::to_string(a.direction);
        return shape;
      }
    }
  for (std::size_t i = 0; i < shape.rank_of.size(); ++i)
    if (shape.rank_of[i] < 0) {
      shape.problem = "no row computes stage " + std::to_string(i % stages) +
                      (i < stages ? "" : " of direction " + std::to_string(i / stages));
      break;
    }
  return shape;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string to_csv(const schedule& order) {
  std::string out;
  const auto shape = detail::shape_of(order.lanes);
  if (!shape.problem.empty() || shape.stages != order.stages || shape.directions != order.directions ||
      shape.microbatches != order.microbatches || shape.rank_of != order.rank_of) {
    out +=
        "#microbatches:" + std::to_string(order.microbatches) + ",replicas:" + std::to_string(order.directions) + ",placement:";
    for (std::size_t i = 0; i < order.rank_of.size(); ++i) out += (i > 0 ? ";" : "") + std::to_string(order.rank_of[i]);
    out += '\n';
  }
  for (std::size_t i = 0; i < order.lanes.size(); ++i) {
    const auto& l = order.lanes[i];
    const bool unlabelled = i < static_cast<std::size_t>(order.ranks);
    if (unlabelled ? l.stream != stream::compute || l.rank != static_cast<int>(i) || l.peer != -1
                   : l.stream == stream::compute || l.rank < 0 || l.peer < -1)
      throw input_error("lane " + std::to_string(i) +
                        " is not where the text of a schedule has it: the compute lane of each rank" +
                        " in order, then other streams");
    if (!unlabelled) {
      out += std::to_string(l.rank) + ":" + std::string(detail::stream_names[static_cast<std::size_t>(l.stream)]);
      if (l.peer >= 0) out += ":" + std::to_string(l.peer);
      if (!l.actions.empty()) out += ',';
    }
    for (std::size_t k = 0; k < l.actions.size();) {
      std::size_t end = k + 1;
      bool transfers = is_transfer(l.actions[k].kind);
      while (end < l.actions.size() && l.actions[end].joined) transfers = is_transfer(l.actions[end++].kind) && transfers;
      if (k > 0) out += ',';
      if (end > k + 1) out += '(';
      for (std::size_t j = k; j < end; ++j) {
        const auto& a = l.actions[j];
        if ((j == 0 && a.joined) || a.stage < 0 || a.direction < 0 ||
            takes_microbatch(a.kind) == (a.microbatch == no_microbatch) || a.microbatch < no_microbatch)
          throw input_error("rank " + std::to_string(l.rank) + " lists an action that has no text: " + to_text(a));
        if (j > k) out += ';';
        out += to_text(a);
      }
      if (end > k + 1) out += transfers ? ")GROUP" : ")OVERLAP_F_B";
      k = end;
    }
    out += '\n';
  }
  return out;
}

}  // namespace hetsched
