// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <train/host.hpp>
#include <train/threads.hpp>

namespace {

template <class Real>
void train_on_threads_as(train::job& j) {
  train::job::result told;
  train::on_threads<gpt::tensor<Real>>(j.place.ranks, [&](auto& comm) {
    train::job::result result;
    train::train_on_host(j, comm, result);
    if (comm.rank() == 0) told = std::move(result);
  });
  j.told = std::move(told);
}

}  // namespace

void train::train_on_threads(job& j) {
  if (j.given.model.precision == "fp64")
    train_on_threads_as<double>(j);
  else
    train_on_threads_as<float>(j);
}
