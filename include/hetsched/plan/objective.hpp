// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace hetsched {

/// What plans are compared by.
enum class plan_objective {
  iteration,  ///< seconds of an iteration
  cost,       ///< money per sample
  latency,    ///< seconds of a request (inference)
  throughput  ///< seconds per request (inference)
};

/// Whether an objective is one of inference.
[[nodiscard]] constexpr bool is_inference(plan_objective o) {
  return o == plan_objective::latency || o == plan_objective::throughput;
}

/// All objectives, in the order of their values.
inline constexpr std::string_view objective_names[] = {"iteration", "cost", "latency", "throughput"};

/// The name of an objective in files and commands.
[[nodiscard]] constexpr std::string_view name_of(plan_objective o) { return objective_names[static_cast<int>(o)]; }

/// The objective of a name; none for any other text.
[[nodiscard]] constexpr std::optional<plan_objective> objective_named(std::string_view name) {
  for (int o = 0; o < 4; ++o)
    if (objective_names[o] == name) return static_cast<plan_objective>(o);
  return std::nullopt;
}

}  // namespace hetsched
