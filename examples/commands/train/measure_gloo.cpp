// SPDX-License-Identifier: Apache-2.0
#include <span>

#include <hetsched/core/checksum.hpp>

#include <train/gloo.hpp>
#include <train/measure.hpp>

namespace {

template <class Real>
void measure_on_gloo_as(train::measuring& m, double host) {
  train::on_gloo<gpt::tensor<Real>>(m.given, m.place, [&](auto& network) {
    hetsched::any_communicator<gpt::tensor<Real>> comm(network);
    train::measure_rank<Real>(m, comm, host);
  });
}

}  // namespace

void train::measure_on_gloo(measuring& m) {
  const auto name = hetsched::detail::host_identity();
  const auto host = static_cast<double>(hetsched::crc64(std::as_bytes(std::span(name))) >> 11);
  if (m.wide)
    measure_on_gloo_as<double>(m, host);
  else
    measure_on_gloo_as<float>(m, host);
}
