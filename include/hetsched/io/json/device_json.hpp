// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

namespace detail {

[[nodiscard]] inline bytes_t bytes_of(double amount, bytes_t unit) {
  return static_cast<bytes_t>(std::llround(amount * static_cast<double>(unit)));
}

[[nodiscard]] inline double seconds_from_us(double us) { return us * 1e-6; }

/// A device of a file. What the file leaves out comes from the device of the catalogue that it is `like`, else from `known`, if
/// there is one.
[[nodiscard]] device read_device(const std::string& name, const json_value& value, const std::optional<device>& known);

/// device::speed and device::class_speeds: one number, or one for each class of operators.
[[nodiscard]] std::pair<double, std::array<double, 3>> read_speeds(const json_value& value);

[[nodiscard]] nlohmann::ordered_json write_speeds(double speed, const std::array<double, 3>& of_class);

[[nodiscard]] nlohmann::ordered_json write_device(const device& d);

/// `there is no device "x"; did you mean "y"? Known: ...`, with the nearest where none is near.
[[nodiscard]] std::string unknown_device_text(std::string_view name, const std::vector<std::string_view>& known);

/// The names of the catalogue's devices.
[[nodiscard]] std::vector<std::string_view> catalogue_names();

}  // namespace detail

/// The text of a device.json that parse_device reads back as an equal device but for the name, which is its file's.
[[nodiscard]] std::string to_json(const device& d);

/// Reads a device.json, the fields of an entry of a cluster's devices, under the name that it gives itself, or `name`. It says
/// all itself, or what catalogue device it is like. Throws: file_error.
[[nodiscard]] inline device parse_device(std::string_view text, std::string_view file_name, const std::string& name) {
  const detail::json_document document(text, file_name);
  (void)document.version_of("device", 1);
  if (const auto measured = document.value().find("measured"))
    measured->fail("stands in a cluster.json, at the device's entry of \"devices\"");
  const auto own = document.value().find("name");
  return detail::read_device(own ? own->name() : name, document.value(), std::nullopt);
}

/// Reads a device.json. A device without a name is called as the file, without folder and ending.
/// Throws: file_error.
[[nodiscard]] inline device read_device(const std::string& path) {
  const auto file = path.substr(path.find_last_of('/') + 1);
  return parse_device(read_text(path), path, file.substr(0, file.find_last_of('.')));
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/device_json.ipp>
#endif
