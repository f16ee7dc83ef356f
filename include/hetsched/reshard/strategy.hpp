// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/reshard/strategies_test.cpp.

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include <hetsched/core/index.hpp>

namespace hetsched {

/// Ways to move a tensor from one layout to another.
enum class reshard_strategy {
  direct,            ///< every pair of devices whose slices overlap (HetAuto's strategy 1)
  one_to_one,        ///< gathered on one device, sent to one device, scattered (strategy 2)
  inner_rank_0,      ///< gathered along data, sent between the first data ranks, scattered along data (strategy 3)
  leader_broadcast,  ///< once to one device of those that want the same, which broadcasts (HexiScale)
  scatter_gather,    ///< a part to each of those that want the same, which gather all
  load_balanced,     ///< direct, from the least loaded of those that hold the same, each starting with another receiver
  regroup_before,    ///< the senders exchange slices first, so that each receiver hears from one of them
  regroup_after,     ///< each sender sends to one receiver, and these exchange slices
};

inline constexpr std::array all_reshard_strategies{reshard_strategy::direct,         reshard_strategy::one_to_one,
                                                   reshard_strategy::inner_rank_0,   reshard_strategy::leader_broadcast,
                                                   reshard_strategy::scatter_gather, reshard_strategy::load_balanced,
                                                   reshard_strategy::regroup_before, reshard_strategy::regroup_after};

/// Its name in files and commands.
[[nodiscard]] constexpr std::string_view name_of(reshard_strategy s) {
  constexpr std::string_view names[] = {"direct",         "one_to_one",    "inner_rank_0",   "leader_broadcast",
                                        "scatter_gather", "load_balanced", "regroup_before", "regroup_after"};
  return at(names, s);
}

/// The strategy of that name, if there is one.
[[nodiscard]] constexpr std::optional<reshard_strategy> find_reshard_strategy(std::string_view name) {
  for (const auto s : all_reshard_strategies)
    if (name == name_of(s)) return s;
  return std::nullopt;
}

/// Whether a strategy may send its tensor in chunks; the others do as they were published.
[[nodiscard]] constexpr bool goes_in_chunks(reshard_strategy s) {
  return s == reshard_strategy::scatter_gather || s == reshard_strategy::regroup_before || s == reshard_strategy::regroup_after;
}

}  // namespace hetsched
