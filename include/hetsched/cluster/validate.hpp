// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>

namespace hetsched {

/// Checks that a cluster makes sense.
/// Throws: input_error, naming the culprit, unless there is at least one subcluster, names are distinct and not empty, counts
/// are at least 1, memory and memory bandwidth are positive, every link in use has a latency >= 0 and a bandwidth > 0, and
/// each pair of different subclusters has at most one link.
void validate(const cluster& c);

namespace detail {

/// Checks what there is to know of a cluster where only counts and links matter, in the words of validate(cluster).
/// `told`: links in use must have a bandwidth. Without it they need none, as for costs that never ask for it.
/// Throws: input_error unless counts are at least 1, and links as validate has them.
void validate_network(const cluster& c, bool told = true);

}  // namespace detail

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cluster/validate.ipp>
#endif
