// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule.hpp>

int main() {
  const hetsched::pipeline stages{.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0.5}};
  const auto order = hetsched::one_f_one_b({2, 1}, 8);
  return hetsched::simulate(hetsched::make_workload(stages, order), order).makespan_s > 0;
}
