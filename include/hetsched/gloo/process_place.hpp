// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// Which of a run's processes this one is.
struct process_place {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;    ///< among those on this host; rank, where the launcher does not say; 0 in a pod
  std::string launcher;  ///< "torchrun", "mpirun", "pmi", "pmix", "flux", "kubernetes" or "slurm"; empty: none, a run of one
  std::string master;    ///< a host that all others reach, if the launcher names one
  std::string run;       ///< the launcher's name for this run, if it has one
  /// What in the environment tells of several processes, although this place is of one; empty: nothing.
  std::string alone{};
  std::string store{};  ///< where the launcher lets its processes meet, for open_gloo_store; empty: nowhere
};

/// A launcher's rank is none of its ranks.
class rank_out_of_range : public input_error {
 public:
  rank_out_of_range(process_place told, const std::string& what) : input_error(what), place(std::move(told)) {}

  process_place place;  ///< as it was told
};

namespace detail {

/// What tells of several processes besides the launcher that counts, for a place of one.
/// `number`: of a variable; -1 where it is not there.
template <class Number>
[[nodiscard]] std::string several_processes_text(const Number& number) {
  struct teller {
    const char *name, *advice;
  };
  constexpr teller counts[] = {
      {"SLURM_NTASKS", "this is the shell of an allocation of # tasks: start with srun"},
      {"SLURM_NNODES", "this is the shell of an allocation of # nodes: start with srun"},
      {"OMPI_COMM_WORLD_SIZE", "mpirun started # processes"},
      {"PMI_SIZE", "an MPI launcher started # processes"},
      {"FLUX_JOB_SIZE", "flux started # processes"},
  };
  for (const auto& [name, advice] : counts)
    if (const int told = number(name); told > 1) {
      std::string text = advice;
      text.replace(text.find('#'), 1, std::to_string(told));
      return std::string(name) + " is " + std::to_string(told) + ", " + text;
    }
  if (const int index = number("JOB_COMPLETION_INDEX"); index >= 0)
    return "JOB_COMPLETION_INDEX is " + std::to_string(index) +
           ", this is a pod of an indexed job: set WORLD_SIZE to the job's completions";
  if (const int rank = number("PMIX_RANK"); rank >= 0)
    return "PMIX_RANK is " + std::to_string(rank) + ", and nothing says how many there are: set WORLD_SIZE";
  return {};
}

/// The variables of a launcher; null: it has none for that.
struct launcher_names {
  const char *launcher, *rank, *ranks, *local_rank, *master, *run;
  bool ranks_alone;  ///< the number of ranks may be there without a rank: in the shell of an allocation
};
inline constexpr launcher_names pod_names{"kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", nullptr, "MASTER_ADDR", "HOSTNAME",
                                          true};

/// Reads places from variables. Get: (const char* name) -> const char*, or null.
template <class Get>
class place_reader {
 public:
  /// `get` outlives it.
  explicit place_reader(const Get& get) : get_(get) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* const value = name ? get_(name) : nullptr;
    return value ? value : "";
  }
  [[nodiscard]] int number(const char* name) const {
    const std::string value = text(name);
    int found = -1;
    const auto end = value.data() + value.size();
    const auto [stop, problem] = std::from_chars(value.data(), end, found);
    if (problem != std::errc() || stop != end || found < 0)
      throw input_error(std::string(name) + " is \"" + value + "\", which is no count");
    return found;
  }
  [[nodiscard]] std::string alone() const {
    return several_processes_text([&](const char* name) { return text(name).empty() ? -1 : number(name); });
  }

