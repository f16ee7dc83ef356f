// SPDX-License-Identifier: Apache-2.0
#include <train/gloo.hpp>
#include <train/rank.hpp>

void train::train_on_gloo(job& j) {
  if (j.given.model.precision == "fp64")
    on_gloo<gpt::tensor<double>>(j.given.place, j.place, [&](auto& comm) { j.told = train_rank<double>(j, comm); });
  else
    on_gloo<gpt::tensor<float>>(j.given.place, j.place, [&](auto& comm) { j.told = train_rank<float>(j, comm); });
}
