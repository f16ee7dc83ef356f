// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/machine_test.cpp.

#include <utility>
#include <vector>

#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda_check/api.hpp>
#include <hetsched/cuda_check/machine.hpp>

namespace hetsched::cuda_check {

/// Stands for the launch of a kernel: calls body(view) when all earlier work of the queue is done, or at once on a queue of the
/// host.
/// `ranges`: what it reads and writes, all of it; the view gives access to nothing else. The name is for reports, and must last.
/// Throws: cuda_error as a launch does.
template <class Vendor>
void launch(const cuda_queue<api_of<Vendor>>& q, const char* name, std::vector<machine::range> ranges, machine::work body) {
  auto& gpus = *q.devices().api().gpus;
  if (!q.on_host()) return q.own()->require(gpus.launch(q.stream(), name, std::move(ranges), std::move(body)), "a kernel");
  for (const auto& r : ranges) gpus.host_access(r.memory, r.bytes, r.writes);
  body(machine::view(gpus, ranges, false));
}

}  // namespace hetsched::cuda_check
