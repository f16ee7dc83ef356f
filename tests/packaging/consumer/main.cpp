// SPDX-License-Identifier: Apache-2.0
#include <hetsched/hetsched.hpp>

#include <cstdio>
#include <vector>

std::vector<int> warmups_of(const hetsched::pipeline& p);

int main() {
  const hetsched::pipeline p{.forward_s = {1, 1, 1}, .backward_s = {2, 2, 2}, .transfer_s = {0, 0}};
  const auto least = warmups_of(p);
  for (int n : least) std::printf("%d ", n);
  return least == hetsched::one_f_one_b_warmups(3) ? 0 : 1;
}
