// SPDX-License-Identifier: Apache-2.0
// What the checker calls free of deadlock runs, over channels that hold nothing and with tensors that no buffer could hide.
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sanitizer_share.hpp"
#include "dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

schedule named(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 1),
                         .weight_backward_s = std::vector<double>(n, 1)},
                        microbatches);
}

/// Swaps neighbours in lanes, here and there; keeps what stays sound under both semantics. How many swaps it took.
int shuffle(random_source& random, schedule& order, int attempts) {
  int kept = 0;
  for (; attempts > 0; --attempts) {
    auto other = order;
    auto& actions = other.lanes[static_cast<std::size_t>(random.integer(0, static_cast<int>(other.lanes.size()) - 1))].actions;
    if (actions.size() < 2) continue;
    const auto at = static_cast<std::size_t>(random.integer(0, static_cast<int>(actions.size()) - 2));
    std::swap(actions[at], actions[at + 1]);
    if (actions[at].joined || actions[at + 1].joined || !check(other).empty()) continue;
    order = std::move(other);
    ++kept;
  }
  return kept;
}

/// Its sends are seen to end late: only when somebody waits for them.
template <class Inner>
class late_sends {
 public:
  struct operation {
    double end_s = 0;
    typename Inner::operation inner;
    bool send = false;
    long posted = 0;
  };
  explicit late_sends(Inner inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int ranks() const { return inner_.ranks(); }
  [[nodiscard]] int open(const edge& e) { return inner_.open(e); }
  template <class Tensor>
  void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    op.send = true;
    op.posted = waits_;
    inner_.post_send(channel, s, t, op.inner);
  }
  template <class Tensor>
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    inner_.post_receive(channel, s, t, op.inner);
  }
  [[nodiscard]] bool poll(operation& op) {
    if ((op.send && op.posted == waits_) || !inner_.poll(op.inner)) return false;
    op.end_s = op.inner.end_s;
    return true;
  }
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) {
    if (!sends) return inner_.wait(until, false);
    ++waits_;
    const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    const auto result = inner_.wait(std::min(soon, until), true);
    return result == wait_result::deadline && soon < until ? wait_result::progress : result;
  }
  void abort(const std::string& reason) { inner_.abort(reason); }
  [[nodiscard]] std::string failure() const { return inner_.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }

 private:
  Inner inner_;
  long waits_ = 0;  ///< for sends
};

/// Many floats, of any value. Memory is used again, as that costs less than to get it.
class large {
 public:
  using value_type = float;
  large() = default;
  explicit large(const tensor_shape& shape) : count_(shape.at(0)) {
    const std::lock_guard lock(guard);
    if (spare[count_].empty()) spare[count_].emplace_back(new float[count_]);
    data_ = std::move(spare[count_].back());
    spare[count_].pop_back();
  }
  large(large&& other) noexcept : count_(std::exchange(other.count_, 0)), data_(std::move(other.data_)) {}
  large& operator=(large&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~large() {
    const std::lock_guard lock(guard);
    if (data_) spare[count_].push_back(std::move(data_));
  }
  [[nodiscard]] large copy() const {
    large other({count_});
    std::copy_n(data(), count_, other.data());
    return other;
  }
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {count_}; }
  [[nodiscard]] float* data() { return data_.get(); }
  [[nodiscard]] const float* data() const { return data_.get(); }
  [[nodiscard]] float& first() { return data_[0]; }
  [[nodiscard]] float& last() { return data_[count_ - 1]; }

 private:
  static inline std::mutex guard;
  static inline std::map<std::size_t, std::vector<std::unique_ptr<float[]>>> spare;
  std::size_t count_ = 0;
  std::unique_ptr<float[]> data_;
};

/// Passes its input on, and back; the gradient of its parameter counts what has passed.
struct passage {
  struct context {};
  large forward(const large& x, context&) { return x.copy(); }
  large backward(const large& dy, context&) {
    sum[0].first() += dy.data()[0] + dy.data()[dy.shape()[0] - 1];
    return dy.copy();
  }
  std::array<large, 1>& parameters() { return parameter; }
  std::array<large, 1>& gradients() { return sum; }
  std::array<large, 1> parameter{large({1})}, sum{large({1})};
};

