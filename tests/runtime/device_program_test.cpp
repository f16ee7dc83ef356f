// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/check/issue_order.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/passes.hpp>

#include "../sanitizer_share.hpp"
#include "device_program.hpp"
#include "training.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A training with parameters that the tensor axis cuts.
struct instance {
  training_layout layout;
  std::vector<pipeline_groups> groups;
  std::vector<model_parameter> parameters;
  device_program_options options{.bucket_elements = 20};
};

std::size_t at(int k) { return static_cast<std::size_t>(k); }

instance make_instance(training_layout layout, bool sharded) {
  instance i;
  i.layout = std::move(layout);
  const tensor_shape shape{12, 12};
  for (const auto& line : i.layout.pipelines)
    i.groups.push_back(make_pipeline_groups(line, [](int) { return tensor_shape{12, 4}; }));
  group_cuts cuts;
  for (std::size_t p = 0; p < i.layout.pipelines.size(); ++p)
    for (int g = 0; g < i.layout.pipelines[p].order.ranks; ++g)
      for (int l = 0; l < i.layout.layers; l += 2) {
        auto& cut = cuts[{{l, 0}, static_cast<int>(p), g}];
        cut.dimension = 0;
        auto& points = cut.points.emplace_back();
        const int parts = i.layout.pipelines[p].degrees_of(g).tensor;
        for (int k = 0; k <= parts; ++k) points.push_back(12 * k / parts);
      }
  i.parameters = model_parameters(i.layout, std::vector(at(i.layout.layers), std::vector<tensor_shape>(1, shape)), {}, cuts);
  for (auto& m : i.parameters) m.sharded = sharded;
  return i;
}

/// The devices of a training, as the layout has them: each goes through its schedule's computations, which take tensors that have
/// come, and stops inside them at its layers' calls. What it issues waits in its queue. Only the sums of gradients are taken from
/// the program's own needs.
class machine {
 public:
  machine(const instance& i, const device_program& program, const device_order& order)
      : i_(i), program_(program), order_(order), done_(program.steps.size(), 0), front_(order.of_device.size(), 0) {
    for (int d = 0; d < program.devices; ++d) {
      auto& own = devices_.emplace_back();
      own.place = i.layout.place_of(d);
      const auto& line = this->line(own.place.pipeline);
      own.index = d - line.first_of_group(own.place.group);
      for (const auto& a : line.order.lanes[at(own.place.group)].actions)
        if (is_compute(a.kind)) own.list.push_back(a);
    }
    for (std::size_t k = 0; k < program.steps.size(); ++k) {
      const auto& s = program.steps[k];
      if (s.kind == device_step_kind::collective)
        for (const int d : s.members) calls_[{d, key(s.pipeline, s.what)}].push_back(static_cast<int>(k));
      if (s.kind == device_step_kind::transfer) coming_[{s.members[1], key(s.pipeline, s.what)}].push_back(static_cast<int>(k));
    }
  }

