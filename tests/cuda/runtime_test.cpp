// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime itself. Without a GPU, that this is said; with one, that bytes come through it.
#include <hetsched/cuda.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>

using namespace hetsched;

static_assert(device_backend<cuda_backend<cuda_runtime>>);

TEST_CASE("the runtime copies in the order of its queues, or there is no GPU") {
  std::optional<cuda_devices<cuda_runtime>> devices;
  try {
    devices.emplace();
  } catch (const cuda_error& e) {
    CAPTURE(e.what());
    CHECK(means_no_gpu(e.code));
    CHECK(std::string(e.what()).find("there is no GPU to use: cudaGetDeviceCount: ") == 0);
    return;
  }
  constexpr std::size_t bytes = std::size_t{1} << 22;
  using buffer = cuda_buffer<cuda_runtime>;
  const cuda_queue<cuda_runtime> here(*devices);
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
