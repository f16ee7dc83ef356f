// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/inference/inference_pipeline.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include "counted_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using channel = thread_communicator<row_tensor>;
using queue_type = inference_queue<row_tensor>;
using results = std::shared_ptr<std::vector<std::uint64_t>>;

constexpr int layers = 7;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Serves a queue on ranks whose stages begin with these layers.
void serve(const std::vector<int>& cut, queue_type& queue, const std::shared_ptr<state_count>& count,
           const inference_limits& limits = {}, double pause_s = 0) {
  run_on_threads(channel::connect(static_cast<int>(cut.size())), [&](channel& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    auto stage = counted_stage(cut[r], r + 1 < cut.size() ? cut[r + 1] : layers, count, pause_s);
    r == 0 ? lead_inference<row_tensor>(comm, stage, queue, limits) : follow_inference<row_tensor>(comm, stage, limits);
  });
}

struct asked {
  std::uint64_t input;
  int steps;
  results got = std::make_shared<std::vector<std::uint64_t>>();
};

}  // namespace

TEST_CASE("inference: every cut of layers over ranks gives what the layers give one after the other, for all requests") {
  random_source random(3);
  for (const auto& cut : {std::vector{0}, {0, 1}, {0, 6}, {0, 3, 4}, {0, 1, 2, 6}, {0, 2, 4, 5}, {0, 1, 2, 3, 4, 5, 6}}) {
    CAPTURE(cut.size());
    const auto most = static_cast<std::size_t>(random.integer(1, 9));
    CAPTURE(most);
    const auto count = std::make_shared<state_count>();
    queue_type queue;
    std::vector<asked> all;
    std::vector<inference_ticket> tickets;
    for (int k = 0; k < 20; ++k) {
      all.push_back({2000 + static_cast<std::uint64_t>(k), random.integer(1, 12)});
      tickets.push_back(queue.submit(counted_request(all.back().input, all.back().steps, all.back().got)));
    }
    queue.close();
    serve(cut, queue, count, {.most_in_flight = most});
    for (std::size_t k = 0; k < all.size(); ++k) {
      CAPTURE(k);
      CHECK(tickets[k].wait() == inference_result{});
      CHECK(*all[k].got == counted_reference(layers, all[k].input, all[k].steps));
    }
    CHECK(count->now == 0);
    CHECK(count->most <= static_cast<int>(most) * layers);
  }
}

TEST_CASE("inference: requests begin in their order, and those of one step end in it") {
  queue_type queue(100);
  std::vector<int> order;
  for (int k = 0; k < 50; ++k)
    queue.submit({.input = row(5000), .next = [&order, k](row_tensor) -> std::optional<inference_input<row_tensor>> {
                    order.push_back(k);
                    return std::nullopt;
                  }});
  queue.close();
  serve({0, 2, 5}, queue, std::make_shared<state_count>());
  REQUIRE(order.size() == 50);
  for (int k = 0; k < 50; ++k) CHECK(order[static_cast<std::size_t>(k)] == k);
}

