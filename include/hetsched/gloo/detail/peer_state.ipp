// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/peer_state.hpp>

namespace hetsched::detail {

HETSCHED_INLINE void take_round(std::vector<peer_state>& peers, std::span<const double> mine,
                                std::vector<std::vector<double>>& all) {
  all.resize(peers.size());
  for (std::size_t p = 0; p < peers.size(); ++p)
    if (peers[p].there)
      all[p] = peers[p].take_numbers();
    else
      all[p].assign(mine.begin(), mine.end());
}

HETSCHED_INLINE bool peer_state::add_numbers(const gathered_numbers& part, const char* values, std::size_t count) {
  const bool goes_on = !gathered.empty() && gathered.back().round == part.round;
  const std::size_t before = goes_on ? gathered.back().numbers.size() : 0;
  if (count > (goes_on ? gathered.back().all : part.all) - before) return false;
  if (!goes_on) gathered.push_back({.round = part.round, .all = part.all, .numbers = {}});
  auto& numbers = gathered.back().numbers;
  numbers.resize(before + count);
  if (count > 0) std::memcpy(numbers.data() + before, values, count * sizeof(double));
  return true;
}

}  // namespace hetsched::detail
