// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <string_view>

#include <hetsched/cluster/device.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// What joins the devices of a node, and so how much of a datasheet's bandwidth collectives get of it.
enum class link_kind {
  measured,      ///< any link, with a bandwidth that collectives do reach
  nvlink,        ///< NVLink, by datasheet
  nvlink_sharp,  ///< the same with switches that add up (NVLS): nodes of Hopper and later
  pcie_p2p,      ///< PCIe over which devices reach each other's memory, by datasheet
  pcie,          ///< PCIe by way of the host's memory, by datasheet
};
inline constexpr int link_kind_count = 5;

/// The name of a kind in files.
[[nodiscard]] constexpr std::string_view name_of(link_kind k) {
  constexpr std::string_view names[] = {"measured", "nvlink", "nvlink-sharp", "pcie-p2p", "pcie"};
  return at(names, k);
}

/// The kind of that name, if there is one.
[[nodiscard]] constexpr std::optional<link_kind> find_link_kind(std::string_view name) {
  for (int k = 0; k < link_kind_count; ++k)
    if (name == name_of(static_cast<link_kind>(k))) return static_cast<link_kind>(k);
  return std::nullopt;
}

/// What joins such devices on a node, where the bandwidth (bytes/s, per direction) is a datasheet's: that of NVLink for the
/// device's generation, or of 16 lanes of PCIe 3, 4 or 5, which makers open between devices with HBM and seldom between others.
/// Any other bandwidth counts as measured.
[[nodiscard]] inline link_kind usual_link_kind(const device& d, double bandwidth) {
  struct nominal {
    std::string_view generation;
    double gbit_per_s;
    link_kind kind;
  };
  constexpr nominal nvlinks[] = {
      {"Pascal", 640, link_kind::nvlink},           // P100-SXM2
      {"Volta", 1200, link_kind::nvlink},           // V100-SXM2
      {"Ampere", 1600, link_kind::nvlink},          // A800
      {"Ampere", 2400, link_kind::nvlink},          // A100
      {"Hopper", 1600, link_kind::nvlink_sharp},    // H800
      {"Hopper", 2400, link_kind::nvlink},          // bridges of H100-PCIe and H100-NVL
      {"Hopper", 3600, link_kind::nvlink_sharp},    // H100, H200, H20
      {"Blackwell", 7200, link_kind::nvlink_sharp}  // B200
  };
  const auto is = [&](double gbit) { return std::abs(bandwidth - gbit_per_s(gbit)) <= 1e-3 * gbit_per_s(gbit); };
  for (const auto& l : nvlinks)
    if (d.generation == l.generation && is(l.gbit_per_s)) return l.kind;
  // The raw rate, and what its encoding leaves.
  for (const double lanes : {126.0, 128.0, 252.0, 256.0, 504.0, 512.0})
    if (!d.memory_type.empty() && is(lanes)) return d.memory_type.starts_with("HBM") ? link_kind::pcie_p2p : link_kind::pcie;
  return link_kind::measured;
}

}  // namespace hetsched
