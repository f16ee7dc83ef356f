// SPDX-License-Identifier: Apache-2.0
// Work in no order is reported, without a GPU.
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda_check.hpp>

using strict = hetsched::cuda_check::api;
using queue = hetsched::cuda_queue<strict>;

void fill(const queue& q, double* x, std::size_t n) {  // in place of fill<<<...>>>(x, n)
  hetsched::cuda_check::launch(q, "fill", {{.memory = x, .bytes = n * sizeof(double), .writes = true}}, [=](const auto& memory) {
    for (std::size_t i = 0; i < n; ++i) memory.write(x)[i] = 1;
  });
}

int main() {
  hetsched::cuda_check::machine gpus({.seed = 7, .devices = 1});
  hetsched::cuda_devices<strict> devices(strict{&gpus});
  const queue a = devices.make_queue(0, "a"), b = devices.make_queue(0, "b");
  const hetsched::cuda_buffer<strict> buffer(a, 800);
  const auto current = a.make_current();
  fill(a, static_cast<double*>(buffer.data()), 100);
  fill(b, static_cast<double*>(buffer.data()), 50);  // on another queue, in no order
  a.finish();
  b.finish();
  return gpus.reports() == std::vector<std::string>{"fill writes what fill writes, in no order"} ? 0 : 1;
}
