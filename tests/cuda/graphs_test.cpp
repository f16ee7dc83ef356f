// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/graphs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using graphed = cuda_graphed_stage<fake_tensor, fake_stage, cuda_check::api>;
using channels = cuda_local_communicator<fake_tensor, cuda_check::api>;

/// What run_on_fake does, with stages that are captured; `behind`: called by rank 0 behind each step. `again`: all are captured
/// anew in each.
outcome_of_step<double> run_graphed(fake_devices& devices, const std::vector<int>& places, const task<double>& t,
                                    const schedule& order, int steps, const std::function<void(int)>& behind = {},
                                    bool again = false) {
  using backend = cuda_backend<cuda_check::api>;
  outcome_of_step<double> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(places.size());
  run_on_threads(channels::connect(devices, places), [&](channels& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    backend own(devices, places[rank], "rank " + std::to_string(rank));
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = stages_of_rank(order, end.rank());
    std::vector<graphed> stages;
    for (const auto& c : copies) stages.emplace_back(stage_on(q, t, c.stage));
    std::vector<fake_tensor> inputs, targets;
    for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
    for (const auto& m : t.targets) targets.push_back(upload(q, m));
    pipeline_executor<fake_tensor, graphed, channels, no_stager, backend> executor(order, std::span(stages), t.boundaries(), end,
                                                                                   {.deadline_s = 20}, {}, own);
    for (int i = 0; i < steps; ++i) {
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss);
      if (behind && rank == 0) behind(i);
      if (again)
        for (auto& stage : stages) stage.arguments_changed();
    }
    losses[rank].assign(executor.losses().begin(), executor.losses().end());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      auto& sums = result.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)];
      for (const fake_tensor& g : stages[i].gradients()) sums.push_back(download(q, g));
    }
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.losses[m] += part[m];
  return result;
}

std::vector<fake_tensor>& nothing() {
  static std::vector<fake_tensor> none;
  return none;
}
/// A layer that does something else than to enqueue.
struct odd_layer {
  using context = int;
  std::function<void(const fake_queue&)> does;
  fake_tensor forward(const fake_tensor& x, context&, const fake_queue& q) {
    does(q);
    return {x.shape()[0], x.shape()[1], q};
  }
  fake_tensor backward(const fake_tensor& dy, context& c, const fake_queue& q) { return forward(dy, c, q); }
  static std::vector<fake_tensor>& parameters() { return nothing(); }
  static std::vector<fake_tensor>& gradients() { return nothing(); }
};
}  // namespace

TEST_CASE("[threads] captured stages have the bits of those that are not, under random schedules, and no races") {
  int ran = 0;
  for (int instance = 0; instance < 100 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    std::vector<int> layers, places;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(instance), layers, order.microbatches);
    const cuda_check::habits habits{.seed = static_cast<std::uint64_t>(instance) + 1,
                                    .devices = random.integer(1, 3),
                                    .most_turns_late = random.integer(0, 8),
                                    .lazy = random.integer(0, 1) == 0,
                                    .in_order = random.integer(0, 1) == 0};
    for (int r = 0; r < order.ranks; ++r) places.push_back(random.integer(0, habits.devices - 1));
    cuda_check::machine machine(habits);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = static_cast<std::size_t>(random.integer(1, 16))});
      CHECK(run_graphed(devices, places, t, order, 3, {}, instance % 3 == 0) == reference(t, order));
    }
    // No update is refused.
    CHECK(machine.calls("cudaGraphInstantiate") + machine.calls("cudaGraphExecUpdate") ==
          machine.calls("cudaStreamBeginCapture"));
    CHECK((machine.calls("cudaGraphExecUpdate") > 0) == (instance % 3 == 0));
    CHECK(machine.calls("cudaGraphLaunch") > 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
    ++ran;
  }
  CHECK(ran > 40 / sanitizer_share);
}

