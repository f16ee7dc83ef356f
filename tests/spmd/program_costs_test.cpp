// SPDX-License-Identifier: Apache-2.0
#include <hetsched/spmd/program_costs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/network/boundary.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/spmd/host_kernels.hpp>
#include <hetsched/runtime/spmd/spmd_layer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/search/mixed_costs.hpp>
#include <hetsched/spmd/memory.hpp>
#include <hetsched/spmd/ratios.hpp>
#include <hetsched/spmd/synthesize.hpp>

using namespace hetsched;

namespace {

/// Layers x + tanh(x w1) w2, for so many samples of so many rows.
struct perceptrons {
  std::int64_t rows = 512, width = 256, inner = 1024;

  [[nodiscard]] spmd::program_graph operator()(layer_range layers, int samples) const {
    spmd::program_graph made{.graph = {.format = number_format::fp32}, .first = layers.first == 0};
    auto& g = made.graph;
    int x = made.input = add_placeholder(g, "x", {samples * rows, width});
    for (int l = layers.first; l < layers.last; ++l) {
      const auto name = [&](const char* what) { return what + std::to_string(l); };
      const int h = add_matmul(g, name("h"), x, add_parameter(g, name("w1."), {width, inner}));
      const int a = add_elementwise(g, name("a"), "tanh", {h});
      const int y = add_matmul(g, name("y"), a, add_parameter(g, name("w2."), {inner, width}));
      x = add_elementwise(g, name("out"), "add", {x, y}, {{0, 1}});
    }
    made.output = x;
    return made;
  }
};

using graph_maker = std::function<spmd::program_graph(layer_range)>;

/// A fast and a slow device on one node, by link.
cluster two_kinds(double bandwidth) {
  cluster c{.subclusters = {{"a", catalogue_device("A100-SXM4-40GB"), 1, 1, {}, {}},
                            {"v", catalogue_device("V100-SXM2-16GB"), 1, 2, {2e-6, bandwidth}, {}}}};
  connect(c, "a", "v", {2e-6, bandwidth});
  return c;
}

/// Of layers that one device computes, by its tile model; two alike take half, and an all-reduce that costs nothing.
class tile_base {
 public:
  tile_base(const cluster& c, int layers, perceptrons of, int size) : c_(&c), layers_(layers), of_(of), size_(size) {}
  [[nodiscard]] int layer_count() const { return layers_; }
  [[nodiscard]] static std::vector<placement> placements(const submesh& mesh) {
    return {{.mesh = mesh, .degrees = {.tensor = mesh.device_count()}}};
  }
  [[nodiscard]] stage_cost layer(int, const placement& where) const {
    auto [graph, input, output, first] = of_({0, 1}, size_);
    const auto stage = add_stage_backward(graph, input, output);
    const auto device = make_tile_device(subcluster_of(*c_, where.mesh).device);
    stage_cost cost;
    for (const auto& n : graph.nodes)
      if (n.kernel) cost.backward_s += predict_operator(device, *n.kernel).seconds / where.degrees.tensor;
    cost.forward_s = cost.backward_s / 3;
    cost.backward_s -= cost.forward_s;
    cost.weight_bytes = 1 << 20;
    return cost;
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }
  [[nodiscard]] transfer_cost transfer(int, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return boundary_cost(*c_, from, to, near, static_cast<bytes_t>(4 * size_ * of_.rows * of_.width));
  }

 private:
  const cluster* c_;
  int layers_;
  perceptrons of_;
  int size_;
};

using costs_type = spmd::program_costs;

costs_type costs_of(const cluster& c, int layers, const perceptrons& of, int size = 1) {
  return {c, tile_base(c, layers, of, size), [=](layer_range r) { return of(r, size); }, {.slices = 16, .search = {.work = 1}}};
}

std::vector<stage_part> parts_on(const cluster& c, const std::vector<int>& subclusters, const std::vector<int>& slices) {
  std::vector<stage_part> parts;
  for (std::size_t k = 0; k < subclusters.size(); ++k) {
    const auto& s = c.subclusters[static_cast<std::size_t>(subclusters[k])];
    const submesh mesh{subclusters[k], 1, s.devices_per_node};
    parts.push_back({.where = {.mesh = mesh, .degrees = {.tensor = mesh.device_count()}},
                     .devices = {{mesh, 0}},
                     .samples = 1,
                     .slices = slices[k]});
  }
  return parts;
}

}  // namespace

