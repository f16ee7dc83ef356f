// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/executor/executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/search/auto_schedule.hpp>
#include <hetsched/schedule/text.hpp>

#include "../../schedule/sound_schedule.hpp"
#include "../dense.hpp"
#include "../small_layer.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

pipeline some_pipeline(random_source& random, int stages) {
  pipeline p{.forward_s = {}, .backward_s = {}, .transfer_s = {}};
  for (int s = 0; s < stages; ++s) {
    p.forward_s.push_back(random.uniform(1, 2));
    p.backward_s.push_back(random.uniform(2, 4));
    p.weight_backward_s.push_back(1);
    if (s > 0) p.transfer_s.push_back(random.uniform(0, 3));
  }
  return p;
}

std::vector<int> layer_counts(random_source& random, int stages, bool even) {
  std::vector<int> counts;
  for (int s = 0; s < stages; ++s) counts.push_back(even ? 2 : random.integer(1, 3));
  return counts;
}

/// Two steps: the second finds everything used before.
template <class Real>
void check_against_reference(const schedule& order, std::uint64_t seed, const std::vector<int>& layers,
                             const executor_options& options = {}) {
  const task<Real> t(seed, layers, order.microbatches);
  const auto expected = reference(t, order);
  const auto got = run_on_threads(t, order, options, 2);
  CHECK(got.losses == expected.losses);
  CHECK(got.gradients == expected.gradients);
}

schedule by_name(std::string_view name, const pipeline& p, int microbatches) {
  if (name == "auto") return (*auto_schedule(p, microbatches, {.rounds = 5})).order;
  return build_schedule(name, p, microbatches);
}

}  // namespace

TEST_CASE("[threads] every schedule gives the bits of one device") {
  random_source random(1);
  auto names = schedule_names();
  names.push_back("auto");
  int run = 0;
  for (const auto name : names)
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        if (++run % test::search_share != 0) continue;
        const auto p = some_pipeline(random, ranks);
        schedule order;
        try {
          order = by_name(name, p, microbatches);
        } catch (const input_error&) {
          continue;  // numbers that the schedule is not made for
        }
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        // Microbatches are added up in their order, so that nothing but the directions tells the result from one loop over them.
        for (int c = 0; c < order.directions; ++c)
          for (int s = 0; s < order.stages; ++s)
            for (const bool split : {false, true}) {
              const auto added = gradient_order(order, c, s, split);
              CHECK(std::is_sorted(added.begin(), added.end()));
            }
        for (const bool even : {true, false}) {
          const auto layers = layer_counts(random, order.stages, even);
          const auto seed = static_cast<std::uint64_t>(run);
          check_against_reference<float>(order, seed, layers);
          check_against_reference<double>(order, seed, layers);
        }
      }
}

TEST_CASE("[threads] random schedules, with channels that hold any number and with channels that hold nothing") {
  random_source random(2);
  int rendezvous = 0;
  for (int instance = 0; rendezvous < 200 / sanitizer_share; ++instance) {
    const auto options = random_sound_options(random);
    const auto order = sound_schedule(random, options);
    CAPTURE(instance);
    INFO(to_csv(order));
    REQUIRE(check(order).empty());
    const auto layers = layer_counts(random, order.stages, false);
    const auto seed = static_cast<std::uint64_t>(instance);
    if (instance % 2 == 0) check_against_reference<double>(order, seed, layers);
    check_against_reference<double>(order, seed, layers, {.deadline_s = 10, .semantics = send_semantics::rendezvous});
    ++rendezvous;
  }
}

TEST_CASE("[threads] forwards alone have the losses of the whole, leave gradients as they are, and keep one input at a time") {
  random_source random(21);
  const auto check_forwards = [&](const schedule& order, std::uint64_t seed) {
    const auto forwards = forwards_of(order);
    REQUIRE(check(forwards, {.semantics = {send_semantics::buffered}}).empty());
    const task<double> t(seed, std::vector<int>(static_cast<std::size_t>(order.stages), 1), order.microbatches);
    const auto expected = reference(t, order).losses;
    for (const auto how : {send_semantics::buffered, send_semantics::rendezvous}) {
      if (how == send_semantics::rendezvous && !check(forwards, {.semantics = {how}}).empty()) continue;
      run_record record;
      const auto got = run_over(thread_communicator<matrix<double>>::connect(order.ranks), t, forwards,
                                {.deadline_s = 10, .semantics = how}, 2, &record);
      CHECK(got.losses == expected);
      for (const auto& stage : got.gradients)
        for (const auto& g : stage)
          CHECK(std::all_of(g.data(), g.data() + g.rows() * g.columns(), [](double x) { return x == 0; }));
      for (int r = 0; r < order.ranks; ++r) {
        std::size_t inputs = 0;
        for (const auto& c : stages_of_rank(order, r))
          if (c.stage > 0) inputs += t.rows * t.widths[static_cast<std::size_t>(c.stage)] * sizeof(double);
        const auto& held = record.arenas[static_cast<std::size_t>(r)];
        CHECK(held.gradients == 0);
        CHECK(held.inputs <= inputs);
      }
    }
  };
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    check_forwards(by_name(name, some_pipeline(random, 4), 8), 5);
  }
  for (int instance = 0; instance < 100 / sanitizer_share; ++instance) {
    const auto order = sound_schedule(random, random_sound_options(random));
    CAPTURE(instance);
    INFO(to_csv(order));
    check_forwards(order, static_cast<std::uint64_t>(instance));
  }
}

