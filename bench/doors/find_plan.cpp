// SPDX-License-Identifier: Apache-2.0
#include <hetsched/hetsched.hpp>
#include <hetsched/planners.hpp>

int main() {
  const hetsched::cluster hardware;
  const auto chain = hetsched::make_chain(hetsched::gpt({.layers = 24, .hidden = 2048, .heads = 16}));
  const auto costs = [&](int size) { return hetsched::analytic_cost_model(hardware, chain, {.microbatch_size = size}); };
  return hetsched::find_plan(hardware, costs, {.global_batch = 64}).has_value();
}