TEST_CASE("a stage's program: seconds and bytes are those of the synthesised one at the shares of the parts") {
  const perceptrons of;
  const auto c = two_kinds(40e9);
  const auto costs = costs_of(c, 4, of);
  for (const auto& slices : {std::vector<int>{8, 4}, std::vector<int>{12, 2}, std::vector<int>{2, 7}}) {
    const auto parts = parts_on(c, {0, 1}, slices);
    const auto found = costs.sliced_stage({1, 3}, parts);
    const auto p = costs.program({1, 3}, parts);
    REQUIRE(p.problem->kinds.size() == 2);
    CHECK(p.shares[0] == slices[0] / 16.0);
    CHECK(p.shares[1] == slices[1] / 16.0);
    const double rounded_s = spmd::round_shares(*p.problem, p.program, p.shares).seconds;
    CHECK(found.slowest.total_s() == doctest::Approx(rounded_s).epsilon(1e-12));
    CHECK(found.slowest.forward_s > 0.2 * rounded_s);
    CHECK(found.slowest.forward_s < 0.5 * rounded_s);
    // No program, with any shares, is below the bound.
    CHECK(found.slowest.total_s() >= spmd::synthesize(*p.problem)->bound * (1 - 1e-9));
    const auto peaks = spmd::peak_bytes(*p.problem, p.program, p.shares, spmd::state_bytes_of(number_format::fp32, true));
    for (std::size_t k = 0; k < 2; ++k) {
      const auto& held = found.parts[k];
      // A microbatch holds no more than the peak without parameters, and with all gradients no less than the peak.
      CHECK(static_cast<double>(held.weight_bytes + held.activation_bytes) >= peaks[k] * (1 - 1e-6));
      CHECK(static_cast<double>(held.activation_bytes + held.weight_bytes - held.gradient_bytes) <= peaks[k] * (1 + 1e-6));
      CHECK(held.optimizer_bytes == 2 * held.gradient_bytes);
      CHECK(held.activation_bytes >= 4 * of.rows * of.width);
    }
    auto again = parts;
    for (auto& part : again) part.where.recompute = recomputation::full;
    const auto recomputed = costs.sliced_stage({1, 3}, again);
    CHECK(recomputed.slowest.backward_s == doctest::Approx(found.slowest.total_s()).epsilon(1e-12));
    CHECK(recomputed.parts[0].activation_bytes == 4 * of.rows * of.width);
    for (auto& part : again) part.where.recompute = recomputation::selective;
    CHECK(std::isinf(costs.sliced_stage({1, 3}, again).slowest.forward_s));
  }
  auto apart = c;
  apart.links.clear();
  const auto none = costs_of(apart, 4, of);
  CHECK(std::isinf(none.sliced_stage({0, 4}, parts_on(apart, {0, 1}, {8, 4})).slowest.forward_s));
  CHECK_THROWS_AS((void)none.program({0, 4}, parts_on(apart, {0, 1}, {8, 4})), input_error);
  auto alike = c;
  alike.subclusters[1].device.name = alike.subclusters[0].device.name;
  const auto same_name = costs_of(alike, 4, of);
  CHECK(same_name.sliced_stage({1, 3}, parts_on(alike, {0, 1}, {8, 4})).slowest ==
        costs.sliced_stage({1, 3}, parts_on(c, {0, 1}, {8, 4})).slowest);
  auto halves = parts_on(c, {1, 1}, {3, 5});
  for (int k = 0; k < 2; ++k) {
    auto& half = halves[static_cast<std::size_t>(k)];
    half.where = {.mesh = {1, 1, 1}, .degrees = {.tensor = 1}};
    half.devices = {{{1, 1, 1}, k}};
  }
  CHECK(std::isinf(costs.sliced_stage({1, 3}, halves).slowest.forward_s));
}

