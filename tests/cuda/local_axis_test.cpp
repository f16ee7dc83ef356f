// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/local_axis.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>

#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"
#include "uneven_task.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using local = cuda_local_communicator<fake_tensor, cuda_check::api>;

std::vector<double> numbers_of(const fake_queue& q, const fake_tensor& t) {
  const auto host = download(q, t);
  return {host.data(), host.data() + host.rows() * host.columns()};
}

/// Twice, so that what one call leaves behind is in the way of the next; results of the second.
collected on_places(const uneven_task& t, const std::vector<int>& places, const cuda_check::habits& habits) {
  collected found(static_cast<std::size_t>(3 * t.ranks));
  std::vector<int> members(static_cast<std::size_t>(t.ranks));
  std::iota(members.begin(), members.end(), 0);
  cuda_check::machine machine(habits);
  {
    fake_devices devices(cuda_check::api{&machine}, {.records = 4});
    run_on_threads(local::connect(devices, places), [&](local& end) {
      const auto r = static_cast<std::size_t>(end.rank());
      const cuda_backend<cuda_check::api> own(devices, places[r], "rank " + std::to_string(r));
      const auto q = own.compute_queue();
      const auto current = own.bind();
      const local::axis axis(end, members);
      for (int time = 0; time < 2; ++time) {
        const auto mine = upload(q, t.mine[r]), all = upload(q, t.all[r]), sends = upload(q, t.sends[r]);
        fake_tensor gathered(1, total_of(t.counts), q), scattered(1, t.counts[r], q), exchanged(1, total_of(t.from(r)), q);
        axis.all_gather(mine, gathered, t.counts, q);
        axis.reduce_scatter(all, scattered, t.counts, q);
        axis.all_to_all(sends, t.to[r], exchanged, t.from(r), q);
        std::size_t k = 3 * r;
        for (const auto* m : {&gathered, &scattered, &exchanged}) found[k++] = numbers_of(q, *m);
      }
    });
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
  return found;
}

}  // namespace

TEST_CASE("[threads] collectives of GPUs and hosts of one process have the bits of those of threads, and no races") {
  for (int instance = 0; instance < 100 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto seed = static_cast<std::uint64_t>(instance) + 1;
    random_source random(seed);
    const uneven_task t(seed);
    const int devices = random.integer(1, 4);
    std::vector<int> places;
    for (int r = 0; r < t.ranks; ++r) places.push_back(random.integer(instance % 3 == 0 ? -1 : 0, devices - 1));
    CHECK(on_places(t, places,
                    {.seed = seed,
                     .devices = devices,
                     .lazy = random.integer(0, 1) == 0,
                     .in_order = instance % 2 == 0,
                     .launch_queue = 32}) == on_threads(t));
  }
}

