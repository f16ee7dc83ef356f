// SPDX-License-Identifier: Apache-2.0
// Tensors of fake GPUs by way of pinned memory and a network of the hosts, as one and in chunks.
#include <hetsched/runtime/executor/chunked_transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/cuda/stager.hpp>
#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/passes.hpp>

#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A transport of the hosts: sends the bytes of tensors in pinned memory, and tells the fake when it reads and writes them.
class host_transport {
  using inner = shaped_communicator<thread_communicator<matrix<double>>>;

 public:
  class operation {
   public:
    double end_s = 0;

   private:
    friend class host_transport;
    inner::operation posted_;
    std::span<std::byte> into_;  ///< what is received
  };
  host_transport(inner end, fake_machine& machine, std::size_t* most_bytes = nullptr)
      : inner_(std::move(end)), machine_(&machine), most_bytes_(most_bytes) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int ranks() const { return inner_.ranks(); }
  [[nodiscard]] int open(const edge& e) { return inner_.open(e); }
  void post_send(int channel, const stamp& s, fake_tensor& t, operation& op) { post_send_bytes(channel, s, bytes_of(t), op); }
  void post_receive(int channel, const stamp& s, fake_tensor& t, operation& op) {
    post_receive_bytes(channel, s, bytes_of(t), op);
  }
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    machine_->host_access(bytes.data(), bytes.size(), false);
    if (most_bytes_) *most_bytes_ = std::max(*most_bytes_, bytes.size());
    op.into_ = {};
    inner_.post_send_bytes(channel, s, bytes, op.posted_);
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) {
    // It writes at any time from now on.
    machine_->host_access(bytes.data(), bytes.size(), true);
    op.into_ = bytes;
    inner_.post_receive_bytes(channel, s, bytes, op.posted_);
  }
  [[nodiscard]] bool poll(operation& op) {
    if (!inner_.poll(op.posted_)) return false;
    op.end_s = op.posted_.end_s;
    return true;
  }
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) { return inner_.wait(until, sends); }
  void abort(const std::string& reason) { inner_.abort(reason); }
  [[nodiscard]] std::string failure() const { return inner_.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }

 private:
  static std::span<std::byte> bytes_of(fake_tensor& t) { return std::as_writable_bytes(std::span(t.data(), t.size())); }
  inner inner_;
  fake_machine* machine_;
  std::size_t* most_bytes_;
};

struct measured_run {
  outcome_of_step<double> outcome;
  double step_s = 0;           ///< the last step
  std::size_t most_bytes = 0;  ///< of a message
};

/// `steps` steps with everything between ranks by way of the hosts; every rank on a device of its own.
measured_run run_staged(fake_machine& machine, const task<double>& t, const schedule& order, const executor_options& options,
                        const hetsched::link& network, int steps) {
  using communicator = host_transport;
  using stager = cuda_stager<fake_tensor, fake_cuda>;
  using backend = cuda_backend<fake_cuda>;
  measured_run result;
  result.outcome.losses.assign(t.inputs.size(), 0);
  result.outcome.gradients.resize(order.rank_of.size());
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(order.ranks));
  std::vector<double> step_s(losses.size(), 0);
  std::vector<std::size_t> most(losses.size(), 0);
  fake_devices devices(fake_cuda{&machine}, {.records = 256});
  std::vector<communicator> ends;
  for (auto& end : thread_communicator<matrix<double>>::connect(order.ranks)) {
    auto* const bytes = &most[static_cast<std::size_t>(end.rank())];
    ends.emplace_back(shaped_communicator(std::move(end), [&](int, int) { return network; }), machine, bytes);
  }
  run_on_threads(std::move(ends), [&](communicator& end) {
    const auto rank = static_cast<std::size_t>(end.rank());
    const auto name = "rank " + std::to_string(rank);
    backend own(devices, end.rank(), name);
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    const auto copies = stages_of_rank(order, end.rank());
    std::vector<fake_stage> stages;
    for (const auto& c : copies) stages.push_back(stage_on(q, t, c.stage));
    std::vector<fake_tensor> inputs, targets;
    for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
    for (const auto& m : t.targets) targets.push_back(upload(q, m));
    pipeline_executor<fake_tensor, fake_stage, communicator, stager, backend> executor(
        order, std::span(stages), t.boundaries(), end, options, stager(devices, end.rank(), name), own);
    q.finish();
    for (int i = 0; i < steps; ++i) {
      const double start_s = steady_now_s();
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss);
      step_s[rank] = steady_now_s() - start_s;
    }
    losses[rank].assign(executor.losses().begin(), executor.losses().end());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      auto& sums = result.outcome.gradients[static_cast<std::size_t>(copies[i].direction * order.stages + copies[i].stage)];
      for (const fake_tensor& g : stages[i].gradients()) sums.push_back(download(q, g));
    }
  });
  for (const auto& part : losses)
    for (std::size_t m = 0; m < part.size(); ++m) result.outcome.losses[m] += part[m];
  result.step_s = *std::max_element(step_s.begin(), step_s.end());
  result.most_bytes = *std::max_element(most.begin(), most.end());
  return result;
}

