// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/detail/slice_transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/shaped_communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/passes.hpp>

#include "../../../sanitizer_share.hpp"
#include "../../numbered.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using channel = thread_communicator<box_tensor>;

/// Two steps of all devices; how many of them have ended.
template <class Stager = no_stager, class Communicator>
int run(std::vector<Communicator> ends, const numbered_pipeline& p) {
  std::deque<meeting> meetings;
  for (const int count : p.groups.devices) meetings.emplace_back(count);
  std::atomic<int> ended{0};
  run_on_threads(std::move(ends), [&](Communicator& end) {
    auto& together = meetings[static_cast<std::size_t>(place_of(p, end.rank()).first)];
    try {
      run_device<Stager>(end, p, 2, p.meets ? &together : nullptr);
      ++ended;
    } catch (...) {
      together.leave();
      throw;
    }
  });
  return ended;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// What ended each device's step, "" if nothing did; `missing` does nothing.
std::vector<std::string> on_devices(std::vector<channel> ends, const numbered_pipeline& p,
                                    const std::function<void(int, numbered_stage&)>& adjust, int missing = -1) {
  std::vector<std::string> failures(ends.size());
  std::vector<std::jthread> threads;
  for (int r = 0; r < static_cast<int>(ends.size()); ++r)
    if (r != missing)
      threads.emplace_back([&, r] {
        const auto k = static_cast<std::size_t>(r);
        try {
          run_device(ends[k], p, 1, nullptr, adjust);
        } catch (const std::exception& e) {
          failures[k] = e.what();
        }
      });
  threads.clear();
  return failures;
}

const std::vector<std::int64_t> extents{6, 5, 3};

/// Transfers between the layouts of each boundary; groups keep their mesh.
pipeline_groups random_groups(random_source& random, const schedule& order, const std::vector<std::vector<int>>& meshes,
                              bool direct) {
  pipeline_groups g;
  for (const auto& mesh : meshes) {
    int devices = 1;
    for (const int n : mesh) devices *= n;
    g.devices.push_back(devices);
  }
  for (int c = 0; c < order.directions; ++c)
    for (int s = 0; s + 1 < order.stages; ++s) {
      const int from = order.rank(c, s), to = order.rank(c, s + 1);
      auto a = random_layout(random, extents, meshes[static_cast<std::size_t>(from)]);
      auto b = from == to ? a : random_layout(random, extents, meshes[static_cast<std::size_t>(to)]);
      const auto way = [&] { return direct ? reshard_strategy::direct : random_strategy(random); };
      const reshard_options how{.chunks = random.integer(1, 3)};
      auto there = plan_transfer(a, b, way(), how), back = plan_transfer(b, a, way(), how);
      g.boundaries.push_back({std::move(a), std::move(b), std::move(there), std::move(back)});
    }
  return g;
}

schedule named(std::string_view name, int ranks, int microbatches) {
  const auto n = static_cast<std::size_t>(ranks);
  return build_schedule(name,
                        {.forward_s = std::vector<double>(n, 1),
                         .backward_s = std::vector<double>(n, 2),
                         .transfer_s = std::vector<double>(n - 1, 0.5),
                         .weight_backward_s = std::vector<double>(n, 1)},
                        microbatches);
}

numbered_pipeline random_pipeline(random_source& random, std::string_view name, int most) {
  const bool two_ways = name == "chimera" || name == "dualpipe" || name == "dualpipe_v";
  const int ranks = two_ways ? 2 * random.integer(1, 2) : random.integer(2, 4);
  numbered_pipeline p{.order = named(name, ranks, ranks * random.integer(1, 2)), .groups = {}, .options = {.deadline_s = 20}};
  std::vector<std::vector<int>> meshes;
  for (int g = 0; g < ranks; ++g) meshes.push_back(p.order.directions > 1 && g > 0 ? meshes[0] : random_mesh(random, most));
  p.groups = random_groups(random, p.order, meshes, false);
  p.meets = random.integer(0, 3) > 0;
  return p;
}

}  // namespace

