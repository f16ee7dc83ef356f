// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/nccl.hpp>

int main() {
  hetsched::nccl_id id{};
  (void)hetsched::nccl_runtime::unique_id(id);
  return hetsched::nccl_runtime::error_text(0).empty() ? 1 : 0;
}
