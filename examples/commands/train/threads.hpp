// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/any_communicator.hpp>

namespace train {

/// Calls body(any_communicator<Tensor>&) for each of some ranks, on a thread of its own.
template <class Tensor, class Body>
void on_threads(int ranks, Body&& body) {
  hetsched::run_on_threads(hetsched::thread_communicator<Tensor>::connect(ranks), [&](auto& threads) {
    hetsched::any_communicator<Tensor> comm(threads);
    body(comm);
  });
}

}  // namespace train
