// SPDX-License-Identifier: Apache-2.0
// Programs on ranks, against the same graphs on one device by another interpreter.
#include <hetsched/runtime/spmd/spmd_layer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/spmd/eigen_kernels.hpp>
#include <hetsched/runtime/spmd/host_kernels.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/spmd/synthesize.hpp>

#include "../../sanitizer_share.hpp"
#include "../../spmd/random_graphs.hpp"
#include "../training.hpp"

using namespace hetsched;

namespace {

/// A tensor of any number of dimensions.
struct block {
  using value_type = double;
  block() = default;
  explicit block(const tensor_shape& s) : extents(s), values(std::max<std::size_t>(1, count(s)), -7.5) {
    values.resize(count(s));
  }
  static std::size_t count(const tensor_shape& s) {
    std::size_t n = 1;
    for (const auto e : s) n *= e;
    return n;
  }
  [[nodiscard]] const tensor_shape& shape() const { return extents; }
  [[nodiscard]] double* data() { return values.data(); }
  [[nodiscard]] const double* data() const { return values.data(); }
  tensor_shape extents;
  std::vector<double> values;
};
using channel = thread_communicator<block>;
constexpr host_kernels kernels{.scale = 0.7};  // what the interpreter has

/// Plain loops, or Eigen's products.
struct either_kernels {
  bool fast = false;
  void operator()(const spmd_call& call, std::span<const block* const> in, block& result) const {
    if (fast)
      eigen_kernels{kernels}(call, in, result);
    else
      kernels(call, in, result);
  }
};

block block_of(const spmd_test::tensor& t) {
  block b(tensor_shape(t.shape.begin(), t.shape.end()));
  b.values = t.data;
  return b;
}
spmd_test::tensor tensor_of(const block& b) {
  spmd_test::tensor t(std::vector<std::int64_t>(b.extents.begin(), b.extents.end()));
  t.data = b.values;
  return t;
}
block part_of(const spmd_test::tensor& all, spmd::tensor_form form, const part_points& points, int device) {
  const auto whole = block_of(all);
  if (!form.is_cut()) return whole;
  const auto first = points[static_cast<std::size_t>(device)], last = points[static_cast<std::size_t>(device) + 1];
  auto shape = whole.extents;
  shape[static_cast<std::size_t>(form.dimension())] = last - first;
  block part(shape);
  detail::pack(part.data(), whole.data(), detail::view_of(whole.extents, form.dimension()), first, last - first);
  return part;
}

std::vector<double> random_shares(random_source& random, const std::vector<spmd::device_kind>& kinds, int segments = 1) {
  if (segments > 1) {
    auto first = random_shares(random, kinds, segments - 1);
    const auto last = random_shares(random, kinds);
    first.insert(first.end(), last.begin(), last.end());
    return first;
  }
  std::vector<double> shares;
  double all = 0;
  for (const auto& k : kinds) {
    shares.push_back(random.integer(0, 5) == 0 ? 0.0 : random.uniform(0, 1));
    all += shares.back() * k.count;
  }
  if (all == 0) return random_shares(random, kinds);
  for (auto& s : shares) s /= all;
  return shares;
}

double scale_of(const spmd_test::tensor& t) {
  double most = 1;
  for (const double x : t.data) most = std::max(most, std::abs(x));
  return most;
}

/// What is wrong with a device's tensor of a node; what it has of a sum is added to `sum`.
void compare(const block& found, const spmd_test::tensor& expected, spmd::tensor_form form, const part_points& points, int device,
             double& worst) {
  const auto part = part_of(expected, form, points, device);
  if (found.extents != part.extents) {
    worst = 1e300;
    return;
  }
  for (std::size_t i = 0; i < part.values.size(); ++i)
    worst = std::max(worst, std::abs(found.values[i] - part.values[i]) / scale_of(expected));
}

}  // namespace