TEST_CASE("[threads] transfers as the passes list them") {
  random_source random(3);
  const auto p = some_pipeline(random, 4);
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto bare = build_schedule(name, p, 5);
    const auto layers = layer_counts(random, bare.stages, true);
    const auto listed = add_transfers(bare);
    const auto staged = stage_transfers(listed, [](int from, int to) { return from / 2 != to / 2; });
    int version = 0;
    for (const auto& order : {listed, split_streams(listed), group_transfers(listed), split_streams(staged), staged}) {
      CAPTURE(++version);
      check_against_reference<float>(order, 7, layers);
    }
    check_against_reference<float>(group_transfers(listed), 7, layers, {.semantics = send_semantics::rendezvous});
  }
}

TEST_CASE("[threads] receives that are listed in another order than their sends") {
  auto order = make_schedule(2, 2, {0, 1});
  using enum action_kind;
  const auto list = [&](int rank, action_kind kind, int m) {
    order.lanes[static_cast<std::size_t>(rank)].actions.push_back({.kind = kind, .stage = rank, .microbatch = m});
  };
  for (const int m : {0, 1}) {
    list(0, forward, m);
    list(0, send_activation, m);
  }
  for (const int m : {0, 1}) {
    list(0, receive_gradient, m);
    list(0, backward, m);
  }
  for (const int m : {1, 0}) list(1, receive_activation, m);
  for (const int m : {0, 1}) {
    list(1, forward, m);
    list(1, backward, m);
    list(1, send_gradient, m);
  }
  check_against_reference<double>(order, 3, {1, 2});
  CHECK_THROWS_AS(check_against_reference<double>(order, 3, {1, 2}, {.semantics = send_semantics::rendezvous}), input_error);
}

TEST_CASE("[threads] what a computation makes leaves before the next one begins") {
  // Each rank's second computation of a kind lasts until its neighbour has begun with what the first has made.
  const auto order = gpipe(2, 4);
  std::atomic<bool> forward{false}, backward{false};
  const auto wait_for = [](const std::atomic<bool>& happened) {
    for (const double until_s = steady_now_s() + 60; !happened; std::this_thread::yield())
      if (steady_now_s() > until_s) throw std::runtime_error("waited in vain");
  };
  hetsched::run_on_threads(thread_communicator<small_tensor>::connect(2), [&](thread_communicator<small_tensor>& end) {
    const bool first = end.rank() == 0;
    int forwards = 0, backwards = 0;
    std::vector<small_layer> stages(1);
    stages[0].on_forward = [&] {
      if (!first) forward = true;
      if (first && ++forwards == 2) wait_for(forward);
    };
    stages[0].on_backward = [&] {
      if (first) backward = true;
      if (!first && ++backwards == 2) wait_for(backward);
    };
    const std::vector<small_tensor> inputs(4);
    const std::vector<int> targets(4);
    pipeline_executor<small_tensor, small_layer, thread_communicator<small_tensor>> executor(order, stages,
                                                                                             std::vector<tensor_shape>{{1}}, end);
    executor.step(std::span<const small_tensor>(inputs), std::span<const int>(targets), [](const small_tensor& y, int) {
      return loss_value<small_tensor>{0, y};
    });
  });

  random_source random(7);
  for (const auto name : schedule_names()) {
    CAPTURE(name);
    const auto listed = build_schedule(name, some_pipeline(random, 4), 8);
    const task<double> t(1, layer_counts(random, listed.stages, true), 8);
    run_record record;
    (void)run_over(thread_communicator<matrix<double>>::connect(4), t, listed, {}, 2, &record);
    for (const auto& part : record.parts)
      for (const auto& a : part.actions) {
        if (!detail::is_send(a.what.kind)) continue;
        const bool gradient = moves_gradient(a.what.kind);
        const auto makes = [&](const timed_action& c) {
          const auto kind = c.what.kind;
          return c.what.direction == a.what.direction && c.what.stage == a.what.stage && c.what.microbatch == a.what.microbatch &&
                 (gradient ? kind == action_kind::backward || kind == action_kind::backward_input : kind == action_kind::forward);
        };
        const auto made = std::find_if(part.actions.begin(), part.actions.end(), makes);
        REQUIRE(made != part.actions.end());
        CHECK(a.start_s >= made->end_s);
        auto next = made + 1;
        while (next != part.actions.end() && is_compute(next->what.kind) && next->what.joined) ++next;
        if (next != part.actions.end() && is_compute(next->what.kind)) CHECK(a.start_s <= next->start_s);
      }
  }
}

