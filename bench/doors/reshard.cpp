// SPDX-License-Identifier: Apache-2.0
#include <hetsched/reshard.hpp>

int main() {
  return hetsched::plan_transfer(hetsched::boundary_layout({.data = 2, .tensor = 4}, 16, 8192, 4096),
                                 hetsched::boundary_layout({.data = 4, .tensor = 1}, 16, 8192, 4096),
                                 hetsched::reshard_strategy::direct)
      .messages.empty();
}
