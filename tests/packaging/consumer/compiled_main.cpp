// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cluster.hpp>
#include <hetsched/schedule.hpp>

#ifndef HETSCHED_COMPILED
#error "whoever links hetsched::compiled declares only"
#endif

int main() {
  const hetsched::pipeline p{.forward_s = {1, 1, 1}, .backward_s = {2, 2, 2}, .transfer_s = {0, 0}};
  const auto order = hetsched::build_schedule("1f1b", p, 8);
  return hetsched::simulate(p, order).makespan_s >= hetsched::makespan_lower_bound(p, 8) ? 0 : 1;
}
