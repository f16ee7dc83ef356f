// SPDX-License-Identifier: Apache-2.0
#include <train/rank.hpp>
#include <train/threads.hpp>

void train::train_on_threads(job& j) {
  const int ranks = j.place.ranks;
  if (j.given.model.precision == "fp64")
    on_threads<gpt::tensor<double>>(ranks, [&](auto& comm) { train_rank<double>(j, comm); });
  else
    on_threads<gpt::tensor<float>>(ranks, [&](auto& comm) { train_rank<float>(j, comm); });
}
