// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

/// Makespans, in seconds.
struct what_if_result {
  double makespan_s = 0;            ///< as things are
  std::vector<double> free_rank_s;  ///< per rank: if its computations and its optimizer took no time
  /// Per wire: if it carried everything at once, and legs that take no other wire took no time.
  std::vector<double> free_wire_s;
};

/// The workload with one rank free in the sense of what_if_result.
/// Throws: input_error unless the workload fits the schedule, which has the rank.
[[nodiscard]] workload with_free_rank(workload w, const schedule& order, int rank);

/// The workload with one wire free in the sense of what_if_result.
/// Throws: input_error unless the workload has the wire.
[[nodiscard]] workload with_free_wire(workload w, int wire);

/// What would be won by a faster rank or wire: the makespan if any one of them were free. Where several tensors share wires, a
/// free resource can change whose turn it is, so a makespan can even grow.
/// Throws: as simulate.
/// Complexity: ranks + wires times simulate.
[[nodiscard]] what_if_result what_if(const workload& w, const schedule& order, const simulate_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/simulate/what_if.ipp>
#endif
