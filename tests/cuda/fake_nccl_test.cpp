// SPDX-License-Identifier: Apache-2.0
// The fake of NCCL: what a program must not do hangs or is reported, and the same done well is not.
#include "fake_nccl.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// One of two ranks, with a device, a stream, memory of 1024 blocks, and two communicators with the other.
struct small_rank {
  cuda_check::machine& machine;
  fake_nccl api;
  int rank;
  cuda_check::api::stream stream{};
  cuda_check::api::event done{};
  std::vector<fake_nccl::communicator> with{};
  std::deque<fake_nccl::communicator> split_off{};  ///< where splits put what they make
  unsigned char* memory = nullptr;

  small_rank(fake_nccl_world& world, int number) : machine(world.machine), api{&world}, rank(number) {
    cuda_check::api::pool pool{};
    void* made = nullptr;
    const cuda_check::api cuda{&machine};
    REQUIRE(cuda.set_device(rank) == 0);
    REQUIRE(cuda.create_stream(stream) == 0);
    REQUIRE(cuda.create_event(done) == 0);
    REQUIRE(cuda.create_pool(rank, pool) == 0);
    REQUIRE(cuda.allocate(made, 1024 * 8, pool, stream) == 0);
    REQUIRE(cuda.set_zero(made, 1024 * 8, stream) == 0);
    memory = static_cast<unsigned char*>(made);
  }
  [[nodiscard]] void* at(int block) const { return memory + 8 * block; }
  void connect(const nccl_id& id) {
    fake_nccl::communicator made{};
    REQUIRE(api.connect(made, 2, id, rank, {}) == 7);
    with.push_back(made);
  }
  /// Whether something comes about in time.
  template <class F>
  static bool in_time(F&& f) {
    for (const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
         std::chrono::steady_clock::now() < until; std::this_thread::yield())
      if (f()) return true;
    return false;
  }
  bool settle(std::size_t k) {
    return in_time([&] {
      int state = 0;
      return api.state(with[k], state) == 0 && state == 0;
    });
  }
  void send(int block, std::size_t k = 0, std::size_t bytes = 8) {
    CHECK(api.send(at(block), bytes, 1 - rank, with[k], stream) % 7 == 0);
  }
  void receive(int block, std::size_t k = 0, std::size_t bytes = 8) {
    CHECK(api.receive(at(block), bytes, 1 - rank, with[k], stream) % 7 == 0);
  }
  template <class F>
  void group(F&& f) {
    CHECK(api.begin_group() == 0);
    f();
    CHECK(api.end_group() == 7);
  }
  /// Whether all that was enqueued is done; if not, aborts it.
  bool ends() {
    const cuda_check::api cuda{&machine};
    REQUIRE(cuda.record(done, stream) == 0);
    const bool ended = in_time([&] { return cuda.query(done) == 0; });
    CHECK(api.begin_group() == 0);
    for (auto* const c : with) CHECK(api.abort(c) == 0);
    CHECK(api.end_group() % 7 == 0);
    REQUIRE(cuda.synchronize(stream) == 0);  // what is aborted ends
    return ended;
  }
};

struct outcome_of_two {
  bool ended = true;
  std::vector<std::string> reports;
};
/// body(rank), a thread for each of two; both have two communicators with the other.
outcome_of_two two_ranks(const std::function<void(small_rank&)>& body, nccl_habits habits = {}) {
  cuda_check::machine machine({.seed = 1, .devices = 2});
  fake_nccl_world world(machine, habits);
  nccl_id ids[2];
  for (auto& id : ids) REQUIRE(world.unique_id(id) == 0);
  CHECK(ids[0] != ids[1]);
  bool ended[2] = {};
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        small_rank own(world, r);
        for (std::size_t k = 0; k < 2; ++k) {
          own.connect(ids[k]);
          CHECK(own.settle(k));
        }
        body(own);
        ended[r] = own.ends();
      });
  }
  CHECK(world.alive() == 0);
  return {ended[0] && ended[1], machine.reports()};
}

}  // namespace