  bool runs() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int d = 0; d < program_.devices; ++d)
        while (go_on(d)) moved = true;
      for (int d = 0; d < program_.devices; ++d)
        if (const int k = head(d); k >= 0) {
          const auto& s = program_.steps[at(k)];
          if (!std::all_of(s.members.begin(), s.members.end(), [&](int m) { return head(m) == k && begins(m, s); })) continue;
          done_[at(k)] = 1;
          for (const int m : s.members) ++front_[at(m)];
          moved = true;
        }
    }
    for (int d = 0; d < program_.devices; ++d)
      if (head(d) >= 0 || devices_[at(d)].next < devices_[at(d)].list.size()) return false;
    return true;
  }

 private:
  using name = std::tuple<int, action_kind, int, int, int>;
  struct device {
    rank_place place;
    int index = 0;  ///< in its group
    std::vector<action> list;
    std::size_t next = 0;  ///< computation
    bool begun = false;
    std::size_t called = 0;  ///< calls of it that are over
    std::set<name> over;
  };
  static name key(int pipeline, const action& a) { return {pipeline, a.kind, a.direction, a.stage, a.microbatch}; }
  [[nodiscard]] const pipeline_layout& line(int p) const { return i_.layout.pipelines[at(p)]; }
  [[nodiscard]] int head(int d) const {
    const auto& list = order_.of_device[at(d)];
    return front_[at(d)] < list.size() ? list[front_[at(d)]] : -1;
  }

  /// Whether a computation finds what comes from other ranks.
  [[nodiscard]] bool has_input(int d, const action& a) const {
    if (!makes_tensor(a.kind)) return true;
    const int p = devices_[at(d)].place.pipeline;
    const auto& order = line(p).order;
    action sent = a;
    sent.joined = false;
    sent.kind = makes_gradient(a.kind) ? action_kind::send_gradient : action_kind::send_activation;
    sent.stage += makes_gradient(a.kind) ? 1 : -1;
    if (sent.stage < 0 || sent.stage == order.stages || order.rank(a.direction, sent.stage) == order.rank(a.direction, a.stage))
      return true;
    const auto found = coming_.find({d, key(p, sent)});
    return found != coming_.end() &&
           std::all_of(found->second.begin(), found->second.end(), [&](int k) { return done_[at(k)] != 0; });
  }
  bool go_on(int d) {
    auto& own = devices_[at(d)];
    if (own.next == own.list.size()) return false;
    const auto& a = own.list[own.next];
    if (!own.begun) {
      if (!has_input(d, a)) return false;
      own.begun = true;
      own.called = 0;
      return true;
    }
    const auto found = calls_.find({d, key(own.place.pipeline, a)});
    if (found != calls_.end() && own.called < found->second.size()) {
      if (done_[at(found->second[own.called])] == 0) return false;
      ++own.called;
      return true;
    }
    own.over.insert(key(own.place.pipeline, a));
    ++own.next;
    own.begun = false;
    return true;
  }
  /// Whether a device begins what it has issued, once that is the first of its queue.
  [[nodiscard]] bool begins(int d, const device_step& s) const {
    using enum action_kind;
    const auto& own = devices_[at(d)];
    if (is_compute(s.what.kind)) {
      if (own.next == own.list.size() || !own.begun) return false;
      const auto found = calls_.find({d, key(s.pipeline, s.what)});
      return key(s.pipeline, own.list[own.next]) == key(s.pipeline, s.what) &&
             &program_.steps[at(found->second[own.called])] == &s;
    }
    if (s.kind == device_step_kind::transfer) return d == s.members[1] || has_to_send(d, s);
    if (s.what.kind == all_gather && i_.parameters.front().sharded && own.next < own.list.size()) return false;
    return std::all_of(s.needs.begin(), s.needs.end(), [&](int n) {
      const auto& needed = program_.steps[at(n)];
      if (needed.kind == device_step_kind::collective) return done_[at(n)] != 0;
      return needed.members[0] != d || needed.what.kind == optimizer || own.over.contains(key(needed.pipeline, needed.what));
    });
  }
  /// What a source has made, and what has come to whoever passes it on.
  [[nodiscard]] bool has_to_send(int d, const device_step& s) const {
    const bool gradient = s.what.kind == action_kind::send_gradient;
    const auto& order = line(s.pipeline).order;
    const int boundary = s.what.direction * (order.stages - 1) + s.what.stage - gradient;
    const auto& b = i_.groups[at(s.pipeline)].boundaries[at(boundary)];
    const auto& plan = gradient ? b.gradient : b.activation;
    const auto& message = plan.messages[at(s.part)];
    const auto& over = devices_[at(d)].over;
    const auto made = [&](action_kind kind) {
      auto a = s.what;
      a.kind = kind;
      return over.contains(key(s.pipeline, a));
    };
    using enum action_kind;
    if (message.from < plan.sources && !(gradient ? made(backward) || made(backward_input) : made(forward))) return false;
    const auto found = coming_.find({d, key(s.pipeline, s.what)});
    if (found == coming_.end()) return true;
    const auto phase_of = [&](int part) { return std::upper_bound(plan.phases.begin(), plan.phases.end(), at(part)); };
    return std::all_of(found->second.begin(), found->second.end(), [&](int k) {
      const int part = program_.steps[at(k)].part;
      const bool earlier = phase_of(part) < phase_of(s.part);
      return !earlier || !overlap(plan.slice_of(plan.messages[at(part)]), plan.slice_of(message)) || done_[at(k)] != 0;
    });
  }

  const instance& i_;
  const device_program& program_;
  const device_order& order_;
  std::vector<char> done_;
  std::vector<std::size_t> front_;
  std::vector<device> devices_;
  std::map<std::pair<int, name>, std::vector<int>> calls_, coming_;  ///< by device
};

bool runs(const instance& i, const device_program& p, const device_order& o) { return machine(i, p, o).runs(); }

const std::vector<degrees> all_degrees{{1, 1, 1}, {2, 1, 1}, {1, 1, 2}, {2, 1, 2}, {1, 2, 1}, {3, 1, 1}, {1, 1, 3}, {2, 2, 2}};