TEST_CASE("[threads] the measured timeline lists every computation and every transfer once") {
  random_source random(5);
  const auto p = some_pipeline(random, 3);
  for (const auto name : {"1f1b", "zb_v", "interleaved_1f1b"}) {
    CAPTURE(name);
    const auto order = build_schedule(name, p, 6);
    const task<double> t(1, layer_counts(random, order.stages, true), 6);
    run_record measured;
    (void)run_over(thread_communicator<matrix<double>>::connect(3), t, order, {}, 2, &measured);
    CHECK(measured.measured.ranks == 3);
    CHECK(measured.measured.microbatches == 6);
    std::vector<std::vector<action>> computed(3);
    std::size_t sends = 0, arrivals = 0;
    for (std::size_t r = 0; r < 3; ++r)
      for (const auto& a : measured.parts[r].actions) {
        if (!detail::is_receive(a.what.kind)) continue;
        ++arrivals;
        CHECK(a.rank == static_cast<int>(r));
        CHECK(a.peer == detail::peer_rank(order, a.what));
        CHECK(a.start_s == a.end_s);
      }
    double last = 0;
    for (const auto& a : measured.measured.actions) {
      CHECK(a.start_s >= 0);
      CHECK(a.end_s >= a.start_s);
      if (is_transfer(a.what.kind)) {
        ++sends;
        CHECK(detail::is_send(a.what.kind));
        CHECK(a.peer == detail::peer_rank(order, a.what));
        CHECK(a.rank == order.rank(0, a.what.stage));
      } else {
        auto& own = computed[static_cast<std::size_t>(a.rank)];
        if (!own.empty()) CHECK(a.start_s >= last);
        last = a.end_s;
        own.push_back(a.what);
      }
    }
    std::size_t expected = 0;
    for (int r = 0; r < 3; ++r) CHECK(computed[static_cast<std::size_t>(r)] == order.lanes[static_cast<std::size_t>(r)].actions);
    for (const auto& l : add_transfers(order).lanes)
      expected += static_cast<std::size_t>(
          std::count_if(l.actions.begin(), l.actions.end(), [](const action& a) { return detail::is_send(a.kind); }));
    CHECK(sends == expected);
    CHECK(arrivals == expected);
  }
}

TEST_CASE("[threads] pipelines side by side in one communicator") {
  random_source random(6);
  const auto p = some_pipeline(random, 2);
  const schedule orders[] = {build_schedule("1f1b", p, 4), build_schedule("chimera", some_pipeline(random, 4), 6),
                             build_schedule("zb_v", p, 3)};
  const int first_ranks[] = {0, 2, 6};
  using ends = std::vector<thread_communicator<matrix<double>>>;
  const ends all = thread_communicator<matrix<double>>::connect(8);
  rethrow_first(on_ranks(3, [&](int k) {
    const auto i = static_cast<std::size_t>(k);
    const auto& order = orders[i];
    const task<double> t(static_cast<std::uint64_t>(k), std::vector<int>(static_cast<std::size_t>(order.stages), 2),
                         order.microbatches);
    run_record record;
    const auto got = run_over(ends(all.begin() + first_ranks[i], all.begin() + first_ranks[i] + order.ranks), t, order,
                              {.first_rank = first_ranks[i], .first_step = 1000 * k}, 3, &record);
    CHECK(got == reference(t, order));
    for (const auto& a : record.measured.actions) CHECK((a.rank >= 0 && a.rank < order.ranks && a.peer < order.ranks));
  }));
}

TEST_CASE("[threads] gradients that are not to be scaled") {
  const auto order = gpipe(2, 4);
  const task<double> t(1, {1, 1}, 4);
  auto sums = run_on_threads(t, order, {.gradient_scale = 1}, 1);
  for (auto& stage : sums.gradients)
    for (auto& g : stage) detail::scale(g, 0.25);  // exact
  CHECK(sums == reference(t, order));
}

