// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/mpi/mpi_communicator_test.cpp.

#include <exception>
#include <string>

#include <hetsched/mpi/mpi_communicator.hpp>
#include <hetsched/mpi/mpi_session.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

namespace hetsched {

/// Calls body(mpi_communicator<Tensor>&) in this process, once all others have come; run_on_threads of processes that mpirun or
/// srun has started. What is thrown anywhere in the body of one rank ends the waits of all others at once, with its text and
/// rank. Throws: as mpi_communicator; what the body throws. Example:
///   mpi_session mpi;
///   run_on_mpi<Tensor>(mpi, {}, [&](auto& comm) {
///     auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///     trainer.step(inputs, targets, loss);
///   });
template <class Tensor, class Body>
void run_on_mpi(mpi_session& mpi, const mpi_options& options, Body&& body) {
  mpi_communicator<Tensor> comm(mpi, options);
  try {
    body(comm);
  } catch (...) {
    comm.abort("rank " + std::to_string(comm.rank()) + " failed: " + detail::text_of(std::current_exception()));
    throw;
  }
}

}  // namespace hetsched