training_layout layout_of(std::string_view name, int ranks, int microbatches, std::size_t first_degrees, bool equal) {
  const auto order = schedule_of(name, ranks, microbatches);
  auto layout = even_layout(8, order, 6);
  for (int g = 0; g < order.ranks; ++g) {
    // Copies of a stage in two directions are on groups of one size.
    const auto k = first_degrees + (equal ? 0 : at(order.directions == 2 ? std::min(g, order.ranks - 1 - g) : g));
    layout.pipelines[0].groups.push_back({.degrees = all_degrees[k % all_degrees.size()]});
  }
  for (int s = 0; s + 1 < order.stages; ++s)
    layout.pipelines[0].stages[at(s)].reshard = all_reshard_strategies[(first_degrees + at(s)) % all_reshard_strategies.size()];
  return layout;
}

/// What every program has to have, counted from the layout.
void check_counts(const instance& i, const device_program& program) {
  std::size_t transfers = 0, expected = 0;
  for (const auto& s : program.steps) transfers += s.kind == device_step_kind::transfer;
  for (std::size_t p = 0; p < i.groups.size(); ++p) {
    const auto& order = i.layout.pipelines[p].order;
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions) {
        if (!makes_tensor(a.kind)) continue;
        const bool gradient = makes_gradient(a.kind);
        const int next = a.stage + (gradient ? -1 : 1);
        if (next < 0 || next == order.stages || order.rank(a.direction, next) == l.rank) continue;
        const auto& b = i.groups[p].boundaries[at(a.direction * (order.stages - 1) + std::min(next, a.stage))];
        for (const auto& m : (gradient ? b.gradient : b.activation).messages) expected += m.elements > 0;
      }
  }
  CHECK(transfers == expected);
}

}  // namespace

TEST_CASE("every schedule of the library with any degrees has an order of devices that is proved") {
  std::size_t collectives = 0;
  for (const auto name : schedule_names())
    for (std::size_t k = 0; k < all_degrees.size(); ++k)
      for (const bool equal : {false, true}) {
        const std::string text(name);
        CAPTURE(text);
        CAPTURE(k);
        std::vector<training_layout> parts{layout_of(name, 2, 4, k, equal)};
        if (k % 2 == 1) parts.push_back(layout_of(k % 4 == 1 ? "1f1b" : name, 2, 4, k + 1, equal));
        const auto i = make_instance(side_by_side(parts), k % 3 == 0);
        const auto program = make_device_program(i.layout, i.groups, i.parameters, i.options);
        check_counts(i, program);
        const auto found = find_device_order(program);
        for (const auto& c : found.cycles) FAIL_CHECK(c);
        CHECK(check_device_order(program, found.order).empty());
        CHECK(runs(i, program, found.order));
        for (const auto& s : program.steps) collectives += s.kind == device_step_kind::collective;
      }
  CHECK(collectives > 1000);
}

TEST_CASE("on single devices the order of devices is an order of issue of the schedule") {
  for (const auto name : schedule_names()) {
    const std::string text(name);
    CAPTURE(text);
    const auto layout = layout_of(name, 4, 8, 0, true);
    const auto& order = layout.pipelines[0].order;
    const std::vector groups{make_pipeline_groups(layout.pipelines[0], [](int) { return tensor_shape{6, 2}; })};
    const auto program = make_device_program(layout, groups, {});
    const auto found = find_device_order(program);
    REQUIRE(found.cycles.empty());
    issue_order issued;
    const bool lists_sums = action_index(order).lists(action_kind::reduce_gradients);
    for (int d = 0; d < program.devices; ++d) {
      auto& own = issued.of_rank.emplace_back();
      for (const int n : found.order.of_device[at(d)]) {
        const auto& s = program.steps[at(n)];
        if (s.kind == device_step_kind::transfer) {
          own.push_back(d == s.members[0] ? s.what : detail::other_end(s.what));
          continue;
        }
        REQUIRE(s.what.kind == action_kind::reduce_gradients);
        if (!lists_sums) continue;
        auto a = s.what;
        a.direction = static_cast<std::int16_t>(order.rank(0, a.stage) == d ? 0 : 1);
        own.push_back(a);
      }
    }
    const auto all = split_streams(add_transfers(order));
    for (const auto& w : check_issue_order(all, issued)) FAIL_CHECK(w);
  }
}

