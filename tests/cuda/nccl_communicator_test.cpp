// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cuda/nccl_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/text.hpp>

#include "../sanitizer_share.hpp"
#include "../schedule/random_schedule.hpp"
#include "fake_layers.hpp"
#include "fake_nccl.hpp"
#include "grouped_task.hpp"
#include "nccl_ranks.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(communicator<nccl_ranks, fake_tensor>);
static_assert(ordered_plane<nccl_ranks>);
static_assert(!ordered_plane<cuda_local_communicator<fake_tensor, cuda_check::api>>);

TEST_CASE("[threads] two ranks over NCCL have the bits of one device") {
  const auto order = one_f_one_b({2, 1}, 4);
  const task<double> t(1, {1, 1}, 4);
  cuda_check::machine machine({.seed = 1, .devices = 2});
  fake_nccl_world world(machine);
  {
    fake_devices devices(cuda_check::api{&machine});
    const auto ends = connect_nccl(devices, world, 2);
    CHECK(machine.calls("cudaStreamCreateWithPriority") == 2);
    CHECK(run_on_fake<false>(devices, ends, {0, 1}, t, order, {.deadline_s = 20}, 2) == reference(t, order));
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(machine.blocks_alive() == 0);
  CHECK(world.alive() == 0);
}

TEST_CASE("[threads] random schedules over NCCL have the bits of one device, and no races") {
  int ran = 0, refused = 0, both = 0;
  for (int instance = 0; instance < 300 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto order = random_schedule(random, {.swaps = instance % 2 == 0});
    check_options how;
    how.semantics = {send_semantics::rendezvous};
    const bool fits = check(order, how).empty();
    how.semantics = {send_semantics::buffered};
    if (!check(order, how).empty()) continue;
    const std::string text = to_csv(order);
    CAPTURE(text);
    std::vector<int> layers;
    for (int s = 0; s < order.stages; ++s) layers.push_back(random.integer(1, 2));
    const task<double> t(static_cast<std::uint64_t>(instance), layers, order.microbatches);
    const bool in_order = random.integer(0, 1) == 0, is_short = random.integer(0, 1) == 0;
    cuda_check::machine machine({.seed = static_cast<std::uint64_t>(random.integer(1, 1 << 30)),
                                 .devices = order.ranks,
                                 .most_turns_late = random.integer(0, 8),
                                 .lazy = random.integer(0, 1) == 0,
                                 .in_order = in_order,
                                 .launch_queue = is_short ? std::size_t{32} : std::size_t{1024}});
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    executor_options options{.deadline_s = 20};
    if (fits && random.integer(0, 3) == 0) options.semantics = send_semantics::rendezvous;
    const auto places = numbered_places(order.ranks);
    {
      fake_devices devices(cuda_check::api{&machine},
                           {.records = static_cast<std::size_t>(random.integer(1, is_short ? 2 : 16))});
      try {
        const auto done = run_on_fake<false>(devices, connect_nccl(devices, world, order.ranks), places, t, order, options, 2);
        CHECK(done == reference(t, order));
        ++ran;
        both += order.directions == 2;
      } catch (const input_error& e) {
        const std::string what = e.what();
        CAPTURE(what);
        const bool staged = what.find("by way of the host") != std::string::npos;
        const bool cyclic = what.find("no order in which all ranks") != std::string::npos;
        CHECK((staged || (cyclic && !fits)));
        ++refused;
      }
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.blocks_alive() == 0);
    CHECK(world.alive() == 0);
  }
  CHECK(ran > 100 / sanitizer_share);
  CHECK(both > 20 / sanitizer_share);
  CHECK(refused > 40 / sanitizer_share);
}

TEST_CASE("[threads] no schedule of the library hangs over NCCL on devices that work in order, with short launch queues") {
  for (const auto name : share_of(schedule_names())) {
    CAPTURE(name);
    constexpr int ranks = 4;
    const pipeline p{.forward_s = std::vector<double>(ranks, 1),
                     .backward_s = std::vector<double>(ranks, 2),
                     .transfer_s = std::vector<double>(ranks - 1, 0.5)};
    const auto order = build_schedule(name, p, 8);
    const task<double> t(5, std::vector<int>(static_cast<std::size_t>(order.stages), 1), 8);
    for (const bool lazy : {false, true}) {
      cuda_check::machine machine({.seed = 11, .devices = ranks, .lazy = lazy, .in_order = true, .launch_queue = 32});
      fake_nccl_world world(machine);
      {
        fake_devices devices(cuda_check::api{&machine}, {.records = 2});
        CHECK(run_on_fake<false>(devices, connect_nccl(devices, world, ranks), numbered_places(ranks), t, order,
                                 {.deadline_s = 20}, 2) == reference(t, order));
      }
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(world.alive() == 0);
    }
  }
}

TEST_CASE("[threads] the timeline of a step has transfers where the devices made them, not where they were enqueued") {
  constexpr double work_s = 5e-3, clocks_differ_s = 10e-3;
  const auto order = one_f_one_b({3, 2, 1}, 4);
  const task<double> t(1, {1, 1, 1}, 4);
  cuda_check::machine machine({.seed = 5, .devices = 3, .work_s = work_s});
  fake_nccl_world world(machine);
  fake_devices devices{cuda_check::api{&machine}};
  std::vector<timeline> measured(3);
  (void)run_on_fake<false>(devices, connect_nccl(devices, world, 3), {0, 1, 2}, t, order, {.deadline_s = 20}, 2, &measured);
  const auto find = [&](int rank, action_kind kind, int m) {
    for (const auto& a : measured[static_cast<std::size_t>(rank)].actions)
      if (a.what.kind == kind && a.what.microbatch == m) return a;
    FAIL("nothing of the kind");
    return timed_action{};
  };
  using enum action_kind;
  for (int m = 0; m < 4; ++m)
    for (const auto& [from, to, made, sent, received] : {std::tuple(0, 1, forward, send_activation, receive_activation),
                                                         std::tuple(1, 2, forward, send_activation, receive_activation),
                                                         std::tuple(2, 1, backward, send_gradient, receive_gradient),
                                                         std::tuple(1, 0, backward, send_gradient, receive_gradient)}) {
      CAPTURE(m);
      CAPTURE(from);
      CAPTURE(to);
      const auto leaves = find(from, sent, m), comes = find(to, received, m);
      CHECK(leaves.start_s >= find(from, made, m).end_s - clocks_differ_s);
      CHECK(leaves.end_s >= leaves.start_s);
      CHECK(comes.end_s >= leaves.start_s - clocks_differ_s);
      CHECK(comes.end_s <= find(to, made, m).start_s + clocks_differ_s);
    }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
}

TEST_CASE("[threads] stages on groups of devices over NCCL have the bits of groups of threads, and no races") {
  for (int instance = 0; instance < 60 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto t = random_task(random, static_cast<std::uint64_t>(instance) + 1);
    cuda_check::machine machine({.seed = static_cast<std::uint64_t>(instance) + 1,
                                 .devices = t.ranks(),
                                 .lazy = random.integer(0, 1) == 0,
                                 .in_order = random.integer(0, 1) == 0,
                                 .launch_queue = 64});
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 2});
      CHECK(on_fake(t, devices, connect_nccl(devices, world, t.ranks()), numbered_places(t.ranks())) == on_host(t));
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.blocks_alive() == 0);
    CHECK(world.alive() == 0);
  }
}

