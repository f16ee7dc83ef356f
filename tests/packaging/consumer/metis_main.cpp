// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale/metis.hpp>

int main() {
  const hetsched::device_graph pair{{1, 1}, {0, 1, 1, 0}};
  const auto part = hetsched::metis_partition(pair, {.parts = 2});
  return part.size() == 2 && part[0] != part[1] ? 0 : 1;
}
