// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/views.hpp>

#include <vector>

int main() {
  const std::vector<int> degrees{1, 2, 4}, sizes{1, 8};
  int sum = 0;
  for (auto&& [d, s] : hetsched::views::cartesian_product(degrees, sizes)) sum += d * s;
  return sum == 63 ? 0 : 1;
}