/// One step of microbatches whose first and last elements are their numbers: every stage counts them all.
template <class Stager = no_stager, class Communicator>
void pass(std::vector<Communicator> ends, const schedule& order, std::size_t count, executor_options options) {
  options.gradient_scale = 1;
  std::vector<large> inputs;
  float expected = 0;
  for (int m = 0; m < order.microbatches; ++m) {
    inputs.emplace_back(tensor_shape{count});
    inputs.back().first() = inputs.back().last() = static_cast<float>(m + 1);
    expected += 2 * static_cast<float>(m + 1);
  }
  const std::vector<int> targets(inputs.size());
  const std::vector<tensor_shape> boundaries(static_cast<std::size_t>(order.stages) - 1, tensor_shape{count});
  hetsched::run_on_threads(std::move(ends), [&](Communicator& end) {
    std::vector<passage> stages(stages_of_rank(order, end.rank()).size());
    pipeline_executor<large, passage, Communicator, Stager> executor(order, stages, boundaries, end, options);
    executor.step(std::span<const large>(inputs), std::span<const int>(targets), [](const large& y, int) {
      return loss_value<large>{0, y.copy()};
    });
    for (auto& s : stages) CHECK(s.sum[0].first() == expected);
  });
}

constexpr double patience_s = 60;

}  // namespace

TEST_CASE("[threads] legal disorder of the library's schedules runs over channels that hold nothing") {
  random_source random(11);
  const auto names = schedule_names();
  int runs = 0, swaps = 0;
  while (runs < 200 / sanitizer_share) {
    const auto name = names[static_cast<std::size_t>(random.integer(0, static_cast<int>(names.size()) - 1))];
    const int ranks = random.integer(1, 6), microbatches = random.integer(1, 8), way = random.integer(0, 3);
    schedule order;
    try {
      order = add_transfers(named(name, ranks, microbatches));
    } catch (const input_error&) {
      continue;  // numbers that the schedule is not made for
    }
    if (way == 2) order = stage_transfers(order, [](int from, int to) { return from / 2 != to / 2; });
    swaps += shuffle(random, order, 40);
    if (way == 1) order = group_transfers(std::move(order));
    if (way == 3) {
      order = split_streams(order);
      swaps += shuffle(random, order, 10);
    }
    if (!check(order).empty()) continue;
    CAPTURE(name);
    CAPTURE(way);
    INFO(to_csv(order));
    std::vector<int> layers;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(runs), layers, microbatches);
    const auto expected = reference(t, order);
    CHECK(run_on_threads(t, order, {.deadline_s = patience_s, .semantics = send_semantics::rendezvous}, 2) == expected);
    CHECK(run_on_threads(t, order, {.deadline_s = patience_s}, 2) == expected);
    ++runs;
  }
  CHECK(swaps > 2 * runs);
}

TEST_CASE("[threads] sends that are seen to end late hold up what needs their place, not more") {
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto order = named(name, 4, 8);
    const task<double> t(3, std::vector<int>(static_cast<std::size_t>(order.stages), 1), 8);
    std::vector<late_sends<thread_communicator<matrix<double>>>> ends;
    for (auto& e : thread_communicator<matrix<double>>::connect(4)) ends.emplace_back(e);
    CHECK(run_over(ends, t, order, {.deadline_s = patience_s}, 2) == reference(t, order));
  }
}

TEST_CASE("[threads] tensors of 32 MiB") {
  const std::size_t count = (sanitizer_share == 1 ? 32 << 20 : 1 << 20) / sizeof(float);
  using channel = thread_communicator<large>;
  for (const auto semantics : {send_semantics::buffered, send_semantics::rendezvous})
    for (const auto* name : {"gpipe", "1f1b", "zb_h1"}) {
      CAPTURE(name);
      pass(channel::connect(3), named(name, 3, 3), count, {.deadline_s = patience_s, .semantics = semantics});
    }
  for (const auto* name : {"interleaved_1f1b", "zb_v", "chimera"}) {
    CAPTURE(name);
    const auto order = add_transfers(named(name, 2, 2));
    pass(channel::connect(2), group_transfers(order), count, {.deadline_s = patience_s, .semantics = send_semantics::rendezvous});
    pass<thread_stager<large>>(channel::connect(2), stage_transfers(order, [](int, int) { return true; }), count,
                               {.deadline_s = patience_s});
  }
  std::vector<shaped_communicator<channel>> slow;
  for (auto& e : channel::connect(3)) slow.emplace_back(e, [](int, int) { return hetsched::link{1e-4, 2e9}; });
  pass(std::move(slow), named("h1f1b", 3, 3), count, {.deadline_s = patience_s});
}
