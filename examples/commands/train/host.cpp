// SPDX-License-Identifier: Apache-2.0
#include <train/host.hpp>
#include <train/rank.hpp>

namespace train {

template <class Real>
void train_on_host(const job& j, host_communicator<Real>& comm, job::result& result) {
  train_rank(j, comm, host_rank<Real>(), result);
}

template void train_on_host<float>(const job&, host_communicator<float>&, job::result&);
template void train_on_host<double>(const job&, host_communicator<double>&, job::result&);

}  // namespace train
