// SPDX-License-Identifier: Apache-2.0
// What every communicator between processes has to do; for Gloo and MPI. Each rank calls these functions, on a process or thread
// of its own, with a function that makes its end of another communicator: make() -> std::unique_ptr<End>. All ranks do alike.
// Where tensors are others than the host's, they are made by another one: make_tensor(rows, columns).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../dense.hpp"

namespace hetsched::test {

using plane_tensor = matrix<double>;

inline plane_tensor filled(std::size_t rows, std::size_t columns, double first) {
  plane_tensor t(rows, columns);
  for (std::size_t k = 0; k < rows * columns; ++k) t.data()[k] = first + static_cast<double>(k);
  return t;
}

struct make_plane_tensor {
  plane_tensor operator()(std::size_t rows, std::size_t columns) const { return {rows, columns}; }
};

/// Whether an operation ends soon.
template <class End>
bool ends_soon(End& end, typename End::operation& op) {
  const auto until = deadline_in(20);
  while (!end.poll(op))
    if (end.wait(until, true) != wait_result::progress) return end.poll(op);
  return true;
}

/// Waits for all ranks.
template <class End>
void meet(End& end) {
  std::vector<std::vector<double>> all;
  REQUIRE(end.gather({}, all, deadline_in(20)) == wait_result::progress);
}

/// How waits end once nothing comes any more.
template <class End>
wait_result last_wait(End& end) {
  const auto until = deadline_in(20);
  auto found = wait_result::progress;
  while (found == wait_result::progress) found = end.wait(until, true);
  return found;
}

/// Rank 0 sends over two channels to rank 1, and over one to the last; they are opened and posted in other orders.
template <class Make>
void check_order(const Make& make) {
  const auto end = make();
  using operation = typename std::decay_t<decltype(*end)>::operation;
  const int last = end->ranks() - 1;
  const edge where[] = {{0, 1, payload::activation, 0, 0}, {0, 1, payload::gradient, 1, 7}, {0, last, payload::activation, 0, 3}};
  std::vector<plane_tensor> sent, taken(9, plane_tensor(2, 3));
  std::vector<operation> operations(9);
  for (int i = 0; i < 9; ++i) sent.push_back(filled(2, 3, 100 * i));
  const auto stamp_of = [](std::size_t k) { return stamp{.step = 4, .microbatch = static_cast<int>(k / 3)}; };
  int channels[3] = {-1, -1, -1};
  if (end->rank() == 0) {
    for (const std::size_t c : {0u, 2u, 1u}) channels[c] = end->open(where[c]);
    meet(*end);  // some receives have been posted
    for (std::size_t k = 0; k < 9; ++k) end->post_send(channels[k % 3], stamp_of(k), sent[k], operations[k]);
    meet(*end);
  } else {
    for (const std::size_t c : {1u, 0u, 2u})
      if (where[c].to == end->rank()) channels[c] = end->open(where[c]);
    const auto receive = [&](std::size_t k) {
      if (channels[k % 3] >= 0) end->post_receive(channels[k % 3], stamp_of(k), taken[k], operations[k]);
    };
    for (const std::size_t k : {0u, 1u, 3u, 4u, 7u}) receive(k);
    meet(*end);
    meet(*end);  // everything has been sent
    for (const std::size_t k : {2u, 5u, 6u, 8u}) receive(k);
  }
  for (std::size_t k = 0; k < 9; ++k) {
    CAPTURE(k);
    if (channels[k % 3] < 0) continue;
    CHECK(ends_soon(*end, operations[k]));
    CHECK(operations[k].end_s > 0);
    if (end->rank() > 0) CHECK(taken[k] == filled(2, 3, 100.0 * static_cast<double>(k)));
  }
  meet(*end);
}

template <class Make>
void check_deadline(const Make& make) {
  const auto end = make();
  typename std::decay_t<decltype(*end)>::operation op;
  const edge e{0, 1, payload::activation, 0, 0};
  auto sent = filled(64, 64, 1), taken = plane_tensor(64, 64);  // long enough to wait for its receive
  CHECK(end->wait(deadline_in(0.02), true) == wait_result::deadline);
  if (end->rank() == 0) {
    end->post_send(end->open(e), {}, sent, op);
    CHECK(end->wait(deadline_in(0.02), true) == wait_result::deadline);
    CHECK_FALSE(end->poll(op));
  }
  meet(*end);
  if (end->rank() == 1) end->post_receive(end->open(e), {}, taken, op);
  if (end->rank() < 2) {
    CHECK(end->wait(deadline_in(20), end->rank() == 0) == wait_result::progress);
    CHECK(end->poll(op));
    CHECK(end->wait(deadline_in(0.02), true) == wait_result::deadline);
    if (end->rank() == 1) CHECK(taken == sent);
  }
  meet(*end);
}

template <class Make, class MakeTensor = make_plane_tensor>
void check_abort(const Make& make, const MakeTensor& make_tensor = {}) {
  using tensor = decltype(make_tensor(1, 4));
  const auto end = make();
  using operation = typename std::decay_t<decltype(*end)>::operation;
  const edge e{0, 1, payload::activation, 0, 0}, back{1, 0, payload::gradient, 0, 1};
  auto sent = std::make_unique<tensor>(make_tensor(1, 4)), taken = std::make_unique<tensor>(make_tensor(1, 4));
  auto send = std::make_unique<operation>(), receive = std::make_unique<operation>();
  int out = -1;
  if (end->rank() == 0) {
    out = end->open(e);
    end->post_send(out, {}, *sent, *send);
    end->post_receive(end->open(back), {}, *taken, *receive);
    end->abort("enough");
    sent.reset(), taken.reset(), send.reset(), receive.reset();
  }
  CHECK(end->wait(deadline_in(20), true) == wait_result::aborted);
  CHECK(end->failure() == "enough");
  end->abort("and more");
  CHECK(end->failure() == "enough");
  std::vector<std::vector<double>> all;
  CHECK(end->gather({}, all, deadline_in(20)) == wait_result::aborted);
  if (end->rank() != 0) return;
  auto late = make_tensor(1, 4);
  operation never;
  end->post_send(out, {}, late, never);
  CHECK_FALSE(end->poll(never));
}

/// Stamps and shapes that differ abort on all sides, with the same text.
template <class Make, class MakeTensor = make_plane_tensor>
void check_mismatch(const Make& make, const MakeTensor& make_tensor = {}) {
  const stamp expected{.step = 3, .microbatch = 1, .what = payload::gradient, .direction = 0, .stage = 2};
  const edge e{1, 0, payload::gradient, 0, 2};
  const auto run = [&](const stamp& other, std::size_t rows, std::size_t columns, const std::string& text) {
    CAPTURE(text);
    const auto end = make();
    typename std::decay_t<decltype(*end)>::operation op;
    auto sent = make_tensor(rows, columns), taken = make_tensor(4, 6);
    if (end->rank() == 0) end->post_receive(end->open(e), expected, taken, op);
    if (end->rank() == 1) end->post_send(end->open(e), other, sent, op);
    CHECK(last_wait(*end) == wait_result::aborted);  // a small tensor may leave before it is looked at
    const auto why = end->failure();
    CAPTURE(why);
    CHECK(why.find(text) != std::string::npos);
    end->abort("");
    if (end->rank() == 0) CHECK_FALSE(end->poll(op));
  };
  const std::string from_to = "gradient of stage 2 from rank 1 to rank 0";
  auto other = expected;
  other.microbatch = 2;
  run(other, 4, 6,
      from_to + ": sent is step 3, microbatch 2, gradient of stage 2, expected is step 3, microbatch 1, gradient of stage 2");
  other = expected;
  other.step = 4;
  run(other, 4, 6, "sent is step 4");
  // Longer ones, shorter ones, and of the same size.
  run(expected, 4, 7,
      from_to + ", step 3, microbatch 1, gradient of stage 2: sent are 28 elements (224 bytes), expected 24 (192 bytes)");
  run(expected, 1000, 1000, "sent are 1000000 elements");
  run(expected, 4, 5, "sent are 20 elements");
  run(expected, 0, 0, "sent are 0 elements");
  run(expected, 6, 4, "or of another shape");
}

template <class Make, class MakeTensor = make_plane_tensor>
void check_empty_tensors(const Make& make, const MakeTensor& make_tensor = {}) {
  const auto end = make();
  const edge e{0, 1, payload::activation, 0, 0};
  std::vector<decltype(make_tensor(0, 5))> tensors;
  for (int k = 0; k < 3; ++k) tensors.push_back(make_tensor(0, 5));
  std::vector<typename std::decay_t<decltype(*end)>::operation> operations(3);
  if (end->rank() < 2) {
    const int channel = end->open(e);
    for (std::size_t k = 0; k < 3; ++k) {
      const stamp s{.microbatch = static_cast<int>(k)};
      if (end->rank() == 0)
        end->post_send(channel, s, tensors[k], operations[k]);
      else
        end->post_receive(channel, s, tensors[k], operations[k]);
    }
    for (auto& op : operations) CHECK(ends_soon(*end, op));
  }
  meet(*end);
}

/// Gathers of any size while tensors travel round in a ring; then one that nobody else comes to.
template <class Make>
void check_gather(const Make& make) {
  constexpr int rounds = 20;
  const auto own = make();
  auto& end = *own;
  const int rank = end.rank(), ranks = end.ranks(), next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  const auto numbers = [](int of, int round) {
    // From none to more than fit in a frame.
    std::vector<double> mine(static_cast<std::size_t>(round % 3 == 0 ? 0 : round % 3 == 1 ? of + 1 : 300 * of));
    for (std::size_t k = 0; k < mine.size(); ++k) mine[k] = 1000 * of + round + 0.001 * static_cast<double>(k);
    return mine;
  };
  const int out = end.open({rank, next, payload::activation, 0, rank}),
            in = end.open({before, rank, payload::activation, 0, before});
  std::vector<plane_tensor> sent(rounds, filled(3, 50, rank)), taken(rounds, plane_tensor(3, 50));
  std::vector<typename std::decay_t<decltype(end)>::operation> sends(rounds), receives(rounds);
  for (int i = 0; i < rounds; ++i) {
    const auto k = static_cast<std::size_t>(i);
    end.post_receive(in, {.microbatch = i}, taken[k], receives[k]);
    end.post_send(out, {.microbatch = i}, sent[k], sends[k]);
    std::vector<std::vector<double>> all;
    CHECK(end.gather(numbers(rank, i), all, deadline_in(20)) == wait_result::progress);
    REQUIRE(static_cast<int>(all.size()) == ranks);
    for (int p = 0; p < ranks; ++p) CHECK(all[static_cast<std::size_t>(p)] == numbers(p, i));
  }
  for (std::size_t k = 0; k < rounds; ++k) {
    CHECK(ends_soon(end, receives[k]));
    CHECK(ends_soon(end, sends[k]));
    CHECK(taken[k] == filled(3, 50, before));
  }
  meet(end);
  std::string others;
  for (int p = 1; p < ranks; ++p) others += (p > 1 ? ", " : "") + std::to_string(p);
  std::vector<std::vector<double>> all;
  if (rank == 0) {
    CHECK(end.gather({}, all, deadline_in(0.05)) == wait_result::deadline);
    CHECK(end.failure() == (ranks == 2 ? "rank " + others + " has" : "ranks " + others + " have") + " not answered in time");
  } else {
    CHECK(last_wait(end) == wait_result::aborted);  // as the first one leaves
  }
}

/// A round that one rank has finished all finish, also if it aborts at once.
template <class Make>
void check_finished_round(const Make& make, int instances) {
  for (int instance = 0; instance < instances; ++instance) {
    CAPTURE(instance);
    const auto end = make();
    std::vector<std::vector<double>> all;
    CHECK(end->gather(std::vector<double>(500, end->rank()), all, deadline_in(20)) == wait_result::progress);
    if (end->rank() == instance % end->ranks()) end->abort("at once");
    CHECK(end->gather({}, all, deadline_in(20)) == wait_result::aborted);
  }
}

/// Tensors of 32 MiB both ways at once; nobody receives before everything has been posted for sending.
template <class Make>
void check_long_tensors(const Make& make, std::size_t count) {
  const auto own = make();
  auto& end = *own;
  const int rank = end.rank();
  const bool sends_some = rank < 2;
  std::vector<plane_tensor> sent, taken;
  std::vector<typename std::decay_t<decltype(end)>::operation> sends(count), receives(count);
  int out = -1, in = -1;
  if (sends_some) {
    out = end.open({rank, 1 - rank, payload::activation, 0, rank});
    in = end.open({1 - rank, rank, payload::activation, 0, 1 - rank});
    for (std::size_t k = 0; k < count; ++k) {
      sent.push_back(filled(1024, 4096, static_cast<double>(rank) + 10 * static_cast<double>(k)));
      taken.emplace_back(1024, 4096);
    }
    for (std::size_t k = 0; k < count; ++k) end.post_send(out, {.microbatch = static_cast<int>(k)}, sent[k], sends[k]);
  }
  meet(end);
  for (std::size_t k = 0; k < count && sends_some; ++k) {
    end.post_receive(in, {.microbatch = static_cast<int>(k)}, taken[k], receives[k]);
    CHECK(ends_soon(end, receives[k]));
    CHECK(taken[k] == filled(1024, 4096, static_cast<double>(1 - rank) + 10 * static_cast<double>(k)));
    CHECK(ends_soon(end, sends[k]));
  }
  meet(end);
}

/// Many small tensors and some long ones among them; a channel behind them does not wait for their receives.
template <class Make>
void check_many_tensors(const Make& make, std::size_t count) {
  for (int instance = 0; instance < 3; ++instance) {
    CAPTURE(instance);
    const auto own = make();
    auto& end = *own;
    random_source random(static_cast<std::uint64_t>(7 + instance));
    std::vector<std::size_t> rows;
    std::vector<plane_tensor> tensors;
    std::vector<typename std::decay_t<decltype(end)>::operation> operations(count);
    for (std::size_t k = 0; k < count; ++k)
      rows.push_back(random.integer(0, 9) == 0 ? 700 : static_cast<std::size_t>(random.integer(0, 8)));
    const std::size_t ahead = instance == 0 ? 0 : static_cast<std::size_t>(random.integer(0, static_cast<int>(count)));
    plane_tensor one = filled(2, 2, 5), there(2, 2);
    typename std::decay_t<decltype(end)>::operation behind;
    if (end.rank() < 2) {
      const int first = end.open({0, 1, payload::activation, 0, 0}), second = end.open({0, 1, payload::gradient, 0, 1});
      const auto post = [&](std::size_t k) {
        const stamp s{.microbatch = static_cast<int>(k)};
        if (end.rank() == 0)
          end.post_send(first, s, tensors[k], operations[k]);
        else
          end.post_receive(first, s, tensors[k], operations[k]);
      };
      for (std::size_t k = 0; k < count; ++k)
        tensors.push_back(end.rank() == 0 ? filled(rows[k], 4, 100 * static_cast<double>(k)) : plane_tensor(rows[k], 4));
      for (std::size_t k = 0; k < (end.rank() == 0 ? count : ahead); ++k) post(k);
      if (end.rank() == 0) {
        end.post_send(second, {}, one, behind);
      } else {
        end.post_receive(second, {}, there, behind);
        CHECK(ends_soon(end, behind));
        CHECK(there == one);
        for (std::size_t k = ahead; k < count; ++k) post(k);
      }
      for (std::size_t k = 0; k < count; ++k) {
        CAPTURE(k);
        REQUIRE(ends_soon(end, operations[k]));
        if (end.rank() == 1) CHECK(tensors[k] == filled(rows[k], 4, 100 * static_cast<double>(k)));
      }
      CHECK(ends_soon(end, behind));
    }
    meet(end);
  }
}

/// An abort lets go of tensors that are on their way: what is written to afterwards would be seen by AddressSanitizer.
template <class Make>
void check_abort_on_the_way(const Make& make, int instances) {
  random_source random(3);
  for (int instance = 0; instance < instances; ++instance) {
    CAPTURE(instance);
    const double after_s = random.uniform(0, 0.01);
    const int first = random.integer(0, 1);
    const auto end = make();
    using operation = typename std::decay_t<decltype(*end)>::operation;
    const edge e{0, 1, payload::activation, 0, 0};
    auto t = std::make_unique<plane_tensor>(filled(1024, 1024, 1));
    auto op = std::make_unique<operation>();
    if (end->rank() == 0) end->post_send(end->open(e), {}, *t, *op);
    if (end->rank() == 1) end->post_receive(end->open(e), {}, *t, *op);
    if (end->rank() == first) std::this_thread::sleep_for(std::chrono::duration<double>(after_s));
    if (end->rank() != first) CHECK(last_wait(*end) == wait_result::aborted);
    end->abort("enough");
    op.reset(), t.reset();
    CHECK(end->failure() == "enough");
  }
}

/// Ranks that run other schedules notice.
template <class Make>
void check_other_schedule(const Make& make) {
  const auto end = make();
  using end_type = std::decay_t<decltype(*end)>;
  if (end->rank() > 1) {
    CHECK(last_wait(*end) == wait_result::aborted);
    return;
  }
  auto order = build_schedule("gpipe", pipeline{.forward_s = {1, 1}, .backward_s = {1, 1}, .transfer_s = {0.1}}, 3);
  if (end->rank() == 1)
    for (auto& l : order.lanes)
      for (auto& a : l.actions) a.microbatch = 2 - a.microbatch;
  const task<double> t(1, {1, 1}, 3);
  std::vector<dense_stage<double>> stages;
  stages.push_back(t.stage(end->rank()));
  std::string text;
  try {
    pipeline_executor<plane_tensor, dense_stage<double>, end_type> executor(order, stages, t.boundaries(), *end,
                                                                            {.deadline_s = 20});
    executor.step(std::span<const plane_tensor>(t.inputs), std::span<const plane_tensor>(t.targets), task<double>::loss);
  } catch (const communication_error& e) {
    text = e.what();
  }
  CAPTURE(text);
  CHECK(text.find("sent is step 0, microbatch 0, activation of stage 0, expected is step 0, microbatch 2") != std::string::npos);
}

/// A rank that leaves has sent what it had to, and fails those who wait for more, or want to send to it, or gather.
template <class Make>
void check_leaving(const Make& make) {
  for (const std::string then : {"receive", "send", "gather"}) {
    CAPTURE(then);
    auto end = make();
    typename std::decay_t<decltype(*end)>::operation op, never;
    const edge e{0, 1, payload::activation, 0, 0}, back{1, 0, payload::gradient, 0, 1};
    auto sent = filled(512, 512, 1);
    plane_tensor taken(512, 512), more(1, 1);
    if (end->rank() == 0) {
      end->post_send(end->open(e), {}, sent, op);
      CHECK(ends_soon(*end, op));
      end.reset();
      continue;
    }
    if (end->rank() == 1) {
      const int in = end->open(e);
      end->post_receive(in, {}, taken, op);
      CHECK(ends_soon(*end, op));
      CHECK(taken == sent);
      while (end->wait(deadline_in(0.2), true) == wait_result::progress) {  // until it knows
      }
      CHECK(end->failure().empty());
      std::vector<std::vector<double>> all;
      if (then == "receive") end->post_receive(in, {.microbatch = 1}, more, never);
      if (then == "send") end->post_send(end->open(back), {}, more, never);
      if (then == "gather") CHECK(end->gather({}, all, deadline_in(20)) == wait_result::aborted);
    }
    CHECK(last_wait(*end) == wait_result::aborted);
    CHECK(end->failure().find("rank 0 has left") != std::string::npos);
    end->abort("");
    if (end->rank() == 1) CHECK_FALSE(end->poll(never));
  }
}

/// Ranks that are busy answer, whatever they are at.
template <class Make>
void check_busy_ranks_answer(const Make& make) {
  const auto end = make();
  std::vector<std::vector<double>> all;
  if (end->rank() == 0) {
    CHECK(end->gather({}, all, deadline_in(0.1)) == wait_result::deadline);
    CHECK(end->ask() == wait_result::deadline);
    end->abort("done");
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    CHECK(last_wait(*end) == wait_result::aborted);
    CHECK(end->failure() == "done");
  }
}

}  // namespace hetsched::test
