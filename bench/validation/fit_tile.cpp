// SPDX-License-Identifier: Apache-2.0
// Fits the constants of the tile model (cost/tile_constants.hpp) to measurements and prints them, and with devices to leave out,
// how far off it is on these.
// Usage: fit_tile FOLDER [DEVICE...], where FOLDER holds neusight_test.csv, vidur_mlp.csv, deepbench_gemm.csv and
// aiconfigurator/gemm.csv.
#include <cstdio>
#include <exception>

#include "tile_fit.hpp"

namespace {

using namespace validation;

void print_errors(const group& g, const hetsched::tile_constants& c) {
  double mean = 0, bias = 0;
  for (const auto& x : g.rows) {
    const double e = 100 * relative_error(g, x, c) / static_cast<double>(g.rows.size());
    mean += std::abs(e);
    bias += e;
  }
  std::printf("%s, %s: %zu rows, %.1f %% on average, bias %+.1f %%\n", g.name.c_str(), g.device.c_str(), g.rows.size(), mean,
              bias);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw hetsched::input_error("usage: fit_tile FOLDER [DEVICE...]");
  const auto groups = read_operators(argv[1]);
  const std::set<std::string> without(argv + 2, argv + argc);
  const auto fitted = fit(groups, without);
  for (const auto& k : constants) std::printf("double %s = %.6g;\n", k.name, fitted.*k.value);
  std::printf("loss %.5f\n", loss(groups, fitted, without));
  for (const auto& g : groups)
    if (without.empty() || without.contains(g.device)) print_errors(g, fitted);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
