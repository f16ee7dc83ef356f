// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/communicator/shaped_communicator.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>

#include "../dense.hpp"
#include "../small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using speed = hetsched::link;  // POSIX has a link, too
using shaped = shaped_communicator<thread_communicator<tensor>>;
static_assert(communicator<shaped, tensor>);
static_assert(communicator<shaped_communicator<shaped>, tensor>);
static_assert(!communicator<shaped, small_tensor>);

template <class Real, class LinkOf>
auto shaped_ends(int ranks, LinkOf link_of) {
  std::vector<shaped_communicator<thread_communicator<matrix<Real>>>> ends;
  for (auto& e : thread_communicator<matrix<Real>>::connect(ranks)) ends.emplace_back(e, link_of);
  return ends;
}

deadline_time in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<deadline_time::duration>(std::chrono::duration<double>(seconds));
}

constexpr double much_later_s = 60, clock_error_s = 1e-6;

/// Waits for one operation.
template <class Communicator>
void finish(Communicator& c, typename Communicator::operation& op, bool send) {
  const auto until = in(much_later_s);
  while (!c.poll(op)) REQUIRE(c.wait(until, send) == wait_result::progress);
}

}  // namespace

TEST_CASE("[threads] shaped_communicator: in order, unchanged, and never faster than the link") {
  random_source random(1);
  constexpr double latency_s = 0.004, bandwidth = 2e6;
  auto ends = shaped_ends<double>(2, [](int, int) { return speed{latency_s, bandwidth}; });
  constexpr std::size_t count = 8;
  // Two channels of one wire, used in turns.
  const edge over[] = {{0, 1, payload::activation, 0, 0}, {0, 1, payload::activation, 0, 2}};
  const int out[] = {ends[0].open(over[0]), ends[0].open(over[1])}, into[] = {ends[1].open(over[0]), ends[1].open(over[1])};
  std::vector<tensor> sent, taken, expected;
  for (std::size_t i = 0; i < count; ++i) {
    const auto rows = static_cast<std::size_t>(random.integer(1, 60)), columns = static_cast<std::size_t>(random.integer(1, 40));
    expected.push_back(random_matrix<double>(random, rows, columns));
    taken.emplace_back(rows, columns);
  }
  sent = expected;
  std::vector<shaped::operation> sends(count), receives(count);
  std::jthread receiver([&] {
    for (std::size_t i = 0; i < count; ++i)
      ends[1].post_receive(into[i % 2], {.microbatch = static_cast<int>(i)}, taken[i], receives[i]);
    for (auto& r : receives) finish(ends[1], r, false);
  });
  const double begin_s = steady_now_s();
  for (std::size_t i = 0; i < count; ++i) ends[0].post_send(out[i % 2], {.microbatch = static_cast<int>(i)}, sent[i], sends[i]);
  for (auto& s : sends) finish(ends[0], s, true);
  receiver.join();
  double on_the_wire_s = 0;
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(i);
    CHECK(taken[i] == expected[i]);
    on_the_wire_s += static_cast<double>(expected[i].rows() * expected[i].columns() * sizeof(double)) / bandwidth;
    CHECK(receives[i].end_s >= begin_s + on_the_wire_s + latency_s - clock_error_s);
    if (i > 0) CHECK(receives[i].end_s >= receives[i - 1].end_s);
    CHECK(sends[i].end_s == receives[i].end_s);
  }
}

