// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/device_group.hpp>

namespace hetsched {

/// How tensors get from one stage's GPUs to another's.
enum class transport {
  same_devices,  ///< they stay
  peer,          ///< copies between the devices of a node
  nccl,          ///< NCCL between nodes
  staged         ///< copied to the host, over its network, and to the device
};

/// The name of a transport in reports.
[[nodiscard]] constexpr std::string_view name_of(transport t) {
  switch (t) {
    case transport::same_devices:
      return "none";
    case transport::peer:
      return "peer copies";
    case transport::nccl:
      return "NCCL";
    case transport::staged:
      return "staged by the hosts";
  }
  return "";
}

/// A transport, over which NIC, and why that one.
struct transport_choice {
  transport how = transport::same_devices;
  std::string nic = {};  ///< as NCCL names it; empty: NCCL's own choice, or no NIC is used
  std::string reason = {};
  friend bool operator==(const transport_choice&, const transport_choice&) = default;
};

/// The transport between two stages: the nearest that joins all of their devices.
/// Requires: all of a side in one subcluster; a link where the subclusters differ.
/// Throws: input_error for sides without groups, and for groups of no devices or of subclusters that the cluster does not have.
[[nodiscard]] transport_choice choose_transport(const cluster& hardware, const std::vector<device_group>& from,
                                                const std::vector<device_group>& to);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/plan/transport.ipp>
#endif