TEST_CASE("inference: 100 requests in flight, 10 cancelled and 5 failing: the others complete, and nothing is left") {
  for (const auto& cut : {std::vector{0}, {0, 3}, {0, 2, 4, 6}}) {
    CAPTURE(cut.size());
    const auto count = std::make_shared<state_count>();
    const auto tokens = std::make_shared<std::atomic<int>>(0);  // held by every request
    queue_type queue(100);
    std::vector<asked> all;
    std::vector<inference_ticket> tickets;
    std::atomic<int> begun{0};
    std::atomic<bool> go{false};
    for (int k = 0; k < 100; ++k) {
      all.push_back({9000 + static_cast<std::uint64_t>(k), 4 + k % 9});
      const bool fails = k % 20 == 7;
      auto r = counted_request(all.back().input, all.back().steps, all.back().got, fails ? k / 40 : -1, k / 20 + 1);
      r.next = [next = std::move(r.next), first = true, &begun, &go, tokens](row_tensor y) mutable {
        // The last of the 100 to come here waits until cancellations are in.
        if (std::exchange(first, false) && ++begun >= 90)
          while (!go) std::this_thread::yield();
        return next(std::move(y));
      };
      tickets.push_back(queue.submit(std::move(r)));
    }
    std::jthread canceller([&] {
      while (begun < 90) std::this_thread::yield();
      for (std::size_t k = 0; k < 100; k += 10) tickets[k].cancel();
      go = true;
      queue.close();
    });
    serve(cut, queue, count, {.most_in_flight = 100});
    canceller.join();
    int cancelled = 0, failed = 0, finished = 0;
    for (std::size_t k = 0; k < 100; ++k) {
      CAPTURE(k);
      const auto result = tickets[k].wait();
      cancelled += result.how == inference_end::cancelled;
      failed += result.how == inference_end::failed;
      if (result.how == inference_end::failed)
        CHECK(result.why == "layer " + std::to_string(static_cast<int>(k) / 20 + 1) + " cannot");
      if (result.how != inference_end::finished) continue;
      ++finished;
      CHECK(*all[k].got == counted_reference(layers, all[k].input, all[k].steps));
    }
    CHECK(cancelled == 10);
    CHECK(failed == 5);
    CHECK(finished == 85);
    CHECK(count->most >= 90 * layers);
    CHECK(count->now == 0);
    CHECK(tokens.use_count() == 1);
  }
}

TEST_CASE("inference: a request that is late ends at its deadline, begun or not, and others go on") {
  const auto count = std::make_shared<state_count>();
  queue_type queue;
  asked late{3000, 1'000'000}, waits{4000, 3}, slow{5000, 6};
  auto endless = counted_request(late.input, late.steps, late.got), never = counted_request(waits.input, waits.steps, waits.got);
  endless.deadline_s = 0.05;
  never.deadline_s = 0;
  const auto first = queue.submit(std::move(endless)), second = queue.submit(std::move(never)),
             third = queue.submit(counted_request(slow.input, slow.steps, slow.got));
  queue.close();
  serve({0, 4}, queue, count, {.most_in_flight = 1}, 1e-4);
  CHECK(first.wait() == inference_result{inference_end::expired, "not finished at its deadline"});
  CHECK(late.got->size() > 0);
  CHECK(second.wait() == inference_result{inference_end::expired, "not begun at its deadline"});
  CHECK(waits.got->empty());
  CHECK(third.wait() == inference_result{});
  CHECK(*slow.got == counted_reference(layers, slow.input, slow.steps));
  CHECK(count->now == 0);
}

TEST_CASE("inference: what next throws fails its request; a step anew finds new states; empty tensors travel") {
  const auto count = std::make_shared<state_count>();
  queue_type queue;
  const auto thrown = queue.submit({.input = row(7000), .next = [](row_tensor) -> std::optional<inference_input<row_tensor>> {
                                      throw std::runtime_error("no more");
                                    }});
  results got = std::make_shared<std::vector<std::uint64_t>>();
  const auto again = queue.submit({.input = row(7000), .next = [got](row_tensor y) -> std::optional<inference_input<row_tensor>> {
                                     got->push_back(y.values.at(0));
                                     if (got->size() == 3) return std::nullopt;
                                     return inference_input<row_tensor>{row(7000), got->size() == 1};
                                   }});
  std::optional<std::size_t> size;
  const auto empty = queue.submit({.input = {}, .next = [&size](row_tensor y) -> std::optional<inference_input<row_tensor>> {
                                     size = y.values.size();
                                     return std::nullopt;
                                   }});
  queue.close();
  serve({0, 1, 5}, queue, count);
  CHECK(thrown.wait() == inference_result{inference_end::failed, "no more"});
  CHECK(again.wait() == inference_result{});
  REQUIRE(got->size() == 3);
  CHECK((*got)[0] == (*got)[1]);
  CHECK((*got)[1] != (*got)[2]);
  CHECK(empty.wait() == inference_result{});
  CHECK(size == 0);
  CHECK(count->now == 0);
}

