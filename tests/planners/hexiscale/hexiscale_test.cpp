// SPDX-License-Identifier: Apache-2.0
#include <hetsched/planners/hexiscale.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/model/families.hpp>

#include "../../sanitizer_share.hpp"

using namespace hetsched;

namespace {

/// Two or three nodes of one or two kinds, with at most five devices.
cluster tiny_cluster(random_source& random) {
  const char* names[] = {"RTX4090", "RTX3090", "A800-SXM4-80GB"};
  cluster c;
  const auto net = [&] { return hetsched::link{1e-5, random.uniform(0.3, 20) * 1e9}; };
  if (random.integer(0, 1) == 0) {
    c.subclusters.push_back({"a", catalogue_device(names[random.integer(0, 2)]), 2, 2, net(), net()});
  } else {
    c.subclusters.push_back({"a", catalogue_device(names[random.integer(0, 2)]), 1, 2, net(), {}});
    c.subclusters.push_back({"b", catalogue_device(names[random.integer(0, 2)]), 1, random.integer(1, 2), net(), {}});
    connect(c, "a", "b", net());
  }
  return c;
}

/// The least iteration of all plans of one or two pipelines with stages on single nodes.
template <class Costs>
class all_pipelines {
 public:
  all_pipelines(const cluster& hardware, const Costs& costs, int microbatches)
      : hardware_(hardware), costs_(costs), microbatches_(microbatches) {
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k) {
      const auto& s = hardware.subclusters[k];
      for (int first = 0; first < s.device_count(); ++first)
        for (int n = 1; first % s.devices_per_node + n <= s.devices_per_node; ++n)
          for (const auto& p : costs.placements({static_cast<int>(k), 1, n})) spots_.push_back({{p.mesh, first}, p});
    }
    grow();
  }
  [[nodiscard]] double least() const { return least_; }

 private:
  struct spot {
    device_group devices;
    placement where;
  };

  [[nodiscard]] bool overlap(const spot& a, const spot& b) const {
    const auto &x = a.devices, &y = b.devices;
    return x.mesh.subcluster == y.mesh.subcluster && x.first_device < y.first_device + y.mesh.devices_per_node &&
           y.first_device < x.first_device + x.mesh.devices_per_node;
  }
  [[nodiscard]] bool free(std::size_t s) const {
    for (const auto& line : lines_)
      for (const auto& [other, layers] : line)
        if (overlap(spots_[s], spots_[other])) return false;
    return true;
  }

  // Puts a stage behind the last one, or begins the second pipeline.
  void grow() {
    const int layers = costs_.layer_count();
    const int at = lines_.empty() || lines_.back().empty() ? 0 : lines_.back().back().second.last;
    if (at == layers || lines_.empty()) {
      if (!lines_.empty()) judge();
      if (lines_.size() == 2 || static_cast<int>(lines_.size()) == microbatches_) return;
      lines_.emplace_back();
      grow();
      lines_.pop_back();
      return;
    }
    for (std::size_t s = 0; s < spots_.size(); ++s) {
      if (!free(s)) continue;
      for (int last = at + 1; last <= layers; ++last) {
        lines_.back().emplace_back(s, layer_range{at, last});
        grow();
        lines_.back().pop_back();
      }
    }
  }

  void judge() {
    for (int m = lines_.size() == 1 ? microbatches_ : 1; m <= microbatches_ - static_cast<int>(lines_.size()) + 1; ++m) {
      plan p;
      for (const auto& line : lines_) {
        auto& next = p.pipelines.emplace_back();
        next.microbatches = p.pipelines.size() == 1 ? m : microbatches_ - m;
        next.schedule.name = "exact_1f1b";
        for (const auto& [s, layers] : line)
          next.stages.push_back({.layers = layers,
                                 .devices = {spots_[s].devices},
                                 .degrees = spots_[s].where.degrees,
                                 .recompute = spots_[s].where.recompute});
      }
      const auto judged = evaluate(hardware_, costs_, std::move(p));
      if (judged && judged->shortage.empty()) least_ = std::min(least_, judged->plan.predicted.iteration_s);
    }
  }

  const cluster& hardware_;
  const Costs& costs_;
  int microbatches_;
  std::vector<spot> spots_;
  std::vector<std::vector<std::pair<std::size_t, layer_range>>> lines_;
  double least_ = std::numeric_limits<double>::infinity();
};

/// Setting 3 of the paper.
cluster setting_3() {
  cluster c{.subclusters = {{"a800", catalogue_device("A800-SXM4-80GB"), 1, 8, {1e-5, 200e9}, {}},
                            {"4090", catalogue_device("RTX4090"), 4, 8, {1e-5, 32e9}, {5e-5, 0.7e9}},
                            {"3090", catalogue_device("RTX3090"), 1, 8, {1e-5, 24e9}, {}},
                            {"half", catalogue_device("RTX3090"), 2, 4, {1e-5, 24e9}, {5e-5, 0.7e9}}}};
  for (int b = 0; b < 4; ++b)
    for (int a = 0; a < b; ++a) c.links.push_back({a, b, {5e-5, 0.7e9}});
  return c;
}
constexpr hexiscale_model llama_30b{.layers = 60, .hidden = 6656, .sequence = 2048};

