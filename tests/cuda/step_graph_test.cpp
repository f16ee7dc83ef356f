// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/step_graph.hpp>
#include <hetsched/schedule/passes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "fake_layers.hpp"
#include "fake_nccl.hpp"
#include "nccl_ranks.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using step_graph = cuda_step_graph<fake_tensor, fake_stage, cuda_check::api>;

fake_tensor put(const fake_queue& q, const matrix<double>& from) {
  const auto here = q.make_current();
  return upload(q, from);
}

/// The last of `steps` steps; `behind`: called behind each. `again`: each is captured anew.
outcome_of_step<double> run_captured(fake_devices& devices, const std::vector<int>& places, const task<double>& t,
                                     const schedule& order, int steps, const std::function<void(int)>& behind = {},
                                     bool again = false) {
  step_graph graph(devices, order, places, [&](int s, const fake_queue& q) { return stage_on(q, t, s); });
  std::vector<fake_tensor> inputs, targets;
  std::vector<int> direction(t.inputs.size(), 0);
  for (const auto& l : order.lanes)
    for (const auto& a : l.actions)
      if (a.kind == action_kind::forward) direction[static_cast<std::size_t>(a.microbatch)] = a.direction;
  for (std::size_t m = 0; m < t.inputs.size(); ++m) {
    const auto& first = graph.queue_of(direction[m], 0);
    const auto& last = graph.queue_of(direction[m], order.stages - 1);
    inputs.push_back(put(first, t.inputs[m]));
    targets.push_back(put(last, t.targets[m]));
  }
  outcome_of_step<double> result;
  for (int i = 0; i < steps; ++i) {
    if (again) graph.arguments_changed();
    graph.step(inputs, targets, fake_loss);
    CHECK(graph.is_captured() == (i > 0));
    if (behind) behind(i);
  }
  const auto losses = graph.losses();
  result.losses.assign(losses.begin(), losses.end());
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s < order.stages; ++s) {
      const auto& q = graph.queue_of(c, s);
      const auto here = q.make_current();
      auto& sums = result.gradients.emplace_back();
      for (const fake_tensor& g : graph.stage(c, s).gradients()) sums.push_back(download(q, g));
    }
  return result;
}

}  // namespace

TEST_CASE("a captured step has the bits of the executor's reference, under random schedules on some GPUs, and no races") {
  int ran = 0, far = 0, by_hosts = 0;
  for (int instance = 0; instance < 200 / sanitizer_share; ++instance) {
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
                                    .in_order = random.integer(0, 1) == 0,
                                    .reach = random.integer(0, 1) == 0};
    for (int r = 0; r < order.ranks; ++r) places.push_back(random.integer(0, habits.devices - 1));
    cuda_check::machine machine(habits);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = static_cast<std::size_t>(random.integer(1, 16))});
      CHECK(run_captured(devices, places, t, order, 1 + instance % 4, {}, instance % 3 == 0) == reference(t, order));
    }
    CHECK(machine.calls("cudaGraphInstantiate") == (instance % 4 > 0));  // updates are not refused
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    for (const auto& l : machine.leaks()) FAIL_CHECK(l);
    far += machine.calls("cudaMemcpyPeerAsync") > 0;
    by_hosts += !habits.reach && machine.calls("cudaHostAlloc") > 1;  // the losses have one
    ++ran;
  }
  CHECK(ran > 80 / sanitizer_share);
  // Of the few under a sanitizer one of either kind is enough.
  CHECK(far > (sanitizer_share > 1 ? 0 : 10));
  CHECK(by_hosts > (sanitizer_share > 1 ? 0 : 20));
}

