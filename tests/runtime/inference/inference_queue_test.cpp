// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/inference/inference_queue.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "counted_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

inference_request<row_tensor> some_request() { return counted_request(2000, 1, std::make_shared<std::vector<std::uint64_t>>()); }

}  // namespace

TEST_CASE("inference_queue: holds no more than its capacity; a submission waits until there is room") {
  inference_queue<row_tensor> queue(2);
  detail::inference_counter<row_tensor> counter(queue);
  CHECK(queue.try_submit(some_request()).has_value());
  CHECK(queue.try_submit(some_request()).has_value());
  CHECK(!queue.try_submit(some_request()).has_value());
  std::optional<inference_ticket> third;
  std::jthread user([&] { third = queue.submit(some_request()); });
  CHECK(counter.take().has_value());
  user.join();
  CHECK(!queue.try_submit(some_request()).has_value());
  CHECK(!third->wait_for(0));
}

TEST_CASE("inference_queue: what is cancelled or late while it waits makes room; closed, it takes no more") {
  inference_queue<row_tensor> queue(2);
  detail::inference_counter<row_tensor> counter(queue);
  auto first = queue.submit(some_request());
  auto late = some_request();
  late.deadline_s = 0.5;
  const auto second = queue.submit(std::move(late));
  CHECK(!first.wait_for(0));
  first.cancel();
  const auto until = counter.sweep(deadline_in(0));
  CHECK(until <= deadline_in(0.5));
  CHECK(first.wait() == inference_result{inference_end::cancelled, "cancelled"});
  CHECK(!second.wait_for(0));
  counter.sweep(deadline_in(1));
  CHECK(second.wait().how == inference_end::expired);
  CHECK(!counter.take());
  CHECK(!counter.done());
  queue.close();
  CHECK(counter.done());
  CHECK(queue.submit(some_request()).wait() == inference_result{inference_end::cancelled, "the queue is closed"});
}

TEST_CASE("inference_queue: what waits at its end is cancelled, and tickets outlive it") {
  std::optional<inference_ticket> ticket;
  {
    inference_queue<row_tensor> queue;
    ticket = queue.submit(some_request());
  }
  CHECK(ticket->wait() == inference_result{inference_end::cancelled, "the queue has ended"});
}
