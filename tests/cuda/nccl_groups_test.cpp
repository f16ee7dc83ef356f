// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL: in layers, between stages' transfers, and of gradients over data ranks.
#include <hetsched/cuda/nccl_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/check/device_order.hpp>

#include "../runtime/device_program.hpp"
#include "../sanitizer_share.hpp"
#include "fake_layers.hpp"
#include "fake_nccl.hpp"
#include "nccl_ranks.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(calling_plane<nccl_ranks>);

namespace {

using threads = thread_communicator<matrix<double>>;
using host_group = stage_group<matrix<double>, threads>;
using device_group_of = stage_group<fake_tensor, nccl_ranks>;

/// An activation whose parameter differs over the tensor axis, and the sum over that axis.
template <class Layer, class Axis, class Queue>
struct summed {
  using tensor = typename Layer::tensor;
  using context = typename Layer::context;
  Layer inner;
  Axis axis;

  tensor forward(const tensor& x, context& c, const Queue& q) {
    tensor y;
    if constexpr (std::is_same_v<tensor, fake_tensor>) {
      y = inner.forward(x, c, q);
      axis.all_reduce(y, q);
    } else {
      y = inner.forward(x, c);
      axis.all_reduce(std::span(y.data(), y.rows() * y.columns()));
    }
    return y;
  }
  tensor backward(const tensor& dy, context& c, const Queue& q) {
    tensor dx;
    if constexpr (std::is_same_v<tensor, fake_tensor>) {
      dx = inner.backward(dy, c, q);
      axis.all_reduce(dx, q);
    } else {
      dx = inner.backward(dy, c);
      axis.all_reduce(std::span(dx.data(), dx.rows() * dx.columns()));
    }
    return dx;
  }
  std::vector<tensor>& parameters() { return inner.parameters(); }
  std::vector<tensor>& gradients() { return inner.gradients(); }
};
using host_layer = summed<activation<double>, host_group::axis, host_queue>;
using device_layer = summed<fake_activation, device_group_of::axis, fake_queue>;

activation<double> activation_of(int stage, const stage_place& p) {
  activation<double> a;
  a.gain[0](0, 0) = 0.3 + 0.05 * stage + 0.125 * p.tensor;
  return a;
}

/// A schedule whose ranks are groups of devices, which cut samples over data ranks.
struct joint_task {
  schedule order;
  std::vector<degrees> of_rank;  ///< of the schedule
  std::uint64_t seed = 1;

  [[nodiscard]] std::size_t rank_of(int device) const {
    std::size_t g = 0;
    while (device >= of_rank[g].device_count()) device -= of_rank[g++].device_count();
    return g;
  }
  [[nodiscard]] int first_of(std::size_t g) const {
    return std::accumulate(of_rank.begin(), of_rank.begin() + static_cast<std::ptrdiff_t>(g), 0,
                           [](int n, const degrees& d) { return n + d.device_count(); });
  }
  [[nodiscard]] int devices() const { return first_of(of_rank.size()); }
  [[nodiscard]] layout layout_of(std::size_t g) const {
    const auto& d = of_rank[g];
    return {.mesh = {d.data, d.context, d.tensor}, .dimensions = {{.extent = 4, .axes = {0}, .points = {}}, {.extent = 3}}};
  }
  [[nodiscard]] pipeline_groups groups() const {
    pipeline_groups all;
    for (const auto& d : of_rank) all.devices.push_back(d.device_count());
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s + 1 < order.stages; ++s)
        all.boundaries.push_back(make_boundary_transfer(layout_of(static_cast<std::size_t>(order.rank(c, s))),
                                                        layout_of(static_cast<std::size_t>(order.rank(c, s + 1)))));
    return all;
  }
  [[nodiscard]] matrix<double> part(int device, int microbatch, bool target) const {
    const auto g = rank_of(device);
    const auto l = layout_of(g);
    random_source random(seed * 1000 + static_cast<std::uint64_t>(2 * microbatch + target));
    const auto all = random_matrix<double>(random, 4, 3);
    const auto own = slice_of(l, device - first_of(g));
    matrix<double> cut(static_cast<std::size_t>(own[0].size()), static_cast<std::size_t>(own[1].size()));
    hetsched::copy_part(all.data(), l.whole(), cut.data(), own, own);
    return cut;
  }
  template <class Group, class Communicator>
  [[nodiscard]] Group group_of(const Communicator& end, const stage_copy& c) const {
    const auto g = rank_of(end.rank());
    std::vector<int> ranks(static_cast<std::size_t>(of_rank[g].device_count()));
    std::iota(ranks.begin(), ranks.end(), first_of(g));
    return Group(end, ranks, of_rank[g], {.stage = c.stage, .direction = c.direction, .deadline_s = 20});
  }
};

