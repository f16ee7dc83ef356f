// SPDX-License-Identifier: Apache-2.0
#pragma once

// The experiments of HetAuto's paper, as examples/settings has them, at microbatches of eight samples and analytic costs.
#include <string>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/io.hpp>

namespace bench {

struct experiment {
  std::string name;
  hetsched::cluster hardware;
  hetsched::analytic_cost_model costs;
  hetsched::planning_problem problem;
};

/// `number`: 1 to 3.
[[nodiscard]] inline experiment hetauto_experiment(int number) {
  using namespace hetsched;
  using enum recomputation;
  const auto name = "exp" + std::to_string(number);
  const auto file = HETSCHED_SOURCE_DIR "/examples/settings/hetauto-" + name;
  const auto hardware = read_cluster(file + "-cluster.json");
  const auto model = read_model(file + "-model.json", {.cut = granularity::block});
  constexpr int size = 8;
  const int batch = number == 3 ? 512 : 128;
  return {
      name,
      hardware,
      analytic_cost_model(
          hardware, with_flash_attention(model.chain),
          {.microbatch_size = size, .precision = model.precision, .recompute = {none, selective, full}, .zero = {0, 1, 2, 3}}),
      {.microbatches = batch / size, .microbatch_size = size, .arithmetic = model.precision}};
}

}  // namespace bench
