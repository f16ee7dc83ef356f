// SPDX-License-Identifier: Apache-2.0
// Fits the constants of the tile model (cost/tile_constants.hpp) to measurements and prints them.
// Usage: fit_tile FOLDER, where FOLDER holds neusight_test.csv, vidur_mlp.csv and deepbench_gemm.csv.
#include <cstdio>
#include <exception>

#include "tile_fit.hpp"

int main(int argc, char** argv) try {
  if (argc != 2) throw hetsched::input_error("usage: fit_tile FOLDER");
  const auto groups = validation::read_operators(argv[1]);
  const auto fitted = validation::fit(groups, {});
  for (const auto& k : validation::constants) std::printf("double %s = %.6g;\n", k.name, fitted.*k.value);
  std::printf("loss %.5f\n", validation::loss(groups, fitted, {}));
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