TEST_CASE("[threads] spmd_run: programs of random graphs give what one device gives, on uneven shares") {
  int exchanged = 0;
  for (int instance = 0; instance < 2000 / test::search_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance));
    auto graph = spmd_test::random_model(random, random.integer(2, 8), {4, 6, 8});
    if (instance % 3 == 0) graph = spmd_test::segmented(random, graph);
    const auto goal = add_backward(graph, graph.size() - 1);
    auto made = spmd_test::random_problem(random, std::move(graph), goal, 4);
    if (instance % 3 == 0)
      for (auto& c : made.collect) c.all_to_all = {0, 0.1 * c.all_to_all.slope_s};
    const auto problem = std::make_shared<const spmd::problem>(std::move(made));
    const auto leaves = spmd_test::random_leaves(random, problem->graph);
    const auto expected = spmd_test::run_whole(problem->graph, leaves);
    const auto found = spmd::synthesize(*problem, {.work = 1e4});
    REQUIRE(found);
    std::string text;
    for (const auto& step : found->program) text += spmd::text_of(problem->graph, step) + "\n";
    CAPTURE(text);
    for (const auto& step : found->program) exchanged += spmd::is_exchange(*problem, step);
    const auto shares = random_shares(random, problem->kinds, problem->segments());
    const spmd_parts parts(*problem, found->program, shares);
    const int devices = problem->device_count();
    std::vector<double> worst(static_cast<std::size_t>(devices), 0), loss(worst);
    run_on_threads(channel::connect(devices), [&](channel& comm) {
      const int me = comm.rank();
      std::vector<int> all;
      for (int r = 0; r < devices; ++r) all.push_back(r);
      detail::spmd_run<block, either_kernels> run(problem, parts, {*problem, found->program, parts, me},
                                                  axis_group<block, channel>(comm, all), either_kernels{instance % 2 == 1});
      auto values = run.make_values();
      std::map<int, block> given;
      const auto points_of = [&](int node, spmd::tensor_form form) {
        return form.is_cut() ? parts.points(node, form.dimension()) : part_points{};
      };
      for (const auto& [node, value] : leaves)
        if (const int leaf = run.steps().leaf_of(node); leaf >= 0) {
          const auto form = run.steps().held()[static_cast<std::size_t>(leaf)].form;
          values.at[static_cast<std::size_t>(leaf)] = &(given[node] = part_of(value, form, points_of(node, form), me));
        }
      auto& wrong = worst[static_cast<std::size_t>(me)];
      for (int twice = 0; twice < 2; ++twice) run.run(values, false);
      const auto at = [&](int tensor) -> const block& { return *values.at[static_cast<std::size_t>(tensor)]; };
      const int whole = run.steps().find(goal.loss, spmd::tensor_form::whole());
      const int partial = run.steps().find(goal.loss, spmd::tensor_form::partial());
      loss[static_cast<std::size_t>(me)] = whole >= 0 ? at(whole).values[0] / devices : at(partial).values[0];
      for (const auto& [parameter, gradient] : goal.gradients) {
        const auto form = run.steps().held()[static_cast<std::size_t>(run.steps().leaf_of(parameter))].form;
        compare(at(run.steps().find(gradient, form)), expected[static_cast<std::size_t>(gradient)], form,
                points_of(gradient, form), me, wrong);
      }
    });
    double sum = 0;
    for (const double l : loss) sum += l;
    const double right = expected[static_cast<std::size_t>(goal.loss)].data[0];
    CHECK(std::abs(sum - right) <= 1e-8 * (1 + std::abs(right)));
    for (const double w : worst) CHECK(w <= 1e-8);
  }
  CHECK(exchanged > 250 / test::search_share);  // between segments
}

TEST_CASE("a stage's backward is that of a loss that is linear in its output") {
  for (int instance = 0; instance < 200; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 50);
    auto graph = spmd_test::random_graph(random, random.integer(2, 8), {4, 6});
    graph.nodes.pop_back();  // the sum
    const int output = graph.size() - 1;
    if (is_leaf(graph.at(output))) continue;
    const int input = 0;
    if (graph.at(input).name == "ids") continue;
    auto leaves = spmd_test::random_leaves(random, graph);
    spmd_test::tensor weights(graph.at(output).shape);
    for (auto& w : weights.data) w = random.uniform(-1, 1);
    auto stage_graph = graph, whole = graph;
    const auto stage = add_stage_backward(stage_graph, input, output);
    auto of_stage = leaves;
    of_stage.emplace(stage.output_gradient, weights);
    const auto found = spmd_test::run_whole(stage_graph, of_stage);
    // The loss of the same, and x as a parameter for its gradient.
    whole.nodes[static_cast<std::size_t>(input)].op = "parameter";
    const int by = add_placeholder(whole, "by", graph.at(output).shape);
    const int loss = add_sum(whole, "loss", add_elementwise(whole, "weighted", "mul", {output, by}, {{0}, {1}}));
    const auto goal = add_backward(whole, loss);
    leaves.emplace(by, weights);
    const auto expected = spmd_test::run_whole(whole, leaves);
    std::map<int, int> gradients(stage.goal.gradients.begin(), stage.goal.gradients.end());
    if (stage.input_gradient >= 0) gradients[input] = stage.input_gradient;
    REQUIRE(gradients.size() == goal.gradients.size());
    for (const auto& [leaf, gradient] : goal.gradients) {
      const auto& a = found[static_cast<std::size_t>(gradients.at(leaf))];
      const auto& b = expected[static_cast<std::size_t>(gradient)];
      REQUIRE(a.shape == b.shape);
      for (std::size_t i = 0; i < a.data.size(); ++i) CHECK(std::abs(a.data[i] - b.data[i]) <= 1e-12 * scale_of(b));
    }
  }
}