TEST_CASE("[threads] the fake of NCCL transfers, and finds fault with nothing that is right") {
  const auto grouped = two_ranks([](small_rank& r) {
    r.group([&] {
      r.send(0);
      r.receive(1);
    });
    CHECK(r.settle(0));
    r.rank == 0 ? r.send(2, 1) : r.receive(2, 1);
    CHECK(r.settle(1));
  });
  CHECK(grouped.ended);
  CHECK(grouped.reports.empty());
}

TEST_CASE("[threads] the fake of NCCL hangs where both ends send first, in one communicator or in two") {
  const auto one = two_ranks([](small_rank& r) {
    r.send(0);
    CHECK(r.settle(0));
    r.receive(1);
    CHECK(r.settle(0));
  });
  CHECK(!one.ended);
  CHECK(one.reports.empty());
  // A group has a kernel for each communicator, one after the other.
  const auto two = two_ranks([](small_rank& r) {
    r.group([&] {
      r.send(0, static_cast<std::size_t>(r.rank));
      r.receive(1, static_cast<std::size_t>(1 - r.rank));
    });
    CHECK(r.settle(0));
    CHECK(r.settle(1));
  });
  CHECK(!two.ended);
}

TEST_CASE("[threads] the fake of NCCL reports sizes that differ, and calls before the last has ended") {
  const auto sizes = two_ranks([](small_rank& r) {
    r.rank == 0 ? r.send(0, 0, 16) : r.receive(0, 0, 8);
    CHECK(r.settle(0));
  });
  CHECK(!sizes.ended);
  REQUIRE(sizes.reports.size() == 1);
  CHECK(sizes.reports[0] == "sent are 16 bytes, received 8");
  const auto hasty = two_ranks([](small_rank& r) {
    for (int k = 0; k < 2; ++k) r.rank == 0 ? r.send(k) : r.receive(k);
    CHECK(r.settle(0));
  });
  CHECK(!hasty.reports.empty());
}

TEST_CASE("[threads] the fake of NCCL hangs on groups of many transfers that are cut in two ways") {
  const auto many = [](small_rank& r) {
    r.group([&] {
      for (int k = 0; k < 200; ++k) r.send(k);
      for (int k = 0; k < 200; ++k) r.receive(200 + k);
    });
    CHECK(r.settle(0));
  };
  CHECK(!two_ranks(many).ended);
  CHECK(two_ranks(many, {.most_in_one = 0}).ended);
}

TEST_CASE("[threads] the fake of NCCL hangs where communicators are made in two orders, if it makes one at a time") {
  for (const bool one : {false, true}) {
    CAPTURE(one);
    cuda_check::machine machine({.seed = 1, .devices = 2});
    fake_nccl_world world(machine, {.one_creation = one});
    nccl_id ids[2];
    for (auto& id : ids) REQUIRE(world.unique_id(id) == 0);
    bool made[2] = {};
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
          small_rank own(world, r);
          for (const int k : {0, 1}) own.connect(ids[(k + r) % 2]);
          const bool first = own.settle(0), second = own.settle(1);
          made[r] = first && second;
          static_cast<void>(own.ends());
        });
    }
    CHECK((made[0] && made[1]) == !one);
  }
}

TEST_CASE("the fake of NCCL refuses two ranks on one device") {
  cuda_check::machine machine({.seed = 1, .devices = 1});
  fake_nccl_world world(machine);
  nccl_id id;
  REQUIRE(world.unique_id(id) == 0);
  fake_nccl_world::end *a = nullptr, *b = nullptr;
  CHECK(world.connect(a, 2, id, 0, {}) == 7);
  CHECK(world.connect(b, 2, id, 1, {}) == 7);
  int state = 0;
  CHECK(world.state(b, state) == 0);
  CHECK(state == 5);
}

