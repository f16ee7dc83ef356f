// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/group/any_communicator.hpp>

#include <train/host.hpp>
#include <train/processes.hpp>

namespace {

template <class Real>
void train_on_gloo_as(train::job& j) {
  train::train_on_processes<gpt::tensor<Real>>(j, [&](auto& network, const hetsched::process_place&) {
    hetsched::any_communicator<gpt::tensor<Real>> comm(network);
    train::train_on_host(j, comm, j.told);
  });
}

}  // namespace

void train::train_on_gloo(job& j) {
  j.given.model.precision == "fp64" ? train_on_gloo_as<double>(j) : train_on_gloo_as<float>(j);
}
