// SPDX-License-Identifier: Apache-2.0
// Devices of a cluster as users write them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cluster/device_group.hpp>
#include <hetsched/core/error.hpp>

namespace command {

/// The numbers of a text like 1,2,3. Throws input_error naming `what` unless there are so many, each at least `least`.
[[nodiscard]] inline std::vector<std::int64_t> numbers_of(std::string_view text, char between, std::size_t count,
                                                          std::int64_t least, const std::string& what) {
  std::vector<std::int64_t> found;
  for (std::string_view rest = text; found.size() <= count;) {
    const auto end = std::min(rest.find(between), rest.size());
    auto digits = rest.substr(0, end);
    while (digits.starts_with(' ')) digits.remove_prefix(1);
    while (digits.ends_with(' ')) digits.remove_suffix(1);
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || stop != digits.data() + digits.size() || value < least || value > 1'000'000'000)
      throw hetsched::input_error(what + ": found \"" + std::string(digits) + "\", expected a whole number from " +
                                  std::to_string(least) + " to 1000000000");
    found.push_back(value);
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  if (found.size() != count)
    throw hetsched::input_error(what + ": found \"" + std::string(text) + "\", expected " + std::to_string(count) +
                                " numbers with '" + between + "' between them");
  return found;
}

/// SUBCLUSTER:FIRST:NODESxDEVICES: a part of one node, or whole nodes. Throws input_error naming `option`.
[[nodiscard]] inline hetsched::device_group parse_group(const hetsched::cluster& c, const std::string& option,
                                                        std::string_view text) {
  // The name of a subcluster may have colons.
  const auto last = text.rfind(':');
  const auto middle = last == std::string_view::npos || last == 0 ? last : text.rfind(':', last - 1);
  if (last == std::string_view::npos || middle == std::string_view::npos || middle == last)
    throw hetsched::input_error(option + ": found \"" + std::string(text) +
                                "\", expected SUBCLUSTER:FIRST:NODESxDEVICES, as in a100:0:1x8");
  const auto name = text.substr(0, middle), grid = text.substr(last + 1);
  const auto position = c.find(name);
  if (!position) throw hetsched::input_error(option + ": the cluster has no subcluster \"" + std::string(name) + "\"");
  const auto first = numbers_of(text.substr(middle + 1, last - middle - 1), ',', 1, 0, option + ", first device");
  const auto shape = numbers_of(grid, 'x', 2, 1, option + ", nodes x devices");
  const auto& s = c.subclusters[static_cast<std::size_t>(*position)];
  const auto nodes = shape[0], per_node = shape[1], devices = nodes * per_node;
  if (per_node > s.devices_per_node || devices > s.device_count() || first[0] > s.device_count() - devices)
    throw hetsched::input_error(option + ": subcluster " + s.name + " has " + std::to_string(s.nodes) + "x" +
                                std::to_string(s.devices_per_node) + " devices, found " + std::string(grid) + " from device " +
                                std::to_string(first[0]) + " on");
  const auto on = (first[0] + devices - 1) / s.devices_per_node - first[0] / s.devices_per_node + 1;
  if (on != nodes || (nodes > 1 && per_node < s.devices_per_node))
    throw hetsched::input_error(option + ": found " + std::string(grid) + ", but devices " + std::to_string(first[0]) + " to " +
                                std::to_string(first[0] + devices - 1) + " of " + s.name + " lie on " + std::to_string(on) +
                                (on == 1 ? " node" : " nodes") + " of " + std::to_string(s.devices_per_node) +
                                "; expected a part of one node, or whole nodes");
  return {{*position, static_cast<int>(nodes), static_cast<int>(per_node)}, static_cast<int>(first[0])};
}

/// DATA,CONTEXT,TENSOR of so many devices. Throws input_error naming `option` unless they multiply to them.
[[nodiscard]] inline hetsched::degrees parse_degrees(const std::string& option, std::string_view text, int devices) {
  const auto d = numbers_of(text, ',', 3, 1, option + ", degrees");
  // One after the other: the product of all three may not be a number.
  if (d[0] > devices || d[0] * d[1] > devices || d[0] * d[1] * d[2] != devices)
    throw hetsched::input_error(option + ": degrees " + std::string(text) + " do not multiply to " + std::to_string(devices) +
                                " devices");
  return {static_cast<int>(d[0]), static_cast<int>(d[1]), static_cast<int>(d[2])};
}

}  // namespace command
