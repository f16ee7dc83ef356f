// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, which mpirun or srun has started and MPI connects.
#pragma once

#include <exception>
#include <string>

#include <hetsched/mpi.hpp>

#include <train/place.hpp>

namespace train {

/// MPI of this process, until it ends.
[[nodiscard]] hetsched::mpi_session& mpi();

/// Those of MPI's processes that have work, as `place` numbers them. All processes make one; -1: this one has no work.
/// Throws: error if they do not come, or one of them has failed.
class mpi_workers {
 public:
  mpi_workers(const place_arguments& given, int rank);
  ~mpi_workers();
  mpi_workers(const mpi_workers&) = delete;
  mpi_workers& operator=(const mpi_workers&) = delete;
  [[nodiscard]] MPI_Comm among() const { return among_; }

 private:
  MPI_Comm among_ = MPI_COMM_NULL;
};

[[nodiscard]] hetsched::mpi_options mpi_options_of(const place_arguments& given, MPI_Comm among);
/// See tell_failure.
void tell_failure_by_mpi(const place_arguments& given, const std::string& why);
/// A name of this host.
[[nodiscard]] std::string host_of_mpi();

/// Calls body(Communicator&) for this process's rank, and sees to it that what fails here fails everywhere.
template <class Tensor, class Body>
void on_mpi(const place_arguments& given, const hetsched::process_place& place, Body&& body) {
  const mpi_workers workers(given, place.rank);
  std::exception_ptr known;
  hetsched::run_on_mpi<Tensor>(mpi(), mpi_options_of(given, workers.among()), [&](auto& comm) {
    try {
      body(comm);
    } catch (const known_to_all&) {
      known = std::current_exception();
    }
  });
  if (known) std::rethrow_exception(known);
}

}  // namespace train
