// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>

namespace hetsched {

/// Hosts that are alike, as far as their names say: equal but for the number at their end, and for what follows the first dot.
struct host_group {
  std::string name{};                ///< without that number: of gpu01.lab, "gpu"
  std::vector<std::string> hosts{};  ///< in the order of the list
  int slots = 0;                     ///< of each host, as a hostfile says; 0: nothing says
  friend bool operator==(const host_group&, const host_group&) = default;
};

/// Hosts as Slurm lists them: "gpu[01-08,12],old1".
/// Throws: input_error for a list without hosts, with brackets or ranges that make no sense, or of more than 20,000 hosts.
[[nodiscard]] std::vector<host_group> parse_host_list(std::string_view text);

/// Hosts as mpirun's hostfiles list them, one on each line: "gpu01 slots=8", "gpu01:8" or "gpu01"; # begins a comment.
/// Addresses of IPv6 stand by themselves or in brackets, and those that differ behind the last colon only are alike.
/// Throws: file_error for a file without hosts, for a count that is none, and for alike hosts with unlike slots.
[[nodiscard]] std::vector<host_group> parse_hostfile(std::string_view text, std::string_view file);

/// The names of a host's GPUs, in order, from what `nvidia-smi -L` prints.
/// Throws: file_error where no line is of a GPU, or one is of a slice of one (MIG).
[[nodiscard]] std::vector<std::string> parse_gpu_list(std::string_view text, std::string_view file);

/// What joins the GPUs of a host, and what joins hosts.
struct host_topology {
  int gpus = 0;
  int nvlinks = 0;                  ///< of each GPU with the others together; 0: not all of them are joined by NVLink
  bool in_pairs = false;            ///< some of them are joined by NVLink, but not all
  double pcie_gbit_per_s = 0;       ///< of the GPU with least; 0: nothing says
  std::vector<double> nics_gbit{};  ///< of each network card; 0: nothing says
  friend bool operator==(const host_topology&, const host_topology&) = default;
};

/// From the matrix that `nvidia-smi topo -m` prints, or the XML that NCCL writes to NCCL_TOPO_DUMP_FILE.
/// Throws: file_error for anything else.
[[nodiscard]] host_topology parse_topology(std::string_view text, std::string_view file);

/// Gbit/s of each active port, from what `ibstat` prints.
/// Throws: file_error where no port is active.
[[nodiscard]] std::vector<double> parse_ibstat(std::string_view text, std::string_view file);

/// What is known of the hosts of a group; what is empty or 0 is guessed.
struct host_facts {
  std::vector<std::string> gpus{};  ///< names of devices
  std::optional<host_topology> topology{};
  std::vector<double> nics_gbit{};  ///< of each network card
};

/// A cluster of what is known, and of guesses where nothing is.
struct inventory {
  cluster hardware{};
  std::vector<std::string> guesses{};  ///< what to look after: "/subclusters/0/inter_node: ..."
};

/// A subcluster for each kind of device of each group; all of them are linked, by the slower network of two.
/// Throws: input_error for a group of whose devices nothing is known, a device that the catalogue does not have, or as many facts
/// as there are not groups.
[[nodiscard]] inventory make_inventory(const std::vector<host_group>& groups, const std::vector<host_facts>& facts);

/// The text of a cluster.json of it, with its guesses as "notes".
[[nodiscard]] std::string to_json(const inventory& found);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/inventory/inventory.ipp>
#endif
