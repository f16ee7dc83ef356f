// SPDX-License-Identifier: Apache-2.0
// Losses that have the output for their own, on strict devices.
#include <hetsched/cuda/step_graph.hpp>
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>

#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// As fake_loss, but the gradient is written over the output, by a kernel for each two rows.
fake_tensor loss_over(fake_tensor output, const fake_tensor& target, const fake_queue& q, double& value) {
  constexpr std::size_t chunk = 2;
  const auto columns = output.columns();
  for (std::size_t first = 0; first < output.rows(); first += chunk) {
    const auto n = std::min(chunk, output.rows() - first) * columns;
    auto* const y = output.data() + first * columns;
    const auto* const t = target.data() + first * columns;
    auto body = [y, t, n, begins = first == 0, &value](const auto& v) {
      double sum = begins ? 0 : *v.write(&value);
      for (std::size_t k = 0; k < n; ++k) {
        const double d = v.write(y)[k] -= v.read(t)[k];
        sum += 0.5 * d * d;
      }
      *v.write(&value) = sum;
    };
    cuda_check::launch(q, "a chunk of the loss",
                       {{y, n * sizeof(double), true}, {t, n * sizeof(double), false}, {&value, sizeof(double), true}},
                       std::move(body));
  }
  return output;
}

struct steps_with_loss {
  outcome_of_step<double> last;
  std::uint64_t allocations = 0;  ///< of all steps but the first
};

constexpr int loss_steps = 4;

/// On a rank of its own, which has the whole task.
template <class Loss>
steps_with_loss run_with(const task<double>& t, const schedule& order, const Loss& loss) {
  cuda_check::machine machine({.seed = 7, .devices = 1});
  steps_with_loss found;
  {
    fake_devices devices(cuda_check::api{&machine});
    using channels = cuda_local_communicator<fake_tensor, cuda_check::api>;
    auto ends = channels::connect(devices, {0});
    cuda_backend<cuda_check::api> own(devices, 0, "the rank");
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    std::vector<fake_stage> stages;
    stages.push_back(stage_on(q, t, 0));
    std::vector<fake_tensor> inputs, targets;
    for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
    for (const auto& m : t.targets) targets.push_back(upload(q, m));
    pipeline_executor<fake_tensor, fake_stage, channels, no_stager, cuda_backend<cuda_check::api>> executor(
        order, std::span(stages), t.boundaries(), ends[0], {}, no_stager(), own);
    std::uint64_t behind_first = 0;
    for (int i = 0; i < loss_steps; ++i) {
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), loss);
      if (i == 0) behind_first = devices.memory(0).allocations;
    }
    found.allocations = devices.memory(0).allocations - behind_first;
    found.last.losses.assign(executor.losses().begin(), executor.losses().end());
    auto& sums = found.last.gradients.emplace_back();
    for (const fake_tensor& g : stages[0].gradients()) sums.push_back(download(q, g));
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
  return found;
}

}  // namespace

TEST_CASE("a loss on a queue writes the gradient over the output, in chunks: a tensor less for each microbatch, the same bits") {
  constexpr int microbatches = 6;
  const task<double> t(3, {5}, microbatches);
  const auto order = one_f_one_b({1}, microbatches);
  const auto wanted = run_with(t, order, fake_loss), found = run_with(t, order, loss_over);
  CHECK(wanted.last == reference(t, order));
  CHECK(found.last == wanted.last);
  CHECK(wanted.allocations - found.allocations == (loss_steps - 1) * microbatches);
}

TEST_CASE("a captured step's loss writes the gradient over the output, too") {
  constexpr int microbatches = 5;
  const task<double> t(4, {2, 3}, microbatches);
  const auto order = one_f_one_b({2, 1}, microbatches);
  cuda_check::machine machine({.seed = 9, .devices = 2});
  {
    fake_devices devices(cuda_check::api{&machine});
    cuda_step_graph<fake_tensor, fake_stage, cuda_check::api> graph(
        devices, order, {0, 1}, [&](int s, const fake_queue& q) { return stage_on(q, t, s); });
    std::vector<fake_tensor> inputs, targets;
    const auto put = [](const fake_queue& q, const matrix<double>& m) {
      const auto here = q.make_current();
      return upload(q, m);
    };
    for (const auto& m : t.inputs) inputs.push_back(put(graph.queue_of(0, 0), m));
    for (const auto& m : t.targets) targets.push_back(put(graph.queue_of(0, 1), m));
    for (int i = 0; i < 4; ++i) graph.step(inputs, targets, loss_over);
    const auto wanted = reference(t, order);
    CHECK(std::vector<double>(graph.losses().begin(), graph.losses().end()) == wanted.losses);
    for (int s = 0; s < 2; ++s) {
      const auto& q = graph.queue_of(0, s);
      const auto here = q.make_current();
      std::vector<matrix<double>> sums;
      for (const fake_tensor& g : graph.stage(0, s).gradients()) sums.push_back(download(q, g));
      CHECK(sums == wanted.gradients[static_cast<std::size_t>(s)]);
    }
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}