TEST_CASE("inference: ranks that have nothing to do for long do not give each other up; requests may come at any time") {
  const auto count = std::make_shared<state_count>();
  queue_type queue;
  std::jthread user([&] {
    for (const std::uint64_t input : {2000U, 2001U}) {
      asked one{input, 3};
      const auto ticket = queue.submit(counted_request(one.input, one.steps, one.got));
      CHECK(ticket.wait() == inference_result{});
      CHECK(*one.got == counted_reference(layers, one.input, one.steps));
      std::this_thread::sleep_for(std::chrono::milliseconds(1700));
    }
    queue.close();
  });
  CHECK_NOTHROW(serve({0, 2, 4}, queue, count, {.deadline_s = 1}));
}

TEST_CASE("inference: a rank that fails or is silent ends all requests on all ranks, those that come later too") {
  for (const bool silent : {false, true}) {
    CAPTURE(silent);
    const auto count = std::make_shared<state_count>();
    queue_type queue(20);
    std::vector<inference_ticket> tickets;
    results got = std::make_shared<std::vector<std::uint64_t>>();
    for (int k = 0; k < 20; ++k) tickets.push_back(queue.submit(counted_request(2000, 1'000'000, got)));
    std::atomic<int> ended{0};
    std::atomic<bool> over{false};
    const auto all = channel::connect(3);
    std::vector<std::jthread> ranks;
    for (int r = 0; r < 3; ++r)
      ranks.emplace_back([&, r] {
        auto comm = all[static_cast<std::size_t>(r)];
        auto stage = counted_stage(2 * r, 2 * r + 2, count);
        try {
          const inference_limits limits{.most_in_flight = 4, .deadline_s = 0.3};
          if (r == 0) lead_inference<row_tensor>(comm, stage, queue, limits);
          if (r == 1) follow_inference<row_tensor>(comm, stage, limits);
          if (r == 2 && silent)
            while (!over) std::this_thread::yield();
          if (r == 2 && !silent) comm.abort("rank 2 was lost");
        } catch (const communication_error& e) {
          ++ended;
          const std::string text = e.what();
          CHECK((contains(text, "rank 2 was lost") || contains(text, "nothing has come within")));
        }
      });
    for (const auto& t : tickets) {
      const auto result = t.wait_for(20);
      REQUIRE(result);
      CHECK(result->how == inference_end::lost);
      CHECK(!result->why.empty());
    }
    CHECK(queue.submit(counted_request(2000, 1, got)).wait().how == inference_end::lost);
    over = true;
    ranks.clear();
    CHECK(ended == 2);
    CHECK(count->now == 0);
  }
}

TEST_CASE("inference: a message that makes no sense ends the rank that gets it") {
  using detail::inference_header, detail::inference_step;
  const auto wrong = [](auto change) {
    inference_header header{.request = 1, .text_bytes = 0, .step = 0, .dimensions = 2, .extents = {2, 3}};
    change(header);
    auto ends = channel::connect(2);
    const auto where = detail::inference_edge(0, 2);
    detail::inference_inbox<row_tensor, channel> in(ends[1], where);
    channel::operation sent;
    ends[0].post_send_bytes(ends[0].open(where), detail::inference_stamp(where, 0), std::as_bytes(std::span(&header, 1)), sent);
    try {
      for (int i = 0; i < 1000; ++i) (void)in.poll();
    } catch (const communication_error& e) {
      return contains(e.what(), "brought a message that makes no sense");
    }
    return false;
  };
  CHECK_FALSE(wrong([](inference_header&) {}));
  CHECK(wrong([](inference_header& h) { h.step = -1; }));
  CHECK(wrong([](inference_header& h) { h.step = static_cast<std::int32_t>(inference_step::stop) + 1; }));
  CHECK(wrong([](inference_header& h) { h.text_bytes = std::uint64_t{1} << 60; }));
  CHECK(wrong([](inference_header& h) { h.dimensions = inference_header::most_dimensions + 1; }));
  CHECK(wrong([](inference_header& h) { h.extents = {1, std::uint64_t{1} << 63}; }));
  CHECK(wrong([](inference_header& h) { h.extents = {std::uint64_t{1} << 32, std::uint64_t{1} << 33}; }));
}