/// Of a device: losses, and gradients by stage.
struct joint_outcome {
  std::vector<double> losses;
  std::vector<matrix<double>> gradients;
  friend bool operator==(const joint_outcome&, const joint_outcome&) = default;
};

std::vector<joint_outcome> on_threads(const joint_task& t, int steps) {
  std::vector<joint_outcome> all(static_cast<std::size_t>(t.devices()));
  hetsched::run_on_threads(threads::connect(t.devices()), [&](threads& end) {
    std::vector<host_group> groups;
    std::vector<host_layer> stages;
    for (const auto& c : stages_of_rank(t.order, static_cast<int>(t.rank_of(end.rank())))) {
      groups.push_back(t.group_of<host_group>(end, c));
      stages.push_back({activation_of(c.stage, groups.back().place()), groups.back().tensor()});
    }
    std::vector<matrix<double>> inputs, targets;
    for (int m = 0; m < t.order.microbatches; ++m) {
      inputs.push_back(t.part(end.rank(), m, false));
      targets.push_back(t.part(end.rank(), m, true));
    }
    pipeline_executor<matrix<double>, host_layer, threads> executor(t.order, std::span(stages), t.groups(), end,
                                                                    {.deadline_s = 20});
    const auto add = [&](std::size_t s) { groups[s].data().all_reduce(std::span(stages[s].gradients()[0].data(), 1)); };
    for (int i = 0; i < steps; ++i)
      executor.step(std::span<const matrix<double>>(inputs), std::span<const matrix<double>>(targets), task<double>::loss,
                    {.ended = add});
    auto& own = all[static_cast<std::size_t>(end.rank())];
    own.losses.assign(executor.losses().begin(), executor.losses().end());
    for (auto& s : stages) own.gradients.push_back(s.gradients()[0]);
  });
  return all;
}

/// `between`: behind the first step of every rank, on rank 0.
std::vector<joint_outcome> on_nccl(const joint_task& t, fake_devices& devices, std::vector<nccl_ranks> ends, int steps,
                                   double deadline_s = 20, const std::function<void()>& between = {}) {
  std::vector<joint_outcome> all(ends.size());
  hetsched::run_on_threads(std::move(ends), [&](nccl_ranks& end) {
    cuda_backend<cuda_check::api> backend(devices, end.rank(), "rank " + std::to_string(end.rank()));
    const auto bound = backend.bind();
    const auto q = backend.compute_queue();
    std::vector<device_group_of> groups;
    std::vector<device_layer> stages;
    for (const auto& c : stages_of_rank(t.order, static_cast<int>(t.rank_of(end.rank())))) {
      groups.push_back(t.group_of<device_group_of>(end, c));
      stages.push_back({fake_activation(q), groups.back().tensor()});
      stages.back().inner.gain[0] = upload(q, activation_of(c.stage, groups.back().place()).gain[0]);
    }
    std::vector<fake_tensor> inputs, targets;
    for (int m = 0; m < t.order.microbatches; ++m) {
      inputs.push_back(upload(q, t.part(end.rank(), m, false)));
      targets.push_back(upload(q, t.part(end.rank(), m, true)));
    }
    pipeline_executor<fake_tensor, device_layer, nccl_ranks, no_stager, cuda_backend<cuda_check::api>> executor(
        t.order, std::span(stages), t.groups(), end, {.deadline_s = deadline_s}, {}, backend);
    for (int i = 0; i < steps; ++i) {
      const auto add = [&](std::size_t s) { groups[s].data().all_reduce(stages[s].gradients()[0], q); };
      executor.step(std::span<const fake_tensor>(inputs), std::span<const fake_tensor>(targets), fake_loss, {.ended = add});
      if (i == 0 && between && end.rank() == 0) between();
    }
    auto& own = all[static_cast<std::size_t>(end.rank())];
    own.losses.assign(executor.losses().begin(), executor.losses().end());
    for (auto& s : stages) own.gradients.push_back(download(q, s.gradients()[0]));
  });
  return all;
}

