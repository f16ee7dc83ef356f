// SPDX-License-Identifier: Apache-2.0
// A layer whose output depends on all that a request has sent through it, and that counts its states.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/runtime/inference/inference_layer.hpp>
#include <hetsched/runtime/inference/inference_queue.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::test {

/// Numbers in one row.
struct row_tensor {
  using value_type = std::uint64_t;
  row_tensor() = default;
  explicit row_tensor(const tensor_shape& s) : values(s.at(0)) {}
  [[nodiscard]] tensor_shape shape() const { return {values.size()}; }
  std::uint64_t* data() { return values.data(); }
  const std::uint64_t* data() const { return values.data(); }
  std::vector<std::uint64_t> values;
};

/// Of one number.
[[nodiscard]] inline row_tensor row(std::uint64_t value) {
  row_tensor t;
  t.values = {value};
  return t;
}

struct state_count {
  std::atomic<int> now{0}, most{0};
};

/// y = hash of x and of all before it; a number below 1000 is no hash, but a layer that fails at it.
struct counted_layer {
  struct state {
    explicit state(std::shared_ptr<state_count> c) : count(std::move(c)) {
      const int now = ++count->now;
      for (int most = count->most; most < now && !count->most.compare_exchange_weak(most, now);) {
      }
    }
    state(state&& other) noexcept : count(std::exchange(other.count, nullptr)), sum(other.sum) {}
    state& operator=(state&& other) noexcept {
      std::swap(count, other.count);
      std::swap(sum, other.sum);
      return *this;
    }
    ~state() {
      if (count) --count->now;
    }
    std::shared_ptr<state_count> count;
    std::uint64_t sum = 0;
  };
  [[nodiscard]] state make_state() const { return state(count); }
  row_tensor infer(const row_tensor& x, state& s) const {
    if (pause_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
    row_tensor y = x;
    for (auto& v : y.values) {
      if (v == static_cast<std::uint64_t>(number)) throw std::runtime_error("layer " + std::to_string(number) + " cannot");
      if (v < 1000) continue;
      s.sum = (s.sum ^ (v + static_cast<std::uint64_t>(number))) * 0x9e3779b97f4a7c15U;
      v = 1000 + (s.sum >> 1);
    }
    return y;
  }
  int number = 0;
  std::shared_ptr<state_count> count;
  double pause_s = 0;
};

/// Layers [first, last) of such.
[[nodiscard]] inline inference_list<row_tensor, counted_layer> counted_stage(int first, int last,
                                                                             const std::shared_ptr<state_count>& count,
                                                                             double pause_s = 0) {
  std::vector<counted_layer> layers;
  for (int l = first; l < last; ++l) layers.push_back({l, count, pause_s});
  return inference_list<row_tensor, counted_layer>(std::move(layers));
}

/// What `steps` steps of one request give, layer after layer in this thread.
[[nodiscard]] inline std::vector<std::uint64_t> counted_reference(int layers, std::uint64_t input, int steps) {
  auto all = counted_stage(0, layers, std::make_shared<state_count>());
  auto state = all.make_state();
  std::vector<std::uint64_t> results;
  row_tensor x = row(input);
  for (int k = 0; k < steps; ++k) {
    x = all.infer(x, state);
    results.push_back(x.values.at(0));
  }
  return results;
}

/// A request of so many steps, each with the result of the one before; results: those of all. fails: from 0, the step that is
/// to fail in layer `at`.
[[nodiscard]] inline inference_request<row_tensor> counted_request(std::uint64_t input, int steps,
                                                                   std::shared_ptr<std::vector<std::uint64_t>> results,
                                                                   int fails = -1, int at = 0) {
  const auto wrong = static_cast<std::uint64_t>(at);
  return {.input = row(fails == 0 ? wrong : input), .next = [=](row_tensor y) -> std::optional<inference_input<row_tensor>> {
            results->push_back(y.values.at(0));
            const int done = static_cast<int>(results->size());
            if (done == steps) return std::nullopt;
            return inference_input<row_tensor>{done == fails ? row(wrong) : std::move(y), false};
          }};
}

}  // namespace hetsched::test
