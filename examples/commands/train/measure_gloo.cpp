// SPDX-License-Identifier: Apache-2.0
#include <span>

#include <hetsched/core/checksum.hpp>

#include <train/gloo.hpp>
#include <train/measure.hpp>

void train::measure_on_gloo(measuring& m) {
  const auto name = hetsched::detail::host_identity();
  const auto host = static_cast<double>(hetsched::crc64(std::as_bytes(std::span(name))) >> 11);
  if (m.wide)
    on_gloo<gpt::tensor<double>>(m.given, m.place, [&](auto& comm) { measure_rank<double>(m, comm, host); });
  else
    on_gloo<gpt::tensor<float>>(m.given, m.place, [&](auto& comm) { measure_rank<float>(m, comm, host); });
}