TEST_CASE(
    "[threads] every strategy brings every slice to its place, between random layouts, with layers that wait for their group") {
  random_source random(1);
  for (int instance = 0; instance < 110 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto names = schedule_names();
    const auto name = names[static_cast<std::size_t>(instance) % names.size()];
    CAPTURE(name);
    auto p = random_pipeline(random, name, 6);
    p.seed = static_cast<std::uint64_t>(instance);
    CHECK(run(channel::connect(device_count(p)), p) == device_count(p));
  }
}

TEST_CASE("[threads] the same under rendezvous, and over slow links") {
  random_source random(2);
  for (int instance = 0; instance < 30 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    auto p = random_pipeline(random, "gpipe", 4);
    p.options.semantics = send_semantics::rendezvous;
    CHECK(run(channel::connect(device_count(p)), p) == device_count(p));
  }
  for (int instance = 0; instance < 10 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto p = random_pipeline(random, "1f1b", 4);
    std::vector<double> latency_s(64);
    for (auto& l : latency_s) l = random.uniform(0, 2e-3);
    std::vector<shaped_communicator<channel>> ends;
    for (auto& end : channel::connect(device_count(p)))
      ends.emplace_back(end, [&](int from, int to) {
        return hetsched::link{.latency_s = latency_s[static_cast<std::size_t>((7 * from + to) % 64)], .bandwidth = 1e9};
      });
    CHECK(run(std::move(ends), p) == device_count(p));
  }
}

TEST_CASE("[threads] a device that fails ends the step on all devices, with the cause") {
  random_source random(3);
  for (int instance = 0; instance < 12; ++instance) {
    CAPTURE(instance);
    auto p = random_pipeline(random, "1f1b", 4);
    p.meets = false;
    const int devices = device_count(p), bad = random.integer(0, devices - 1);
    const auto failures = on_devices(channel::connect(devices), p, [&](int rank, numbered_stage& stage) {
      if (rank == bad)
        stage.before_each = [calls = 0]() mutable {
          if (++calls == 2) throw std::runtime_error("no more");
        };
    });
    for (int r = 0; r < devices; ++r) {
      const auto& e = failures[static_cast<std::size_t>(r)];
      CAPTURE(e);
      if (r == bad) CHECK(contains(e, ") failed: no more"));
      if (r != bad && !e.empty()) CHECK(contains(e, "ended, as rank " + std::to_string(bad) + ", step 0: "));
      if (r != bad && !e.empty()) CHECK(contains(e, " failed: no more"));
    }
    CHECK(std::count(failures.begin(), failures.end(), "") < devices / 2 + 1);
  }
}

TEST_CASE("[threads] a device that does nothing ends the step at the deadline, and others say what they wait for") {
  // A destination that passes on, one that does not, a source that gathers and one that does not.
  const layout two{.mesh = {2}, .dimensions = {{.extent = 6, .axes = {0}}}}, three{.mesh = {3}, .dimensions = {{.extent = 6}}};
  for (const auto how : {reshard_strategy::one_to_one, reshard_strategy::leader_broadcast, reshard_strategy::scatter_gather,
                         reshard_strategy::regroup_before})
    for (int missing = 0; missing < 5; ++missing) {
      CAPTURE(std::string(name_of(how)));
      CAPTURE(missing);
      numbered_pipeline p{.order = gpipe(2, 2),
                          .groups = {.devices = {2, 3}, .boundaries = {make_boundary_transfer(two, three, how)}},
                          .options = {.deadline_s = 0.05},
                          .meets = false};
      const auto failures = on_devices(
          channel::connect(5), p, [](int, numbered_stage&) {}, missing);
      CHECK(std::any_of(failures.begin(), failures.end(), [](const std::string& e) { return contains(e, "for 0.05"); }));
      for (const auto& e : failures) {
        CAPTURE(e);
        if (e.empty()) continue;
        CHECK(contains(e, ", step 0: "));
        CHECK(contains(e, "microbatch"));
      }
    }
}