joint_task named_task(std::string_view name, int ranks, const std::vector<degrees>& of_rank) {
  const auto count = static_cast<std::size_t>(ranks);
  const pipeline p{.forward_s = std::vector<double>(count, 1),
                   .backward_s = std::vector<double>(count, 2),
                   .transfer_s = std::vector<double>(count - 1, 0.5)};
  return {.order = build_schedule(name, p, 8), .of_rank = of_rank, .seed = 3};
}

/// A communicator that keeps what an executor tells it before the first step.
struct recorder {
  struct operation {
    double end_s = 0;
  };
  int own = 0, all = 1;
  std::vector<edge>* channels = nullptr;
  communication_plan* plan = nullptr;
  [[nodiscard]] int rank() const { return own; }
  [[nodiscard]] int ranks() const { return all; }
  [[nodiscard]] int open(const edge& e) const {
    channels->push_back(e);
    return static_cast<int>(channels->size()) - 1;
  }
  void set_plan(const communication_plan& p) const { *plan = p; }
  [[nodiscard]] static bool may_call() { return true; }
  static void end_calls() {}
  static void post_send(int, const stamp&, matrix<double>&, operation&) {}
  static void post_receive(int, const stamp&, matrix<double>&, operation&) {}
  [[nodiscard]] static bool poll(operation&) { return true; }
  [[nodiscard]] static wait_result wait(deadline_time, bool) { return wait_result::progress; }
  static void abort(const std::string&) {}
  [[nodiscard]] static std::string failure() { return {}; }
  [[nodiscard]] static wait_result gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) {
    return wait_result::progress;
  }
};

