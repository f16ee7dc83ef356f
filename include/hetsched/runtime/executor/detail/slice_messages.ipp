// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/executor/detail/slice_messages.hpp>

namespace hetsched::detail {

HETSCHED_INLINE bool add_copy(slice_messages::outgoing& o, int from, const slice& held) {
  auto part = intersection(o.part, held);
  if (element_count(part) == 0) return false;
  o.copies.push_back({.from = from, .part = std::move(part)});
  return true;
}

/// Where a part begins in the array of a slice, if it is one run of it, else -1.
HETSCHED_INLINE std::int64_t run_in(const slice& held, const slice& part) {
  if (!contains(held, part)) return -1;
  const auto runs = runs_of(held, part, part, 0, element_count(part));
  return runs.size() == 1 && runs.front().rows == 1 ? runs.front().first_a : -1;
}

/// Finds the messages that need no buffer. What a destination gets may be taken before it has left again, so that is sent on
/// from buffers only.
HETSCHED_INLINE void find_runs(slice_messages& m) {
  for (auto& i : m.in) {
    const auto overlaps = [&](const slice_messages::incoming& other) { return &other != &i && overlap(other.part, i.part); };
    if (m.source || i.in_place || std::any_of(m.in.begin(), m.in.end(), overlaps)) continue;
    i.run = run_in(m.own, i.part);
  }
  for (auto& o : m.out) {
    if (o.in_place || o.copies.size() != 1 || o.copies.front().part != o.part) continue;
    const int from = o.copies.front().from;
    if (from < 0)
      o.run = run_in(m.own, o.part);
    else if (const auto& i = at(m.in, from); i.buffered())
      o.run = run_in(i.part, o.part);
  }
}

HETSCHED_INLINE slice_messages messages_of(const transfer_plan& plan, const slice_place& place, function_ref<int(int)> rank_of,
                                           function_ref<int(const edge&)> open, bool has_bytes) {
  slice_messages found{.own = place.own, .source = place.me < plan.sources, .in = {}, .out = {}};
  const int me = place.me;
  for (std::size_t phase = 0; phase < plan.phase_count(); ++phase) {
    const std::size_t before = found.in.size();  // of earlier phases
    for (const auto& m : plan.phase(phase)) {
      if (m.from != me && m.to != me) continue;
      if (m.elements == 0) continue;
      const auto part = plan.slice_of(m);
      edge e = place.where;
      e.from = rank_of(m.from);
      e.to = rank_of(m.to);
      e.part = static_cast<int>(&m - plan.messages.data()) + 1;
      const int number = static_cast<int>(phase);
      if (m.to == me)
        found.in.push_back({.where = e, .channel = open(e), .phase = number, .part = slice(part.begin(), part.end())});
      if (m.from == me) {
        slice_messages::outgoing o{.where = e, .channel = open(e), .phase = number, .part = slice(part.begin(), part.end())};
        if (found.source) add_copy(o, -1, found.own);
        for (std::size_t i = 0; i < before; ++i)
          if (add_copy(o, static_cast<int>(i), found.in[i].part)) o.needs.push_back(i);
        found.out.push_back(std::move(o));
      }
    }
  }
  std::size_t for_own = 0, from_own = 0;
  for (auto& i : found.in) {
    if (found.source) continue;
    i.to_own = intersection(i.part, found.own);
    for_own += element_count(i.to_own) > 0;
  }
  for (auto& i : found.in) i.in_place = for_own == 1 && i.part == found.own && !found.source;
  for (const auto& o : found.out) from_own += !o.copies.empty() && o.copies.front().from < 0;
  for (auto& o : found.out) o.in_place = from_own == 1 && found.source && o.part == found.own && o.needs.empty();
  if (has_bytes) find_runs(found);
  return found;
}

}  // namespace hetsched::detail