TEST_CASE("every named schedule is captured: a GPU for each rank, and one for all") {
  for (const auto name : share_of(schedule_names())) {
    CAPTURE(name);
    const int ranks = 4;
    const auto order = build_schedule(name,
                                      {.forward_s = std::vector<double>(ranks, 1),
                                       .backward_s = std::vector<double>(ranks, 2),
                                       .transfer_s = std::vector<double>(ranks - 1, 0.5)},
                                      8);
    const task<double> t(7, std::vector<int>(static_cast<std::size_t>(order.stages), 1), order.microbatches);
    for (const bool alone : {false, true}) {
      cuda_check::machine machine({.seed = 11, .devices = ranks});
      {
        fake_devices devices(cuda_check::api{&machine});
        const auto places = alone ? std::vector<int>(ranks, 0) : std::vector<int>{0, 1, 2, 3};
        CHECK(run_captured(devices, places, t, order, 3) == reference(t, order));
      }
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(machine.leaks().empty());
    }
  }
}

TEST_CASE("recomputation and forwards alone are captured") {
  auto again = one_f_one_b({2, 1}, 4);
  for (auto& l : again.lanes)
    for (std::size_t k = 0; k < l.actions.size(); ++k)
      if (auto a = l.actions[k]; a.kind == action_kind::backward && a.stage == 0) {
        a.kind = action_kind::recompute;
        l.actions.insert(l.actions.begin() + static_cast<std::ptrdiff_t>(k++), a);
      }
  const task<double> t(5, {2, 1}, 4);
  for (const auto& order : {again, forwards_of(again)}) {
    cuda_check::machine machine({.seed = 3, .devices = 2});
    {
      fake_devices devices(cuda_check::api{&machine});
      const auto found = run_captured(devices, {0, 1}, t, order, 3);
      CHECK(found.losses == reference(t, one_f_one_b({2, 1}, 4)).losses);
      if (!is_forward_only(order)) CHECK(found == reference(t, one_f_one_b({2, 1}, 4)));
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("a captured step is one launch, whatever there is to do, and needs no more memory") {
  const task<double> t(3, {4, 4}, 16);
  cuda_check::machine machine({.seed = 5, .devices = 2});
  std::vector<std::size_t> kernels, copies, graphs, events, in_use;
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto order = one_f_one_b({2, 1}, 16);
    CHECK(run_captured(devices, {0, 1}, t, order, 5, [&](int) {
            kernels.push_back(machine.calls("cudaLaunchKernel"));
            copies.push_back(machine.calls("cudaMemcpyPeerAsync"));
            graphs.push_back(machine.calls("cudaGraphLaunch"));
            events.push_back(machine.calls("cudaEventRecord") + machine.calls("cudaStreamWaitEvent"));
            in_use.push_back(devices.memory(0).now_bytes + devices.memory(1).now_bytes);
          }) == reference(t, order));
  }
  CHECK(graphs == std::vector<std::size_t>{0, 1, 2, 3, 4});
  CHECK(kernels[4] == kernels[1]);
  CHECK(copies[4] == copies[1]);
  CHECK(events[4] - events[3] <= 9);  // for 64 computations
  CHECK(in_use[4] == in_use[1]);
}

TEST_CASE("what is done between captured steps is done before the next one: updates, and new inputs") {
  const task<double> t(4, {2, 1, 2}, 4);
  const auto order = one_f_one_b({3, 2, 1}, 4);
  const std::vector<int> places{0, 1, 2};
  cuda_check::machine machine({.seed = 8, .devices = 3});
  {
    fake_devices devices(cuda_check::api{&machine});
    struct training {
      step_graph graph;
      std::vector<fake_tensor> inputs, targets;
      training(fake_devices& all, const task<double>& of, const schedule& by, const std::vector<int>& on)
          : graph(all, by, on, [&](int s, const fake_queue& q) { return stage_on(q, of, s); }) {
        for (const auto& m : of.inputs) inputs.push_back(put(graph.queue_of(0, 0), m));
        for (const auto& m : of.targets) targets.push_back(put(graph.queue_of(0, by.stages - 1), m));
      }
      std::vector<double> step() {
        graph.step(inputs, targets, fake_loss);
        const auto found = graph.losses();
        return {found.begin(), found.end()};
      }
      void change() {
        for (int s = 0; s < 3; ++s)
          for (fake_tensor& p : graph.stage(0, s).parameters()) tensor_traits<fake_tensor>::scale(p, 0.75, graph.queue_of(0, s));
        for (auto& x : inputs) tensor_traits<fake_tensor>::scale(x, 1.5, graph.queue_of(0, 0));
        for (auto& y : targets) tensor_traits<fake_tensor>::scale(y, 1.25, graph.queue_of(0, 2));
      }
    };
    training captured(devices, t, order, places);
    std::vector<std::vector<double>> losses;
    for (int i = 0; i < 5; ++i) {
      losses.push_back(captured.step());
      captured.change();
    }
    for (std::size_t i = 0; i < 5; ++i) {
      training fresh(devices, t, order, places);
      for (std::size_t k = 0; k < i; ++k) fresh.change();
      CHECK(fresh.step() == losses[i]);
    }
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

TEST_CASE("arguments that change are taken up by an update of the graph, or where it has another form by a new one") {
  const task<double> t(4, {2, 1, 2}, 4);
  const auto order = one_f_one_b({3, 2, 1}, 4);
  cuda_check::machine machine({.seed = 8, .devices = 3});
  {
    fake_devices devices(cuda_check::api{&machine});
    struct training {
      step_graph graph;
      std::vector<fake_tensor> inputs[2], targets;
      training(fake_devices& all, const task<double>& of, const schedule& by)
          : graph(all, by, {0, 1, 2}, [&](int s, const fake_queue& q) { return stage_on(q, of, s); }) {
        for (auto& set : inputs)
          for (const auto& m : of.inputs) set.push_back(put(graph.queue_of(0, 0), m));
        for (auto& x : inputs[1]) tensor_traits<fake_tensor>::scale(x, 1.5, graph.queue_of(0, 0));
        for (const auto& m : of.targets) targets.push_back(put(graph.queue_of(0, 2), m));
      }
      /// A rate that changes in each step, and inputs that lie elsewhere, are arguments; a clipped loss is another form.
      void step(int i) {
        const double rate = 0.25 / (1 + i);
        const auto loss = [i](const fake_tensor& y, const fake_tensor& wanted, const fake_queue& q, double& value) {
          auto gradient = fake_loss(y, wanted, q, value);
          if (i == 5) tensor_traits<fake_tensor>::scale(gradient, 0.5, q);
          return gradient;
        };
        graph.arguments_changed();
        graph.step(inputs[i % 2], targets, loss, [rate](fake_stage& stage, const fake_queue& q) {
          auto gradients = stage.gradients();
          auto g = gradients.begin();
          for (fake_tensor& w : stage.parameters()) {
            fake_tensor& down = *g++;
            tensor_traits<fake_tensor>::scale(down, -rate, q);
            tensor_traits<fake_tensor>::add(w, down, q);
          }
        });
      }
      std::vector<double> found() {
        const auto losses = graph.losses();
        std::vector<double> all(losses.begin(), losses.end());
        for (int s = 0; s < 3; ++s) {
          const auto here = graph.queue_of(0, s).make_current();
          for (const fake_tensor& w : graph.stage(0, s).parameters()) {
            const auto m = download(graph.queue_of(0, s), w);
            all.insert(all.end(), m.data(), m.data() + m.rows() * m.columns());
          }
        }
        return all;
      }
    };
    training captured(devices, t, order);
    std::vector<std::size_t> in_use;
    std::vector<double> weights;
    for (int i = 0; i < 7; ++i) {
      captured.step(i);
      const auto so_far = captured.found();
      in_use.push_back(devices.memory(0).now_bytes + devices.memory(1).now_bytes + devices.memory(2).now_bytes);
      CHECK(machine.calls("cudaGraphExecUpdate") == static_cast<std::size_t>(std::max(i - 1, 0)));
      CHECK(machine.calls("cudaGraphInstantiate") == (i == 0 ? 0U : i < 5 ? 1U : static_cast<std::size_t>(i - 3)));
      // Steps that are never captured: of trainings that take over the parameters of the one before.
      training fresh(devices, t, order);
      if (i > 0) {
        const double* from = weights.data();
        for (int s = 0; s < 3; ++s) {
          const auto& q = fresh.graph.queue_of(0, s);
          const auto here = q.make_current();
          for (fake_tensor& w : fresh.graph.stage(0, s).parameters()) {
            matrix<double> m(w.rows(), w.columns());
            std::copy_n(from, w.size(), m.data());
            from += w.size();
            tensor_traits<fake_tensor>::assign(w, upload(q, m), q);
          }
        }
      }
      fresh.step(i);
      CHECK(fresh.found() == so_far);
      weights.assign(so_far.begin() + 4, so_far.end());
    }
    CHECK(in_use[6] == in_use[3]);             // each capture uses the memory of the one before
    machine.fail("cudaGraphExecUpdate", 910);  // and where CUDA refuses for reasons of its own
    captured.step(7);
    CHECK(captured.found().size() > 4);
    CHECK(machine.calls("cudaGraphInstantiate") == 4);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.leaks().empty());
}

namespace {
/// A layer whose parameter and gradient are members.
struct gain_stage {
  using context = const fake_tensor*;
  fake_tensor weight, gradient;
  explicit gain_stage(const fake_queue& q) : weight(upload(q, matrix<double>(1, 4))), gradient(upload(q, matrix<double>(1, 4))) {}
  fake_tensor forward(const fake_tensor& x, context& c, const fake_queue& q) {
    c = &x;
    return copy_of(x, q);
  }
  fake_tensor backward(const fake_tensor& dy, context&, const fake_queue& q) {
    kernel(q, "a gradient", {&dy}, {&gradient}, [to = gradient.data(), from = dy.data()](const auto& v) {
      for (std::size_t k = 0; k < 4; ++k) v.write(to)[k] += v.read(from)[k];
    });
    return copy_of(dy, q);
  }
  static fake_tensor copy_of(const fake_tensor& x, const fake_queue& q) {
    fake_tensor y(x.rows(), x.columns(), q);
    kernel(q, "a copy", {&x}, {&y}, [to = y.data(), from = x.data(), n = x.size()](const auto& v) {
      for (std::size_t k = 0; k < n; ++k) v.write(to)[k] = v.read(from)[k];
    });
    return y;
  }
  std::vector<std::reference_wrapper<fake_tensor>> parameters() { return {weight}; }
  std::vector<std::reference_wrapper<fake_tensor>> gradients() { return {gradient}; }
};
}  // namespace

TEST_CASE("gradients that are members of stages, and that other queues read between steps") {
  for (const int microbatches : {1, 3}) {
    cuda_check::machine machine({.seed = 6, .devices = 2, .lazy = true});
    {
      fake_devices devices(cuda_check::api{&machine});
      cuda_step_graph<fake_tensor, gain_stage, cuda_check::api> graph(devices, one_f_one_b({2, 1}, microbatches), {0, 1},
                                                                      [](int, const fake_queue& q) { return gain_stage(q); });
      const auto reader = devices.make_queue(0, "a reader");
      random_source random(3);
      std::vector<fake_tensor> inputs, targets;
      for (int m = 0; m < microbatches; ++m) {
        inputs.push_back(put(graph.queue_of(0, 0), random_matrix<double>(random, 1, 4)));
        targets.push_back(put(graph.queue_of(0, 1), random_matrix<double>(random, 1, 4)));
      }
      std::vector<std::vector<double>> seen;
      for (int i = 0; i < 4; ++i) {
        graph.step(inputs, targets, fake_loss);
        const auto here = reader.make_current();
        fake_tensor copy(1, 4, reader);
        tensor_traits<fake_tensor>::assign(copy, graph.stage(0, 0).gradient, reader);  // goes on while the next step begins
        if (i == 3) {
          const auto found = download(reader, copy);
          seen.emplace_back(found.data(), found.data() + 4);
          const auto there = graph.queue_of(0, 1).make_current();
          const auto last = download(graph.queue_of(0, 1), graph.stage(0, 1).gradient);
          seen.emplace_back(last.data(), last.data() + 4);
        }
      }
      CHECK(seen[0] == seen[1]);  // all layers pass the gradient on
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.leaks().empty());
  }
}

TEST_CASE("behind a capture that has failed all memory can be used and freed") {
  cuda_check::machine machine({.seed = 2, .devices = 2});
  {
    fake_devices devices(cuda_check::api{&machine});
    const task<double> t(1, {1, 1}, 2);
    const fake_queue host(devices);
    {
      step_graph graph(devices, one_f_one_b({2, 1}, 2), {0, 1}, [&](int s, const fake_queue& q) { return stage_on(q, t, s); });
      std::vector<fake_tensor> inputs, targets;
      for (std::size_t m = 0; m < 2; ++m) {
        inputs.push_back(upload(host, t.inputs[m]));
        targets.push_back(upload(host, t.targets[m]));
      }
      graph.step(inputs, targets, fake_loss);
      const auto spoils = [&](const fake_tensor& y, const fake_tensor& wanted, const fake_queue& q, double& value) {
        (void)machine.synchronize(q.stream());
        return fake_loss(y, wanted, q, value);
      };
      CHECK_THROWS_AS(graph.step(inputs, targets, spoils), cuda_error);
      CHECK(machine.reports() == std::vector<std::string>{"a wait of the host is captured"});
    }
    for (std::size_t m = 0; m < 2; ++m) (void)upload(host, t.inputs[m]);
  }
  const auto reports = machine.reports();
  for (std::size_t k = 1; k < reports.size(); ++k) CHECK(reports[k] == "a pool is destroyed with memory in use");
  for (const auto& l : machine.leaks()) CHECK(l.find("device memory") != std::string::npos);  // of the capture, which pools free
}

namespace {

using part_graph = cuda_step_graph<fake_tensor, fake_stage, cuda_check::api, nccl_ranks>;

/// Every rank's part over NCCL, on a thread and a device each: the last of `steps` steps. `before(rank, step, part)` is called
/// before each.
outcome_of_step<double> run_parts(fake_devices& devices, const std::vector<nccl_ranks>& ends, const task<double>& t,
                                  const schedule& order, int steps,
                                  const std::function<void(int, int, part_graph&)>& before = {}) {
  outcome_of_step<double> result;
  result.losses.assign(t.inputs.size(), 0);
  result.gradients.resize(order.rank_of.size());
  std::mutex guard;
  run_on_threads(ends, [&](nccl_ranks& end) {
    const int rank = end.rank();
    const auto made = std::make_unique<part_graph>(devices, order, end, rank, t.boundaries(),
                                                   [&](int s, const fake_queue& q) { return stage_on(q, t, s); });
    auto& part = *made;
    std::vector<fake_tensor> inputs, targets;
    const auto copies = stages_of_rank(order, rank);
    const auto& q = part.home();
    for (const auto& m : t.inputs) inputs.push_back(put(q, m));
    for (const auto& m : t.targets) targets.push_back(put(q, m));
    for (int i = 0; i < steps; ++i) {
      if (before) before(rank, i, part);
      part.step(inputs, targets, fake_loss);
      CHECK(part.is_captured() == (i > 0));
    }
    const auto losses = part.losses();
    const auto here = q.make_current();
    const std::lock_guard lock(guard);
    for (std::size_t m = 0; m < losses.size(); ++m) result.losses[m] += losses[m];
    for (const auto& c : copies) {
      auto& sums = result.gradients[static_cast<std::size_t>(c.direction * order.stages + c.stage)];
      for (const fake_tensor& g : part.stage(c.direction, c.stage).gradients()) sums.push_back(download(q, g));
    }
  });
  return result;
}

}  // namespace

TEST_CASE("[threads] ranks over NCCL capture their steps with the transfers, and have the bits of one device") {
  const auto order = one_f_one_b({2, 1}, 4);
  const task<double> t(1, {1, 1}, 4);
  cuda_check::machine machine({.seed = 1, .devices = 2});
  fake_nccl_world world(machine);
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto ends = connect_nccl(devices, world, 2);
    CHECK(run_parts(devices, ends, t, order, 4) == reference(t, order));
    CHECK(machine.calls("cudaGraphInstantiate") == 2);
    CHECK(machine.calls("cudaGraphLaunch") == 6);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
  CHECK(world.alive() == 0);
}

TEST_CASE(
    "[threads] random schedules captured over NCCL have the bits of one device, and no races, whoever has them captured again") {
  int ran = 0, both = 0, several = 0;
  for (int instance = 0; instance < 600 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    std::vector<int> layers;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(instance), layers, order.microbatches);
    const cuda_check::habits habits{.seed = static_cast<std::uint64_t>(instance) + 1,
                                    .devices = order.ranks,
                                    .most_turns_late = random.integer(0, 8),
                                    .lazy = random.integer(0, 1) == 0,
                                    .in_order = random.integer(0, 1) == 0,
                                    .launch_queue = random.integer(0, 1) == 0 ? std::size_t{32} : std::size_t{1024}};
    const int steps = random.integer(2, 4), again = random.integer(0, 4), who = random.integer(0, order.ranks - 1);
    const auto records = static_cast<std::size_t>(random.integer(1, habits.launch_queue > 32 ? 16 : 2));
    cuda_check::machine machine(habits);
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = records});
      try {
        const auto changes = [&](int rank, int step, part_graph& part) {
          if (rank == who && step == again) part.arguments_changed();
        };
        const auto done = run_parts(devices, connect_nccl(devices, world, order.ranks), t, order, steps, changes);
        CHECK(done == reference(t, order));
        CHECK(machine.calls("cudaGraphInstantiate") == static_cast<std::size_t>(order.ranks));  // updates are not refused
        CHECK(machine.calls("cudaGraphExecUpdate") == static_cast<std::size_t>(again > 1 && again < steps ? order.ranks : 0));
        ++ran;
        both += order.directions == 2;
        several += order.stages > order.ranks;
      } catch (const input_error& e) {
        const std::string what = e.what();
        CAPTURE(what);
        const bool staged = what.find("by way of the host") != std::string::npos;
        CHECK((staged || what.find("no order in which all ranks") != std::string::npos));
      }
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    for (const auto& l : machine.leaks()) FAIL_CHECK(l);
    CHECK(world.alive() == 0);
  }
  CHECK(ran >= 200 / sanitizer_share);
  CHECK(both > 20 / sanitizer_share);
  CHECK(several > (sanitizer_share > 1 ? 0 : 20));
}

TEST_CASE("[threads] over NCCL no rank has more than two graphs under way, so that one that waits for its own is not late") {
  const auto order = one_f_one_b({2, 1}, 2);
  const task<double> t(1, {1, 1}, 2);
  cuda_check::machine machine({.seed = 1, .devices = 2});
  fake_nccl_world world(machine);
  std::atomic<bool> is_open = false;
  std::size_t launched = 0;
  std::jthread opens;
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto done =
        run_parts(devices, connect_nccl(devices, world, 2), t, order, 12, [&](int rank, int step, part_graph& part) {
          if (rank != 0 || step != 2) return;
          const auto here = part.home().make_current();
          const auto gate = [&] { return [&](bool&) { return is_open.load(); }; };
          CHECK(machine.launch_meeting(part.home().stream(), "a gate", {}, nullptr, gate) == 0);
          opens = std::jthread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            launched = machine.calls("cudaGraphLaunch");
            is_open = true;
          });
        });
    opens.join();
    CHECK(done == reference(t, order));
  }
  CHECK(launched <= 2 * (1 + 2));  // that of step 1, which is done, and two more
  CHECK(machine.calls("cudaGraphLaunch") == 2 * 11);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("[threads] a rank that is lost while graphs are under way ends the steps of all, and no graph holds what is aborted") {
  const auto order = one_f_one_b({3, 2, 1}, 4);
  const task<double> t(1, {1, 1, 1}, 4);
  // With few records a rank waits in the midst of a launch, and sees there that another one is lost.
  for (const auto& [seen, records] : {std::pair(true, 64), {true, 1}, {false, 64}, {false, 2}}) {
    CAPTURE(seen);
    CAPTURE(records);
    cuda_check::machine machine({.seed = 4, .devices = 3});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = static_cast<std::size_t>(records)});
      const auto ends = connect_nccl(devices, world, 3, {.deadline_s = 30, .step_deadline_s = seen ? 300 : 1.0});
      std::string text;
      try {
        (void)run_parts(devices, ends, t, order, 6, [&](int rank, int step, part_graph&) {
          if (rank == 1 && step == 3) world.kill(1, seen, -1);
        });
      } catch (const error& e) {
        text = e.what();
      }
      CAPTURE(text);
      const auto tells = [&](const char* part) { return text.find(part) != std::string::npos; };
      // On a loaded machine a rank may be late before another one is lost.
      CHECK((seen ? tells("remote process exited") : tells("has not been done for 1.") || tells("do not come to the step")));
      CHECK(!ends[0].failure().empty());
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(world.alive() == 0);
  }
}