/// The plan is evaluate's, and its microbatches are all there.
template <class Costs>
void check(const cluster& hardware, const Costs& costs, const planning_problem& problem, const plan& p) {
  CHECK(p.planner == "hexiscale");
  CHECK(microbatch_count(p) == problem.microbatches);
  const auto judged = evaluate(hardware, costs, p, {.flops_per_sample = problem.flops_per_sample});
  REQUIRE(judged);
  CHECK(judged->shortage.empty());
  CHECK(judged->plan.predicted.iteration_s == doctest::Approx(p.predicted.iteration_s));
  REQUIRE(p.evidence);
  CHECK(p.evidence->objective_value == p.predicted.iteration_s);
  CHECK(p.evidence->objective_bound <= p.predicted.iteration_s);
}

/// Costs that are not told to be additive.
struct opaque {
  const hexiscale_cost_model& costs;
  [[nodiscard]] int layer_count() const { return costs.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return costs.placements(mesh); }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& p) const { return costs.stage(layers, p); }
  [[nodiscard]] transfer_cost transfer(int b, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return costs.transfer(b, from, to, near);
  }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return costs.gradient_sync(layers, holders);
  }
};

}  // namespace

TEST_CASE("no plan of tiny clusters is better than the best of all, and few are much worse") {
  random_source random(11);
  double worst = 1, sum = 0;
  int all = 0;
  for (int i = 0; i < 30 / test::sanitizer_share; ++i) {
    const auto hardware = tiny_cluster(random);
    const hexiscale_model model{.layers = random.integer(2, 4), .hidden = 2048, .sequence = 1024};
    const auto reduction = random.integer(0, 1) == 0 ? hexiscale_reduction::all : hexiscale_reduction::chunks;
    const hexiscale_cost_model costs(hardware, model, {.reduction = reduction});
    const planning_problem problem{.microbatches = random.integer(1, 8)};
    const double least = all_pipelines(hardware, costs, problem.microbatches).least();
    const auto found = hexiscale(hardware, costs, problem);
    REQUIRE(found);
    check(hardware, costs, problem, *found);
    CHECK(found->evidence->objective_bound <= least * (1 + 1e-9));
    CHECK(found->evidence->objective_bound <= found->predicted.iteration_s);
    worst = std::max(worst, found->predicted.iteration_s / least);
    sum += found->predicted.iteration_s / least;
    ++all;
  }
  MESSAGE("over the best: " << sum / all << " on average, " << worst << " at the most");
  CHECK(sum / all < 1.1);
}

TEST_CASE("sums of gradients: pipelines of one microbatch each add none, and the bound stays one") {
  cluster hardware;
  hardware.subclusters.push_back({"a", catalogue_device("A100-SXM4-40GB"), 1, 4, {1e-6, 900e9}, {}});
  const auto chain = make_chain(gpt({.layers = 2, .hidden = 2048, .heads = 16, .vocab = 2048, .sequence = 128}));
  for (const int bytes : {12, 1000}) {
    CAPTURE(bytes);
    analytic_options options;
    options.batch = 4;
    options.memory.accumulation_bytes = bytes;
    const analytic_cost_model costs(hardware, chain, options);
    plan each;
    for (int d = 0; d < 4; ++d)
      each.pipelines.push_back({.microbatches = 1,
                                .stages = {{.layers = {0, costs.layer_count()}, .devices = {{{0, 1, 1}, d}}}},
                                .schedule = {.name = "exact_1f1b"}});
    const auto known = evaluate(hardware, costs, each);
    REQUIRE(known);
    REQUIRE(known->shortage.empty());
    const auto found = hexiscale(hardware, costs, {.microbatches = 4});
    REQUIRE(found);
    CHECK(found->evidence->objective_bound <= known->plan.predicted.iteration_s * (1 + 1e-9));
    if (found->evidence->complete) CHECK(found->predicted.iteration_s <= known->plan.predicted.iteration_s * (1 + 1e-9));
  }
}

