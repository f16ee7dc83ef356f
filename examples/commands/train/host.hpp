// SPDX-License-Identifier: Apache-2.0
// A rank that computes on the host, compiled once for all that connects such ranks.
#pragma once

#include <train/on_hosts.hpp>
#include <train/training.hpp>

namespace train {

/// See train_rank; for float and double.
template <class Real>
void train_on_host(const job& j, host_communicator<Real>& comm, job::result& result);

}  // namespace train