TEST_CASE("[threads] what a rank's part cannot do over NCCL is refused, and ends the others") {
  const auto order = one_f_one_b({2, 1}, 2);
  const task<double> t(1, {1, 1}, 2);
  cuda_check::machine machine({.devices = 2});
  fake_nccl_world world(machine);
  fake_devices devices(cuda_check::api{&machine});
  const auto make = [&](int s, const fake_queue& q) { return stage_on(q, t, s); };
  const auto ends = connect_nccl(devices, world, 2);
  CHECK_THROWS_WITH_AS(part_graph(devices, one_f_one_b({3, 2, 1}, 2), ends[0], 0, t.boundaries(), make),
                       "2 ranks are not those of the schedule, 3", input_error);
  CHECK_THROWS_WITH_AS(part_graph(devices, order, ends[0], 0, {}, make), "0 boundaries are not those of 2 stages", input_error);
  CHECK_THROWS_WITH_AS(part_graph(devices, order, ends[0], -1, t.boundaries(), make),
                       "rank 0 is on the host, and a CUDA graph is of GPUs", input_error);
  // One rank's loss waits for the host where it is captured.
  try {
    run_on_threads(ends, [&](nccl_ranks& end) {
      part_graph part(devices, order, end, end.rank(), t.boundaries(), make);
      const auto& q = part.home();
      std::vector<fake_tensor> inputs, targets;
      for (const auto& m : t.inputs) inputs.push_back(put(q, m));
      for (const auto& m : t.targets) targets.push_back(put(q, m));
      for (int i = 0; i < 3; ++i)
        part.step(inputs, targets, [&](const fake_tensor& y, const fake_tensor& wanted, const fake_queue& on, double& value) {
          if (i == 1) on.finish();
          return fake_loss(y, wanted, on, value);
        });
      (void)part.losses();
    });
    FAIL_CHECK("the wait was not refused");
  } catch (const error& e) {
    const std::string what = e.what();
    CHECK(what.find("captured in a CUDA graph, is waited for by the host") != std::string::npos);
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
}

TEST_CASE("what is captured in no order is found: transfers that do not wait for what they take, or nobody waits for") {
  const task<double> t(9, {1, 1, 1}, 4);
  const auto order = one_f_one_b({3, 2, 1}, 4);
  for (const auto m : {mistake::none, mistake::no_begin_read, mistake::no_end_read, mistake::no_end_write}) {
    cuda_check::machine machine({.seed = 2, .devices = 3});
    bool found = false;
    {
      fake_devices devices(cuda_check::api{&machine});
      step_graph graph(devices, order, {0, 1, 2}, [&](int s, const fake_queue& q) { return stage_on(q, t, s); });
      std::vector<fake_tensor> inputs, targets;
      for (std::size_t k = 0; k < t.inputs.size(); ++k) {
        inputs.push_back(put(graph.queue_of(0, 0), t.inputs[k]));
        targets.push_back(put(graph.queue_of(0, 2), t.targets[k]));
      }
      graph.step(inputs, targets, fake_loss);
      (void)graph.losses();
      CHECK(machine.reports().empty());
      planted = m;
      try {
        graph.step(inputs, targets, fake_loss);
      } catch (const input_error&) {
        found = true;  // a mark of what was captured is left
      }
      planted = mistake::none;
      if (!found) (void)graph.losses();
    }
    CAPTURE(static_cast<int>(m));
    CHECK((found || !machine.reports().empty()) == (m != mistake::none));
  }
}

TEST_CASE("what a captured step cannot do is refused") {
  const task<double> t(1, {1, 1}, 2);
  const auto order = one_f_one_b({2, 1}, 2);
  cuda_check::machine machine({.devices = 2});
  fake_devices devices(cuda_check::api{&machine});
  const auto make = [&](int s, const fake_queue& q) { return stage_on(q, t, s); };
  CHECK_THROWS_WITH_AS(step_graph(devices, order, {0, -1}, make), "rank 1 is on the host, and a CUDA graph is of GPUs",
                       input_error);
  CHECK_THROWS_WITH_AS(step_graph(devices, order, {0}, make), "1 places are not those of 2 ranks", input_error);
  CHECK_THROWS_WITH_AS(step_graph(devices, order, {0, 2}, make), "there is no device 2 among 2", input_error);
  step_graph graph(devices, order, {0, 1}, make);
  const auto here = graph.queue_of(0, 0).make_current();
  std::vector<fake_tensor> inputs, targets;
  for (const auto& m : t.inputs) inputs.push_back(upload(graph.queue_of(0, 0), m));
  const auto there = graph.queue_of(0, 1).make_current();
  for (const auto& m : t.targets) targets.push_back(upload(graph.queue_of(0, 1), m));
  CHECK_THROWS_WITH_AS(graph.step(std::span(inputs).first(1), targets, fake_loss),
                       "a step needs one input and one target per microbatch", input_error);
  graph.step(inputs, targets, fake_loss);
  const auto waits = [](const fake_tensor& y, const fake_tensor& wanted, const fake_queue& q, double& value) {
    q.finish();
    return fake_loss(y, wanted, q, value);
  };
  CHECK_THROWS_WITH_AS(
      graph.step(inputs, targets, waits),
      "rank 1's computations, captured in a CUDA graph, is waited for by the host: a graph is of the work of its "
      "own queues",
      input_error);
  // A graph that was to be captured again is none: neither what it did before nor a part of the step.
  step_graph again(devices, order, {0, 1}, make), fresh(devices, order, {0, 1}, make);
  const auto losses_of = [&](step_graph& of) {
    of.step(inputs, targets, fake_loss);
    const auto found = of.losses();
    return std::vector<double>(found.begin(), found.end());
  };
  for (int i = 0; i < 2; ++i) CHECK(losses_of(again) == reference(t, order).losses);
  again.arguments_changed();
  CHECK_THROWS_AS(again.step(inputs, targets, waits), input_error);
  CHECK_FALSE(again.is_captured());
  for (auto& x : inputs) tensor_traits<fake_tensor>::scale(x, 0.5, graph.queue_of(0, 0));
  CHECK(losses_of(again) == losses_of(fresh));
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}
