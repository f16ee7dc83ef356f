// SPDX-License-Identifier: Apache-2.0
// The search within a target against all plans that there are.
#include <hetsched/search/within_target.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>
#include <hetsched/planners.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/search/pack_devices.hpp>

using namespace hetsched;

namespace {

constexpr double none = std::numeric_limits<double>::infinity();

cluster two_kinds() {
  cluster c;
  c.subclusters.push_back({"v", *find_device("V100-SXM2-16GB"), 1, 2, {5e-6, 150e9}, {10e-6, 25e9 / 8}});
  c.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 1, 2, {5e-6, 300e9}, {10e-6, 25e9 / 8}});
  c.links.push_back({0, 1, {100e-6, 5e9 / 8}});
  return c;
}

// Embedding, three blocks, head. `tied`: these two share their parameters.
layer_chain blocks(int hidden, bool tied) {
  auto model = gpt({.layers = 3, .hidden = hidden, .heads = 16, .vocab = 8000, .sequence = 512});
  model.tied_embeddings = tied;
  return make_chain(model, granularity::block);
}

any_cost_model costs_of(const cluster& c, const layer_chain& chain, int size) {
  return any_cost_model::owner_of(analytic_cost_model(
      c, chain, {.microbatch_size = size, .recompute = {recomputation::none, recomputation::full}, .zero = {0, 1, 2, 3}}));
}

/// Every pipeline on every devices in every order: the least iteration among those that a target runs.
class all_plans {
 public:
  all_plans(const cluster& c, const costs_by_size& costs, const plan_target& t, int microbatches, int size, std::string schedule)
      : cluster_(c), costs_(costs), target_(t) {
    plan_.setting.granularity = "block";
    plan_.setting.precision = "bf16";
    plan_.pipelines.push_back({.microbatches = microbatches, .microbatch_size = size});
    plan_.pipelines[0].schedule.name = std::move(schedule);
    for (std::size_t k = 0; k < c.subclusters.size(); ++k)
      for (const auto& mesh : submeshes(c.subclusters[k], static_cast<int>(k)))
        for (const auto& where : costs(size).placements(mesh)) placements_.push_back(where);
    add(0);
  }
  double least_s = none;
  int run = 0;

 private:
  void add(int first) {
    auto& stages = plan_.pipelines[0].stages;
    const int layers = costs_(plan_.pipelines[0].microbatch_size).layer_count();
    if (first == layers) return judge();
    for (int last = first + 1; last <= layers; ++last)
      for (const auto& where : placements_) {
        std::vector<int> used(cluster_.subclusters.size());
        for (const auto& s : stages) used[static_cast<std::size_t>(s.devices[0].mesh.subcluster)] += s.degrees.device_count();
        const auto k = static_cast<std::size_t>(where.mesh.subcluster);
        if (used[k] + where.mesh.device_count() > cluster_.subclusters[k].device_count()) continue;
        stages.push_back({.layers = {first, last},
                          .devices = {{where.mesh, used[k]}},
                          .degrees = where.degrees,
                          .recompute = where.recompute,
                          .zero = where.zero});
        add(last);
        stages.pop_back();
      }
  }
  void judge() {
    if (!gaps(plan_, target_, cluster_).empty()) return;
    const auto judged = evaluate(cluster_, costs_, plan_);
    if (!judged || !judged->shortage.empty()) return;
    ++run;
    least_s = std::min(least_s, judged->plan.predicted.iteration_s);
  }

  const cluster& cluster_;
  const costs_by_size& costs_;
  const plan_target& target_;
  plan plan_;
  std::vector<placement> placements_;
};

}  // namespace

