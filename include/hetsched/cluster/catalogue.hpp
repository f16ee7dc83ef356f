// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/error.hpp>

namespace hetsched {

/// All accelerators that the library knows by name, with their datasheet figures, in a fixed order. docs/devices.md has the
/// sources.
/// Complexity: built on first use, O(1) afterwards.
[[nodiscard]] const std::vector<device>& device_catalogue();

/// The catalogue's device of that name, which is case-sensitive; none if it has no such device.
[[nodiscard]] inline std::optional<device> find_device(std::string_view name) {
  for (const auto& d : device_catalogue())
    if (d.name == name) return d;
  return std::nullopt;
}

/// The catalogue's device of that name.
/// Throws: input_error if it has no such device.
[[nodiscard]] inline device catalogue_device(std::string_view name) {
  if (auto found = find_device(name)) return *std::move(found);
  throw input_error("the catalogue has no device \"" + std::string(name) + "\" (docs/devices.md lists its names)");
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/catalogue.ipp>
#endif
