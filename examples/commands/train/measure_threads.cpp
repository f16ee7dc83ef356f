// SPDX-License-Identifier: Apache-2.0
#include <train/measure.hpp>
#include <train/threads.hpp>

void train::measure_on_threads(measuring& m) {
  if (m.wide)
    on_threads<gpt::tensor<double>>(m.place.ranks, [&](auto& comm) { measure_rank<double>(m, comm, 0); });
  else
    on_threads<gpt::tensor<float>>(m.place.ranks, [&](auto& comm) { measure_rank<float>(m, comm, 0); });
}
