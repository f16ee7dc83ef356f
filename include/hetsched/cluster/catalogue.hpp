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

/// The catalogue's device of that name, or that drivers print so, as in "NVIDIA H100 80GB HBM3" and "Tesla T4"; none if it has
/// no such device, or more than one. Case, blanks, hyphens and makers' words do not matter.
/// Complexity: O(devices).
[[nodiscard]] std::optional<device> find_device(std::string_view name);

/// Whether two names are of one device: equal, but for what find_device passes over, or two of one device of the catalogue.
/// Complexity: O(devices).
[[nodiscard]] bool same_device(std::string_view a, std::string_view b);

namespace detail {

/// What of a device's name is compared: small letters and digits, without makers' words.
[[nodiscard]] std::string plain_device_name(std::string_view name);

}  // namespace detail

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
