// SPDX-License-Identifier: Apache-2.0
// The device that an option names.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io.hpp>

namespace command {

using namespace hetsched;

/// The device of a device.json, where `name` ends in .json; else the device of that name: of a cluster file's subclusters, if one
/// is given, or of the catalogue.
inline device named_device(const std::string& name, const std::string& cluster_path) {
  if (name.ends_with(".json")) return read_device(name);
  std::vector<device> known;
  if (!cluster_path.empty())
    for (const auto& s : read_cluster(cluster_path).subclusters) known.push_back(s.device);
  known.insert(known.end(), device_catalogue().begin(), device_catalogue().end());
  for (const auto& d : known)
    if (d.name == name) return d;
  std::vector<std::string_view> names;
  for (const auto& d : known)
    if (std::find(names.begin(), names.end(), d.name) == names.end()) names.push_back(d.name);
  throw input_error("--device: there is no device \"" + hetsched::detail::excerpt(name) + "\"; " +
                    hetsched::detail::suggestion(name, names));
}

}  // namespace command