TEST_CASE("of all plans that a target runs, none is better than what is found, and none is below the bound") {
  struct instance {
    int hidden;  // of 2048 memory is short
    bool tied, apart;
  };
  for (const auto& one :
       {instance{1024, false, false}, {1024, true, false}, {2048, false, false}, {2048, true, false}, {1024, false, true}}) {
    const int hidden = one.hidden;
    const bool tied = one.tied, apart = one.apart;
    CAPTURE(hidden);
    CAPTURE(tied);
    CAPTURE(apart);
    auto c = two_kinds();
    c.links[0].path.nccl = !apart;
    // Where links do not keep them apart, neither does what they compute in.
    if (!apart) c.subclusters[0].device.peak_flops[3] = c.subclusters[0].device.peak_flops[2];
    const auto chain = blocks(hidden, tied);
    const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
    double any_s = none;
    for (const auto* name : {"hetsched", "megatron", "torchtitan", "flagscale", "deepspeed", "torch"}) {
      CAPTURE(name);
      auto t = *find_plan_target(name);
      t.several_pipelines = false;
      plan_request request{.global_batch = 32, .microbatch_size = 4, .planner = "interop_dp"};
      request.setting.granularity = "block";
      request.setting.precision = "bf16";
      request.target = t;
      const auto found = find_plan(c, costs, request);
      const std::string schedule = allows(t, "exact_1f1b") ? "exact_1f1b" : "1f1b";
      const all_plans all(c, costs, t, 8, 4, schedule);
      if (all.run == 0) {
        REQUIRE_FALSE(found);
        CHECK(found.why_not().why == refusal::kind::infeasible);
        continue;
      }
      REQUIRE(found);
      CHECK(gaps(*found, t, c) == std::vector<target_gap>{});
      CHECK(found->setting.target == name);
      // A target that knows 1F1B by its name has no other warm-ups than its own.
      const auto& stages = found->pipelines[0].stages;
      if (schedule == "1f1b")
        for (std::size_t i = 0; i < stages.size(); ++i)
          CHECK(stages[i].warmup == std::min(static_cast<int>(stages.size() - i), 8));
      CHECK(found->predicted.iteration_s <= all.least_s * (1 + 1e-9));
      REQUIRE(found->evidence);
      CHECK(found->evidence->objective_bound <= all.least_s * (1 + 1e-9));
      CHECK(found->evidence->space.find("that " + t.name + " runs") != std::string::npos);
      // What is predicted is what evaluate says of the model's own layers.
      const auto judged = evaluate(c, costs, *found);
      REQUIRE(judged);
      CHECK(judged->plan.predicted.iteration_s == found->predicted.iteration_s);
      // The first target runs whatever one pipeline can be.
      if (any_s == none) any_s = found->predicted.iteration_s;
      CHECK(found->predicted.iteration_s >= any_s * (1 - 1e-9));
    }
  }
}

TEST_CASE("a host that stages come back to: laid out anew, or other stages") {
  // Stages of four, eight and four devices on two hosts of eight: the last one would come back to the first's.
  cluster c;
  c.subclusters.push_back({"a", *find_device("A100-SXM4-40GB"), 2, 8, {5e-6, 300e9}, {10e-6, 25e9}});
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  const auto t = *find_plan_target("flagscale");
  int asked = 0;
  const auto made_by = [&](const std::vector<submesh>& shapes, const std::vector<int>& first) {
    return [&, shapes, first](const cluster& seen, const costs_by_size& own, const planning_problem& p) -> outcome<plan> {
      ++asked;
      for (const auto& shape : shapes)
        if (own(8).placements(shape).empty()) return interop_dp(seen, own(8), p, {.warmup = warmup_rule::one_f_one_b});
      plan found;
      found.pipelines.push_back({.microbatches = p.microbatches, .microbatch_size = 8});
      found.pipelines[0].schedule.name = "1f1b";
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto where = own(8).placements(shapes[i]).front();
        found.pipelines[0].stages.push_back({.layers = {static_cast<int>(i), static_cast<int>(i) + 1},
                                             .devices = {{shapes[i], first[i]}},
                                             .degrees = where.degrees,
                                             .recompute = where.recompute,
                                             .zero = where.zero});
      }
      auto judged = evaluate(seen, own, found);
      if (!judged) return judged.why_not();
      return judged->plan;
    };
  };
  planning_problem problem{.microbatches = 4, .microbatch_size = 8};
  // Three stages of two devices, the last between: in order they share the first host.
  auto found = within_target(c, costs, t, problem, made_by({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}, {0, 8, 2}));
  REQUIRE(found);
  CHECK(gaps(*found, t, c).empty());
  asked = 0;
  found = within_target(c, costs, t, problem, made_by({{0, 1, 4}, {0, 1, 8}, {0, 1, 4}}, {0, 8, 4}));
  REQUIRE(found);
  CHECK(gaps(*found, t, c).empty());
  CHECK(asked > 1);
}

