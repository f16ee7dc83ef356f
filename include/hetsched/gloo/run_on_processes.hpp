// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

namespace hetsched {

/// Calls body(gloo_communicator<Tensor>&) in this process, once it has met the run's others; run_on_threads of processes.
/// What is thrown anywhere in the body of one rank ends the waits of all others at once, with its text and rank.
/// Throws: as gloo_communicator; what the body throws.
/// Example:
///   run_on_processes<Tensor>(place_from_environment(), {.rendezvous = "file:/shared/rendezvous"}, [&](auto& comm) {
///     auto trainer = make_trainer<Tensor>(layout, make_layer, shape_after, comm, sgd{.learning_rate = 0.1});
///     trainer.step(inputs, targets, loss);
///   });
template <class Tensor, class Body>
void run_on_processes(const process_place& place, const gloo_options& options, Body&& body) {
  gloo_communicator<Tensor> comm(place, options);
  try {
    body(comm);
  } catch (...) {
    comm.abort("rank " + std::to_string(place.rank) + " failed: " + detail::text_of(std::current_exception()));
    throw;
  }
}

}  // namespace hetsched
