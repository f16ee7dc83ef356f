// SPDX-License-Identifier: Apache-2.0
#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

int main() {
  const hetsched::cluster hardware;
  const hetsched::analytic_cost_model costs(hardware,
                                            hetsched::make_chain(hetsched::gpt({.layers = 24, .hidden = 2048, .heads = 16})));
  return hetsched::interop_dp(hardware, costs, {.microbatches = 64}).has_value();
}