TEST_CASE("every rank is told of layouts for other numbers of devices") {
  using tensor = matrix<double>;
  using executor_type = pipeline_executor<tensor, dense_stage<double>, thread_communicator<tensor>>;
  const auto order = gpipe(4, 2);
  const task<double> t(1, {1, 1, 1, 1}, 2);
  auto ends = thread_communicator<tensor>::connect(4);
  auto groups = detail::single_devices(order, t.boundaries());
  auto& first = groups.boundaries[0];
  auto halves = first.from;
  halves.mesh = {2};
  halves.dimensions[0].axes = {0};
  first = make_boundary_transfer(halves, halves, reshard_strategy{}, {}, first.merged);
  for (int r = 0; r < 4; ++r) {
    std::vector<dense_stage<double>> stages;
    stages.push_back(t.stage(r));
    CHECK_THROWS_WITH_AS(executor_type(order, stages, groups, ends[static_cast<std::size_t>(r)]),
                         "the layouts behind stage 0 are for 2 and 2 devices, but its groups have 1 and 1", input_error);
  }
}

TEST_CASE("an executor keeps what ranks of its process share, and nothing where they share nothing") {
  using tensor = matrix<double>;
  struct apart : thread_communicator<tensor> {
    [[nodiscard]] shared_values* shared() const { return nullptr; }
  };
  const auto order = gpipe(1, 2);
  const task<double> t(1, {1}, 2);
  const auto keeps = [&]<class Communicator>(Communicator end) {
    struct opened : pipeline_executor<tensor, dense_stage<double>, Communicator> {
      using pipeline_executor<tensor, dense_stage<double>, Communicator>::pipeline_executor;
      [[nodiscard]] bool keeps() const { return this->common_ != nullptr; }
    };
    std::vector<dense_stage<double>> stages;
    stages.push_back(t.stage(0));
    return opened(order, stages, t.boundaries(), std::move(end)).keeps();
  };
  const auto ends = thread_communicator<tensor>::connect(1);
  CHECK(keeps(ends[0]));
  CHECK_FALSE(keeps(apart{ends[0]}));
}

TEST_CASE("input that does not fit the schedule") {
  using tensor = matrix<double>;
  using executor_type = pipeline_executor<tensor, dense_stage<double>, thread_communicator<tensor>>;
  const auto order = gpipe(2, 2);
  const task<double> t(1, {1, 1}, 2);
  auto ends = thread_communicator<tensor>::connect(2);
  std::vector<dense_stage<double>> stages;
  CHECK_THROWS_AS(executor_type(order, stages, t.boundaries(), ends[0]), input_error);
  stages.push_back(t.stage(0));
  CHECK_THROWS_AS(executor_type(order, stages, std::vector<tensor_shape>{}, ends[0]), input_error);
  auto broken = order;
  broken.lanes[1].actions.pop_back();
  CHECK_THROWS_AS(executor_type(broken, stages, t.boundaries(), ends[0]), input_error);
  CHECK_THROWS_AS(executor_type(order, stages, t.boundaries(), ends[0], {.first_rank = 1}), input_error);
  CHECK_THROWS_AS(executor_type(order, stages, t.boundaries(), ends[1], {.first_rank = -1}), input_error);
  executor_type executor(order, stages, t.boundaries(), ends[0]);
  const std::span<const tensor> none;
  CHECK_THROWS_AS(executor.step(none, none, task<double>::loss), input_error);
  CHECK(ends[1].failure() == "rank 0, step 0 failed: a step needs one input per microbatch");
}

TEST_CASE("a loss whose gradient is of another shape is an error, on one rank too") {
  using tensor = matrix<double>;
  const auto order = gpipe(1, 2);
  const task<double> t(1, {1}, 2);
  auto ends = thread_communicator<tensor>::connect(1);
  std::vector<dense_stage<double>> stages;
  stages.push_back(t.stage(0));
  pipeline_executor<tensor, dense_stage<double>, thread_communicator<tensor>> executor(order, stages, t.boundaries(), ends[0]);
  const auto wrong = [](const tensor&, const tensor&) { return loss_value<tensor>{.value = 1, .gradient = {}}; };
  CHECK_THROWS_WITH_AS(
      executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), wrong),
      doctest::Contains(
          "0F0 (stage 0, the loss of microbatch 0) failed: the loss's gradient is of the shape 0 x 0, expected is 2 x "),
      layer_error);
  const auto value = [](const tensor&, const tensor&) { return 1.0; };
  CHECK_THROWS_WITH_AS(executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), value),
                       doctest::Contains("the loss has a value alone, and the schedule needs its gradient"), layer_error);
}