namespace {

/// A layer that computes its graph on one device, by the interpreter.
class graph_layer {
 public:
  using context = std::map<int, spmd_test::tensor>;
  graph_layer(tensor_graph graph, stage_goal stage, const std::map<int, block>& initial)
      : graph_(std::move(graph)), stage_(std::move(stage)) {
    for (const auto& [node, value] : initial) {
      nodes_.push_back(node);
      parameters_.push_back(value);
      gradients_.emplace_back(value.extents);
      std::fill(gradients_.back().values.begin(), gradients_.back().values.end(), 0.0);
    }
  }
  block forward(const block& x, context& c) {
    c[stage_.input] = tensor_of(x);
    return block_of(run(c, spmd_test::tensor(graph_.at(stage_.output).shape))[static_cast<std::size_t>(stage_.output)]);
  }
  block backward(const block& dy, context& c) {
    const auto values = run(c, tensor_of(dy));
    for (const auto& [parameter, gradient] : stage_.goal.gradients) {
      auto& sum = gradients_[static_cast<std::size_t>(std::find(nodes_.begin(), nodes_.end(), parameter) - nodes_.begin())];
      for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += values[static_cast<std::size_t>(gradient)].data[i];
    }
    return block_of(values[static_cast<std::size_t>(stage_.input_gradient)]);
  }
  std::vector<block>& parameters() { return parameters_; }
  std::vector<block>& gradients() { return gradients_; }

 private:
  std::vector<spmd_test::tensor> run(context& c, const spmd_test::tensor& dy) {
    for (std::size_t p = 0; p < nodes_.size(); ++p) c[nodes_[p]] = tensor_of(parameters_[p]);
    c[stage_.output_gradient] = dy;
    return spmd_test::run_whole(graph_, c);
  }
  tensor_graph graph_;
  stage_goal stage_;
  std::vector<int> nodes_;
  std::vector<block> parameters_, gradients_;
};

constexpr std::size_t rows = 6, width = 4, inner = 12;

/// x + tanh(norm(x) w1 + b) w2.
struct stage_graph {
  tensor_graph graph;
  stage_goal stage;
  std::map<int, block> initial;

