// SPDX-License-Identifier: Apache-2.0
// The device that an option names.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io.hpp>

namespace command {

using namespace hetsched;

/// The device of a device.json, where `name` ends in .json or is the path of a file that is there; else the device of that name:
/// of a cluster file's subclusters, if one is given, or of the catalogue.
inline device named_device(const std::string& name, const std::string& cluster_path) {
  std::error_code unknown;
  const bool file = name == "-" || (name.find('/') != name.npos && std::filesystem::exists(name, unknown));
  if (file || name.ends_with(".json")) return read_device(name);
  auto names = hetsched::detail::catalogue_names();
  const auto given = cluster_path.empty() ? cluster{} : read_cluster(cluster_path);
  for (const auto& s : given.subclusters) {
    if (same_device(s.device.name, name)) return s.device;
    if (std::find(names.begin(), names.end(), s.device.name) == names.end()) names.push_back(s.device.name);
  }
  if (const auto known = find_device(name)) return *known;
  throw input_error("--device: " + hetsched::detail::unknown_device_text(name, names));
}

}  // namespace command