/// What the devices of a task issue by the plans that executors make, as an order of the steps of a device program that has sums
/// of gradients over data ranks besides.
struct planned_program {
  device_program program;
  device_order order;
};
planned_program plans_of(const joint_task& t) {
  auto layout = even_layout(t.order.stages, t.order, 4);
  auto& line = layout.pipelines[0];
  for (const auto& d : t.of_rank) line.groups.push_back({.degrees = d});
  const std::vector groups{make_pipeline_groups(line, [](int) { return tensor_shape{4, 3}; })};
  planned_program found{.program = make_device_program(layout, groups, {}), .order = {}};
  auto& steps = found.program.steps;
  const auto at = [](int k) { return static_cast<std::size_t>(k); };
  std::map<std::pair<int, int>, std::vector<int>> sums;  // by device and step behind which they are called
  for (std::size_t g = 0; g < t.of_rank.size(); ++g)
    for (const auto& c : stages_of_rank(t.order, static_cast<int>(g)))
      for (int p = 0; p < t.of_rank[g].context * t.of_rank[g].tensor && t.of_rank[g].data > 1; ++p) {
        device_step sum{.kind = device_step_kind::collective,
                        .what = {.kind = action_kind::reduce_scatter,
                                 .direction = static_cast<std::int16_t>(c.direction),
                                 .stage = c.stage,
                                 .microbatch = no_microbatch}};
        for (int k = 0; k < t.of_rank[g].data; ++k) {
          sum.members.push_back(t.first_of(g) + k * t.of_rank[g].context * t.of_rank[g].tensor + p);
          int last = -1;
          for (std::size_t n = 0; n < steps.size(); ++n)
            if (const auto& x = steps[n]; x.kind == device_step_kind::computation && x.members[0] == sum.members.back() &&
                                          x.what.stage == c.stage && x.what.direction == c.direction &&
                                          x.what.kind != action_kind::forward)
              last = static_cast<int>(n);
          sum.needs.push_back(last);
          sums[{sum.members.back(), t.order.directions == 2 ? -1 : last}].push_back(static_cast<int>(steps.size()));
        }
        steps.push_back(std::move(sum));
      }
  for (int d = 0; d < t.devices(); ++d) {
    std::vector<edge> channels;
    communication_plan plan;
    const auto g = static_cast<int>(t.rank_of(d));
    std::vector<activation<double>> stages(stages_of_rank(t.order, g).size());
    const pipeline_executor<matrix<double>, activation<double>, recorder> executor(t.order, std::span(stages), groups[0],
                                                                                   recorder{d, t.devices(), &channels, &plan});
    std::vector<std::vector<action>> events;  // computations
    for (const auto& l : t.order.lanes) {
      bool apart = true;
      for (const auto& a : l.actions) {
        if (l.rank != g || l.stream != stream::compute) continue;
        apart = apart || !a.joined;
        if (!is_compute(a.kind)) continue;
        if (std::exchange(apart, false)) events.emplace_back();
        events.back().push_back(a);
      }
    }
    auto& own = found.order.of_device.emplace_back();
    const auto list = [&](auto&& is_it) {
      for (std::size_t n = 0; n < steps.size(); ++n)
        if (is_issued(steps[n].kind) && std::count(steps[n].members.begin(), steps[n].members.end(), d) > 0 && is_it(steps[n]) &&
            std::count(own.begin(), own.end(), static_cast<int>(n)) == 0)
          own.push_back(static_cast<int>(n));
    };
    std::size_t event = 0;
    for (auto& group : plan) {
      if (group.empty() && event < events.size()) {
        for (auto a : events[event++]) {
          a.joined = false;
          list([&](const device_step& s) { return s.kind == device_step_kind::collective && s.what == a; });
          for (std::size_t n = 0; n < steps.size(); ++n)
            if (steps[n].kind == device_step_kind::computation && steps[n].members[0] == d && steps[n].what == a)
              for (const int sum : sums[{d, static_cast<int>(n)}]) own.push_back(sum);
        }
        continue;
      }
      if (group.empty())
        for (const int sum : sums[{d, -1}]) own.push_back(sum);
      const auto where = [&](const planned_operation& o) -> const edge& { return channels[at(o.channel)]; };
      std::stable_sort(group.begin(), group.end(), [&](const auto& a, const auto& b) {
        const auto place = [](const edge& e) { return std::tuple(std::min(e.from, e.to), std::max(e.from, e.to), e.from); };
        return place(where(a)) < place(where(b));
      });
      for (const auto& o : group)
        list([&](const device_step& s) {
          const auto& e = where(o);
          if (e.what == payload::reduction) return s.what.kind == action_kind::reduce_gradients && s.what.stage == e.stage;
          return s.kind == device_step_kind::transfer && s.members == std::vector{e.from, e.to} &&
                 s.what.kind == (e.what == payload::gradient ? action_kind::send_gradient : action_kind::send_activation) &&
                 s.what.direction == e.direction && s.what.stage == e.stage && s.what.microbatch == o.what.microbatch &&
                 (e.part == 0 || s.part == e.part - 1);
        });
    }
    CHECK(event == (t.of_rank[static_cast<std::size_t>(g)].device_count() > 1 ? events.size() : 0));
  }
  return found;
}

}  // namespace