TEST_CASE("[threads] a stage that makes another shape than its slice is told so") {
  const layout two{.mesh = {2}, .dimensions = {{.extent = 6, .axes = {0}}}}, one{.mesh = {1}, .dimensions = {{.extent = 6}}};
  const numbered_pipeline p{.order = gpipe(2, 2),
                            .groups = {.devices = {2, 1}, .boundaries = {make_boundary_transfer(two, one)}},
                            .options = {.deadline_s = 20},
                            .meets = false};
  auto wrong = two;
  wrong.dimensions[0].points = {0, 2, 6};
  const auto failures = on_devices(channel::connect(3), p, [&](int rank, numbered_stage& s) {
    if (rank == 0) s.output = &wrong;
  });
  CAPTURE(failures[0]);
  CHECK(contains(failures[0], "0F0 (stage 0, forward of microbatch 0) failed: the output is of the shape "));
  CHECK_FALSE(failures[2].empty());
}

TEST_CASE("[threads] slices go by way of a stager, chunk by chunk, between random layouts") {
  random_source random(5);
  for (int instance = 0; instance < 60 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto names = schedule_names();
    const auto name = names[static_cast<std::size_t>(instance) % names.size()];
    CAPTURE(name);
    auto p = random_pipeline(random, name, 4);
    p.seed = static_cast<std::uint64_t>(instance);
    const bool all = instance % 3 != 0;
    p.order = stage_transfers(add_transfers(p.order), [&](int from, int to) { return all || (from + to) % 4 == 1; });
    if (instance % 2 == 0) p.order = split_streams(p.order);
    CHECK(run<thread_stager<box_tensor>>(channel::connect(device_count(p)), p) == device_count(p));
  }
}

namespace {

/// A box_tensor that counts what is copied out of it and into it.
struct counted_tensor : box_tensor {
  using box_tensor::box_tensor;
};
int copies = 0;

}  // namespace

// Compiled by itself, since it specialises.
template <>
struct hetsched::tensor_traits<counted_tensor> {
  using element = double;
  static constexpr memory_space space = memory_space::host;
  static const tensor_shape& shape(const counted_tensor& t) { return t.shape(); }
  static double* data(counted_tensor& t) { return t.data(); }
  static const double* data(const counted_tensor& t) { return t.data(); }
  static counted_tensor make(const tensor_shape& s) { return counted_tensor(s); }
  static void copy_part(counted_tensor& to, std::span<const interval> to_slice, const counted_tensor& from,
                        std::span<const interval> from_slice, std::span<const interval> part) {
    ++copies;
    hetsched::copy_part(from.data(), from_slice, to.data(), to_slice, part);
  }
};

namespace {

/// A rank's end that remembers the bytes that it sent and received as such.
struct recording : thread_communicator<counted_tensor> {
  using base = thread_communicator<counted_tensor>;
  explicit recording(base end) : base(std::move(end)) {}
  void post_send_bytes(int c, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    posted.emplace_back(bytes.data(), bytes.size());
    base::post_send_bytes(c, s, bytes, op);
  }
  void post_receive_bytes(int c, const stamp& s, std::span<std::byte> bytes, operation& op) {
    posted.emplace_back(bytes.data(), bytes.size());
    base::post_receive_bytes(c, s, bytes, op);
  }
  std::vector<std::pair<const std::byte*, std::size_t>> posted;
};
static_assert(byte_plane<recording>);
static_assert(byte_plane<shaped_communicator<channel>>);

/// Whether a part's elements follow each other in the array of a slice: element by element.
bool is_run(std::span<const interval> held, std::span<const interval> part) {
  std::vector<std::int64_t> places;
  for_each_run(held, part, part, [&](std::int64_t first, std::int64_t, std::int64_t length) {
    for (std::int64_t k = 0; k < length; ++k) places.push_back(first + k);
  });
  for (std::size_t k = 1; k < places.size(); ++k)
    if (places[k] != places[k - 1] + 1) return false;
  return true;
}

}  // namespace

