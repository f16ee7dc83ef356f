// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

namespace train {

/// Calls body(Communicator&) for each of some ranks, on a thread of its own.
template <class Tensor, class Body>
void on_threads(int ranks, Body&& body) {
  hetsched::run_on_threads(hetsched::thread_communicator<Tensor>::connect(ranks), body);
}

}  // namespace train
