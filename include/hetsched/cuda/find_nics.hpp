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

/// A port of a network card, as Linux lists it.
struct nic {
  std::string name;  ///< as NCCL_IB_HCA takes it
  int port = 1;
  double bandwidth = 0;  ///< bytes/s, by its rate; 0: not known
  friend bool operator==(const nic&, const nic&) = default;
};

/// The active ports below a folder of the kind of /sys/class/infiniband, by name. None where there is no such folder.
[[nodiscard]] inline std::vector<nic> find_nics(const std::string& folder = "/sys/class/infiniband") {
  std::vector<nic> found;
  std::error_code none;
  const auto first_line = [](const std::filesystem::path& file) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    return line;
  };
  for (const auto& card : std::filesystem::directory_iterator(folder, none))
    for (const auto& port : std::filesystem::directory_iterator(card.path() / "ports", none)) {
      if (first_line(port.path() / "state").find("ACTIVE") == std::string::npos) continue;
      const auto number = port.path().filename().string(), rate = first_line(port.path() / "rate");  // "200 Gb/sec (4X HDR)"
      if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos || number.size() > 4) continue;
      char* end = nullptr;
      const double gbit = std::strtod(rate.c_str(), &end);
      const bool is_rate = std::string_view(end).starts_with(" Gb/sec") && gbit > 0;
      found.push_back({card.path().filename().string(), std::stoi(number), is_rate ? gbit_per_s(gbit) : 0});
    }
  std::sort(found.begin(), found.end(),
            [](const nic& a, const nic& b) { return std::pair(a.name, a.port) < std::pair(b.name, b.port); });
  return found;
}

}  // namespace hetsched