TEST_CASE("slices that are one run of a tensor are sent from there and received into there") {
  random_source random(6);
  int without = 0;
  for (int instance = 0; instance < 300 / sanitizer_share; ++instance) {
    CAPTURE(instance);
    const auto from = random_layout(random, extents, random_mesh(random, 4)),
               to = random_layout(random, extents, random_mesh(random, 4));
    const auto plan = plan_transfer(from, to, reshard_strategy::direct, {});
    const int sources = from.device_count(), devices = sources + to.device_count();
    const auto held = [&](int d) { return d < sources ? slice_of(from, d) : slice_of(to, d - sources); };
    std::vector<recording> ends;
    for (auto& end : recording::base::connect(devices)) ends.emplace_back(end);
    std::deque<detail::slice_transfer<counted_tensor, recording>> transfers;
    std::vector<counted_tensor> tensors;
    const stamp now{.step = 0, .microbatch = 0, .what = payload::activation, .direction = 0, .stage = 0};
    const auto make = [](const tensor_shape& s) { return counted_tensor(s); };
    for (int d = 0; d < devices; ++d) {
      auto& end = ends[static_cast<std::size_t>(d)];
      transfers.emplace_back(
          end, plan, detail::slice_place{.me = d, .where = {}, .own = held(d)}, [](int device) { return device; }, make);
      tensors.emplace_back(detail::shape_of_slice(held(d)));
      if (d >= sources) continue;
      const auto own = numbered(from, d, 1);
      std::copy_n(own.data(), static_cast<std::size_t>(element_count(held(d))), tensors.back().data());
    }
    const auto memory = [&](int d) { return std::as_bytes(std::span(tensors[static_cast<std::size_t>(d)].data(), 1)).data(); };
    std::vector<const std::byte*> begins;
    for (int d = 0; d < devices; ++d) begins.push_back(memory(d));
    // Both ends of every message, counted by themselves. One that is all of a tensor needs no bytes.
    int expected_copies = 0;
    std::vector<std::size_t> expected_posts(static_cast<std::size_t>(devices), 0);
    for (const auto& m : plan.messages) {
      const auto part = plan.slice_of(m);
      for (const int d : {m.from, m.to}) {
        const auto own = held(d);
        const auto others = std::count_if(plan.messages.begin(), plan.messages.end(), [&](const slice_message& n) {
          return &n != &m && (d < sources ? n.from == d : n.to == d);
        });
        const bool whole = others == 0 && std::equal(own.begin(), own.end(), part.begin(), part.end());
        if (!is_run(own, part)) ++expected_copies;
        if (!whole && is_run(own, part)) ++expected_posts[static_cast<std::size_t>(d)];
      }
    }
    copies = 0;
    for (int d = 0; d < devices; ++d)
      transfers[static_cast<std::size_t>(d)].begin(ends[static_cast<std::size_t>(d)], 0, 0, now,
                                                   tensors[static_cast<std::size_t>(d)]);
    for (int round = 0; round < 3; ++round)
      for (int d = 0; d < devices; ++d) (void)transfers[static_cast<std::size_t>(d)].advance(ends[static_cast<std::size_t>(d)]);
    CHECK(copies == expected_copies);
    without += expected_copies == 0 && plan.messages.size() > 1;
    for (int d = 0; d < devices; ++d) {
      const auto k = static_cast<std::size_t>(d);
      REQUIRE(transfers[k].ended(ends[k], 0));
      CHECK(ends[k].posted.size() == expected_posts[k]);
      const auto bytes = static_cast<std::size_t>(element_count(held(d))) * sizeof(double);
      for (const auto& [first, size] : ends[k].posted) CHECK((first >= begins[k] && first + size <= begins[k] + bytes));
      if (d < sources) continue;
      const auto wanted = numbered(to, d - sources, 1);
      CHECK(static_cast<const box_tensor&>(tensors[k]) == wanted);
    }
  }
  CHECK(without > 10 / sanitizer_share);
}