TEST_CASE("the fake of NCCL reports memory that is used again before a transfer has read it") {
  const auto early = two_ranks([](small_rank& r) {
    r.rank == 0 ? r.send(0) : r.receive(0);
    CHECK(r.settle(0));
    const cuda_check::api cuda{&r.machine};
    cuda_check::api::stream other{};
    REQUIRE(cuda.create_stream(other) == 0);
    REQUIRE(cuda.set_zero(r.at(0), 8, other) == 0);
    REQUIRE(cuda.synchronize(other) == 0);
  });
  CHECK(!early.reports.empty());
}

TEST_CASE("[threads] the fake of NCCL hangs on collectives of two kinds or sizes, or in two orders over two communicators") {
  const auto sum = [](small_rank& r, std::size_t elements, std::size_t k = 0) {
    CHECK(r.api.all_reduce(r.at(0), r.at(0), elements, nccl_type::f64, r.with[k], r.stream) == 7);
    CHECK(r.settle(k));
  };
  const auto right = two_ranks([&](small_rank& r) {
    sum(r, 4, 0);
    sum(r, 2, 1);
  });
  CHECK(right.ended);
  CHECK(right.reports.empty());
  const auto sizes = two_ranks([&](small_rank& r) { sum(r, r.rank == 0 ? 4 : 2); });
  CHECK(!sizes.ended);
  REQUIRE(sizes.reports.size() == 1);
  CHECK(sizes.reports[0] == "ncclAllReduce of 16 bytes meets ncclAllReduce of 32 bytes");
  const auto kinds = two_ranks([&](small_rank& r) {
    if (r.rank == 0) return sum(r, 1);
    CHECK(r.api.broadcast(r.at(0), r.at(0), 1, nccl_type::f64, 0, r.with[0], r.stream) == 7);
    CHECK(r.settle(0));
  });
  CHECK(!kinds.ended);
  CHECK(!kinds.reports.empty());
  const auto orders = two_ranks([&](small_rank& r) {
    sum(r, 1, static_cast<std::size_t>(r.rank));
    sum(r, 1, static_cast<std::size_t>(1 - r.rank));
  });
  CHECK(!orders.ended);
  CHECK(orders.reports.empty());
  const auto mixed = two_ranks([&](small_rank& r) {  // a rank sends before the collective, the other receives behind it
    if (r.rank == 0) r.send(8, 1);
    if (r.rank == 0) CHECK(r.settle(1));
    sum(r, 1);
    if (r.rank == 1) r.receive(8, 1);
    if (r.rank == 1) CHECK(r.settle(1));
  });
  CHECK(!mixed.ended);
}

TEST_CASE("[threads] the fake of NCCL splits where all ranks call it in one order, and hangs where they do not") {
  enum class fault { none, missing, two_orders, busy };
  for (const auto f : {fault::none, fault::missing, fault::two_orders, fault::busy}) {
    CAPTURE(static_cast<int>(f));
    bool settled[2] = {};
    const auto found = two_ranks([&](small_rank& r) {
      // Both ranks in a colour, in the other order; then rank 1 alone; rank 0 gets none.
      const auto split = [&](std::size_t k, int colour, int key) {
        auto& made = r.split_off.emplace_back();
        CHECK(r.api.split(r.with[k], colour, key, made, {}) == 7);
        CHECK(made == nullptr);
        if (!r.settle(k)) return false;
        CHECK((made == nullptr) == (colour < 0));
        if (made) r.with.push_back(made);
        return !made || r.settle(r.with.size() - 1);
      };
      if (f == fault::busy) r.send(0);
      if (f == fault::missing && r.rank == 1) return;
      if (f == fault::two_orders) {
        settled[r.rank] = split(static_cast<std::size_t>(r.rank), 0, 0) && split(static_cast<std::size_t>(1 - r.rank), 0, 0);
        return;
      }
      settled[r.rank] = split(0, 3, 7 - r.rank) && split(0, r.rank == 0 ? -1 : 0, 0);
      if (f != fault::none) return;
      // What the split has made transfers: rank 1 is the first in it, by its key.
      if (r.rank == 1)
        CHECK(r.api.send(r.at(0), 8, 1, r.with[2], r.stream) % 7 == 0);
      else
        CHECK(r.api.receive(r.at(0), 8, 0, r.with[2], r.stream) % 7 == 0);
      CHECK(r.settle(2));
    });
    CHECK((settled[0] && settled[1]) == (f == fault::none || f == fault::busy));
    CHECK((found.ended && found.reports.empty()) == (f == fault::none || f == fault::missing || f == fault::two_orders));
    if (f == fault::busy) {
      REQUIRE(!found.reports.empty());
      CHECK(found.reports[0] == "a communicator is split that has work under way");
    }
  }
}

