// SPDX-License-Identifier: Apache-2.0
#include <hetsched/mpi.hpp>

#include <chrono>
#include <vector>

struct numbers {
  using value_type = float;
  numbers() = default;
  explicit numbers(const hetsched::tensor_shape& s) : extents(s), values(s.at(0)) {}
  const hetsched::tensor_shape& shape() const { return extents; }
  float* data() { return values.data(); }
  const float* data() const { return values.data(); }
  hetsched::tensor_shape extents{0};
  std::vector<float> values;
};

int main() {
  hetsched::mpi_session mpi;
  hetsched::mpi_communicator<numbers> comm(mpi);
  const double mine = comm.rank() + 1;
  std::vector<std::vector<double>> all;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  if (comm.gather({&mine, 1}, all, until) != hetsched::wait_result::progress) return 1;
  double sum = 0;
  for (const auto& one : all) sum += one[0];
  return sum == comm.ranks() * (comm.ranks() + 1) / 2.0 ? 0 : 1;
}
