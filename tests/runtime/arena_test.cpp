// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/sound_schedule.hpp"
#include "dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// Keeps count of what there is of it in the process, in elements.
class counted {
 public:
  using value_type = float;
  static inline std::atomic<long> live{0}, most{0};
  counted() = default;
  explicit counted(const tensor_shape& shape) : data_(shape.at(0)) { count(static_cast<long>(data_.size())); }
  counted(const counted& other) : data_(other.data_) { count(static_cast<long>(data_.size())); }
  counted(counted&& other) noexcept : data_(std::exchange(other.data_, {})) {}
  counted& operator=(counted&& other) noexcept {
    count(-static_cast<long>(data_.size()));
    data_ = std::exchange(other.data_, {});
    return *this;
  }
  ~counted() { count(-static_cast<long>(data_.size())); }
  [[nodiscard]] std::array<std::size_t, 1> shape() const { return {data_.size()}; }
  [[nodiscard]] float* data() { return data_.data(); }
  [[nodiscard]] const float* data() const { return data_.data(); }

 private:
  static void count(long n) {
    const long now = live += n;
    for (long seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
  }
  std::vector<float> data_;
};

/// Makes a tensor of the next boundary's shape.
struct reshaper {
  struct context {};
  counted forward(const counted&, context&) { return counted({out}); }
  counted backward(const counted&, context&) { return counted({in}); }
  context make_context() {
    ++*contexts;
    return {};
  }
  std::array<counted, 0>& parameters() { return none; }
  std::array<counted, 0>& gradients() { return none; }
  std::size_t in = 1, out = 1;
  int* contexts = nullptr;
  std::array<counted, 0> none;
};

struct usage {
  std::vector<arena_bytes> arenas;         ///< by rank
  std::vector<std::vector<int>> contexts;  ///< by rank and its stages
  long made = 0, kept = 0, most = 0;       ///< live elements: before the steps, after them, and meanwhile
};

/// widths[s]: elements of stage s's input, and of the last one's output.
template <class Stager = no_stager>
usage run(const schedule& order, const std::vector<std::size_t>& widths) {
  using executor_type = pipeline_executor<counted, reshaper, thread_communicator<counted>, Stager>;
  const auto ranks = static_cast<std::size_t>(order.ranks);
  usage seen{std::vector<arena_bytes>(ranks), std::vector<std::vector<int>>(ranks)};
  std::vector<tensor_shape> boundaries;
  for (std::size_t s = 1; s + 1 < widths.size(); ++s) boundaries.push_back({widths[s]});
  const std::vector<int> targets(static_cast<std::size_t>(order.microbatches));
  const std::vector<counted> inputs(targets.size(), counted({widths[0]}));
  const long before = counted::live;
  std::barrier all(order.ranks);
  run_on_threads(thread_communicator<counted>::connect(order.ranks), [&](thread_communicator<counted>& end) {
    const auto r = static_cast<std::size_t>(end.rank());
    const auto copies = stages_of_rank(order, end.rank());
    seen.contexts[r].resize(copies.size());
    std::vector<reshaper> stages(copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const auto s = static_cast<std::size_t>(copies[i].stage);
      stages[i].in = widths[s];
      stages[i].out = widths[s + 1];
      stages[i].contexts = &seen.contexts[r][i];
    }
    executor_type executor(order, stages, boundaries, end);
    seen.arenas[r] = executor.arena();
    const auto note = [&](long& where, const std::atomic<long>& what) {
      all.arrive_and_wait();
      if (r == 0) where = what - before;
      all.arrive_and_wait();
    };
    note(seen.made, counted::live);
    if (r == 0) counted::most = counted::live.load();
    all.arrive_and_wait();
    for (int i = 0; i < 2; ++i)
      executor.step(std::span<const counted>(inputs), std::span<const int>(targets), [](const counted& y, int) {
        return loss_value<counted>{0, y};
      });
    CHECK(executor.arena() == seen.arenas[r]);
    note(seen.kept, counted::live);
    note(seen.most, counted::most);
  });
  return seen;
}

/// Bytes of inputs at the worst moment of every rank, from the simulator: a stage's microbatch in flight holds its input, the
/// first stage's being the caller's. Of each width by itself, as tensors cannot change theirs.
std::vector<double> predicted_inputs(const schedule& order, const std::vector<std::size_t>& widths) {
  std::vector<double> bytes(static_cast<std::size_t>(order.ranks));
  for (const auto width : std::set<std::size_t>(widths.begin(), widths.end())) {
    workload w{.ranks = order.ranks,
               .stages = order.stages,
               .directions = order.directions,
               .work = {},
               .activations = std::vector<tensor_path>(static_cast<std::size_t>(order.directions * (order.stages - 1))),
               .gradients = {},
               .wires = {},
               .memory_capacity = {},
               .fused_factor = 1};
    w.gradients = w.activations;
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s < order.stages; ++s) {
        const bool held = s > 0 && widths[static_cast<std::size_t>(s)] == width;
        const double input = held ? static_cast<double>(width * sizeof(float)) : 0;
        w.work.push_back({.forward_s = 1,
                          .backward_s = 2,
                          .weight_backward_s = 1,
                          .activation_bytes = input,
                          .weight_backward_bytes = input,
                          .checkpoint_bytes = input});
      }
    const auto s = simulate(w, order, {.timeline = false});
    for (std::size_t r = 0; r < bytes.size(); ++r) bytes[r] += s.peak_memory_bytes[r];
  }
  return bytes;
}

