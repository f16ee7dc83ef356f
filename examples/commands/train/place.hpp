// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a training are: threads of this process, or processes that Gloo or MPI connects.
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

#include "control.hpp"

namespace CLI {
class App;
}

namespace train {

struct place_arguments {
  std::string transport = "threads", store, run, interface, address, secret_file;
  std::optional<int> ranks;
  double deadline_s = 30, connect_deadline_s = 30;
};

void add_place_options(CLI::App& app, place_arguments& given);

/// Bad input that every rank finds by itself: none has to tell the others.
class known_to_all : public hetsched::input_error {
 public:
  using input_error::input_error;
};

#ifdef HETSCHED_WITH_GLOO
inline constexpr bool with_gloo = true;
#else
inline constexpr bool with_gloo = false;
#endif

#ifdef HETSCHED_WITH_MPI
inline constexpr bool with_mpi = true;
#else
inline constexpr bool with_mpi = false;
#endif

/// This process among those that MPI finds. Throws: input_error if these are not those that a launcher has started.
[[nodiscard]] hetsched::process_place place_of_mpi();

/// The first line of a file; empty, if no file is named.
[[nodiscard]] inline std::string read_secret(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream file(path);
  std::string secret;
  if (!std::getline(file, secret) || secret.empty())
    throw hetsched::input_error(path + ": expected a secret in its first line, found " + (file.is_open() ? "none" : "no file"));
  return secret;
}

/// This process among those of the run: of threads, rank 0 and how many were asked for (one, if nothing was). Throws input_error
/// if that cannot be known.
[[nodiscard]] inline hetsched::process_place find_place(const place_arguments& given) {
  if (given.transport == "threads") {
    hetsched::process_place threads;
    threads.ranks = given.ranks.value_or(1);
    return threads;
  }
  const bool over_mpi = given.transport == "mpi";
  if (!(over_mpi ? with_mpi : with_gloo))
    throw hetsched::input_error(over_mpi ? "--transport: this program was built without MPI (HETSCHED_MPI)"
                                         : "--transport: this program was built without Gloo (HETSCHED_GLOO)");
  if (!given.secret_file.empty()) (void)read_secret(given.secret_file);
  hetsched::process_place place;
  if constexpr (with_mpi) {
    if (over_mpi) place = place_of_mpi();
  }
  if (!over_mpi) place = hetsched::place_from_environment();
  if (place.launcher.empty() && !place.alone.empty() && !given.ranks)
    throw hetsched::input_error("--transport " + given.transport + ": no launcher has told a rank, and " + place.alone +
                                "; --ranks 1 says that one process is meant");
  if (given.ranks && *given.ranks != place.ranks)
    throw hetsched::input_error(
        place.launcher.empty()
            ? "--ranks: no launcher has started this process; use mpirun, torchrun, srun or flux, or set RANK and WORLD_SIZE"
            : "--ranks: found " + std::to_string(*given.ranks) + ", but " + place.launcher + " started " +
                  std::to_string(place.ranks));
  if (place.ranks > 1 && !over_mpi && given.store.empty() && place.store.empty())
    throw hetsched::input_error("--store is required for processes to meet: file:FOLDER, redis://HOST:PORT or torch://HOST:PORT");
  return place;
}

/// Says on standard error where a process works alone that may be meant to be one of several.
inline void tell_alone(const place_arguments& given, const hetsched::process_place& place) {
  if (given.ranks) return;
  if (given.transport != "threads") {
    if (place.ranks > 1) return;
    if (place.launcher.empty())
      std::cerr
          << "no launcher has told a rank: one process works alone (RANK and WORLD_SIZE, mpirun, srun, flux, torchrun tell one; "
             "--ranks 1 says that it is meant)\n";
    else if (!place.alone.empty())
      std::cerr << place.launcher << " started one process, which works alone, but " << place.alone << '\n';
    return;
  }
  try {
    const auto launched = hetsched::place_from_environment();
    if (launched.ranks > 1)
      std::cerr << launched.launcher << " started " << launched.ranks
                << " processes, and each works alone: with --transport gloo they work together\n";
  } catch (const hetsched::input_error&) {  // threads need no launcher
  }
}

/// Every rank's numbers to every rank. Throws error if a rank does not come.
[[nodiscard]] inline std::vector<std::vector<double>> gather(control comm, const std::vector<double>& mine, double deadline_s,
                                                             const std::string& what) {
  std::vector<std::vector<double>> all;
  auto result = comm.gather(mine, all, hetsched::deadline_in(deadline_s));
  if (result == hetsched::wait_result::progress) return all;
  if (result == hetsched::wait_result::deadline) result = comm.ask();
  auto text = "rank " + std::to_string(comm.rank()) + ", " + what + ": ";
  const std::string why = comm.failure();
  if (result == hetsched::wait_result::aborted)
    text += "ended, as " + why;
  else
    text += "not all ranks have come within " + std::to_string(deadline_s) + " s" + (why.empty() ? "" : "; " + why);
  throw hetsched::communication_error(text, {.from = -1, .to = comm.rank()}, hetsched::no_microbatch,
                                      hetsched::action{.microbatch = hetsched::no_microbatch});
}

/// Runs work(alive) on every rank, and returns when all have come to its end. Work that takes longer than the others may wait
/// calls alive() now and then; so a rank that hangs is told from one that works. Throws as gather.
template <class Work>
void work_together(control comm, double deadline_s, const std::string& what, Work work) {
  using clock = std::chrono::steady_clock;
  auto last = clock::now();
  work([&] {
    if (std::chrono::duration<double>(clock::now() - last).count() < deadline_s / 4) return;
    (void)gather(comm, {0}, deadline_s, what);
    last = clock::now();
  });
  for (bool done = false; !done;) {
    const auto all = gather(comm, {1}, deadline_s, what);
    done = std::all_of(all.begin(), all.end(), [](const auto& told) { return told[0] == 1; });
  }
}

}  // namespace train
