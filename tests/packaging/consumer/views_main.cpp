// SPDX-License-Identifier: Apache-2.0
#include <hetsched/views.hpp>

#include <vector>

int main() {
  const std::vector<int> degrees{1, 2, 4}, sizes{1, 8};
  int sum = 0;
  for (auto&& [d, s] : hetsched::views::cartesian_product(degrees, sizes)) sum += d * s;
  hetsched::plan p;
  p.pipelines.resize(2);
  for (auto& line : p.pipelines) line.stages.resize(2);
  for (auto& s : hetsched::views::stages(p)) sum += ++s.zero;
  return sum == 67 ? 0 : 1;
}