/// Bytes of output gradients at the worst moment, by playing every rank's computations; the last stage's are the loss's.
std::vector<double> predicted_gradients(const schedule& order, const std::vector<std::size_t>& widths) {
  using enum action_kind;
  std::vector<double> bytes;
  for (int r = 0; r < order.ranks; ++r) {
    const auto& actions = order.lanes[static_cast<std::size_t>(r)].actions;
    std::set<std::tuple<int, int, int>> split;
    for (const auto& a : actions)
      if (a.kind == backward_weight) split.emplace(a.direction, a.stage, a.microbatch);
    double sum = 0;
    for (const auto width : std::set<std::size_t>(widths.begin(), widths.end())) {
      int now = 0, most = 0, ended = 0;
      for (const auto& a : actions) {
        if (!a.joined) now -= std::exchange(ended, 0);
        if (a.stage + 1 == order.stages || widths[static_cast<std::size_t>(a.stage) + 1] != width) continue;
        if (a.kind == backward || a.kind == backward_input) most = std::max(most, ++now);
        if (a.kind == backward_weight || (a.kind == backward && !split.count({a.direction, a.stage, a.microbatch}))) ++ended;
      }
      sum += most * static_cast<double>(width * sizeof(float));
    }
    bytes.push_back(sum);
  }
  return bytes;
}

void check_arena(const schedule& order, const std::vector<std::size_t>& widths) {
  const auto seen = run(order, widths);
  const auto inputs = predicted_inputs(order, widths), gradients = predicted_gradients(order, widths);
  std::size_t total = 0;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    CAPTURE(r);
    CHECK(static_cast<double>(seen.arenas[r].inputs) == inputs[r]);
    CHECK(static_cast<double>(seen.arenas[r].gradients) == gradients[r]);
    CHECK(seen.arenas[r].staging == 0);
    total += seen.arenas[r].total();
  }
  // What it says is what there is: before the steps; afterwards with the loss's gradients; and meanwhile with two tensors per
  // rank, what a layer has made and what it takes the place of, or what the loss has.
  CHECK(static_cast<std::size_t>(seen.made) * sizeof(float) == total);
  const long widest = static_cast<long>(*std::max_element(widths.begin(), widths.end()));
  const long losses = static_cast<long>(order.microbatches * order.directions) * static_cast<long>(widths.back());
  CHECK(seen.kept <= seen.made + losses);
  CHECK(seen.most <= seen.kept + 2 * widest * order.ranks);
}

schedule named(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 1),
                         .weight_backward_s = std::vector<double>(n, 1)},
                        microbatches);
}

}  // namespace

TEST_CASE("[threads] the arena of every schedule is its microbatches in flight") {
  for (const auto name : schedule_names())
    for (const int ranks : {1, 2, 4})
      for (const int microbatches : {1, 4, 9}) {
        schedule order;
        try {
          order = named(name, ranks, microbatches);
        } catch (const input_error&) {
          continue;  // numbers that the schedule is not made for
        }
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        check_arena(order, std::vector<std::size_t>(static_cast<std::size_t>(order.stages) + 1, 5));
      }
}