namespace {

/// 1F1B on four devices; what the step throws, empty: nothing.
std::string error_of(cuda_check::machine& machine, fake_nccl_world& world, const executor_options& how,
                     const nccl_options& options, const std::function<void()>& between, double* took_s = nullptr,
                     std::size_t records = 4) {
  const auto order = one_f_one_b({4, 3, 2, 1}, 8);
  const task<double> t(1, {1, 1, 1, 1}, 8);
  fake_devices devices(cuda_check::api{&machine}, {.records = records});
  auto ends = connect_nccl(devices, world, 4, options);
  CHECK(run_on_fake<false>(devices, ends, numbered_places(4), t, order, {.deadline_s = 20}, 1) == reference(t, order));
  between();
  const double start_s = steady_now_s();
  try {
    (void)run_on_fake<false>(devices, ends, numbered_places(4), t, order, how, 2);
  } catch (const error& e) {
    if (took_s) *took_s = steady_now_s() - start_s;
    CHECK(!ends[0].failure().empty());
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("[threads] calls of NCCL that fail end the step of every rank with one clear error") {
  for (const std::string call : {"ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd", "ncclCommGetAsyncError"})
    for (const int after : {0, 20}) {
      CAPTURE(call);
      CAPTURE(after);
      cuda_check::machine machine({.seed = 2, .devices = 4});
      fake_nccl_world world(machine);
      const auto text = error_of(machine, world, {.deadline_s = 20}, {}, [&] { world.fail(call, 3, after); });
      CAPTURE(text);
      CHECK(text.find("for ranks ") != std::string::npos);
      CHECK(text.find("an error of the fake (3)") != std::string::npos);
      CHECK(world.alive() == 0);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
    }
}

TEST_CASE("[threads] a communicator that cannot be made ends all ranks with one clear error") {
  for (const std::string call : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    CAPTURE(call);
    cuda_check::machine machine({.seed = 2, .devices = 3});
    fake_nccl_world world(machine);
    world.fail(call, 2, call == "ncclGetUniqueId" ? 0 : 1);  // the ranks of one set have one id
    {
      fake_devices devices(cuda_check::api{&machine});
      const auto order = one_f_one_b({3, 2, 1}, 4);
      const task<double> t(1, {1, 1, 1}, 4);
      try {
        (void)run_on_fake<false>(devices, connect_nccl(devices, world, 3), {0, 1, 2}, t, order, {.deadline_s = 20}, 1);
        FAIL_CHECK("the failure was not told");
      } catch (const nccl_error& e) {
        CHECK(e.call == call);
        CHECK(e.code == 2);
      }
    }
    CHECK(world.alive() == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("[threads] a communicator that cannot be destroyed is an error, and none is ended twice") {
  for (const int after : {0, 1, 2}) {
    CAPTURE(after);
    cuda_check::machine machine({.seed = 2, .devices = 3});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine});
      auto ends = connect_nccl(devices, world, 3);
      const auto order = one_f_one_b({3, 2, 1}, 4);
      const task<double> t(1, {1, 1, 1}, 4);
      CHECK(run_on_fake<false>(devices, ends, {0, 1, 2}, t, order, {.deadline_s = 20}, 1) == reference(t, order));
      world.fail("ncclCommDestroy", 3, after);
      try {
        run_on_threads(std::move(ends), [](nccl_ranks& end) { end.close(); });
        FAIL_CHECK("the failure was not told");
      } catch (const nccl_error& e) {
        CHECK(e.call == "ncclCommDestroy");
        CHECK(e.code == 3);
      }
    }
    CHECK(world.alive() == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("[threads] a device that is lost ends the step of every rank with one clear error") {
  for (const int device : {0, 1, 2, 3})
    for (const bool lazy : {false, true}) {
      CAPTURE(device);
      CAPTURE(lazy);
      cuda_check::machine machine({.seed = 3, .devices = 4, .lazy = lazy});
      fake_nccl_world world(machine);
      double took_s = 0;
      const auto text = error_of(
          machine, world, {.deadline_s = 20}, {}, [&] { world.kill(device, true, 3 + 2 * device); }, &took_s);
      CAPTURE(text);
      CHECK(text.find(", step 0: ") != std::string::npos);
      CHECK(text.find(" failed for ranks ") != std::string::npos);
      CHECK(text.find("remote process exited (6)") != std::string::npos);
      CHECK(took_s < 10);
      CHECK(world.alive() == 0);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
    }
}

TEST_CASE("[threads] a device that is stuck ends the step of every rank at the deadline") {
  constexpr double deadline_s = sanitizer_slowdown;
  for (const auto& [device, records] : {std::pair(0, std::size_t{64}), std::pair(3, std::size_t{1})}) {
    CAPTURE(device);
    cuda_check::machine machine({.seed = 4, .devices = 4});
    fake_nccl_world world(machine);
    double took_s = 0;
    const auto kill = [&, d = device] { world.kill(d, false, 3); };
    const auto text = error_of(machine, world, {.deadline_s = deadline_s}, {.deadline_s = deadline_s}, kill, &took_s, records);
    CAPTURE(text);
    CHECK(text.find("for " + std::to_string(deadline_s)) != std::string::npos);
    CHECK(text.find("of stage ") != std::string::npos);
    CHECK(took_s > 0.5 * deadline_s);
    CHECK(took_s < 5 * deadline_s);
    CHECK(world.alive() == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("[threads] a rank that throws ends the step of every rank, and its error is the one that is told") {
  // Where the launch queue is short, the calls of CUDA themselves wait for transfers that do not come.
  for (const auto& [records, queue] : {std::pair(std::size_t{1}, std::size_t{1021}), {64, 1021}, {64, 4}, {1, 4}}) {
    CAPTURE(records);
    CAPTURE(queue);
    const auto order = one_f_one_b({3, 2, 1}, 6);
    const task<double> t(1, {1, 1, 1}, 6);
    cuda_check::machine machine({.seed = 5, .devices = 3, .launch_queue = queue});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = records});
      auto ends = connect_nccl(devices, world, 3);
      std::vector<std::string> texts(3);
      run_on_threads(ends, [&](nccl_ranks& end) {
        const auto r = static_cast<std::size_t>(end.rank());
        cuda_backend<cuda_check::api> own(devices, end.rank(), "rank");
        const auto bound = own.bind();
        const auto q = own.compute_queue();
        std::vector<fake_stage> stages;
        stages.push_back(stage_on(q, t, end.rank()));
        std::vector<fake_tensor> inputs, targets;
        for (const auto& m : t.inputs) inputs.push_back(upload(q, m));
        for (const auto& m : t.targets) targets.push_back(upload(q, m));
        pipeline_executor<fake_tensor, fake_stage, nccl_ranks, no_stager, cuda_backend<cuda_check::api>> executor(
            order, std::span(stages), t.boundaries(), end, {.deadline_s = 20}, {}, own);
        int calls = 0;
        const auto loss = [&](const fake_tensor& y, const fake_tensor& target, const fake_queue& on, double& value) {
          if (++calls == 3) throw std::runtime_error("the loss is not to be had");
          return fake_loss(y, target, on, value);
        };
        try {
          executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), loss);
        } catch (const std::exception& e) {
          texts[r] = e.what();
        }
      });
      for (const auto& text : texts) {
        CAPTURE(text);
        CHECK(text.find("the loss is not to be had") != std::string::npos);
      }
    }
    CHECK(world.alive() == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("[threads] no rank begins before all are connected, whoever has done so first") {
  // Ranks 1 and 2 have transferred to each other while rank 0 has not yet said what it transfers.
  cuda_check::machine machine({.seed = 5, .devices = 3});
  fake_nccl_world world(machine);
  std::atomic<int> connected = 0, early = 0;
  world.before_calls = [&, calls = std::make_shared<std::atomic<int>>(0)](int device) {
    if (device != 0 || calls->fetch_add(1) > 0) return;
    for (int k = 0; k < 100 && connected == 0; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    early = connected.load();
  };
  {
    fake_devices devices(cuda_check::api{&machine});
    run_on_threads(connect_nccl(devices, world, 3), [&](nccl_ranks& end) {
      communication_plan plan(1);
      for (const int peer : {end.rank() - 1, end.rank() + 1})
        if (peer >= 0 && peer < 3)
          plan[0].push_back({.channel = end.open({std::min(peer, end.rank()), std::max(peer, end.rank())}),
                             .sends = peer > end.rank(),
                             .what = {},
                             .bytes = 8});
      end.set_plan(plan);
      ++connected;
    });
  }
  CHECK(early == 0);
  CHECK(connected == 3);
}

TEST_CASE("every missing wait of a queue over NCCL is caught") {
  const auto order = one_f_one_b({6, 4, 2}, 10);
  const task<double> t(3, {1, 1, 1}, 10);
  int found = 0;
  for (int stream = -1; stream < 12; stream += sanitizer_share) {  // of three devices, three of transfers, six of ranks
    CAPTURE(stream);
    cuda_check::machine machine({.seed = 7, .devices = 3, .lazy = true, .deaf_stream = stream});
    fake_nccl_world world(machine);
    {
      fake_devices devices(cuda_check::api{&machine});
      (void)run_on_fake<false>(devices, connect_nccl(devices, world, 3), {0, 1, 2}, t, order, {.deadline_s = 20}, 2);
    }
    if (machine.calls("dropped") == 0) {
      CHECK(machine.reports().empty());
      continue;
    }
    ++found;
    CHECK(!machine.reports().empty());
  }
  CHECK(found >= 6 / sanitizer_share);
}

TEST_CASE("every mark that is left out is caught over NCCL") {
  const auto order = one_f_one_b({6, 4, 2}, 10);
  const task<double> t(3, {1, 1, 1}, 10);
  for (const auto m : {mistake::no_begin_read, mistake::no_end_read, mistake::no_end_write, mistake::unmarked}) {
    CAPTURE(static_cast<int>(m));
    cuda_check::machine machine({.seed = 8, .devices = 3, .lazy = true});
    fake_nccl_world world(machine);
    planted = m;
    {
      fake_devices devices(cuda_check::api{&machine});
      (void)run_on_fake<false>(devices, connect_nccl(devices, world, 3), {0, 1, 2}, t, order, {.deadline_s = 20}, 2);
    }
    planted = mistake::none;
    CHECK(!machine.reports().empty());
  }
}

namespace {

/// What set_plan says on some rank, where each rank opens its edges and plans one transfer of each, one behind the other; then
/// all post theirs, and wait.
struct small_transfer {
  edge where;
  std::size_t bytes = 8;
};
std::string error_of_plans(const std::vector<std::vector<small_transfer>>& plans, bool grouped = false, double deadline_s = 20) {
  cuda_check::machine machine({.seed = 9, .devices = static_cast<int>(plans.size())});
  fake_nccl_world world(machine);
  fake_devices devices(cuda_check::api{&machine});
  try {
    run_on_threads(connect_nccl(devices, world, static_cast<int>(plans.size()), {.deadline_s = deadline_s}),
                   [&](nccl_ranks& end) {
                     const auto& own = plans[static_cast<std::size_t>(end.rank())];
                     static_cast<void>(devices.api().set_device(end.rank()));
                     const auto q = devices.make_queue(end.rank(), "tensors");
                     communication_plan plan;
                     std::vector<int> channels;
                     std::vector<fake_tensor> tensors;
                     for (const auto& [where, bytes] : own) {
                       channels.push_back(end.open(where));
                       if (!grouped || plan.empty()) plan.emplace_back();
                       plan.back().push_back({channels.back(), where.from == end.rank(), {.what = where.what}, bytes});
                       tensors.push_back(tensor_traits<fake_tensor>::make({1, bytes / 8}, q));
                     }
                     end.set_plan(plan);
                     const auto ops = std::make_unique<nccl_ranks::operation[]>(own.size());
                     for (std::size_t k = 0; k < own.size(); ++k)
                       if (own[k].where.from == end.rank())
                         end.post_send(channels[k], {.what = own[k].where.what}, tensors[k], ops[k]);
                       else
                         end.post_receive(channels[k], {.what = own[k].where.what}, tensors[k], ops[k]);
                     end.close();
                   });
  } catch (const error& e) {
    return e.what();
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
  return {};
}

}  // namespace

TEST_CASE("[threads] plans that do not fit each other are refused, and those that cannot be carried out end at the deadline") {
  const edge a{.from = 0, .to = 1}, b{.from = 1, .to = 0, .what = payload::gradient};
  const auto differ = std::string("ranks 0 and 1 have planned different transfers");
  CHECK(error_of_plans({{{a}, {b}}, {{a}, {b}}}).empty());
  CHECK(error_of_plans({{{a}, {b}}, {{b}, {a}}}, true).empty());
  CHECK(error_of_plans({{{a}, {b}}, {{b}, {a}}}).find(differ) != std::string::npos);  // each sends first
  CHECK(error_of_plans({{{a, 8}}, {{a, 16}}}).find(differ) != std::string::npos);     // another size
  CHECK(error_of_plans({{{a}, {b}}, {{a}}}).find(differ) != std::string::npos);       // one is missing
  CHECK(error_of_plans({{{a}}, {}}).find(differ) != std::string::npos);
  // Each pair agrees, but every rank sends before it receives.
  const edge c{.from = 1, .to = 2}, d{.from = 2, .to = 0};
  const auto text = error_of_plans({{{a}, {d}}, {{c}, {a}}, {{d}, {c}}}, false, 0.5);
  CAPTURE(text);
  CHECK(text.find("has not been done") != std::string::npos);
  CHECK(error_of_plans({{{a}, {d}}, {{a}, {c}}, {{c}, {d}}}).empty());
}

TEST_CASE("[threads] groups of many transfers are cut alike at both ends") {
  std::vector<small_transfer> all;
  for (int k = 0; k < 400; ++k) all.push_back({{.from = 0, .to = 1, .stage = k}});
  for (int k = 0; k < 400; ++k) all.push_back({{.from = 1, .to = 0, .stage = k}});
  CHECK(error_of_plans({all, all}, true).empty());
}

namespace {

/// Ranks in a row of which neighbours transfer both ways, and each two of which, from an even one, call collectives; how long it
/// took them to connect, and what was made.
struct connected_row {
  double took_s = 0;
  std::vector<std::pair<int, nccl_link>> made;
  std::size_t groups = 0;             ///< of NCCL, for first transfers and for one each way
  std::size_t inits = 0, splits = 0;  ///< calls of all ranks
  std::string error;                  ///< why they did not
};
/// `split_s`: how long a split takes; below 0: a tenth of `creation_s`.
connected_row connect_row(int ranks, double creation_s, const nccl_options& options = {}, double split_s = -1) {
  cuda_check::machine machine({.seed = 21, .devices = ranks});
  fake_nccl_world world(machine, {.creation_s = creation_s, .split_s = split_s < 0 ? creation_s / 10 : split_s});
  fake_devices devices(cuda_check::api{&machine});
  std::vector<double> took_s(static_cast<std::size_t>(ranks));
  const auto connects = [&](nccl_ranks& end) {
    const int r = end.rank();
    static_cast<void>(devices.api().set_device(r));
    const auto q = devices.make_queue(r, "tensors");
    const nccl_ranks::axis axis(end, {r / 2 * 2, r / 2 * 2 + 1});
    communication_plan plan;
    std::vector<std::tuple<int, bool, fake_tensor>> all;
    // To the right, then to the left: what a rank receives and what it sends on is one group.
    for (const int way : {1, -1}) {
      plan.emplace_back();
      for (const bool sends : {false, true}) {
        const int from = sends ? r : r - way, to = sends ? r + way : r;
        if (std::min(from, to) < 0 || std::max(from, to) >= ranks) continue;
        const int channel = end.open({.from = from, .to = to});
        plan.back().push_back({channel, sends, {}, 8});
        all.emplace_back(channel, sends, tensor_traits<fake_tensor>::make({1, 1}, q));
        tensor_traits<fake_tensor>::zero(std::get<2>(all.back()), q);
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    end.set_plan(plan);
    took_s[static_cast<std::size_t>(r)] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto ops = std::make_unique<nccl_ranks::operation[]>(all.size());
    for (std::size_t k = 0; k < all.size(); ++k) {
      auto& [channel, sends, tensor] = all[k];
      sends ? end.post_send(channel, {}, tensor, ops[k]) : end.post_receive(channel, {}, tensor, ops[k]);
    }
    axis.all_reduce(std::get<2>(all.front()), q);
    q.finish();
    end.close();
  };
  std::string error;
  try {
    run_on_threads(connect_nccl(devices, world, ranks, options), connects);
  } catch (const hetsched::error& e) {
    error = e.what();
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
  return {*std::max_element(took_s.begin(), took_s.end()),
          world.made(),
          world.calls("ncclGroupEnd"),
          world.calls("ncclCommInitRankConfig"),
          world.calls("ncclCommSplit"),
          error};
}

}  // namespace

TEST_CASE("[threads] 32 ranks connect within 10 s where a communicator takes one") {
  const auto row = connect_row(32, 1);
  CAPTURE(row.took_s);
  CHECK(row.error == "");
  CHECK(row.took_s < 10 * sanitizer_slowdown);
  CHECK(row.made.size() == 18);  // one for all transfers, one for each two, and the one that they are split off
  CHECK(row.groups == 3 * 32);   // a rank receives and sends on at once
  CHECK(row.inits == 32);        // of one communicator
  CHECK(row.splits == 2 * 32);   // all transfers, and all groups at once
  std::size_t narrow = 0;
  for (const auto& [ranks, link] : row.made) {
    CHECK((ranks == 2 || ranks == 32));
    CHECK((link.most_channels == 0 || ranks == 32));
    narrow += link.most_channels == 4;
  }
  CHECK(narrow == 1);
  const auto apart = connect_row(32, 0.1, {.splits = false});
  CHECK(apart.made.size() == 17);
  CHECK(apart.inits == 2 * 32);
  CHECK(apart.splits == 0);
}

TEST_CASE("[threads] pairs of ranks with links of their own have communicators of their own, made side by side") {
  constexpr double creation_s = 0.2;
  const auto own_link = [](int a, int) {
    return nccl_link{.network = a % 2 == 0 ? "even" : "odd", .least_channels = 1, .most_channels = 2};
  };
  const auto row = connect_row(8, creation_s, {.link = own_link});
  CHECK(row.made.size() == 7 + 4);
  CHECK(row.took_s > 3 * creation_s);  // two rounds of pairs, and one of groups
  CHECK(row.groups == 2 * (7 + 14));
  std::size_t even = 0, odd = 0;
  for (const auto& [ranks, link] : row.made) even += link.network == "even", odd += link.network == "odd";
  CHECK(even == 4);
  CHECK(odd == 3);
  const auto all_alike = connect_row(8, 0, {.link = [](int, int) { return nccl_link{.network = "the one"}; }});
  CHECK(all_alike.made.size() == 1 + 4);
  CHECK(row.splits == 0);
  CHECK(connect_row(4, 5, {.connect_s = 0.3}).error.find("ncclCommInitRankConfig has not ended for ranks") != std::string::npos);
  // A split that is late writes what it makes when it is aborted.
  CHECK(connect_row(4, 0, {.connect_s = 0.3}, 5).error.find("ncclCommSplit has not ended for ranks") != std::string::npos);
}

TEST_CASE("[threads] later plans use the communicator that has both ranks, and none is made in its place") {
  constexpr int ranks = 4;
  cuda_check::machine machine({.seed = 22, .devices = ranks});
  fake_nccl_world world(machine, {});
  fake_devices devices(cuda_check::api{&machine});
  run_on_threads(connect_nccl(devices, world, ranks, {}), [&](nccl_ranks& end) {
    const int r = end.rank();
    static_cast<void>(devices.api().set_device(r));
    const auto q = devices.make_queue(r, "tensors");
    const std::vector<std::vector<std::pair<int, int>>> plans{{{0, 1}, {1, 2}, {2, 3}}, {{0, 2}, {1, 3}, {0, 3}}};
    std::map<std::pair<int, int>, int> channels;
    for (const auto& pairs : plans)
      for (const auto& [from, to] : pairs)
        if (r == from || r == to) channels[{from, to}] = end.open({.from = from, .to = to});
    for (const auto& pairs : plans) {
      communication_plan plan;
      for (const auto& pair : pairs)
        if (channels.contains(pair)) plan.push_back({{channels.at(pair), r == pair.first, {}, 8}});
      end.set_plan(plan);
      std::vector<fake_tensor> tensors;
      const auto ops = std::make_unique<nccl_ranks::operation[]>(pairs.size());
      tensors.reserve(pairs.size());
      for (const auto& pair : pairs) {
        if (!channels.contains(pair)) continue;
        tensors.push_back(tensor_traits<fake_tensor>::make({1, 1}, q));
        tensor_traits<fake_tensor>::zero(tensors.back(), q);
        auto& op = ops[tensors.size() - 1];
        const int channel = channels.at(pair);
        r == pair.first ? end.post_send(channel, {}, tensors.back(), op) : end.post_receive(channel, {}, tensors.back(), op);
      }
      q.finish();
    }
    end.close();
  });
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  CHECK(world.alive() == 0);
  CHECK(world.made().size() == 1);
}

TEST_CASE("pairs of ranks are connected in as few rounds as there can be, and each once") {
  random_source random(3);
  const auto rounds_of = [](const std::vector<detail::nccl_pair>& pairs) {
    std::vector<detail::nccl_clique> cliques;
    for (const auto& [a, b] : pairs) cliques.push_back({{a, b}, false, {}});
    const auto rounds = detail::sort_in_rounds(cliques);
    CHECK(cliques.size() == pairs.size());
    // As they are made: a pair begins when both of its ranks are free.
    std::map<int, std::size_t> free;
    std::size_t last = 0;
    for (const auto& c : cliques) {
      const auto begin = std::max(free[c.ranks[0]], free[c.ranks[1]]);
      free[c.ranks[0]] = free[c.ranks[1]] = begin + 1;
      last = std::max(last, begin + 1);
    }
    CHECK(last <= rounds);
    return rounds;
  };
  std::vector<detail::nccl_pair> row, all;
  for (int a = 0; a < 32; ++a)
    for (int b = a + 1; b < 32; ++b) {
      if (b == a + 1) row.emplace_back(a, b);
      all.emplace_back(a, b);
    }
  CHECK(rounds_of(row) == 2);
  CHECK(rounds_of(all) == 31);
  for (int instance = 0; instance < 50; ++instance) {
    std::vector<detail::nccl_pair> some;
    std::map<int, std::size_t> degree;
    for (const auto& p : all)
      if (random.integer(0, 9) == 0) some.push_back(p), ++degree[p.first], ++degree[p.second];
    std::size_t most = 0;
    for (const auto& [rank, n] : degree) most = std::max(most, n);
    CHECK(rounds_of(some) >= most);
    CHECK(rounds_of(some) <= 2 * most);
  }
  // What shares ranks is split off one, in rounds; later ones off that, too, where it has their ranks.
  const detail::nccl_clique all_of_four{{0, 1, 2, 3}, false, {{}, 0, 4}}, left{{1, 0}, true, {}}, right{{2, 3}, true, {}},
      apart{{5, 6}, true, {}}, named{{0, 1}, false, {"another", 0, 0}};
  std::vector<detail::nccl_clique> first{all_of_four, left, right, apart, named}, later{{{0, 3}, true, {}}, {{3, 5}, true, {}}};
  const auto families = detail::families_of(first, {});
  REQUIRE(families.size() == 1);
  CHECK(families[0].whole == detail::nccl_clique{{0, 1, 2, 3}, false, {}, true});
  CHECK(families[0].parts.size() == 3);
  std::sort(first.begin(), first.end());
  std::vector<detail::nccl_clique> made_first{families[0].whole, apart, named};
  std::sort(made_first.begin(), made_first.end());
  CHECK(first == made_first);
  const auto more = detail::families_of(later, {families[0].whole});
  REQUIRE(more.size() == 1);
  CHECK(more[0].parts == std::vector{detail::nccl_clique{{0, 3}, true, {}}});
  CHECK(later == std::vector{detail::nccl_clique{{3, 5}, true, {}}});
  // Pairs by way of each other are one set, unless their links differ.
  const std::vector<detail::nccl_pair> two_rows{{0, 1}, {1, 2}, {4, 5}, {3, 5}, {2, 6}};
  const auto sets = detail::connected_sets(two_rows, [](int, int) { return nccl_link{}; });
  REQUIRE(sets.size() == 2);
  CHECK(sets[0].ranks == std::vector{0, 1, 2, 6});
  CHECK(sets[1].ranks == std::vector{3, 4, 5});
}
