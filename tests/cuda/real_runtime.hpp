// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/devices.hpp>
#include <hetsched/cuda/tensor.hpp>

namespace hetsched::test {

/// Of a vendor's runtime itself. Without a GPU, that this is said, by the name of its first call; with one, that bytes come
/// through it.
template <cuda_api Api>
void check_real_runtime(const std::string& count_call) {
  std::optional<cuda_devices<Api>> devices;
  try {
    devices.emplace();
  } catch (const cuda_error& e) {
    CAPTURE(e.what());
    CHECK(means_no_gpu(e.code));
    CHECK(std::string(e.what()).starts_with("there is no GPU to use: " + count_call + ": "));
    return;
  }
  constexpr std::size_t bytes = std::size_t{1} << 22;
  using buffer = cuda_buffer<Api>;
  const cuda_queue<Api> here(*devices);
  const auto a = devices->make_queue(0, "there"), b = devices->make_queue(devices->count() - 1, "back");
  buffer source(here, bytes), first(a, bytes), second(b, bytes), target(here, bytes);
  first.end_write(a, a.record());
  second.end_write(b, b.record());
  for (int round = 0; round < 20; ++round) {
    source.begin_write(here);
    auto* const p = static_cast<unsigned char*>(source.data());
    for (std::size_t k = 0; k < bytes; ++k) p[k] = static_cast<unsigned char>(k * 7 + static_cast<std::size_t>(round));
    const auto copy = [&](const auto& q, const buffer& from, buffer& to) {
      work_on(q, {&from}, {&to},
              [&] { q.own()->require(q.api().copy(to.data(), from.data(), bytes, q.stream()), "cudaMemcpyAsync"); });
    };
    copy(a, source, first);
    copy(b, first, second);
    copy(a, second, target);
    target.begin_read(here);
    const auto* const got = static_cast<const unsigned char*>(target.data());
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < bytes; ++k)
      wrong += got[k] != static_cast<unsigned char>(k * 7 + static_cast<std::size_t>(round));
    CHECK(wrong == 0);
  }
}

}  // namespace hetsched::test