TEST_CASE("[threads] collectives over NCCL have the bits of collectives of threads") {
  for (int instance = 0; instance < 60 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const degrees d{.data = random.integer(1, 3), .context = random.integer(1, 2), .tensor = random.integer(1, 2)};
    const int count = d.device_count();
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    const auto n = static_cast<std::size_t>(random.integer(1, 40));
    std::vector<matrix<double>> whole;  // of each rank: a part for each rank of an axis
    for (int r = 0; r < count; ++r) whole.push_back(random_matrix<double>(random, 3, n));
    struct call {
      int axis, kind, root;
    };
    std::vector<call> calls;
    for (int k = 0; k < 8; ++k) calls.push_back({random.integer(0, 2), random.integer(0, 3), random.integer(0, 5)});
    std::vector<std::vector<matrix<double>>> wanted(all.size()), found(all.size());
    const auto axis_of = [](const auto& g, int a) { return a == 0 ? g.data() : a == 1 ? g.context() : g.tensor(); };
    hetsched::run_on_threads(threads::connect(count), [&](threads& end) {
      const auto r = static_cast<std::size_t>(end.rank());
      const host_group g(end, all, d);
      for (const auto& [a, kind, root] : calls) {
        const auto axis = axis_of(g, a);
        const auto size = static_cast<std::size_t>(axis.size());
        auto one = whole[r];
        matrix<double> many(size, n), single(1, n);
        const std::span mine(one.data(), n);
        if (kind == 0) axis.all_reduce(std::span(one.data(), 3 * n)), wanted[r].push_back(one);
        if (kind == 1) axis.all_gather(mine, std::span(many.data(), size * n)), wanted[r].push_back(many);
        if (kind == 2)
          axis.reduce_scatter(std::span<const double>(one.data(), size * n), std::span(single.data(), n)),
              wanted[r].push_back(single);
        if (kind == 3) axis.broadcast(std::span(one.data(), 3 * n), root % axis.size()), wanted[r].push_back(one);
      }
    });
    cuda_check::machine machine({.seed = static_cast<std::uint64_t>(instance) + 1,
                                 .devices = count,
                                 .lazy = random.integer(0, 1) == 0,
                                 .in_order = random.integer(0, 1) == 0,
                                 .launch_queue = 32});
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 2});
      run_on_threads(connect_nccl(devices, world, count), [&](nccl_ranks& end) {
        const auto r = static_cast<std::size_t>(end.rank());
        const auto q = devices.make_queue(end.rank(), "layers");
        const auto current = q.make_current();
        const device_group_of g(end, all, d);
        end.set_plan({});
        const auto rows_of = [&](std::size_t rows) {
          matrix<double> cut(rows, n);
          std::copy_n(whole[r].data(), rows * n, cut.data());
          return upload(q, cut);
        };
        std::vector<fake_tensor> results;
        for (const auto& [a, kind, root] : calls) {
          const auto axis = axis_of(g, a);
          const auto size = static_cast<std::size_t>(axis.size());
          auto one = rows_of(kind == 1 ? 1 : kind == 2 ? size : 3);
          fake_tensor to(kind == 1 ? size : 1, n, q);
          if (kind == 0) axis.all_reduce(one, q);
          if (kind == 1) axis.all_gather(one, to, q);
          if (kind == 2) axis.reduce_scatter(one, to, q);
          if (kind == 3) axis.broadcast(one, root % axis.size(), q);
          results.push_back(kind == 1 || kind == 2 ? std::move(to) : std::move(one));
        }
        for (const auto& t : results) found[r].push_back(download(q, t));
        results.clear();
        end.close();
      });
    }
    CHECK(found == wanted);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.blocks_alive() == 0);
    CHECK(world.alive() == 0);
  }
}

