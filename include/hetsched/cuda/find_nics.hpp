// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/hardware_test.cpp.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <hetsched/core/units.hpp>

namespace hetsched {

/// Where a device hangs in the PCI Express tree of its machine.
struct pci_place {
  std::vector<std::string> path = {};  ///< from the root complex to the device, as in /sys/devices; empty: not known
  int node = -1;                       ///< of memory, beside which it is; -1: not known
  friend bool operator==(const pci_place&, const pci_place&) = default;
};

/// How near two devices are: from 2 on they are below one bridge, and the more bridges they share the larger it is; 1: of one
/// root complex or node of memory; 0: neither, or not known.
[[nodiscard]] inline std::size_t nearness(const pci_place& a, const pci_place& b) {
  const auto shared = std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end()).first - a.path.begin();
  if (shared > 0) return static_cast<std::size_t>(shared);
  return a.node >= 0 && a.node == b.node ? 1 : 0;
}

namespace detail {

[[nodiscard]] inline std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace detail

/// The place of a device that has a folder or a link to one such as /sys/bus/pci/devices/0000:17:00.0 or
/// /sys/class/infiniband/mlx5_0/device. Where there is none, nothing is known of it.
[[nodiscard]] inline pci_place find_pci_place(const std::string& folder) {
  std::error_code none;
  const auto real = std::filesystem::canonical(folder, none);
  pci_place found;
  const auto is_root = [](const std::string& part) { return part.starts_with("pci") && part.find(':') != std::string::npos; };
  for (const auto& part : real)
    if (!found.path.empty() || is_root(part.string())) found.path.push_back(part.string());
  const auto node = detail::first_line(real / "numa_node");  // -1 where there is one node
  if (!node.empty() && node.size() < 4 && node.find_first_not_of("0123456789") == std::string::npos) found.node = std::stoi(node);
  return found;
}

/// A port of a network card, as Linux lists it.
struct nic {
  std::string name;  ///< as NCCL_IB_HCA takes it
  int port = 1;
  double bandwidth = 0;         ///< bytes/s, by its rate; 0: not known
  std::string link_layer = {};  ///< InfiniBand or Ethernet, as Linux says: ports of one reach none of the other; empty: not known
  pci_place place = {};
  friend bool operator==(const nic&, const nic&) = default;
};

/// The active ports below a folder of the kind of /sys/class/infiniband, by name. None where there is no such folder.
[[nodiscard]] inline std::vector<nic> find_nics(const std::string& folder = "/sys/class/infiniband") {
  std::vector<nic> found;
  std::error_code none;
  using detail::first_line;
  for (const auto& card : std::filesystem::directory_iterator(folder, none))
    for (const auto& port : std::filesystem::directory_iterator(card.path() / "ports", none)) {
      if (first_line(port.path() / "state").find("ACTIVE") == std::string::npos) continue;
      const auto number = port.path().filename().string(), rate = first_line(port.path() / "rate");  // "200 Gb/sec (4X HDR)"
      if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 4) continue;
      char* end = nullptr;
      const double gbit = std::strtod(rate.c_str(), &end);
      const bool is_rate = std::string_view(end).starts_with(" Gb/sec") && gbit > 0;
      found.push_back({.name = card.path().filename().string(),
                       .port = std::stoi(number),
                       .bandwidth = is_rate ? gbit_per_s(gbit) : 0,
                       .link_layer = first_line(port.path() / "link_layer"),
                       .place = find_pci_place((card.path() / "device").string())});
    }
  std::sort(found.begin(), found.end(),
            [](const nic& a, const nic& b) { return std::pair(a.name, a.port) < std::pair(b.name, b.port); });
  return found;
}

}  // namespace hetsched