TEST_CASE("a stage's program: devices on one node are not those on two") {
  const perceptrons of;
  auto c = two_kinds(40e9);
  c.subclusters[1] = {"v", catalogue_device("V100-SXM2-16GB"), 2, 2, {2e-6, 40e9}, {1e-5, 1e9}};
  const auto costs = costs_of(c, 2, of);
  const auto seconds = [&](int first_device) {
    auto parts = parts_on(c, {0, 1}, {8, 4});
    parts[1].devices[0].first_device = first_device;
    return costs.sliced_stage({0, 2}, parts).slowest.total_s();
  };
  CHECK(seconds(0) < seconds(1));
  CHECK(seconds(0) == seconds(2));
}

TEST_CASE(
    "plans with stages of unlike devices by programs: no worse than any one stage on all devices, nor than pipelines without") {
  int mixed = 0;
  for (const double bandwidth : {2e9, 20e9, 200e9})
    for (const int microbatches : {1, 4}) {
      CAPTURE(bandwidth);
      CAPTURE(microbatches);
      const perceptrons of{.rows = 8192};
      const auto c = two_kinds(bandwidth);
      constexpr int layers = 3;
      const auto costs = costs_of(c, layers, of);
      const auto costs_for = [&](int) -> const costs_type& { return costs; };
      const planning_problem problem{.microbatches = microbatches};
      auto first = interop_dp(c, costs, problem);
      REQUIRE(first);
      const auto found =
          with_mixed_stages(c, costs_for, problem, {}, first,
                            [](const cluster& seen, const auto& own, const auto& asked) { return interop_dp(seen, own, asked); });
      REQUIRE(found);
      CHECK(found->predicted.iteration_s <= first->predicted.iteration_s);
      // One stage on all devices, at each number of slices.
      double best_s = first->predicted.iteration_s;
      for (int slices = 1; slices < 8; ++slices) {
        plan p = *first;
        p.pipelines[0].boundaries.clear();
        p.pipelines[0].stages = {{.layers = {0, layers},
                                  .devices = {{{0, 1, 1}, 0}, {{1, 1, 2}, 0}},
                                  .degrees = {.tensor = 3},
                                  .shares = {.tensor = {(16 - 2 * slices) / 16.0, slices / 16.0, slices / 16.0}}}};
        const auto judged = evaluate(c, costs, p);
        REQUIRE(judged);
        best_s = std::min(best_s, judged->plan.predicted.iteration_s);
      }
      CHECK(found->predicted.iteration_s <= best_s * (1 + 1e-9));
      for (const auto& s : found->pipelines[0].stages) {
        if (!is_mixed(s.devices)) continue;
        ++mixed;
        const auto p = costs.program(s.layers, parts_of(s, 1, costs.slices()));
        CHECK(s.cost.total_s() == doctest::Approx(spmd::round_shares(*p.problem, p.program, p.shares).seconds).epsilon(1e-9));
      }
    }
  CHECK(mixed >= 2);
}

namespace {

struct block {
  using value_type = double;
  block() = default;
  explicit block(const tensor_shape& s, double value = 0) : extents(s) {
    std::size_t n = 1;
    for (const auto e : s) n *= e;
    values.assign(n, value);
  }
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  [[nodiscard]] double* data() { return values.data(); }
  [[nodiscard]] const double* data() const { return values.data(); }
  tensor_shape extents;
  std::vector<double> values;
};

block random_block(std::uint64_t seed, const tensor_shape& shape) {
  random_source random(seed);
  block b(shape);
  for (auto& v : b.values) v = random.uniform(-1, 1);
  return b;
}

loss_value<block> squared_error(const block& y, const block& wanted) {
  loss_value<block> loss{0, y};
  for (std::size_t i = 0; i < y.values.size(); ++i) {
    const double d = y.values[i] - wanted.values[i];
    loss.value += 0.5 * d * d;
    loss.gradient.values[i] = d;
  }
  return loss;
}

}  // namespace

