// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/communicator.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/runtime/communicator/rank_failure.hpp>
#include <hetsched/runtime/communicator/router.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/group/any_communicator.hpp>

#include "../dense.hpp"
#include "../group/groups.hpp"

using namespace hetsched;
using namespace hetsched::test;

TEST_CASE("channels and what they carry, as people read them") {
  CHECK(to_text(edge{.from = 1, .to = 2, .what = payload::activation, .direction = 0, .stage = 3}) ==
        "activation of stage 3 from rank 1 to rank 2");
  CHECK(to_text(edge{.from = 1, .to = 0, .what = payload::layer_gradient, .direction = 1, .stage = 4}) ==
        "sum of gradients of layer 4 from rank 1 to rank 0 (direction 1)");
  CHECK(to_text(stamp{.step = 7, .microbatch = 2, .what = payload::gradient, .direction = 0, .stage = 1}) ==
        "step 7, microbatch 2, gradient of stage 1");
  CHECK(to_text(stamp{.step = 7, .microbatch = 2, .what = payload::reduction, .direction = 1, .stage = 1}) ==
        "step 7, parameter 2, reduction of stage 1 (direction 1)");
  CHECK(to_text(edge{.from = 1, .to = 0, .what = payload::collective, .direction = 0, .stage = 5}) ==
        "collective of group 5 from rank 1 to rank 0");
  CHECK(to_text(stamp{.step = 9, .microbatch = 1, .what = payload::collective, .direction = 0, .stage = 5}) ==
        "call 9, kind 1, collective of group 5");
}

TEST_CASE("deadlines lie ahead, are in order, and may be never or at once") {
  const auto now = std::chrono::steady_clock::now();
  CHECK(deadline_in(-1) >= now);
  CHECK(deadline_in(-std::numeric_limits<double>::infinity()) < now + std::chrono::hours(1));
  CHECK(deadline_in(std::numeric_limits<double>::quiet_NaN()) < now + std::chrono::hours(1));
  const auto minute = deadline_in(60), never = deadline_in(std::numeric_limits<double>::infinity());
  CHECK(minute >= now + std::chrono::seconds(60));
  CHECK(minute < now + std::chrono::hours(1));
  CHECK(never > now + std::chrono::hours(24 * 365));
}

TEST_CASE("[threads] a tensor or a part of one at either end of a channel") {
  using tensor = matrix<double>;
  using threads = thread_communicator<tensor>;
  auto ends = threads::connect(2);
  check_byte_plane<tensor>(ends[0], ends[1]);
  ends = threads::connect(2);
  const auto slow = [](int, int) { return hetsched::link{.latency_s = 1e-4, .bandwidth = 1e9}; };
  shaped_communicator<threads> a(ends[0], slow), b(ends[1], slow);
  check_byte_plane<tensor>(a, b);
  const auto route = [](const edge& e) { return routed_edge{1, e}; };
  const auto one = threads::connect(2), two = threads::connect(2);
  using routed = router<threads, decltype(route), threads, shaped_communicator<threads>>;
  routed c(one[0], route, one[0], shaped_communicator<threads>(two[0], slow)),
      d(one[1], route, one[1], shaped_communicator<threads>(two[1], slow));
  check_byte_plane<tensor>(c, d);
  static_assert(!byte_plane<plain_communicator<threads>>);
  static_assert(!byte_plane<router<threads, decltype(route), threads, plain_communicator<threads>>>);
}

TEST_CASE("[threads] who cannot take the next step is told to all, the first by rank; who does not come, too") {
  using channel = thread_communicator<matrix<float>>;
  const auto ask = [](const std::vector<std::string>& wrong, double deadline_s) {
    auto ends = channel::connect(static_cast<int>(wrong.size()));
    std::vector<std::string> told(wrong.size());
    {
      std::vector<std::jthread> ranks;
      for (std::size_t r = 0; r < wrong.size(); ++r)
        ranks.emplace_back([&, r] {
          if (wrong[r] == "does not come") return;
          try {
            const auto failed = first_failure(ends[r], wrong[r], deadline_s);
            told[r] = failed ? std::to_string(failed->rank) + ": " + failed->why : "all can";
          } catch (const communication_error& e) {
            told[r] = e.what();
          }
        });
    }
    return told;
  };
  using texts = std::vector<std::string>;
  CHECK(ask({"", "", ""}, 20) == texts(3, "all can"));
  CHECK(ask({"", "no text\xc3\xa9", "no disk"}, 20) == texts(3, "1: no text\xc3\xa9"));
  CHECK(ask({std::string(2000, 'x'), ""}, 20) == texts(2, "0: " + std::string(1000, 'x')));
  const auto late = ask({"", "does not come"}, 0.1);
  CHECK(late[0].starts_with("rank 0, between steps: "));
}