TEST_CASE("[threads] no schedule hangs over NCCL with layers' collectives and sums of gradients, on devices that work in order") {
  for (const auto name : share_of(schedule_names())) {
    CAPTURE(name);
    const auto t = named_task(name, 2, std::vector<degrees>(2, {.data = 2, .tensor = 2}));
    const auto wanted = on_threads(t, 2);
    for (const bool lazy : {false, true}) {
      CAPTURE(lazy);
      if (sanitizer_share > 1 && !lazy) continue;
      cuda_check::machine machine({.seed = 12, .devices = t.devices(), .lazy = lazy, .in_order = true, .launch_queue = 32});
      fake_nccl_world world(machine);
      {
        fake_devices devices(cuda_check::api{&machine}, {.records = 2});
        CHECK(on_nccl(t, devices, connect_nccl(devices, world, t.devices()), 2) == wanted);
      }
      CHECK(world.calls("ncclAllReduce") > 0);
      for (const auto& r : machine.reports()) FAIL_CHECK(r);
      CHECK(machine.blocks_alive() == 0);
      CHECK(world.alive() == 0);
    }
  }
}

TEST_CASE("[threads] groups of all degrees over NCCL have the bits of groups of threads, and no races") {
  for (int instance = 0; instance < 20 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1);
    const auto name = instance % 2 == 0 ? "1f1b" : "interleaved_1f1b";
    auto t = named_task(name, 2, {});
    for (int g = 0; g < 2; ++g)
      t.of_rank.push_back({.data = random.integer(1, 2), .context = random.integer(1, 2), .tensor = random.integer(1, 2)});
    t.seed = static_cast<std::uint64_t>(instance) + 1;
    cuda_check::machine machine({.seed = t.seed,
                                 .devices = t.devices(),
                                 .most_turns_late = random.integer(0, 8),
                                 .lazy = random.integer(0, 1) == 0,
                                 .in_order = random.integer(0, 1) == 0,
                                 .launch_queue = 64});
    fake_nccl_world world(machine, {.turns_late = random.integer(0, 3)});
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = static_cast<std::size_t>(random.integer(1, 4))});
      CHECK(on_nccl(t, devices, connect_nccl(devices, world, t.devices()), 2) == on_threads(t, 2));
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    CHECK(machine.blocks_alive() == 0);
    CHECK(world.alive() == 0);
  }
}

TEST_CASE("plans of executors with layers' collectives and sums of gradients are orders of devices that are proved") {
  const std::vector<degrees> shapes{{}, {.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}, {.context = 2}};
  std::size_t collectives = 0;
  for (const auto name : share_of(schedule_names()))
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      CAPTURE(name);
      CAPTURE(k);
      auto t = named_task(name, 4, std::vector<degrees>(4, shapes[k]));
      if (t.order.directions == 1)  // else the two groups of a stage are alike
        for (std::size_t g = 0; g < 4; ++g) t.of_rank[g] = shapes[(k + g) % shapes.size()];
      auto found = plans_of(t);
      for (const auto& w : check_device_order(found.program, found.order)) FAIL_CHECK(w);
      for (const auto& s : found.program.steps) collectives += s.kind == device_step_kind::collective;
      for (auto& own : found.order.of_device) std::reverse(own.begin(), own.end());
      CHECK(!check_device_order(found.program, found.order).empty());
    }
  CHECK(collectives > 1000 / sanitizer_share);
}