TEST_CASE("target_costs: ends joined with their blocks, copies and boundaries as of the model") {
  const auto c = two_kinds();
  const auto chain = blocks(1024, true);
  const auto own = costs_of(c, chain, 4);
  const auto t = *find_plan_target("flagscale");
  const auto all = choices(c, own, t, 8);
  REQUIRE_FALSE(all.empty());
  CHECK(all.front().traits.size() == t.equal.size() + 2);  // with a tied embedding also the degrees of the ends
  CHECK(std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.least_s < b.least_s; }));
  const target_costs seen(own, t, all.front());
  REQUIRE(own.layer_count() == 5);
  CHECK(seen.layer_count() == 3);
  CHECK(seen.within({0, 1}) == layer_range{0, 2});
  CHECK(seen.within({1, 2}) == layer_range{2, 3});
  CHECK(seen.within({0, 3}) == layer_range{0, 5});
  const placement where{.mesh = {1, 1, 1}};
  CHECK(seen.stage({2, 3}, where) == own.stage({3, 5}, where));
  CHECK(seen.layer(0, where) == own.stage({0, 2}, where));
  const auto copies = seen.copies(where);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].owner == 0);
  CHECK(copies[0].layer == 2);
  const placement next{.mesh = {0, 1, 1}};
  CHECK(seen.transfer(0, where, next) == own.transfer(1, where, next));
  // Only placements of the choice are left.
  for (const auto& mesh : submeshes(c.subclusters[1], 1))
    for (const auto& p : seen.placements(mesh))
      for (std::size_t i = 0; i < all.front().traits.size(); ++i)
        if (const auto trait = all.front().traits[i]; matters(trait, p)) CHECK(value_of(trait, p) == all.front().values[i]);
}