TEST_CASE("setting 3: pipelines of all kinds, better than one, and better still polished" *
          doctest::skip(test::sanitizer_share > 1)) {
  const auto hardware = setting_3();
  const hexiscale_cost_model costs(hardware, llama_30b);
  const planning_problem problem{.microbatches = 512, .flops_per_sample = 1e14};
  const auto plain = hexiscale(hardware, costs, problem, {.polish = false});
  const auto polished = hexiscale(hardware, costs, problem);
  const auto one = hexiscale(hardware, costs, problem, {.max_pipelines = 1, .polish = false});
  REQUIRE(plain);
  REQUIRE(polished);
  REQUIRE(one);
  for (const auto* found : {&plain, &polished, &one}) check(hardware, costs, problem, **found);
  CHECK(plain->pipelines.size() > 1);
  CHECK(plain->predicted.iteration_s < one->predicted.iteration_s);
  CHECK(polished->predicted.iteration_s <= plain->predicted.iteration_s);
  // Nothing but the arguments decides.
  auto again = problem;
  again.parallel = [](int count, const std::function<void(int)>& body) {
    while (count-- > 0) body(count);
  };
  CHECK(*hexiscale(hardware, costs, again) == *polished);
  // A partitioner of one's own.
  int asked = 0;
  const auto round_robin = [&](const device_graph& g, const partition_request& r) {
    ++asked;
    std::vector<int> part(g.size());
    for (std::size_t v = 0; v < g.size(); ++v) part[v] = static_cast<int>(v) % r.parts;
    return part;
  };
  const auto own = hexiscale(hardware, costs, problem, {.polish = false, .partitioner = round_robin});
  REQUIRE(own);
  CHECK(asked > 10);
  check(hardware, costs, problem, *own);
}

TEST_CASE("all devices can be asked for" * doctest::skip(test::sanitizer_share > 1)) {
  const auto hardware = setting_3();
  const hexiscale_cost_model costs(hardware, llama_30b);
  planning_problem problem{.microbatches = 64};
  problem.use_all_devices = true;
  const auto found = hexiscale(hardware, costs, problem);
  REQUIRE(found);
  check(hardware, costs, problem, *found);
  int devices = 0;
  for (const auto& line : found->pipelines)
    for (const auto& s : line.stages) devices += device_count(s.devices);
  CHECK(devices == hardware.device_count());
}

TEST_CASE("any cost model will do") {
  const auto hardware = setting_3();
  SUBCASE("formulas, with ways to save memory") {
    constexpr int layers = test::sanitizer_share > 1 ? 12 : 24;
    const analytic_cost_model costs(hardware, make_chain(gpt({.layers = layers, .hidden = 4096, .heads = 32, .sequence = 2048})),
                                    {.microbatch_size = 4, .recompute = {recomputation::none, recomputation::full}});
    const planning_problem problem{.microbatches = 64, .microbatch_size = 4};
    for (const auto rule : {warmup_rule::exact, warmup_rule::one_f_one_b, warmup_rule::h1f1b, warmup_rule::eager}) {
      const auto found = hexiscale(hardware, costs, problem, {.seeds = 1, .most_vertices = 1, .warmup = rule});
      REQUIRE(found);
      check(hardware, costs, problem, *found);
      CHECK(found->pipelines.front().schedule.name == schedule_name(rule));
    }
  }
  SUBCASE("not additive") {
    const hexiscale_cost_model additive(hardware, {.layers = 12, .hidden = 6656, .sequence = 2048});
    const opaque costs{additive};
    const planning_problem problem{.microbatches = 64};
    const auto found = hexiscale(hardware, costs, problem, {.seeds = 1, .most_vertices = 1, .polish = false});
    REQUIRE(found);
    check(hardware, costs, problem, *found);
    CHECK(found->pipelines ==
          hexiscale(hardware, additive, problem, {.seeds = 1, .most_vertices = 1, .polish = false})->pipelines);
  }
}

TEST_CASE("why there is no plan") {
  auto hardware = setting_3();
  const auto refused = [&](const hexiscale_model& model, const planning_problem& problem, refusal::kind why, const char* text) {
    const hexiscale_cost_model costs(hardware, model);
    const auto found = hexiscale(hardware, costs, problem);
    REQUIRE_FALSE(found);
    CHECK(found.why_not().why == why);
    INFO(found.why_not().reason);
    CHECK(found.why_not().reason.find(text) != std::string::npos);
  };
  refused({60, 100'000, 2048}, {.microbatches = 4}, refusal::kind::infeasible, "layer 0 alone needs");
  refused({600, 13312, 2048}, {.microbatches = 4}, refusal::kind::infeasible, "all devices together have");
  planning_problem stopped{.microbatches = 4};
  stopped.progress = [](const search_progress&) { return false; };
  const hexiscale_cost_model costs(hardware, llama_30b);
  const auto first = hexiscale(hardware, costs, stopped);
  REQUIRE(first);
  CHECK_FALSE(first->evidence->complete);
  hardware.links.clear();
  for (auto& s : hardware.subclusters) s.device.memory_bytes = 2 * gib;
  refused({60, 6656, 2048}, {.microbatches = 4}, refusal::kind::infeasible, "GiB");
  CHECK_THROWS_AS((void)hexiscale(hardware, costs, {.microbatches = 4}, {.balance = {}}), input_error);
  CHECK_THROWS_AS((void)hexiscale(hardware, costs, {.microbatches = 4}, {.balance = {0.5}}), input_error);
  CHECK_THROWS_AS((void)hexiscale(hardware, costs, {.microbatches = 0}), input_error);
  CHECK_THROWS_AS((void)hexiscale(hardware, costs, {.microbatches = 4}, {.top = 0}), input_error);
}
