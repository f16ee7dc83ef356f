// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

/// Why the iteration takes as long as it does: computations, transfers and work on parameters, each of which lets the next one
/// start when it ends (of a transfer: when it leaves its wires, if that is what the next one waits for), from the start of the
/// iteration to the makespan. Of several such chains, one. Empty only if nothing takes time.
/// Throws: as simulate.
/// Complexity: as simulate.
[[nodiscard]] std::vector<timed_action> critical_path(const workload& w, const schedule& order,
                                                      const simulate_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/critical_path.ipp>
#endif
