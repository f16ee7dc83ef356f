// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cluster/submesh.hpp>

namespace hetsched {

/// What backward computes again in place of keeping it: nothing; attention scores; everything but a layer's input.
enum class recomputation { none, selective, full };

/// Its name in files and commands.
[[nodiscard]] constexpr std::string_view name_of(recomputation r) {
  return r == recomputation::none ? "none" : r == recomputation::selective ? "selective" : "full";
}

/// The recomputation of that name, if there is one.
[[nodiscard]] constexpr std::optional<recomputation> find_recomputation(std::string_view name) {
  for (const auto r : {recomputation::none, recomputation::selective, recomputation::full})
    if (name == name_of(r)) return r;
  return std::nullopt;
}

/// Where and how a stage runs, as planners ask for it: a shape cut from a subcluster, the parallel sizes on it, and how it saves
/// memory.
struct placement {
  submesh mesh{};
  hetsched::degrees degrees{};
  recomputation recompute = recomputation::none;
  int zero = 0;  ///< ZeRO stage: replicas share out 1 optimizer state, 2 also gradients, 3 also weights
  friend constexpr bool operator==(const placement&, const placement&) = default;
};

}  // namespace hetsched