TEST_CASE("[threads] a plan from its file trains by the programs of its stages as one device does") {
  const perceptrons of{.rows = 6, .width = 8, .inner = 32};
  const auto c = two_kinds(20e9);
  constexpr int layers = 3, microbatches = 4;
  const auto costs = costs_of(c, layers, of);
  const auto stage = [](int first, int last, std::vector<device_group> devices, std::vector<double> shares) {
    stage_plan s{.layers = {first, last}, .devices = std::move(devices)};
    s.degrees.tensor = 0;
    for (const auto& g : s.devices) s.degrees.tensor += g.mesh.device_count();
    s.shares.tensor = std::move(shares);
    return s;
  };
  const auto losses_of = [&](std::vector<stage_plan> stages) {
    plan p;
    p.pipelines = {
        {.microbatches = microbatches, .microbatch_size = 1, .stages = std::move(stages), .schedule = {.name = "1f1b"}}};
    auto judged = evaluate(c, costs, p);
    REQUIRE(judged);
    p = parse_plan(to_json(judged->plan, c), "plan.json").plan;
    // To the trainer a stage is one layer.
    auto line = p.pipelines[0];
    for (std::size_t i = 0; i < line.stages.size(); ++i)
      p.pipelines[0].stages[i].layers = {static_cast<int>(i), static_cast<int>(i) + 1};
    const auto layout = make_training_layout(p);
    std::vector<double> losses;
    using channels = thread_communicator<block>;
    run_on_threads(channels::connect(layout.ranks()), [&](channels& channel) {
      auto trainer = make_trainer<block>(
          layout,
          [&](int l, const auto& group) {
            const auto& s = line.stages[static_cast<std::size_t>(l)];
            auto parts = parts_of(s, 1, costs.slices());
            parts[0].slices = std::max(1, parts[0].slices);  // of devices that are alike
            const auto program = costs.program(s.layers, parts);
            return spmd_layer<block, host_kernels>(program, group.tensor(), host_kernels(),
                                                   [&](int node, const tensor_shape& shape) {
                                                     const auto& name = program.problem->graph.at(node).name;
                                                     return random_block(std::hash<std::string>()(name) % 1000, shape);
                                                   });
          },
          [&](int, int) {
            return tensor_shape{static_cast<std::size_t>(of.rows), static_cast<std::size_t>(of.width)};
          },
          channel, sgd{.learning_rate = 0.01});
      std::vector<block> inputs, targets;
      for (std::uint64_t m = 0; m < microbatches; ++m) {
        inputs.push_back(random_block(m, {6, 8}));
        targets.push_back(random_block(m + 50, {6, 8}));
      }
      for (int step = 0; step < 5; ++step) {
        const auto report = trainer.step(std::span<const block>(inputs), std::span<const block>(targets), squared_error);
        if (channel.rank() == 0) losses.push_back(report.loss);
      }
    });
    return losses;
  };
  const device_group fast{{0, 1, 1}, 0}, slow{{1, 1, 2}, 0}, one_slow{{1, 1, 1}, 1};
  const auto wanted = losses_of({stage(0, layers, {fast}, {})});
  REQUIRE(wanted.size() == 5);
  CHECK(wanted.back() < wanted.front());
  for (auto& stages : {std::vector<stage_plan>{stage(0, 3, {fast, slow}, {0.5, 0.25, 0.25})},
                       std::vector<stage_plan>{stage(0, 2, {fast, {{1, 1, 1}, 0}}, {0.75, 0.25}), stage(2, 3, {one_slow}, {})}}) {
    const auto found = losses_of(stages);
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-10));
  }
}