  /// In the order in which they count.
  [[nodiscard]] std::array<launcher_names, 6> launchers() const {
    constexpr launcher_names torchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID",
                                      false};
    constexpr launcher_names pmix{"pmix", "PMIX_RANK", "WORLD_SIZE", nullptr, "MASTER_ADDR", "PMIX_NAMESPACE", true};
    const auto counts = [&](const launcher_names& k) {
      return text("RANK").empty() && !text(k.rank).empty() && !text(k.ranks).empty();
    };
    const bool has_pmix = counts(pmix), by_srun = text(pmix.run).starts_with("slurm.") && !text("SLURM_PROCID").empty();
    auto first = counts(pod_names) ? pod_names : torchrun;
    first.ranks_alone = first.ranks_alone || has_pmix;
    return {{
        first,
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", nullptr, "PMIX_NAMESPACE",
         false},
        // Before PMI, whose variables flux sets as well, without the place on the host.
        {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr, "FLUX_JOB_ID", true},
        {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr, nullptr, false},
        // Behind those that tell more, and before srun's, whose variables stay in a shell from which others start.
        has_pmix && !by_srun ? pmix : first,
        {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_JOB_ID", true},
    }};
  }

  /// The place that a launcher's variables give. Requires: its rank and number of ranks are there.
  [[nodiscard]] process_place place_by(const launcher_names& k) const {
    const std::string_view launcher = k.launcher;
    process_place place{.rank = number(k.rank), .ranks = number(k.ranks), .launcher = k.launcher, .master = {}, .run = {}};
    const bool in_pod = launcher == pod_names.launcher;
    place.local_rank = !text(k.local_rank).empty() ? number(k.local_rank) : in_pod ? 0 : place.rank;
    place.master = text(k.master);
    place.run = text(k.run);
    // Restarts and the steps of a job are runs of their own.
    if (launcher == "torchrun") {
      const std::string port = text("MASTER_PORT");
      place.run += "." + port + "." + text("TORCHELASTIC_RESTART_COUNT");
      if (text("TORCHELASTIC_USE_AGENT_STORE") == "True" && !place.master.empty() && !port.empty())
        place.store =
            "torch://" + (place.master.find(':') == std::string::npos ? place.master : '[' + place.master + ']') + ':' + port;
    }
    // A pod's host is named after its job and index.
    if (const std::string index = "-" + text(pod_names.rank); in_pod && place.run.ends_with(index))
      place.run.resize(place.run.size() - index.size());
    if (launcher == "slurm") place.run += "." + text("SLURM_STEP_ID");
    if (place.ranks < 1 || place.rank >= place.ranks) {
      const auto what =
          std::string(k.rank) + " is " + std::to_string(place.rank) + " with " + k.ranks + " " + std::to_string(place.ranks);
      throw rank_out_of_range(std::move(place), what);
    }
    if (place.ranks == 1) place.alone = alone();
    return place;
  }

 private:
  const Get& get_;
};

}  // namespace detail

/// The place that the variables of torchrun, Open MPI's mpirun, PMI launchers (MPICH, Intel MPI), flux, pods of a Kubernetes
/// indexed job (which have WORLD_SIZE by its manifest, and the job's name in their host's) or srun give; or PMIx, which tells a
/// rank (and srun and Open MPI 5 beside it the number of ranks), with WORLD_SIZE. The first of them that is there counts, as
/// torchrun may run below srun; PMIx counts behind all others but srun, and behind srun where it is srun's.
/// `get`: (const char* name) -> const char*, or null.
/// Throws: input_error if a launcher's variables are there in part, or make no sense; rank_out_of_range for a rank that is not
/// below the number of ranks.
template <class Get>
[[nodiscard]] process_place place_from(const Get& get) {
  const detail::place_reader read(get);
  for (const auto& k : read.launchers()) {
    const bool has_rank = !read.text(k.rank).empty(), has_ranks = !read.text(k.ranks).empty();
    if (!has_rank && (!has_ranks || k.ranks_alone)) continue;
    if (has_rank != has_ranks)
      throw input_error(std::string(has_rank ? k.rank : k.ranks) + " is set, but " + (has_rank ? k.ranks : k.rank) +
                        " is not: they come together from " + k.launcher);
    return read.place_by(k);
  }
  process_place place;
  place.alone = read.alone();
  return place;
}

/// The place that this process's environment gives; see place_from.
/// Throws: as place_from.
[[nodiscard]] inline process_place place_from_environment() {
  return place_from([](const char* name) { return std::getenv(name); });
}

}  // namespace hetsched