TEST_CASE("orders of trainings are proved if and only if they run, and 500 planted cycles are refused") {
  int stuck = 0, ran = 0, of_collectives = 0, passed_on = 0;
  const auto names = schedule_names();
  for (int number = 0; stuck < 500 / sanitizer_share; ++number) {
    REQUIRE(number < 500);
    CAPTURE(number);
    random_source random(static_cast<std::uint64_t>(number) + 1);
    const auto any = [&](std::size_t n) { return at(random.integer(0, static_cast<int>(n) - 1)); };
    std::vector<training_layout> parts{layout_of(names[any(names.size())], 2, 4, any(8), random.integer(0, 1) == 0)};
    if (random.integer(0, 2) == 0) parts.push_back(layout_of("1f1b", 2, 3, any(8), false));
    const auto i = make_instance(side_by_side(parts), random.integer(0, 2) == 0);
    const auto program = make_device_program(i.layout, i.groups, i.parameters, i.options);
    for (const auto& s : program.steps)
      passed_on += s.kind == device_step_kind::transfer && !s.needs.empty() &&
                   program.steps[at(s.needs.back())].kind == device_step_kind::transfer;
    const auto found = find_device_order(program);
    REQUIRE(found.cycles.empty());
    REQUIRE(check_device_order(program, found.order).empty());
    for (int plant = 0; plant < 8; ++plant) {
      auto other = found.order;
      auto& list = other.of_device[any(other.of_device.size())];
      if (list.size() < 2) continue;
      const auto first = any(list.size()), second = plant % 2 == 0 ? any(list.size()) : std::min(first + 1, list.size() - 1);
      std::swap(list[first], list[second]);
      const bool proved = check_device_order(program, other).empty();
      CHECK(proved == runs(i, program, other));
      stuck += !proved;
      ran += proved && first != second;
      of_collectives += !proved && program.steps[at(list[first])].kind == device_step_kind::collective;
    }
  }
  CHECK(of_collectives > 100 / sanitizer_share);
  CHECK(ran >= 10 / sanitizer_share);
  CHECK(passed_on > 0);
}

TEST_CASE("a call inside a forward stands between the receive and the send") {
  // Two stages of two tensor ranks each, a layer each that calls once, one microbatch.
  auto layout = even_layout(2, schedule_of("gpipe", 2, 1), 2);
  layout.pipelines[0].groups.assign(2, {.degrees = {.tensor = 2}});
  const std::vector groups{make_pipeline_groups(layout.pipelines[0], [](int) { return tensor_shape{2, 2}; })};
  const device_program_options options{.tensor = {.forward = 1, .backward_input = 1}, .context = {}};
  const auto program = make_device_program(layout, groups, {}, options);
  const auto found = find_device_order(program);
  const auto texts = [&](int d) {
    std::vector<std::string> list;
    for (const int n : found.order.of_device[at(d)]) list.push_back(to_text(program.steps[at(n)]));
    return list;
  };
  CHECK(texts(0) == std::vector<std::string>{"collective 1 of 0F0 on devices 0, 1", "0SEND_F0 from device 0 to device 2",
                                             "1SEND_B0 from device 2 to device 0", "collective 1 of 0B0 on devices 0, 1"});
  CHECK(texts(3) == std::vector<std::string>{"0SEND_F0 from device 1 to device 3", "collective 1 of 1F0 on devices 2, 3",
                                             "collective 1 of 1B0 on devices 2, 3", "1SEND_B0 from device 3 to device 1"});
}

TEST_CASE("tensors that go by way of the hosts are waited for, and not issued") {
  auto layout = even_layout(2, schedule_of("1f1b", 2, 3), 2);
  const std::vector groups{make_pipeline_groups(layout.pipelines[0], [](int) { return tensor_shape{2, 2}; })};
  auto& order = layout.pipelines[0].order;
  order = split_streams(stage_transfers(add_transfers(order), [](int, int) { return true; }));
  const auto program = make_device_program(layout, groups, {});
  const auto found = find_device_order(program);
  REQUIRE(found.cycles.empty());
  for (const auto& list : found.order.of_device) CHECK(list.empty());
  CHECK(std::count_if(program.steps.begin(), program.steps.end(),
                      [](const auto& s) { return s.kind == device_step_kind::host_transfer; }) == 6);
}

TEST_CASE("groups of another training are refused") {
  auto layout = even_layout(2, schedule_of("1f1b", 2, 3), 2);
  std::vector groups{make_pipeline_groups(layout.pipelines[0], [](int) { return tensor_shape{2, 2}; })};
  CHECK_THROWS_AS((void)make_device_program(layout, {}, {}), input_error);
  layout.pipelines[0].groups = {{.degrees = {.data = 2}}, {}};
  CHECK_THROWS_AS((void)make_device_program(layout, groups, {}), input_error);
  groups[0].boundaries.clear();
  CHECK_THROWS_AS((void)make_device_program(layout, groups, {}), input_error);
}