TEST_CASE("[threads] sums over all, equal parts and broadcasts of GPUs of one process, one call behind the other") {
  constexpr int ranks = 3;
  constexpr std::size_t n = 5;
  random_source random(9);
  std::vector<matrix<double>> own;
  for (int r = 0; r < ranks; ++r) own.push_back(random_matrix<double>(random, ranks, n));
  cuda_check::machine machine({.seed = 4, .devices = 2});
  collected sums(ranks), parts(ranks), all(ranks), roots(ranks);
  {
    fake_devices devices(cuda_check::api{&machine});
    const std::vector<int> places{0, 1, 0};
    run_on_threads(local::connect(devices, places), [&](local& end) {
      const auto r = static_cast<std::size_t>(end.rank());
      const auto q = devices.make_queue(places[r], "layers");
      const auto current = q.make_current();
      const local::axis axis(end, {0, 1, 2});
      auto values = upload(q, own[r]);
      fake_tensor part(1, n, q), whole(ranks, n, q);
      axis.reduce_scatter(values, part, q);
      axis.all_gather(part, whole, q);
      axis.all_reduce(values, q);
      sums[r] = numbers_of(q, values);
      parts[r] = numbers_of(q, part);
      all[r] = numbers_of(q, whole);
      tensor_traits<fake_tensor>::scale(values, static_cast<double>(r), q);
      axis.broadcast(values, 2, q);
      roots[r] = numbers_of(q, values);
    });
  }
  std::vector<double> sum(ranks * n), twice;
  for (std::size_t k = 0; k < sum.size(); ++k) sum[k] = own[0].data()[k] + own[1].data()[k] + own[2].data()[k];
  for (const double x : sum) twice.push_back(2 * x);
  for (std::size_t r = 0; r < ranks; ++r) {
    CHECK(sums[r] == sum);
    CHECK(all[r] == sum);
    CHECK(parts[r] == std::vector<double>(sum.begin() + static_cast<std::ptrdiff_t>(r * n),
                                          sum.begin() + static_cast<std::ptrdiff_t>((r + 1) * n)));
    CHECK(roots[r] == twice);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

TEST_CASE("[threads] collectives of GPUs that do not fit, or that a rank does not come to, end everywhere, with the reason") {
  const auto errors_of = [](const auto& body) {
    std::vector<std::string> errors(2);
    cuda_check::machine machine({.devices = 2});
    {
      fake_devices devices(cuda_check::api{&machine});
      run_on_threads(local::connect(devices, {0, 1}), [&](local& end) {
        const auto q = devices.make_queue(end.rank(), "layers");
        const auto current = q.make_current();
        const local::axis axis(end, {0, 1}, {.name = "an axis", .deadline_s = 0.2});
        try {
          body(axis, q, end);
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(end.rank())] = e.what();
        }
      });
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
    return errors;
  };
  const auto with = [](const fake_queue& q, std::size_t n) { return upload(q, matrix<double>(1, n)); };
  auto errors = errors_of([&](const local::axis& axis, const fake_queue& q, local&) {
    auto t = with(q, 3), all = with(q, 6);
    axis.rank() == 0 ? axis.all_reduce(t, q) : axis.all_gather(t, all, q);
  });
  CHECK(errors[0].find("an axis (ranks 0 1)") != std::string::npos);
  CHECK((errors[0].find("calls all_gather instead") != std::string::npos ||
         errors[1].find("calls all_reduce instead") != std::string::npos));
  errors = errors_of([&](const local::axis& axis, const fake_queue& q, local&) {
    auto t = with(q, 3);
    if (axis.rank() == 0) axis.all_reduce(t, q);
  });
  CHECK(errors[0] == "rank 0: all_reduce over an axis (ranks 0 1) waits for rank 1, for 0.200000 s");
  errors = errors_of([&](const local::axis& axis, const fake_queue& q, local& end) {
    auto t = with(q, 3);
    if (axis.rank() == 1) return end.abort("rank 1 has had enough");
    axis.all_reduce(t, q);
  });
  CHECK(errors[0].find("rank 1 has had enough") != std::string::npos);
  // A device that fails ends the other's wait at once.
  std::vector<double> took(2);
  {
    cuda_check::machine machine({.devices = 2});
    fake_devices devices(cuda_check::api{&machine});
    run_on_threads(local::connect(devices, {0, 1}), [&](local& end) {
      const auto q = devices.make_queue(end.rank(), "layers");
      const auto current = q.make_current();
      const local::axis axis(end, {0, 1}, {.name = "an axis", .deadline_s = 20});
      auto t = with(q, 3);
      if (end.rank() == 0) machine.fail("cudaEventRecord", 700);
      const double begin = steady_now_s();
      CHECK_THROWS(axis.all_reduce(t, q));
      took[static_cast<std::size_t>(end.rank())] = steady_now_s() - begin;
    });
  }
  CHECK(std::max(took[0], took[1]) < 15);
  errors = errors_of([&](const local::axis& axis, const fake_queue& q, local&) {
    auto t = with(q, 3), all = with(q, 5);
    axis.all_gather(t, all, q);
  });
  CHECK(errors[0] == "5 elements are not those of 2 parts with 6, for 2 ranks");
}

TEST_CASE("[threads] a call that fits some ranks only leaves no copy behind that nobody waits for") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    cuda_check::machine machine({.seed = seed, .devices = 3});
    {
      fake_devices devices(cuda_check::api{&machine});
      run_on_threads(local::connect(devices, {0, 1, 2}), [&](local& end) {
        const auto q = devices.make_queue(end.rank(), "layers");
        const auto current = q.make_current();
        const local::axis axis(end, {0, 1, 2}, {.name = "an axis", .deadline_s = 10});
        // Ranks 0 and 1 do not fit each other; what rank 2 awaits of both is what they give it.
        const std::vector<part_counts> to{{0, 2, 1}, {3, 0, 1}, {1, 1, 0}}, from{{0, 9, 1}, {9, 0, 1}, {1, 1, 0}};
        const auto r = static_cast<std::size_t>(end.rank());
        const auto send = upload(q, matrix<double>(1, total_of(to[r])));
        fake_tensor receive(1, total_of(from[r]), q);
        CHECK_THROWS_AS(axis.all_to_all(send, to[r], receive, from[r], q), communication_error);
      });
    }
    for (const auto& report : machine.reports()) FAIL_CHECK(report);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("[threads] axes of the same ranks are used side by side, and one after the other") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    cuda_check::machine machine({.seed = seed, .devices = 2});
    {
      fake_devices devices(cuda_check::api{&machine});
      run_on_threads(local::connect(devices, {0, 1}), [&](local& end) {
        const auto q = devices.make_queue(end.rank(), "layers");
        const auto current = q.make_current();
        const local::axis first(end, {0, 1}), second(end, {0, 1});
        for (int round = 0; round < 20; ++round) {
          const local::axis fresh(end, {0, 1});
          for (const auto* axis : {&first, &second, &fresh, &first}) {
            auto t = upload(q, matrix<double>(1, 3));
            axis->all_reduce(t, q);
          }
        }
        q.finish();
      });
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("[threads] a device that fails for good inside a collective ends all ranks") {
  for (int after = 0; after < 12; ++after) {
    CAPTURE(after);
    cuda_check::machine machine({.devices = 2});
    fake_devices devices(cuda_check::api{&machine});
    std::vector<char> threw(2, 0);
    run_on_threads(local::connect(devices, {0, 1}), [&](local& end) {
      const auto q = devices.make_queue(end.rank(), "layers");
      const auto current = q.make_current();
      const local::axis axis(end, {0, 1}, {.name = "an axis", .deadline_s = 5});
      try {
        auto t = upload(q, matrix<double>(1, 3));
        if (end.rank() == 0) machine.fail("cudaEventRecord", 700, after);
        for (int k = 0; k < 8; ++k) axis.all_reduce(t, q);
      } catch (const std::exception&) {
        threw[static_cast<std::size_t>(end.rank())] = 1;
      }
    });
    CHECK(threw == std::vector<char>(2, 1));
  }
}
