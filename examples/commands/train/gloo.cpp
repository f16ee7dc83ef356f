// SPDX-License-Identifier: Apache-2.0
#include <train/processes.hpp>

void train::train_on_gloo(job& j) {
  const auto with = [&](auto rank) {
    train_on_processes<decltype(rank)>(j, [&](const hetsched::process_place&) { return rank; });
  };
  j.given.model.precision == "fp64" ? with(host_rank<double>()) : with(host_rank<float>());
}