TEST_CASE("[threads] what ranks of a process read alike is made once, by whoever comes first, and again when nobody has it") {
  constexpr int ranks = 6;
  auto ends = thread_communicator<matrix<float>>::connect(ranks);
  std::atomic<int> made{0};
  std::barrier all(ranks);
  std::vector<const int*> found(ranks);
  for (int time = 1; time <= 2; ++time) {
    rethrow_first(on_ranks(ranks, [&](int r) {
      const auto k = static_cast<std::size_t>(r);
      const int wanted = r % 2;  // of two values
      const auto one = ends[k].shared()->find<int>([&](int v) { return v == wanted; },
                                                   [&] { return ++made, std::make_shared<const int>(wanted); });
      all.arrive_and_wait();
      found[k] = one.get();
      all.arrive_and_wait();
      if (*one != wanted) throw std::runtime_error("another rank's value");
      if (found[k] != found[static_cast<std::size_t>(wanted)]) throw std::runtime_error("a value of its own");
    }));
    CHECK(made == 2 * time);
  }
  // Values of another type are others, and who cannot make one leaves it to the next.
  auto& values = *ends[0].shared();
  const auto yes = [](const auto&) { return true; };
  const auto number = values.find<int>(yes, [] { return std::make_shared<const int>(3); });
  CHECK(*values.find<long>(yes, [] { return std::make_shared<const long>(4); }) == 4);
  const auto fails = []() -> std::shared_ptr<const double> { throw std::runtime_error("no"); };
  CHECK_THROWS_AS((void)values.find<double>(yes, fails), std::runtime_error);
  CHECK(*values.find<double>(yes, [] { return std::make_shared<const double>(5); }) == 5);
  CHECK(values.find<int>(yes, [] { return std::make_shared<const int>(6); }) == number);
}

TEST_CASE("[threads] ranks of a process have one round of what all have told, and who keeps it keeps what it was") {
  using tensor = matrix<float>;
  using threads = thread_communicator<tensor>;
  const auto slow = [](int, int) { return hetsched::link{.latency_s = 1e-6, .bandwidth = 1e9}; };
  const auto route = [](const edge& e) { return routed_edge{0, e}; };
  using routed = router<threads, decltype(route), threads>;
  static_assert(sharing_plane<shaped_communicator<threads>> && sharing_plane<routed> &&
                !sharing_plane<plain_communicator<threads>>);
  static_assert(!sharing_plane<shaped_communicator<plain_communicator<threads>>>);
  const auto check = [&](auto ends) {
    constexpr int ranks = 3;
    std::vector<const gather_round*> seen(ranks);
    std::barrier all(ranks);
    rethrow_first(on_ranks(ranks, [&](int r) {
      auto& end = ends[static_cast<std::size_t>(r)];
      std::shared_ptr<const gather_round> round, kept;
      for (int i = 0; i < 5; ++i) {
        const std::vector<double> mine{100.0 * i + r};
        if (i == 2) {  // as copies, in between
          std::vector<std::vector<double>> copies;
          (void)end.gather(mine, copies, deadline_in(60));
          if (copies[1] != std::vector{201.0}) throw std::runtime_error("copies");
          continue;
        }
        (void)end.gather(mine, round, deadline_in(60));
        seen[static_cast<std::size_t>(r)] = round.get();
        all.arrive_and_wait();
        if (seen[0] != seen[1] || seen[0] != seen[2]) throw std::runtime_error("rounds of their own");
        if (round->number != static_cast<std::uint64_t>(i) + 1) throw std::runtime_error("number");
        for (int k = 0; k < ranks; ++k)
          if (round->told[static_cast<std::size_t>(k)] != std::vector{100.0 * i + k}) throw std::runtime_error("told");
        all.arrive_and_wait();
        if (i == 0 && r == 1) kept = round;
      }
      if (kept && kept->told[2] != std::vector{2.0}) throw std::runtime_error("kept");
    }));
  };
  check(threads::connect(3));
  std::vector<shaped_communicator<threads>> shaped;
  for (auto& e : threads::connect(3)) shaped.emplace_back(e, slow);
  check(std::move(shaped));
  std::vector<routed> through;
  for (auto& e : threads::connect(3)) through.emplace_back(e, route, e);
  check(std::move(through));
  std::vector<any_communicator<tensor>> any;
  for (auto& e : threads::connect(3)) any.emplace_back(e);
  check(std::move(any));
  CHECK_FALSE(any_communicator<tensor>(plain<plain_byte_plane>(threads::connect(1))[0]).shared());
}