  explicit stage_graph(std::uint64_t seed) {
    const int x = add_placeholder(graph, "x", {rows, width});
    const int norm = add_layernorm(graph, "norm", {x, add_parameter(graph, "gain", {width})});
    const int h = add_matmul(graph, "h", norm, add_parameter(graph, "w1", {width, inner}));
    const int biased = add_elementwise(graph, "biased", "add", {h, add_parameter(graph, "b", {inner})}, {{0, 1}});
    const int a = add_elementwise(graph, "a", "tanh", {biased});
    const int y = add_matmul(graph, "y", a, add_parameter(graph, "w2", {inner, width}));
    const int out = add_elementwise(graph, "out", "add", {x, y}, {{0, 1}});
    stage = add_stage_backward(graph, x, out);
    random_source random(seed);
    for (int node = 0; node < graph.size(); ++node) {
      if (!is_parameter(graph.at(node))) continue;
      block b(tensor_shape(graph.at(node).shape.begin(), graph.at(node).shape.end()));
      for (auto& v : b.values) v = random.uniform(-1, 1);
      initial.emplace(node, std::move(b));
    }
  }
};

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

TEST_CASE("[threads] spmd_layer: a pipeline with a stage of unlike devices trains as one device does") {
  constexpr int layers = 3, microbatches = 4, steps = 4;
  std::vector<stage_graph> graphs;
  for (int l = 0; l < layers; ++l) graphs.emplace_back(static_cast<std::uint64_t>(l) + 1);
  random_source data(99);
  std::vector<block> inputs, targets;
  for (int m = 0; m < microbatches; ++m)
    for (auto* list : {&inputs, &targets}) {
      list->emplace_back(tensor_shape{rows, width});
      for (auto& v : list->back().values) v = data.uniform(-1, 1);
    }
  const auto train = [&](const training_layout& layout, auto make_layer) {
    std::vector<std::vector<double>> losses(static_cast<std::size_t>(layout.ranks()));
    run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
      auto trainer = make_trainer<block>(layout, make_layer,
                                         [](int, int) {
                                           return tensor_shape{rows, width};
                                         },
                                         comm, sgd{.learning_rate = 0.1}, {.clip_norm = 1.5});
      for (int step = 0; step < steps; ++step) {
        const auto report = trainer.step(std::span<const block>(inputs), std::span<const block>(targets), squared_error);
        losses[static_cast<std::size_t>(comm.rank())].push_back(report.loss);
        losses[static_cast<std::size_t>(comm.rank())].push_back(report.gradient_norm);
      }
    });
    return losses;
  };
  const auto plain = [&](int l) {
    return any_layer<block>(graph_layer(graphs[static_cast<std::size_t>(l)].graph, graphs[static_cast<std::size_t>(l)].stage,
                                        graphs[static_cast<std::size_t>(l)].initial));
  };
  const auto expected = train(even_layout(layers, test::schedule_of("1f1b", 1, microbatches), rows), plain).front();
  REQUIRE(expected.back() > 0);
  int cut = 0;
  for (int instance = 0; instance < 30 / test::sanitizer_share; ++instance) {
    CAPTURE(instance);
    random_source random(static_cast<std::uint64_t>(instance) + 1000);
    const auto& middle = graphs[1];
    spmd::stage_program program{.stage = middle.stage};
    auto problem = spmd_test::random_problem(random, middle.graph, middle.stage.goal, 4);
    program.problem = std::make_shared<const spmd::problem>(problem);
    const auto found = spmd::synthesize(problem, {.work = 1e4});
    REQUIRE(found);
    program.program = found->program;
    program.shares = instance % 2 == 0 ? found->shares : random_shares(random, problem.kinds);
    std::string text;
    for (const auto& step : found->program) text += spmd::text_of(problem.graph, step) + "\n";
    CAPTURE(text);
    auto layout = even_layout(layers, test::schedule_of(instance % 3 == 0 ? "gpipe" : "1f1b", 3, microbatches), rows);
    layout.pipelines[0].groups = {{}, {.degrees = {.tensor = problem.device_count()}}, {}};
    validate(layout);
    const auto losses = train(layout, [&](int l, const auto& group) {
      if (l != 1) return plain(l);
      spmd_layer<block, host_kernels> layer(program, group.tensor(), kernels,
                                            [&](int node, const tensor_shape&) { return middle.initial.at(node); });
      for (const auto& c : layer.parameter_cuts())
        if (group.tensor().rank() == 0 && c.dimension >= 0) ++cut;
      return any_layer<block>(std::move(layer));
    });
    for (const auto& one : losses)
      for (std::size_t i = 0; i < expected.size(); ++i) CHECK(one[i] == doctest::Approx(expected[i]).epsilon(1e-10));
  }
  CHECK(cut > 0);
}

TEST_CASE("spmd_layer: what does not fit is refused") {
  const stage_graph one(1);
  random_source random(3);
  const auto problem = spmd_test::random_problem(random, one.graph, one.stage.goal, 2);
  const auto found = spmd::synthesize(problem);
  REQUIRE(found);
  const spmd::stage_program program{std::make_shared<const spmd::problem>(problem), one.stage, found->program, found->shares};
  using layer = spmd_layer<block, host_kernels>;
  const auto initial = [&](int node, const tensor_shape&) { return one.initial.at(node); };
  CHECK_THROWS_WITH_AS(layer(program, device_axis<double>(), kernels, initial), "the program is for 2 devices, the axis has 1",
                       input_error);
  auto alone = problem;
  alone.kinds = {{"one", 1}};
  alone.compute.resize(alone.graph.nodes.size());
  const auto single = spmd::synthesize(alone);
  REQUIRE(single);
  const spmd::stage_program fits{std::make_shared<const spmd::problem>(alone), one.stage, single->program, single->shares};
  CHECK_THROWS_WITH_AS(layer(fits, {}, kernels, [](int, const tensor_shape&) { return block(tensor_shape{2}); }),
                       "gain: expected the shape [4], its initial values has [2]", input_error);
  layer good(fits, {}, kernels, initial);
  auto context = good.make_context();
  CHECK_THROWS_AS(static_cast<void>(good.forward(block(tensor_shape{rows, 3}), context)), input_error);
}
