// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/mpi/mpi_communicator_test.cpp.

// Without the C++ bindings that MPI has given up.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
// Means to go on without a process that has ended (ULFM): those of Open MPI from 5 on. MPICH 4.0 declares them, too, but its
// functions end the process where they are called.
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
#define HETSCHED_MPI_ULFM 1
#endif

#include <functional>
#include <mutex>
#include <string>

namespace hetsched {

/// MPI in this process: from MPI_Init_thread to MPI_Finalize, unless the program has called the former before, and then calls the
/// latter itself. It outlives all communicators that are made with it. What an error of the program's own calls does stays the
/// program's to say: MPI_COMM_WORLD keeps its handler.
class mpi_session {
 public:
  /// `say`: where the cause goes before MPI_Abort ends all processes; empty: standard error.
  /// Throws: input_error if MPI does not let several threads call it, one at a time (MPI_THREAD_SERIALIZED).
  explicit mpi_session(std::function<void(const std::string&)> say = {});
  /// Waits for all processes in MPI_Finalize; or, if one of them has been given up, ends them with MPI_Abort, as the former would
  /// wait for it for ever.
  ~mpi_session();
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;

  [[nodiscard]] int rank() const { return rank_; }    ///< in MPI_COMM_WORLD
  [[nodiscard]] int ranks() const { return ranks_; }  ///< of it
  /// Why another process has been given up; empty: none has. The program must not call MPI_Finalize then.
  [[nodiscard]] std::string given_up() const;

  /// Whether MPI says that it sends from the memory of GPUs and receives there.
  [[nodiscard]] bool takes_device_memory() const { return takes_device_memory_; }

  // For communicators.
  /// Held in every call of MPI.
  [[nodiscard]] std::mutex& guard() { return guard_; }
  /// Another process does not answer. With guard() held.
  void give_up(const std::string& why);
  /// Says why, and ends all processes.
  [[noreturn]] void end_all(const std::string& why) const;

 private:
  mutable std::mutex guard_;
  std::function<void(const std::string&)> say_;
  std::string given_up_;
  int rank_ = 0, ranks_ = 1;
  bool owns_ = false, takes_device_memory_ = false;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/mpi/mpi_session.ipp>
#endif