TEST_CASE("[threads] shaped_communicator: a slow wire holds up no other one, and an abort ends everything") {
  auto ends = shaped_ends<double>(3, [](int, int to) { return speed{0, to == 1 ? 1.0 : 1e9}; });
  const auto open_both = [&](const edge& e) {
    return std::pair(ends[static_cast<std::size_t>(e.from)].open(e), ends[static_cast<std::size_t>(e.to)].open(e));
  };
  const auto [slow_out, slow_in] = open_both({0, 1, payload::activation, 0, 0});
  const auto [fast_out, fast_in] = open_both({0, 2, payload::activation, 0, 0});
  std::vector<tensor> t(4, tensor(100, 10));
  std::vector<shaped::operation> ops(4);
  ends[1].post_receive(slow_in, {}, t[0], ops[0]);
  ends[2].post_receive(fast_in, {}, t[1], ops[1]);
  ends[0].post_send(slow_out, {}, t[2], ops[2]);  // takes hours
  ends[0].post_send(fast_out, {}, t[3], ops[3]);
  finish(ends[2], ops[1], false);
  finish(ends[0], ops[3], true);
  CHECK_FALSE(ends[0].poll(ops[2]));
  const auto end_of_waits = [&](shaped& end, bool sends) {
    auto result = wait_result::progress;  // may be said where there is none
    while (result == wait_result::progress) result = end.wait(in(much_later_s), sends);
    return result;
  };
  std::jthread sender([&] { CHECK(end_of_waits(ends[0], true) == wait_result::aborted); });
  std::jthread receiver([&] { CHECK(end_of_waits(ends[1], false) == wait_result::aborted); });
  std::jthread gatherer([&] {
    std::vector<std::vector<double>> all;
    CHECK(ends[2].gather({}, all, in(much_later_s)) == wait_result::aborted);
  });
  ends[2].abort("enough");
  sender.join();
  receiver.join();
  gatherer.join();
  for (auto& e : ends) CHECK(e.failure() == "enough");
  CHECK_FALSE(ends[1].poll(ops[0]));
}

TEST_CASE("[threads] shaped_communicator: what is gathered arrives after the longest latency") {
  auto ends = shaped_ends<double>(3, [](int from, int to) { return speed{from == 2 && to == 0 ? 0.03 : 0.001, 1e9}; });
  const double begin_s = steady_now_s();
  double end_s = 0;
  run_on_threads(ends, [&](shaped& end) {
    const std::vector<double> mine(static_cast<std::size_t>(end.rank()), end.rank() + 0.5);
    std::vector<std::vector<double>> all;
    REQUIRE(end.gather(mine, all, in(much_later_s)) == wait_result::progress);
    CHECK(all == std::vector<std::vector<double>>{{}, {1.5}, {2.5, 2.5}});
    if (end.rank() == 0) end_s = steady_now_s();
  });
  CHECK(end_s >= begin_s + 0.03 - clock_error_s);
  // The others do not come again.
  std::vector<std::vector<double>> all;
  CHECK(ends[0].gather({}, all, in(0.02)) == wait_result::deadline);
}

TEST_CASE("[threads] a step over slow links gives the same bits") {
  random_source random(2);
  for (const auto* name : {"1f1b", "h1f1b", "zb_h1", "interleaved_1f1b", "zb_v", "chimera", "virtual_1f1b"}) {
    CAPTURE(name);
    const int ranks = 4, microbatches = 4;
    const auto order = build_schedule(name,
                                      {.forward_s = std::vector<double>(ranks, 1),
                                       .backward_s = std::vector<double>(ranks, 2),
                                       .transfer_s = std::vector<double>(ranks - 1, 1)},
                                      microbatches);
    const task<double> t(7, std::vector<int>(static_cast<std::size_t>(order.stages), 1), microbatches);
    std::vector<speed> links;
    for (int i = 0; i < ranks * ranks; ++i) links.push_back({random.uniform(0, 0.001), std::pow(10, random.uniform(4.5, 8))});
    const auto link_of = [&](int from, int to) { return links[static_cast<std::size_t>(from * ranks + to)]; };
    run_record record;
    const auto got = run_over(shaped_ends<double>(ranks, link_of), t, order, {}, 2, &record);
    CHECK(got == reference(t, order));
    for (const auto& a : record.measured.actions) {
      if (!is_transfer(a.what.kind)) continue;
      const auto shape = t.boundaries()[static_cast<std::size_t>(a.what.stage - (moves_gradient(a.what.kind) ? 1 : 0))];
      const double bytes = static_cast<double>(shape[0] * shape[1] * sizeof(double));
      CHECK(a.end_s - a.start_s >= link_of(a.rank, a.peer).transfer_s(bytes) - clock_error_s);
    }
  }
}