TEST_CASE("[threads] collectives that fail, or that a device does not do, end the step of every rank with one clear error") {
  const joint_task t{.order = one_f_one_b({2, 1}, 6), .of_rank = std::vector<degrees>(2, {.data = 2, .tensor = 2}), .seed = 4};
  for (const std::string what : {"call", "lost", "stuck"}) {
    CAPTURE(what);
    const double deadline_s = what == "stuck" ? 2 * sanitizer_slowdown : 20;
    cuda_check::machine machine({.seed = 5, .devices = t.devices()});
    fake_nccl_world world(machine);
    const auto between = [&] {
      if (what == "call") world.fail("ncclAllReduce", 3, 10);
      if (what != "call") world.kill(5, what == "lost", 8);
    };
    {
      fake_devices devices(cuda_check::api{&machine}, {.records = 4});
      auto ends = connect_nccl(devices, world, t.devices(), {.deadline_s = deadline_s});
      std::string text;
      try {
        (void)on_nccl(t, devices, ends, 3, deadline_s, between);
      } catch (const error& e) {
        text = e.what();
      }
      CAPTURE(text);
      if (what == "call") CHECK(text.find("ncclAllReduce failed for ranks ") != std::string::npos);
      if (what == "lost") CHECK(text.find("remote process exited (6)") != std::string::npos);
      if (what == "stuck") CHECK(text.find("for " + std::to_string(deadline_s) + " s") != std::string::npos);
      for (const auto& end : ends) CHECK(!end.failure().empty());
    }
    CHECK(world.alive() == 0);
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
  }
}

TEST_CASE("[threads] groups that do not fit each other, and calls at the wrong time, are refused") {
  const auto error_of = [](const std::function<void(nccl_ranks&, const fake_queue&)>& body) -> std::string {
    cuda_check::machine machine({.seed = 6, .devices = 2});
    fake_nccl_world world(machine);
    fake_devices devices(cuda_check::api{&machine});
    try {
      run_on_threads(connect_nccl(devices, world, 2), [&](nccl_ranks& end) {
        const auto q = devices.make_queue(end.rank(), "layers");
        const auto current = q.make_current();
        body(end, q);
        end.close();
      });
    } catch (const error& e) {
      return e.what();
    }
    for (const auto& r : machine.reports()) FAIL_CHECK(r);
    return {};
  };
  using axis = nccl_ranks::axis;
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(error_of([](nccl_ranks& end, const fake_queue& q) {
          const axis a(end, {0, 1});
          end.set_plan({});
          fake_tensor t(2, 2, q);
          tensor_traits<fake_tensor>::zero(t, q);
          a.all_reduce(t, q);
        }).empty());
  has(error_of([](nccl_ranks& end, const fake_queue&) {
        if (end.rank() == 0) const axis a(end, {0, 1});
        end.set_plan({});
      }),
      "ranks 0 and 1 are of one group, but have opened or planned different collectives");
  has(error_of([](nccl_ranks& end, const fake_queue&) {
        const axis a(end, {0, 1});
        end.set_plan(communication_plan(end.rank() == 0 ? 1 : 2));
      }),
      "ranks 0 and 1 are of one group, but have opened or planned different collectives");
  has(error_of([](nccl_ranks& end, const fake_queue& q) {
        end.set_plan({});
        const axis a(end, {0, 1}, {.name = "the late axis"});
        fake_tensor t(2, 2, q);
        a.all_reduce(t, q);
      }),
      "ncclAllReduce over the late axis: the axis was made behind set_plan, which connects");
  has(error_of([](nccl_ranks& end, const fake_queue& q) {
        const axis a(end, {0, 1}, {.name = "an axis"});
        const int channel = end.open({.from = 0, .to = 1});
        end.set_plan({{{channel, end.rank() == 0, {}, 32}}, {{channel, end.rank() == 0, {.microbatch = 1}, 32}}});
        fake_tensor t = tensor_traits<fake_tensor>::make({2, 2}, q);
        nccl_ranks::operation op;
        if (end.rank() == 0)
          end.post_send(channel, {}, t, op);
        else
          end.post_receive(channel, {}, t, op);
        a.all_reduce(t, q);
      }),
      "ncclAllReduce over an axis is called between the transfers of a step");
  has(error_of([](nccl_ranks& end, const fake_queue& q) {
        const axis a(end, {0, 1});
        end.set_plan({});
        const fake_tensor one(1, 3, q);
        fake_tensor all(1, 5, q);
        a.all_gather(one, all, q);
      }),
      "5 elements are not those of 2 ranks with 3");
}
