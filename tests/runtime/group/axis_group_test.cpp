// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/group/axis_group.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../dense.hpp"
#include "../small_layer.hpp"
#include "groups.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using counts_type = std::vector<std::size_t>;
template <class Real>
using threads = thread_communicator<matrix<Real>>;
static_assert(has_groups<threads<float>, matrix<float>>);
static_assert(!has_groups<plain_communicator<threads<float>>, matrix<float>>);
static_assert(!has_groups<shaped_communicator<threads<float>>, matrix<float>>);  // its links would not count
static_assert(std::is_copy_constructible_v<axis_group<matrix<float>, threads<float>>>);

template <class Real, class T>
std::span<const Real> const_span(const T& values) {
  return std::span<const Real>(values);
}

std::vector<int> all_ranks(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// All collectives of a group of ranks of a communicator, sizes even and not, against one device that has all numbers.
template <class Real, class Communicator>
void check_all(std::vector<Communicator> ends, const std::vector<int>& ranks, std::uint64_t seed, int rounds) {
  const std::size_t n = ranks.size();
  std::atomic<int> wrong{0};
  run_on_threads(std::move(ends), [&](Communicator& comm) {
    std::size_t me = 0;
    while (me < n && ranks[me] != comm.rank()) ++me;
    if (me == n) return;
    const axis_group<matrix<Real>, Communicator> made(comm, ranks);
    const device_axis<Real> axis = made;  // what a layer keeps
    if (axis.rank() != static_cast<int>(me) || axis.size() != static_cast<int>(n)) ++wrong;
    random_source random(seed);  // the same on all ranks, which so know everything
    const auto expect = [&](const std::vector<Real>& found, std::span<const Real> expected) {
      if (!same_bits<Real>(found, expected)) ++wrong;
    };
    for (int round = 0; round < rounds; ++round) {
      const auto size = static_cast<std::size_t>(round % 4 == 0   ? random.integer(0, 3)
                                                 : round % 4 == 1 ? random.integer(4000, 9000)
                                                                  : random.integer(1, 300));
      std::vector<std::vector<Real>> of_ranks;
      for (std::size_t k = 0; k < n; ++k) of_ranks.push_back(wild_numbers<Real>(random, size));
      const auto sum = serial_sum(of_ranks);

      auto values = of_ranks[me];
      axis.all_reduce(values);
      expect(values, sum);

      const int root = random.integer(0, static_cast<int>(n) - 1);
      values = of_ranks[me];
      axis.broadcast(values, root);
      expect(values, of_ranks[static_cast<std::size_t>(root)]);

      counts_type counts(n), firsts(n + 1);
      std::size_t left = size;
      for (std::size_t k = 0; k < n; ++k) {
        counts[k] = k + 1 == n ? left : static_cast<std::size_t>(random.integer(0, static_cast<int>(left)));
        left -= counts[k];
        firsts[k + 1] = firsts[k] + counts[k];
      }
      std::vector<Real> part(counts[me]), joined(size);
      axis.reduce_scatter(of_ranks[me], part, counts);
      expect(part, std::span(sum).subspan(firsts[me], counts[me]));
      values = of_ranks[me];  // in place
      axis.reduce_scatter(values, std::span(values).subspan(firsts[me], counts[me]), counts);
      expect({values.begin() + static_cast<std::ptrdiff_t>(firsts[me]),
              values.begin() + static_cast<std::ptrdiff_t>(firsts[me + 1])},
             std::span(sum).subspan(firsts[me], counts[me]));
      axis.all_gather(part, joined, counts);
      expect(joined, sum);
      std::fill(joined.begin(), joined.end(), Real{7});
      std::copy(part.begin(), part.end(), joined.begin() + static_cast<std::ptrdiff_t>(firsts[me]));
      axis.all_gather(std::span(joined).subspan(firsts[me], counts[me]), joined, counts);
      expect(joined, sum);
      std::fill(joined.begin(), joined.end(), Real{7});
      axis.begin_all_gather(part, joined, counts);
      axis.end_all_gather(part, joined, counts);
      expect(joined, sum);
      axis.await_gathers();  // nobody reads the part any more
      // One after the other without it: by turns from two parts.
      auto second = part;
      for (int turn = 0; turn < 5; ++turn) {
        auto& given = turn % 2 == 0 ? part : second;
        std::fill(given.begin(), given.end(), static_cast<Real>(turn));
        axis.begin_all_gather(given, joined, counts);
        axis.end_all_gather(given, joined, counts);
        expect(joined, std::vector<Real>(size, static_cast<Real>(turn)));
      }
      axis.await_gathers();

      joined.assign(n * size, Real{});
      axis.all_gather(of_ranks[me], joined);
      std::vector<Real> one_by_one;
      for (const auto& r : of_ranks) one_by_one.insert(one_by_one.end(), r.begin(), r.end());
      expect(joined, one_by_one);
      std::vector<Real> even(size);
      axis.reduce_scatter(one_by_one, even);
      const std::vector<std::vector<Real>> n_times(n, of_ranks[me]);
      expect(even, serial_sum(n_times));

      // Rank k has its number k * n + j for rank j, as often as a table says.
      std::vector<counts_type> table(n, counts_type(n));
      for (auto& row : table)
        for (auto& c : row) c = static_cast<std::size_t>(random.integer(0, 2) * random.integer(0, 40));
      counts_type from_all;
      std::vector<Real> send, expected;
      for (std::size_t k = 0; k < n; ++k) {
        send.insert(send.end(), table[me][k], static_cast<Real>(me * n + k));
        expected.insert(expected.end(), table[k][me], static_cast<Real>(k * n + me));
        from_all.push_back(table[k][me]);
      }
      std::vector<Real> received(expected.size());
      axis.all_to_all(send, table[me], received, from_all);
      expect(received, expected);
    }
  });
  CHECK(wrong == 0);
}

std::string text_of(const std::exception_ptr& failure) { return failure ? detail::text_of(failure) : std::string(); }

/// What each rank's body throws.
template <class Communicator, class Body>
std::vector<std::string> texts(std::vector<Communicator> ends, Body body) {
  std::vector<std::string> all(ends.size());
  std::vector<std::jthread> on;
  for (std::size_t r = 0; r < ends.size(); ++r)
    on.emplace_back([&, r] {
      try {
        body(ends[r]);
      } catch (const communication_error&) {
        all[r] = text_of(std::current_exception());
      }
    });
  on.clear();
  return all;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class Communicator>
void check_faults(const std::function<std::vector<Communicator>()>& connect) {
  using group = axis_group<matrix<double>, Communicator>;
  const axis_options options{.name = "the tensor axis", .number = 4, .deadline_s = 0.2};
  SUBCASE("a rank that does not come is named") {
    const auto all = texts(connect(), [&](Communicator& comm) {
      group axis(comm, {0, 1, 2}, options);
      std::vector<double> values(500, 1.0);
      axis.all_reduce(values);
      if (comm.rank() != 1) axis.broadcast(values, 0);
    });
    INFO(all[0] << "\n" << all[2]);
    CHECK(all[1].empty());
    const bool named = contains(all[0], "over the tensor axis (ranks 0 1 2) waits for rank 1, for 0.2") ||
                       contains(all[2], "over the tensor axis (ranks 0 1 2) waits for rank 1, for 0.2");
    CHECK(named);
  }
  SUBCASE("a rank that fails ends the others at once") {
    const auto begin = steady_now_s();
    auto patient = options;
    patient.deadline_s = 60;
    const auto all = texts(connect(), [&](Communicator& comm) {
      group axis(comm, {0, 1, 2}, patient);
      std::vector<double> values(500, 1.0);
      axis.all_reduce(values);
      if (comm.rank() == 2) return comm.abort("rank 2 failed: no more memory");
      axis.all_reduce(values);
    });
    for (const int r : {0, 1}) {
      INFO(all[static_cast<std::size_t>(r)]);
      CHECK(contains(all[static_cast<std::size_t>(r)], "rank " + std::to_string(r) + ": all_reduce over the tensor axis"));
      CHECK(contains(all[static_cast<std::size_t>(r)], "; ended, as rank 2 failed: no more memory"));
    }
    CHECK(steady_now_s() - begin < 30);
  }
  SUBCASE("ranks that call what does not fit") {
    for (int how = 0; how < 3; ++how) {
      CAPTURE(how);
      const auto all = texts(connect(), [&](Communicator& comm) {
        group axis(comm, {0, 1, 2}, options);
        std::vector<double> values(how == 1 && comm.rank() == 1 ? 6 : 7, 1.0);
        if (how == 2 && comm.rank() == 1) {
          std::vector<double> joined(3 * values.size());
          axis.all_gather(values, joined);
        } else if (how == 0 && comm.rank() == 1) {
          axis.all_to_all(std::span(values).first(3), counts_type{1, 1, 1}, std::span(values).subspan(3, 3),
                          counts_type{1, 1, 1});
        } else {
          axis.all_reduce(values);
        }
      });
      int failed = 0;
      for (const auto& t : all) failed += !t.empty();
      CHECK(failed >= 2);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("[threads] axis_group: the bits of one device, by shared memory and by sends", Real, float, double) {
  for (const int n : {1, 2, 3, 4}) {
    CAPTURE(n);
    const auto seed = static_cast<std::uint64_t>(n);
    check_all<Real>(threads<Real>::connect(n), all_ranks(n), seed, 12);
    check_all<Real>(plain(threads<Real>::connect(n)), all_ranks(n), seed, 12);
    check_all<Real>(plain<plain_byte_plane>(threads<Real>::connect(n)), all_ranks(n), seed, 12);
  }
  check_all<Real>(threads<Real>::connect(5), {4, 1, 2}, 9, 8);  // an order of its own, and ranks that are not in it
  check_all<Real>(plain(threads<Real>::connect(5)), {4, 1, 2}, 9, 8);
}

TEST_CASE("[threads] axis_group: over slow links") {
  std::vector<shaped_communicator<threads<double>>> ends;
  for (auto& e : threads<double>::connect(3))
    ends.emplace_back(e, [](int from, int to) { return hetsched::link{1e-4 * (1 + from), 1e8 * (1 + to)}; });
  check_all<double>(ends, {0, 1, 2}, 3, 6);
}

TEST_CASE("[threads] axis_group: faults by shared memory") {
  check_faults<threads<double>>([] { return threads<double>::connect(3); });
}

TEST_CASE("[threads] axis_group: faults by sends") {
  check_faults<plain_communicator<threads<double>>>([] { return plain(threads<double>::connect(3)); });
  check_faults<plain_byte_plane<threads<double>>>([] { return plain<plain_byte_plane>(threads<double>::connect(3)); });
}

TEST_CASE("axis_group: ranks that make no group") {
  auto ends = threads<double>::connect(2);
  using group = axis_group<matrix<double>, threads<double>>;
  CHECK_THROWS_AS(group(ends[0], {0, 2}), input_error);
  CHECK_THROWS_AS(group(ends[0], {0, 1, 0}), input_error);
  CHECK_THROWS_WITH_AS(group(ends[0], {1}), "rank 0 is not in its group", input_error);
  CHECK_THROWS_AS(group(ends[0], {}), input_error);
  CHECK(group(ends[0], {0}).size() == 1);
}

namespace {

/// Steps of two pipelines that run the same schedule, with a group per stage across them. Layers do before(rank, call), then a
/// collective, in every forward and backward.
template <class Communicator, class Before>
void run_two_pipelines(std::vector<Communicator> ends, const schedule& order, send_semantics semantics, int steps,
                       Before before) {
  run_on_threads(std::move(ends), [&](Communicator& comm) {
    const int stages = order.stages, stage = comm.rank() % stages;
    axis_group<small_tensor, Communicator> axis(comm, {stage, stage + stages}, {.number = stage, .deadline_s = 20});
    small_layer layer;
    layer.on_forward = layer.on_backward = [&, calls = 0]() mutable {
      before(comm.rank(), calls++);
      double one = 1;
      axis.all_reduce({&one, 1});
      if (one != 2) throw error("a sum of " + std::to_string(one));
    };
    std::vector<small_layer> own(1, layer);
    const std::vector<tensor_shape> boundaries{{1}};
    pipeline_executor<small_tensor, small_layer, Communicator> executor(
        order, own, boundaries, comm,
        {.deadline_s = 20, .semantics = semantics, .gradient_scale = 1, .first_rank = comm.rank() - stage});
    const std::vector<small_tensor> inputs(static_cast<std::size_t>(order.microbatches));
    const std::vector<double> targets(inputs.size());
    for (int s = 0; s < steps; ++s)
      executor.step(std::span<const small_tensor>(inputs), std::span<const double>(targets), [](const small_tensor& y, double) {
        return loss_value<small_tensor>{0, {y}};
      });
  });
}

}  // namespace

TEST_CASE("[threads] axis_group: collectives in layers take no wake-up from the executor") {
  for (const auto semantics : {send_semantics::buffered, send_semantics::rendezvous})
    for (const auto& order : {gpipe(2, 12), zb_h1(2, 12)}) {
      const auto now_and_then = [](int rank, int call) {
        random_source random(static_cast<std::uint64_t>(100 * rank + call));
        if (random.integer(0, 2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 300)));
      };
      run_two_pipelines(plain(thread_communicator<small_tensor>::connect(4)), order, semantics, 3, now_and_then);
      run_two_pipelines(thread_communicator<small_tensor>::connect(4), order, semantics, 3, now_and_then);
    }
}

TEST_CASE("[threads] axis_group: a fault in a group ends the steps of all ranks") {
  const auto begin_s = steady_now_s();
  for (int bad = 0; bad < 4; ++bad) {
    const auto fails = [&](int rank, int call) {
      if (rank == bad && call == 5) throw error("no more memory");
    };
    CHECK_THROWS_WITH_AS(
        run_two_pipelines(thread_communicator<small_tensor>::connect(4), zb_h1(2, 12), send_semantics::buffered, 2, fails),
        doctest::Contains(") failed: no more memory"), layer_error);
    CHECK_THROWS_WITH_AS(
        run_two_pipelines(plain(thread_communicator<small_tensor>::connect(4)), zb_h1(2, 12), send_semantics::buffered, 2, fails),
        doctest::Contains(") failed: no more memory"), layer_error);
  }
  CHECK(steady_now_s() - begin_s < 15);
}

namespace {

// What a communicator with groups needs, and what does not do.
struct least_group {
  collective_outcome all_reduce(std::span<float>, double);
  collective_outcome all_gather(std::span<const float>, std::span<float>, std::span<const std::size_t>, double);
  collective_outcome reduce_scatter(std::span<const float>, std::span<float>, std::span<const std::size_t>, double);
  collective_outcome broadcast(std::span<float>, int, double);
  collective_outcome all_to_all(std::span<const float>, std::span<const std::size_t>, std::span<float>,
                                std::span<const std::size_t>, double);
  void settle();
};
struct without_settle : least_group {
  void settle() = delete;
};
struct of_no_outcome : least_group {
  void all_reduce(std::span<float>, double);
};
template <class Group>
struct with_groups {
  Group open_group(const group_place&);
};
static_assert(has_groups<with_groups<least_group>, matrix<float>>);
static_assert(!has_groups<with_groups<least_group>, matrix<double>>);
static_assert(!has_groups<with_groups<without_settle>, matrix<float>>);
static_assert(!has_groups<with_groups<of_no_outcome>, matrix<float>>);
static_assert(!has_groups<with_groups<void>, matrix<float>>);

}  // namespace