namespace {

/// Both ends in one: a send ends when it is posted, and wakes nobody here, as the concept allows; receives take what is there.
class fake {
 public:
  struct operation {
    double end_s = 0;
    bool ended = false;
    tensor* into = nullptr;
  };
  explicit fake(int rank, std::shared_ptr<std::deque<tensor>> line, std::shared_ptr<std::mutex> guard)
      : rank_(rank), line_(std::move(line)), guard_(std::move(guard)) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return 2; }
  [[nodiscard]] int open(const edge&) { return 0; }
  void post_send(int, const stamp&, tensor& t, operation& op) {
    const std::lock_guard lock(*guard_);
    line_->push_back(t);
    op = {.end_s = steady_now_s(), .ended = true, .into = nullptr};
  }
  void post_receive(int, const stamp&, tensor& t, operation& op) { op = {.end_s = 0, .ended = false, .into = &t}; }
  [[nodiscard]] bool poll(operation& op) {
    const std::lock_guard lock(*guard_);
    if (!op.ended && !line_->empty()) {
      *op.into = line_->front();
      line_->pop_front();
      op.ended = true;
      op.end_s = steady_now_s();
    }
    return op.ended;
  }
  [[nodiscard]] wait_result wait(deadline_time until, bool) {
    std::this_thread::sleep_until(until);
    return wait_result::deadline;
  }
  void abort(const std::string&) {}
  [[nodiscard]] std::string failure() const { return {}; }
  [[nodiscard]] wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) {
    return wait_result::progress;
  }

 private:
  int rank_;
  std::shared_ptr<std::deque<tensor>> line_;
  std::shared_ptr<std::mutex> guard_;
};

}  // namespace

TEST_CASE("[threads] shaped_communicator: a send that ends when it arrives ends the wait") {
  const auto line = std::make_shared<std::deque<tensor>>();
  const auto guard = std::make_shared<std::mutex>();
  const auto link_of = [](int, int) { return speed{0.01, 1e9}; };
  shaped_communicator<fake> from(fake(0, line, guard), link_of), to(fake(1, line, guard), link_of);
  const edge e{0, 1, payload::activation, 0, 0};
  const int out = from.open(e), into = to.open(e);
  random_source random(3);
  const auto expected = random_matrix<double>(random, 3, 4);
  auto sent = expected;
  tensor taken(3, 4);
  shaped_communicator<fake>::operation send, receive;
  to.post_receive(into, {}, taken, receive);
  const double begin_s = steady_now_s();
  from.post_send(out, {}, sent, send);
  CHECK_FALSE(from.poll(send));
  CHECK_FALSE(to.poll(receive));
  CHECK(from.wait(in(much_later_s), true) == wait_result::progress);
  REQUIRE(from.poll(send));
  REQUIRE(to.poll(receive));
  CHECK(receive.end_s >= begin_s + 0.01 - clock_error_s);
  CHECK(taken == expected);
  CHECK(from.wait(in(0.001), true) == wait_result::deadline);
}

TEST_CASE("links that are none") {
  auto ends = thread_communicator<tensor>::connect(2);
  const auto with = [&](speed l) { return shaped(ends[0], [l](int, int) { return l; }); };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_NOTHROW(with({0, inf}));
  for (const speed l : {speed{0, 0}, speed{0, -1}, speed{0, nan}, speed{-1, 1}, speed{nan, 1}, speed{inf, 1}})
    CHECK_THROWS_AS(with(l), input_error);
}