TEST_CASE("[threads] the arena of random schedules, with boundaries of one shape and of several") {
  random_source random(21);
  for (int instance = 0; instance < 150 / sanitizer_share; ++instance) {
    auto options = random_sound_options(random);
    const auto order = sound_schedule(random, options);
    CAPTURE(instance);
    INFO(to_csv(order));
    std::vector<std::size_t> widths;
    const int kinds = random.integer(1, 3);
    for (int s = 0; s <= order.stages; ++s) widths.push_back(static_cast<std::size_t>(10 * random.integer(1, kinds)));
    check_arena(order, widths);
  }
}

TEST_CASE("[threads] what is fused has all its memory at once") {
  using enum action_kind;
  auto order = make_schedule(1, 2, {0, 0, 0});
  const auto list = [&](action_kind kind, int stage, int m, bool joined = false) {
    order.lanes[0].actions.push_back({.kind = kind, .joined = joined, .stage = stage, .microbatch = m});
  };
  for (int s = 0; s < 3; ++s) list(forward, s, 0);
  list(forward, 0, 1);
  list(backward, 2, 0);
  list(forward, 1, 1, true);
  for (const int s : {1, 0}) list(backward, s, 0);
  list(forward, 2, 1);
  for (const int s : {2, 1, 0}) list(backward, s, 1);
  check_arena(order, {4, 4, 4, 4});
  CHECK(run(order, {4, 4, 4, 4}).arenas[0].inputs == 3 * 4 * sizeof(float));
}

TEST_CASE("[threads] the arena of 1F1B in closed form") {
  constexpr std::size_t bytes = 7 * sizeof(float);
  const int ranks = 4;
  for (const int microbatches : {2, 8}) {
    const auto seen = run(named("1f1b", ranks, microbatches), std::vector<std::size_t>(ranks + 1, 7));
    for (int r = 0; r < ranks; ++r) {
      CAPTURE(r);
      const auto in_flight = [&](int s) {
        return s < 0 || s >= ranks ? 0 : static_cast<std::size_t>(std::min(ranks - s, microbatches));
      };
      const auto neighbours = static_cast<std::size_t>((r > 0) + (r + 1 < ranks));
      const auto& a = seen.arenas[static_cast<std::size_t>(r)];
      CHECK(a.inputs == (r > 0 ? in_flight(r) : 0) * bytes);
      CHECK(a.gradients == (r + 1 < ranks ? bytes : 0));
      CHECK(a.sending == ((r + 1 < ranks ? in_flight(r) : 0) + in_flight(r - 1)) * bytes);
      CHECK(a.receiving == 2 * neighbours * bytes);
      CHECK(seen.contexts[static_cast<std::size_t>(r)] == std::vector<int>{static_cast<int>(in_flight(r))});
    }
  }
}

TEST_CASE("[threads] what is recomputed keeps its input only") {
  auto order = named("1f1b", 4, 8);
  for (auto& l : order.lanes) {
    std::vector<action> actions;
    for (auto a : l.actions) {
      if (a.kind == action_kind::backward)
        actions.push_back({.kind = action_kind::recompute, .stage = a.stage, .microbatch = a.microbatch});
      actions.push_back(a);
    }
    l.actions = std::move(actions);
  }
  const std::vector<std::size_t> widths(5, 3);
  for (const auto& of_rank : run(order, widths).contexts) CHECK(of_rank == std::vector<int>{1});
  check_arena(order, widths);
  const task<double> t(5, {1, 2, 1, 2}, 8);
  CHECK(run_on_threads(t, order, {}, 2) == reference(t, order));
}

TEST_CASE("[threads] by way of the host, every tensor that moves has a second place") {
  const auto bare = named("virtual_1f1b", 3, 6);
  const auto staged = stage_transfers(add_transfers(bare), [](int from, int to) { return from + to == 1; });
  const std::vector<std::size_t> widths(4, 3);
  const auto direct = run(bare, widths), copied = run<thread_stager<counted>>(staged, widths);
  CHECK(run(staged, widths).arenas == direct.arenas);
  // Rank 1's share over that boundary: two activations that come, and as many gradients that leave as rank 0 has in flight.
  const std::size_t one = 3 * sizeof(float), in_flight = static_cast<std::size_t>(direct.contexts[0][0]);
  const std::size_t staging[] = {direct.arenas[0].sending + direct.arenas[0].receiving, (2 + in_flight) * one, 0};
  for (std::size_t r = 0; r < 3; ++r) {
    CAPTURE(r);
    auto expected = direct.arenas[r];
    expected.staging = staging[r];
    CHECK(copied.arenas[r] == expected);
  }
}
