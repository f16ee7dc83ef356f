// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo.hpp>

#include <chrono>
#include <thread>
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
  using end = hetsched::gloo_communicator<numbers>;
  const auto store = hetsched::make_process_store();
  const auto meet = [&](int rank, double& sum) {
    hetsched::gloo_options options;
    options.store = store;
    hetsched::process_place place;
    place.rank = rank;
    place.ranks = 2;
    end comm(place, options);
    const double mine = rank + 1;
    std::vector<std::vector<double>> all;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    if (comm.gather({&mine, 1}, all, until) == hetsched::wait_result::progress) sum = all[0][0] + all[1][0];
  };
  double sums[2] = {};
  std::thread other(meet, 1, std::ref(sums[1]));
  meet(0, sums[0]);
  other.join();
  return sums[0] == 3 && sums[1] == 3 ? 0 : 1;
}
