// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/schedule/timeline.hpp>

namespace hetsched {

/// A file in memory.
struct named_text {
  std::string name, text;
};

/// An iteration of torch.distributed.pipelining as torch.profiler (Kineto) has seen it, a trace from each rank of one pipeline:
/// in ascending order of their ranks ("distributedInfo") or else as they are given, these are ranks 0, 1 ... The runtime's
/// schedules mark each action, PP:2F0; its times are those of the GPU's part of the mark where the trace has such, else the
/// host's, in which a forward also waits for what it receives. Of several iterations it is the last. Sends count where the GPU
/// saw them. Clocks are those of the hosts ("baseTimeNanoseconds"), from the iteration's begin on.
/// Throws: file_error for what is no such trace, and for actions that some iterations lack; input_error for two traces of one
/// rank and for none.
/// Complexity: O(events * log(events)).
[[nodiscard]] timeline parse_kineto_traces(const std::vector<named_text>& files);

/// Reads a measured iteration: a trace that chrome_trace() has written, or those that torch.profiler has, one a rank.
/// Throws: file_error, input_error.
[[nodiscard]] timeline read_measured_traces(const std::vector<std::string>& paths);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/trace/kineto.ipp>
#endif
