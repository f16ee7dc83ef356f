// SPDX-License-Identifier: Apache-2.0
// Transfer plans as they are meant to be run: a thread for each device, a channel for each pair of them, numbered tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <queue>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/reshard/strategies.hpp>
#include <hetsched/reshard/strided_runs.hpp>

#include "random_layout.hpp"

using namespace hetsched;

namespace {

// Arrays on their way, by sender and receiver, each pair in order.
class channels {
 public:
  void send(int from, int to, std::vector<int> data) {
    {
      const std::lock_guard hold(mutex_);
      waiting_[{from, to}].push(std::move(data));
    }
    came_.notify_all();
  }
  std::vector<int> receive(int from, int to) {
    std::unique_lock hold(mutex_);
    auto& queue = waiting_[{from, to}];
    came_.wait(hold, [&] { return !queue.empty(); });
    auto data = std::move(queue.front());
    queue.pop();
    return data;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<std::pair<int, int>, std::queue<std::vector<int>>> waiting_;
};

// What a device holds: its slice before, and every slice that has come, each in an array of its own.
struct held {
  slice box;
  std::vector<int> data;
};

std::vector<int> array_for(std::span<const interval> box) {
  return std::vector<int>(static_cast<std::size_t>(element_count(box)), -1);
}

// Copies into `data`, the array of `box`, what of it is there.
void take(const std::vector<held>& all, std::span<const interval> box, std::vector<int>& data) {
  for (const auto& h : all) {
    const auto common = intersection(h.box, box);
    if (element_count(common) > 0) copy_part(h.data.data(), h.box, data.data(), box, common);
  }
}

// One device: goes through the plan in its order, sends what is its to send and receives what is meant for it. Returns all that
// it then holds.
std::vector<held> run_device(const transfer_plan& p, int self, std::vector<held> mine, channels& wires) {
  for (const auto& m : p.messages) {
    const auto box = p.slice_of(m);
    if (m.from == self) {
      auto data = array_for(box);
      take(mine, box, data);
      wires.send(self, m.to, std::move(data));
    } else if (m.to == self) {
      mine.push_back({slice(box.begin(), box.end()), wires.receive(m.from, self)});
    }
  }
  return mine;
}

}  // namespace

TEST_CASE("numbered tensors arrive, under every strategy, for layouts of any kind") {
  random_source random(20261201);
  int moved = 0;
  for (int n = 0; n < 60; ++n) {
    std::vector<std::int64_t> shape;
    for (int dimensions = random.integer(0, 4), left = 256; dimensions > 0; --dimensions) {
      shape.push_back(random.integer(1, std::min(left, 12)));
      left /= static_cast<int>(shape.back());
    }
    const auto from = test::random_layout(random, shape, 8), to = test::random_layout(random, shape, 8);
    const auto whole = from.whole();
    auto numbered = array_for(whole);
    for (std::size_t i = 0; i < numbered.size(); ++i) numbered[i] = static_cast<int>(i);
    const auto part = [&](const slice& box) {
      auto data = array_for(box);
      copy_part(numbered.data(), whole, data.data(), box, box);
      return data;
    };
    for (const auto s : all_reshard_strategies) {
      const auto p = plan_transfer(from, to, s, {.outer = random.integer(1, 2), .chunks = random.integer(0, 1) ? 1 : 3});
      channels wires;
      std::vector<std::vector<int>> results(static_cast<std::size_t>(p.destinations));
      {
        std::vector<std::jthread> devices;
        for (int d = 0; d < p.sources + p.destinations; ++d)
          devices.emplace_back([&, d] {
            if (d < p.sources) {
              const auto box = slice_of(from, d);
              (void)run_device(p, d, {{box, part(box)}}, wires);
            } else {
              const auto wanted = slice_of(to, d - p.sources);
              auto& result = results[static_cast<std::size_t>(d - p.sources)] = array_for(wanted);
              take(run_device(p, d, {}, wires), wanted, result);
            }
          });
      }
      CAPTURE(n);
      CAPTURE(std::string(name_of(s)));
      CAPTURE(p.chunks);
      CAPTURE(test::to_text(from));
      CAPTURE(test::to_text(to));
      for (int d = 0; d < p.destinations; ++d) REQUIRE(results[static_cast<std::size_t>(d)] == part(slice_of(to, d)));
      moved += static_cast<int>(p.messages.size());
    }
  }
  CHECK(moved > 2000);
}
