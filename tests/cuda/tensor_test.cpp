// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/tensor.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>

#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(pipeline_tensor<fake_tensor>);

TEST_CASE("[threads] what is done to tensors on a queue is what is done on the host") {
  for (int instance = 0; instance < 60; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    cuda_check::machine machine({.seed = static_cast<std::uint64_t>(instance) + 1, .lazy = instance % 2 == 0});
    {
      fake_devices devices(cuda_check::api{&machine});
      const int place = instance % 3 - 1;
      const auto q = place < 0 ? fake_queue(devices) : devices.make_queue(place, "work");
      const auto other = devices.make_queue(1, "slices");
      if (place >= 0) REQUIRE(machine.set_device(place) == 0);
      const auto rows = static_cast<std::size_t>(random.integer(1, 5)), columns = static_cast<std::size_t>(random.integer(1, 6));
      const auto a = random_matrix<double>(random, rows, columns), b = random_matrix<double>(random, rows, columns);
      auto on_a = upload(q, a), on_b = upload(q, b);
      auto sum = detail::make_tensor<fake_tensor>({rows, columns}, q);
      detail::assign(sum, on_a, q);
      detail::add(sum, on_b, q);
      detail::scale(sum, 0.75, q);
      matrix<double> expected = a;
      detail::add(expected, b);
      detail::scale(expected, 0.75);
      CHECK(download(q, sum) == expected);

      // A part of it into a part of another, on another queue.
      const auto extent = [&](std::size_t n) {
        const auto first = random.integer(0, static_cast<int>(n) - 1);
        return interval{first, random.integer(first + 1, static_cast<int>(n))};
      };
      const slice whole{{0, static_cast<std::int64_t>(rows)}, {0, static_cast<std::int64_t>(columns)}};
      const slice part{extent(rows), extent(columns)};
      auto target = detail::make_tensor<fake_tensor>({rows, columns}, q);
      detail::zero(target, q);
      const auto& by = place < 0 ? q : other;
      detail::copy_part(target, whole, sum, whole, part, by);
      matrix<double> in_parts(rows, columns);
      hetsched::copy_part(expected.data(), whole, in_parts.data(), whole, part);
      detail::begin_read(target, q);
      CHECK(download(q, target) == in_parts);
      detail::end_read(target, q, q.record());
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("what the host does to tensors is seen: one that does not wait for a copy is caught") {
  for (const bool hasty : {false, true}) {
    cuda_check::machine machine({.lazy = true, .hasty = hasty});
    {
      fake_devices devices(cuda_check::api{&machine});
      const fake_queue here(devices);
      const auto q = devices.make_queue(0, "copies");
      const auto make = [&](const fake_queue& on) { return detail::make_tensor<fake_tensor>({2, 2}, on); };
      auto on_device = make(q), pinned = make(here), copy = make(here);
      detail::zero(on_device, q);
      detail::assign(pinned, on_device, q);
      detail::assign(copy, pinned, here);
    }
    CHECK(machine.reports().empty() == !hasty);
    CHECK(machine.leaks().empty());
  }
}