TEST_CASE("find_plan: where a target runs nothing it says why, and what goes without it") {
  auto c = two_kinds();
  for (auto& s : c.subclusters) {
    s.devices_per_node = 4;
    s.device.memory_bytes = 4'200'000'000;  // less than a block's state beside the runtime
  }
  const auto chain = blocks(2048, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  plan_request request{.global_batch = 16, .microbatch_size = 4, .planner = "interop_dp"};
  request.setting.granularity = "block";
  request.target = find_plan_target("torch");
  CHECK(find_plan(c, costs, request));  // which shares out the optimizer's state
  request.target->zero = {0};
  const auto found = find_plan(c, costs, request);
  REQUIRE_FALSE(found);
  const auto& why = found.why_not().reason;
  CAPTURE(why);
  CHECK(why.find("torch can run none: ") == 0);
  CHECK(why.find("GiB") != std::string::npos);
  CHECK(why.find("; without that: ") != std::string::npos);
  CHECK(why.find("stage 0: ") != std::string::npos);
}

TEST_CASE("find_plan: another schedule of the target, for which one stage is too few") {
  const auto c = two_kinds();
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  for (const auto* schedule : {"interleaved_1f1b", "1f1b"}) {
    plan_request request{.global_batch = 16, .microbatch_size = 4, .schedule = schedule};
    request.setting.granularity = "block";
    request.target = find_plan_target("megatron");
    const auto found = find_plan(c, costs, request);
    REQUIRE(found);
    CHECK(found->pipelines[0].schedule.name == schedule);
    CHECK(gaps(*found, *request.target).empty());
  }
}

TEST_CASE("find_plan: torch recomputes where that is faster than to have no room, but not where backwards come in parts") {
  auto c = two_kinds();
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  plan_request request{.global_batch = 64, .microbatch_size = 8, .planner = "interop_dp"};
  request.setting.granularity = "block";
  request.target = find_plan_target("torch");
  const auto recomputes = [](const plan& p) {
    const auto& stages = p.pipelines[0].stages;
    return std::any_of(stages.begin(), stages.end(), [](const auto& s) { return s.recompute == recomputation::full; });
  };
  auto without = request;
  without.target->recompute = {recomputation::none};
  bool any = false;
  for (double gigabytes = 20; gigabytes > 2; gigabytes *= 0.9) {
    CAPTURE(gigabytes);
    for (auto& s : c.subclusters) s.device.memory_bytes = static_cast<std::int64_t>(gigabytes * 1e9);
    const auto found = find_plan(c, costs, request), plain = find_plan(c, costs, without);
    if (plain) {
      REQUIRE(found);
      CHECK(found->predicted.iteration_s <= plain->predicted.iteration_s * (1 + 1e-9));
    }
    if (!found) break;
    any = any || recomputes(*found);
    auto parted = request;
    parted.schedule = "zb_h1";
    if (const auto other = find_plan(c, costs, parted)) {
      CHECK_FALSE(recomputes(*other));
      CHECK(gaps(*other, *request.target).empty());
    }
  }
  CHECK(any);
}

TEST_CASE("find_plan: a baseline plans what the target runs, if anything under 1F1B") {
  auto c = two_kinds();
  c.links[0] = {0, 1, {100e-6, 1e9 / 8}};  // over which more microbatches are on their way than 1F1B has
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  int several = 0;
  for (const auto* planner : {"uniform", "amp"})
    for (double gigabytes = 12; gigabytes > 3; gigabytes *= 0.97)
      for (const int batch : {64, 256}) {
        CAPTURE(planner);
        CAPTURE(gigabytes);
        for (auto& s : c.subclusters) s.device.memory_bytes = static_cast<std::int64_t>(gigabytes * 1e9);
        plan_request request{.global_batch = batch, .microbatch_size = 16, .planner = planner};
        request.setting.granularity = "block";
        request.target = find_plan_target("torch");
        request.target->recompute = {recomputation::none};
        const auto found = find_plan(c, costs, request);
        // What has 1F1B's order in all pipelines is of its space.
        auto narrow = request;
        narrow.schedule = "1f1b";
        const auto least = find_plan(c, costs, narrow);
        if (least) REQUIRE(found);
        if (!found) continue;
        CHECK(gaps(*found, *request.target).empty());
        several += found->pipelines.size() > 1;
      }
  CHECK(several > 0);
}

TEST_CASE("find_plan: what does not go with a target is an error") {
  const auto c = two_kinds();
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  plan_request request{.global_batch = 16, .microbatch_size = 4};
  request.target = find_plan_target("megatron");
  CHECK(find_plan(c, costs, request));  // by a planner of one pipeline
  const auto wrong = [&](auto change) {
    auto other = request;
    change(other);
    CHECK_THROWS_AS((void)find_plan(c, costs, other), input_error);
  };
  wrong([](plan_request& r) { r.planner = "parallel_pipelines"; });
  wrong([](plan_request& r) { r.mixed_stages = true; });
  wrong([](plan_request& r) { r.schedule = "zb_h1"; });
  wrong([](plan_request& r) { r.setting.granularity = "sublayer"; });
  wrong([](plan_request& r) { r.target->stack = "nobody's"; });
  CHECK_THROWS_AS((void)find_frontier(c, costs, request, planner_named("parallel_pipelines"), {}), input_error);
}

TEST_CASE("find_plan: every planner of one pipeline keeps to a target, also when it is stopped at once") {
  const auto c = two_kinds();
  const auto chain = blocks(1024, false);
  const costs_by_size costs = [&](int size) { return costs_of(c, chain, size); };
  for (const auto* planner : {"interop_dp", "hetauto", "hetauto_exact", "placement"})
    for (const auto* name : {"megatron", "torch", "flagscale"})
      for (const bool stopped : {false, true}) {
        CAPTURE(planner);
        CAPTURE(name);
        CAPTURE(stopped);
        plan_request request{.global_batch = 16, .planner = planner};
        request.target = find_plan_target(name);
        if (stopped) request.go_on = [] { return false; };
        const auto found = find_plan(c, costs, request);
        REQUIRE(found);
        CHECK(gaps(*found, *request.target) == std::vector<target_gap>{});
      }
}