schedule staged_order(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto order = build_schedule(name,
                                    {.forward_s = std::vector<double>(n, 1),
                                     .backward_s = std::vector<double>(n, 2),
                                     .transfer_s = std::vector<double>(n - 1, 1),
                                     .weight_backward_s = std::vector<double>(n, 1)},
                                    microbatches);
  return split_streams(stage_transfers(add_transfers(order), [](int, int) { return true; }));
}

}  // namespace

TEST_CASE("[threads] tensors in chunks by way of the hosts have the bits of whole ones, and no races") {
  int number = 0;
  for (const auto name : schedule_names())
    for (const std::size_t chunk_bytes : {0, 8, 24, 40, 1 << 20}) {
      if (++number % sanitizer_share != 0) continue;
      const std::string text(name);
      CAPTURE(text);
      CAPTURE(chunk_bytes);
      const auto order = staged_order(name, 2, 4);
      if (order.directions == 2) continue;  // gradients of two directions are summed from device to device
      const task<double> t(static_cast<std::uint64_t>(number), std::vector<int>(static_cast<std::size_t>(order.stages), 1), 4);
      fake_machine machine(
          {.seed = static_cast<std::uint64_t>(number), .lazy = number % 3 == 0, .in_order = number % 2 == 0, .launch_queue = 32});
      const auto done = run_staged(machine, t, order, {.deadline_s = 20, .staging_chunk_bytes = chunk_bytes},
                                   {.latency_s = 0, .bandwidth = std::numeric_limits<double>::infinity()}, 2);
      CHECK(done.outcome == reference(t, order));
      if (chunk_bytes > 0 && chunk_bytes < 16) CHECK(done.most_bytes <= 2 * chunk_bytes);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(machine.leaks().empty());
    }
}

TEST_CASE("[threads] copies in chunks overlap with each other and with the network") {
  // A tensor takes about 16 ms from the device, on the network, and to the device.
  const auto order = staged_order("1f1b", 2, 1);
  task<double> t(7, {1, 1}, 1);
  t.widths[1] = 32;
  const auto elements = t.boundaries()[0][0] * t.boundaries()[0][1];
  const double bytes = static_cast<double>(elements * sizeof(double)), takes_s = 16e-3;
  const auto best_of = [&](std::size_t chunk_bytes) {
    double best_s = 1e9;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      fake_machine machine({.seed = seed, .copy_s_per_byte = takes_s / bytes});
      const auto done = run_staged(machine, t, order, {.deadline_s = 20, .staging_chunk_bytes = chunk_bytes},
                                   {.latency_s = 0, .bandwidth = bytes / takes_s}, 2);
      CHECK(done.outcome == reference(t, order));
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      best_s = std::min(best_s, done.step_s);
    }
    return best_s;
  };
  const double whole_s = best_of(0), chunked_s = best_of(elements / 8 * sizeof(double));
  CAPTURE(whole_s);
  CAPTURE(chunked_s);
  CHECK(whole_s >= (sanitizer_share > 1 ? 1.2 : 1.6) * chunked_s);
}
