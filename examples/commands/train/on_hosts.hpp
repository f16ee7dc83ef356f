// SPDX-License-Identifier: Apache-2.0
// Ranks that compute on hosts, on threads or processes: what connects them is compiled once for all commands.
#pragma once

#include <functional>
#include <string>

#include <hetsched/gloo/process_place.hpp>
#include <hetsched/runtime/group/any_communicator.hpp>

#include <gpt/tensor.hpp>
#include <train/place.hpp>

namespace train {

template <class Real>
using host_communicator = hetsched::any_communicator<gpt::tensor<Real>>;

/// Calls the body for each rank, on a thread of its own, or for this process's; for float and double. What fails in one rank
/// fails in all.
template <class Real>
void on_hosts(const place_arguments& given, const hetsched::process_place& place,
              const std::function<void(host_communicator<Real>&)>& body);

/// Tells the ranks that wait for this process why it does not come; nothing where ranks are threads.
void tell_failure(const place_arguments& given, const std::string& why);

/// What a process does that has no work where others have: with MPI, they have to hear it.
void stay_out(const place_arguments& given);

}  // namespace train