TEST_CASE("[threads] the fake of NCCL finds graphs with transfers that NCCL does not allow, and runs those that it does") {
  enum class fault { none, one_captured, captured_twice, finalised, aborted };
  for (const auto f : {fault::none, fault::one_captured, fault::captured_twice, fault::finalised, fault::aborted}) {
    CAPTURE(static_cast<int>(f));
    const auto found = two_ranks([f](small_rank& r) {
      const cuda_check::api cuda{&r.machine};
      cuda_check::api::graph graph{};
      const auto transfer = [&] {
        r.rank == 0 ? r.send(0) : r.receive(0);
        CHECK(r.settle(0));
      };
      const bool captures = f != fault::one_captured || r.rank == 0;
      for (int i = 0; captures && i < (f == fault::captured_twice && r.rank == 0 ? 2 : 1); ++i) {
        if (i > 0) CHECK(cuda.destroy_graph(graph) == 0);
        REQUIRE(cuda.begin_capture(r.stream) == 0);
        transfer();
        REQUIRE(cuda.end_capture(r.stream, graph) == 0);
      }
      for (int launch = 0; launch < 2; ++launch) captures ? (void)cuda.launch(graph, r.stream) : transfer();
      REQUIRE(cuda.synchronize(r.stream) == 0);
      if (f == fault::finalised) CHECK(r.api.finish(r.with[0]) == 7);
      if (f == fault::aborted) (void)r.ends(), r.with.clear();
      if (captures) CHECK(cuda.destroy_graph(graph) == 0);
    });
    CHECK(found.ended);
    REQUIRE(found.reports.empty() == (f == fault::none));
    if (f == fault::none) continue;
    CHECK(found.reports[0] == (f == fault::one_captured     ? "a transfer of capture 1 meets one of no graph"
                               : f == fault::captured_twice ? "a transfer of capture 2 meets one of capture 1"
                               : f == fault::finalised
                                   ? "a communicator is finalised that a graph holds: that waits for the graph's end"
                                   : "a communicator is aborted that a graph holds: that waits for the graph's end"));
  }
}

TEST_CASE("[threads] the fake of NCCL finds registered memory that is freed, and communicators that end before it is let go") {
  enum class fault { none, freed, left, elsewhere };
  for (const auto f : {fault::none, fault::freed, fault::left, fault::elsewhere}) {
    CAPTURE(static_cast<int>(f));
    const auto found = two_ranks([f](small_rank& r) {
      const cuda_check::api cuda{&r.machine};
      cuda_check::api::pool pool{};
      void *memory = nullptr, *handle = nullptr;
      REQUIRE(cuda.create_pool(r.rank, pool) == 0);
      REQUIRE(cuda.allocate(memory, 64, pool, r.stream) == 0);
      CHECK(r.api.keep(r.with[0], memory, 64, handle) == 0);
      if (f == fault::freed) CHECK(cuda.free(memory, r.stream) == 0);
      if (f != fault::left) CHECK((r.api.let_go(r.with[f == fault::elsewhere ? 1 : 0], handle) == 0) == (f != fault::elsewhere));
      if (f == fault::none || f == fault::left) CHECK(r.api.finish(r.with[0]) == 7);
      if (f != fault::freed) CHECK(cuda.free(memory, r.stream) == 0);
    });
    REQUIRE(found.reports.empty() == (f == fault::none));
    if (f == fault::none) continue;
    CHECK(found.reports[0] == (f == fault::freed  ? "memory is freed that is registered"
                               : f == fault::left ? "a communicator is finalised that has registered memory"
                                                  : "memory is deregistered where it is not registered"));
  }
}