TEST_CASE("[threads] a captured stage is one launch each time, and allocates for what goes out only") {
  const task<double> t(3, {5}, 6);
  cuda_check::machine machine({.seed = 5, .devices = 1});
  std::vector<std::size_t> kernels, graphs, captures;
  {
    fake_devices devices(cuda_check::api{&machine});
    std::vector<std::size_t> in_use;
    CHECK(run_graphed(devices, {0}, t, one_f_one_b({1}, 6), 5, [&](int) {
            kernels.push_back(machine.calls("cudaLaunchKernel"));
            graphs.push_back(machine.calls("cudaGraphLaunch"));
            captures.push_back(machine.calls("cudaStreamBeginCapture"));
            in_use.push_back(devices.memory(0).now_bytes);
          }) == reference(t, one_f_one_b({1}, 6)));
    CHECK(in_use[4] == in_use[2]);
  }
  // One context: it runs once as ever, once to be captured, then it is launched.
  CHECK(captures.back() == 2);
  CHECK(graphs[0] == 10);
  CHECK(graphs[4] - graphs[3] == 12);
  const auto in_a_step = kernels[4] - kernels[3];  // losses, and gradients that are scaled
  CHECK(in_a_step < 20);
  CHECK(kernels[0] > 3 * in_a_step / 2);
  CHECK(in_a_step == kernels[3] - kernels[2]);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

namespace {
/// Multiplies by a number, which is an argument of its kernel.
struct gain_layer {
  struct context {
    fake_tensor kept;
  };
  double* gain;
  fake_tensor times(const fake_tensor& x, const fake_queue& q) const {
    fake_tensor y(x.rows(), x.columns(), q);
    kernel(q, "a gain", {&x}, {&y}, [to = y.data(), from = x.data(), n = x.size(), by = *gain](const auto& v) {
      for (std::size_t k = 0; k < n; ++k) v.write(to)[k] = by * v.read(from)[k];
    });
    return y;
  }
  fake_tensor forward(const fake_tensor& x, context& c, const fake_queue& q) const {
    c.kept = times(x, q);
    return times(c.kept, q);
  }
  /// Frees what the forward has kept, in a capture that is not the forward's.
  fake_tensor backward(const fake_tensor& dy, context& c, const fake_queue& q) const {
    auto dx = times(dy, q);
    tensor_traits<fake_tensor>::add(dx, c.kept, q);
    c.kept = {};
    return dx;
  }
  static std::vector<fake_tensor>& parameters() { return nothing(); }
  static std::vector<fake_tensor>& gradients() { return nothing(); }
};
}  // namespace

TEST_CASE(
    "graphs are updated where numbers have changed that are arguments of kernels, and tensors their size, in the same memory") {
  cuda_check::machine machine({.seed = 2, .devices = 1});
  {
    fake_devices devices(cuda_check::api{&machine});
    const cuda_graph_backend<cuda_check::api> backend(devices, 0, "rank 0");
    const auto bound = backend.bind();
    const auto q = backend.compute_queue();
    double gain = 1;
    auto stage = backend.make_stage<fake_tensor>(gain_layer{&gain});
    auto first = stage.make_context(), second = stage.make_context();
    auto* c = &first;
    const auto step = [&](const matrix<double>& x) {
      const auto y = stage.forward(upload(q, x), *c, q);
      const auto dx = stage.backward(y, *c, q);
      CHECK(y.rows() == x.rows());
      CHECK(dx.rows() == x.rows());
      const auto last = 2 * x.rows() - 1;
      return std::pair(download(q, y).data()[last], download(q, dx).data()[last]);
    };
    const auto filled = [](std::size_t rows, double with) {
      matrix<double> m(rows, 2);
      std::fill_n(m.data(), rows * 2, with);
      return m;
    };
    std::vector<std::size_t> in_use;
    for (int i = 0; i < 8; ++i) {
      gain = 1 + i;
      if (i > 1) backend.arguments_changed();
      const double x = 2 + i;
      CHECK(step(filled(2, x)) == std::pair(gain * gain * x, gain * gain * gain * x + gain * x));
      in_use.push_back(devices.memory(0).now_bytes);
    }
    CHECK(in_use[7] == in_use[3]);
    CHECK(machine.calls("cudaGraphInstantiate") == 2);
    CHECK(machine.calls("cudaGraphExecUpdate") == 12);
    gain = 100;
    CHECK(step(filled(2, 1)) == std::pair(64.0, 520.0));  // nobody has told
    backend.arguments_changed();
    CHECK(step(filled(3, 1)) == std::pair(1e4, 1e6 + 100));
    CHECK(step(filled(3, 2)) == std::pair(2e4, 2e6 + 200));

    // Before the first capture, too, tensors may have another size.
    c = &second;
    CHECK(step(filled(2, 1)) == std::pair(1e4, 1e6 + 100));
    backend.arguments_changed();
    CHECK(step(filled(3, 1)) == std::pair(1e4, 1e6 + 100));
    CHECK(step(filled(3, 2)) == std::pair(2e4, 2e6 + 200));
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

TEST_CASE("a graph keeps the memory of others that is in it, and that of the capture before no longer") {
  cuda_check::machine machine({.devices = 1});
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto q = devices.make_queue(0, "the stage");
    const auto current = q.make_current();
    double memory = 0;
    std::vector<std::weak_ptr<double>> owners;
    cuda_graphed_stage<fake_tensor, odd_layer, cuda_check::api> stage{odd_layer{[&](const fake_queue& on) {
      auto owner = std::make_shared<double>();
      owners.emplace_back(owner);
      (void)cuda_buffer<cuda_check::api>::view(on, &memory, sizeof memory, std::move(owner));
    }}};
    const auto left = [&] { return std::count_if(owners.begin(), owners.end(), [](const auto& o) { return !o.expired(); }); };
    auto c = stage.make_context();
    const fake_tensor x = tensor_traits<fake_tensor>::make({2, 2}, q);
    for (int i = 0; i < 6; ++i) {
      (void)stage.forward(x, c, q);
      q.finish();
      stage.arguments_changed();
    }
    CHECK(owners.size() == 6);
    CHECK_FALSE(owners.back().expired());
    CHECK(left() <= 2);  // one may have to be asked for once more
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

TEST_CASE("what cannot be captured is refused") {
  cuda_check::machine machine({.devices = 1});
  fake_devices devices(cuda_check::api{&machine});
  const auto q = devices.make_queue(0, "the stage"), other = devices.make_queue(0, "others");
  const auto current = q.make_current();
  const auto error_of = [&](const fake_queue& on, const std::function<void(const fake_queue&)>& does) -> std::string {
    using stage = cuda_graphed_stage<fake_tensor, odd_layer, cuda_check::api>;
    stage own{odd_layer{does}};
    auto c = own.make_context();
    const fake_tensor x = tensor_traits<fake_tensor>::make({2, 2}, on);
    try {
      for (int i = 0; i < 3; ++i) (void)own.forward(x, c, on);
    } catch (const input_error& e) {
      return e.what();
    }
    return {};
  };
  CHECK(error_of(fake_queue(devices), [](const fake_queue&) {}) ==
        "a rank on the host has no CUDA graphs: its stage is to be used as it is");
  CHECK(error_of(q, [](const fake_queue& on) { on.finish(); }) ==
        "the stage, captured in a CUDA graph, is waited for by the host: a graph is of the work of its own queues");
  CHECK(error_of(q, [&](const fake_queue& on) { on.wait(other.record()); }) ==
        "the stage, captured in a CUDA graph, waits for work of others: a graph is of the work of its own queues");
  CHECK(error_of(q, [&](const fake_queue& on) { other.wait(on.record()); }) ==
        "the stage, captured in a CUDA graph, is waited for by others: a graph is of the work of its own queues");
  CHECK(error_of(q, [](const fake_queue&) {}).empty());
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  machine.fail("cudaStreamEndCapture", 901);
  CHECK_THROWS_AS((void)error_of(q, [](const fake_queue&) {}), cuda_error);
  CHECK(machine.reports().empty());
}
