// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// Which of a run's processes this one is.
struct process_place {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;    ///< among those on this host; rank, where the launcher does not say
  std::string launcher;  ///< "torchrun", "mpirun", "pmi" or "slurm"; empty: none, a run of one process
  std::string master;    ///< a host that all others reach, if the launcher names one
  std::string run;       ///< the launcher's name for this run, if it has one
  std::string store{};   ///< where the launcher lets its processes meet, for open_gloo_store; empty: nowhere
};

/// The place that the variables of torchrun, Open MPI's mpirun, PMI launchers (MPICH, Intel MPI) or srun give. The first of
/// them that is there counts, as torchrun may run below srun. `get`: (const char* name) -> const char*, or null.
/// Throws: input_error if a launcher's variables are there in part, or make no sense.
template <class Get>
[[nodiscard]] process_place place_from(const Get& get) {
  const auto text = [&](const char* name) -> std::string {
    const char* const value = name ? get(name) : nullptr;
    return value ? value : "";
  };
  const auto number = [&](const char* name) {
    const std::string value = text(name);
    int found = -1;
    const auto end = value.data() + value.size();
    const auto [stop, problem] = std::from_chars(value.data(), end, found);
    if (problem != std::errc() || stop != end || found < 0)
      throw input_error(std::string(name) + " is \"" + value + "\", which is no count");
    return found;
  };
  struct names {
    const char *launcher, *rank, *ranks, *local_rank, *master, *run;
    bool ranks_alone;  ///< the number of ranks may be there without a rank: in the shell of an allocation
  };
  constexpr names known[] = {
      {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", false},
      {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", nullptr, "PMIX_NAMESPACE", false},
      {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr, nullptr, false},
      {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_JOB_ID", true},
  };
  for (const auto& k : known) {
    const bool has_rank = !text(k.rank).empty(), has_ranks = !text(k.ranks).empty();
    if (!has_rank && (!has_ranks || k.ranks_alone)) continue;
    if (has_rank != has_ranks)
      throw input_error(std::string(has_rank ? k.rank : k.ranks) + " is set, but " + (has_rank ? k.ranks : k.rank) +
                        " is not: they come together from " + k.launcher);
    process_place place{.rank = number(k.rank), .ranks = number(k.ranks), .launcher = k.launcher, .master = {}, .run = {}};
    if (place.ranks < 1 || place.rank >= place.ranks)
      throw input_error(std::string(k.rank) + " is " + std::to_string(place.rank) + " with " + k.ranks + " " +
                        std::to_string(place.ranks));
    place.local_rank = text(k.local_rank).empty() ? place.rank : number(k.local_rank);
    place.master = text(k.master);
    place.run = text(k.run);
    // Restarts and the steps of a job are runs of their own.
    if (k.launcher == std::string_view("torchrun")) {
      const std::string port = text("MASTER_PORT");
      place.run += "." + port + "." + text("TORCHELASTIC_RESTART_COUNT");
      if (text("TORCHELASTIC_USE_AGENT_STORE") == "True" && !place.master.empty() && !port.empty())
        place.store =
            "torch://" + (place.master.find(':') == std::string::npos ? place.master : '[' + place.master + ']') + ':' + port;
    }
    if (k.launcher == std::string_view("slurm")) place.run += "." + text("SLURM_STEP_ID");
    return place;
  }
  return {};
}

/// The place that this process's environment gives; see place_from.
/// Throws: as place_from.
[[nodiscard]] inline process_place place_from_environment() {
  return place_from([](const char* name) { return std::getenv(name); });
}

}  // namespace hetsched
