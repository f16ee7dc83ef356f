// SPDX-License-Identifier: Apache-2.0
// Random tensor graphs, costs and values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/problem.hpp>

#include "interpreter.hpp"

namespace spmd_test {

/// A graph of about so many operators that ends in a sum. Embeddings read a placeholder named ids.
inline tensor_graph random_graph(random_source& random, int operators, const std::vector<std::int64_t>& sizes) {
  tensor_graph g;
  const auto size = [&] { return sizes[static_cast<std::size_t>(random.integer(0, static_cast<int>(sizes.size()) - 1))]; };
  const auto name = [&](const char* what) { return what + std::to_string(g.size()); };
  std::vector<int> results;
  if (random.integer(0, 3) == 0) {
    const int ids = add_placeholder(g, "ids", {size(), size()});
    results.push_back(add_embedding(g, name("e"), ids, add_parameter(g, name("table"), {size(), size()})));
  } else {
    std::vector<std::int64_t> shape{size(), size()};
    if (random.integer(0, 2) == 0) shape.push_back(size());
    results.push_back(add_placeholder(g, "x", shape));
  }
  for (int i = 0; i + 1 < operators; ++i) {
    // Mostly the newest, so that graphs are deep.
    const int x = random.integer(0, 2) > 0
                      ? results.back()
                      : results[static_cast<std::size_t>(random.integer(0, static_cast<int>(results.size()) - 1))];
    const auto shape = g.at(x).shape;
    int y = -1;
    switch (random.integer(0, 11)) {
      case 0:
      case 1:
      case 2:
        if (shape.size() >= 2) y = add_matmul(g, name("h"), x, add_parameter(g, name("w"), {shape.back(), size()}));
        break;
      case 3:
        if (shape.size() >= 2) y = add_matmul(g, name("s"), x, x, false, true);
        break;
      case 4: {
        const char* op[] = {"relu", "gelu", "tanh", "neg", "square", "scale", "silu"};
        const std::string picked = op[random.integer(0, 6)];
        y = add_elementwise(g, name("u"), picked, {x}, detail::linear_inputs(picked));
        break;
      }
      case 5: {
        const char* op[] = {"add", "sub", "mul", "maximum"};
        const std::string picked = op[random.integer(0, 3)];
        int other = results[static_cast<std::size_t>(random.integer(0, static_cast<int>(results.size()) - 1))];
        if (g.at(other).shape != shape) other = add_parameter(g, name("b"), {shape.back()});
        y = add_elementwise(g, name("v"), picked, {x, other}, detail::linear_inputs(picked));
        break;
      }
      case 6:
        y = add_softmax(g, name("p"), x);
        break;
      case 7: {
        std::vector<int> inputs{x};
        for (int k = random.integer(0, 2); k > 0; --k) inputs.push_back(add_parameter(g, name("n"), {shape.back()}));
        y = add_layernorm(g, name("l"), inputs);
        break;
      }
      case 8:
        if (shape.size() == 3) y = add_reshape(g, name("r"), x, {shape[0] * shape[1], shape[2]});
        break;
      case 9:
        if (shape.size() == 2 && shape[1] % 2 == 0) y = add_reshape(g, name("r"), x, {shape[0], shape[1] / 2, 2});
        break;
      default: {
        auto order = detail::count_up(shape.size());
        std::swap(order[static_cast<std::size_t>(random.integer(0, static_cast<int>(order.size()) - 1))], order.back());
        y = add_transpose(g, name("t"), x, order);
      }
    }
    if (y >= 0) results.push_back(y);
  }
  add_sum(g, "loss", results.back());
  return g;
}

/// Convolutions, poolings and a classifier that ends in a sum.
inline tensor_graph random_images(random_source& random, int operators) {
  tensor_graph g;
  const auto pick = [&](std::vector<std::int64_t> sizes) {
    return sizes[static_cast<std::size_t>(random.integer(0, static_cast<int>(sizes.size()) - 1))];
  };
  const auto name = [&](const char* what) { return what + std::to_string(g.size()); };
  int x = add_placeholder(g, "x", {pick({4, 6}), pick({1, 4, 6}), pick({4, 5}), pick({3, 6})});
  for (int i = 0; i < operators; ++i) {
    const auto shape = g.at(x).shape;
    switch (random.integer(0, 5)) {
      case 0:
      case 1:
      case 2: {
        const auto a = std::min(pick({1, 2, 3}), shape[2]), b = std::min(pick({1, 3}), shape[3]);
        const int w = add_parameter(g, name("w"), {pick({4, 6}), shape[1], a, b});
        x = add_convolution(g, name("c"), x, w, pick({1, 2}), std::min(a, b) > 1 ? pick({0, 1}) : 0);
        break;
      }
      case 3:
      case 4: {
        const image_window window{std::min<std::int64_t>(2, shape[2]), std::min(pick({2, 3}), shape[3]), pick({1, 2}), 0};
        x = add_pooling(g, name("p"), x, random.integer(0, 1) == 0, window);
        break;
      }
      default:
        x = add_elementwise(g, name("b"), "add", {x, add_parameter(g, name("bias"), {shape[1], 1, 1})}, {{0, 1}});
        x = add_elementwise(g, name("t"), "tanh", {x});
    }
  }
  const auto shape = g.at(x).shape;
  x = add_reshape(g, "flat", x, {shape[0], shape[1] * shape[2] * shape[3]});
  x = add_matmul(g, "logits", x, add_parameter(g, "head", {g.at(x).shape[1], 4}));
  add_sum(g, "loss", add_elementwise(g, "squares", "square", {x}));
  return g;
}

/// A layer of experts of random sizes, with a matrix before it, that ends in a sum.
inline tensor_graph random_experts(random_source& random) {
  tensor_graph g;
  const std::int64_t groups = 2 * random.integer(2, 3), tokens = random.integer(3, 6), experts = 2 * random.integer(2, 3),
                     width = 4;
  const int x = add_placeholder(g, "x", {groups, tokens, width});
  const int h = add_elementwise(g, "h", "tanh", {add_matmul(g, "xw", x, add_parameter(g, "w", {width, width}))});
  const int gates = add_softmax(g, "gates", add_matmul(g, "scores", h, add_parameter(g, "wg", {width, experts})));
  const int routes = add_route(g, "routes", gates, random.integer(1, 2), random.integer(1, 3));
  int slots = add_dispatch(g, "slots", h, routes, random.integer(0, 3) == 0 ? gates : -1);
  const auto capacity = g.at(slots).shape[2];
  if (random.integer(0, 1) == 0) {
    slots = add_reshape(g, "rows", slots, {experts, groups * capacity, width});
    slots = add_matmul(g, "up", slots, add_parameter(g, "w1", {experts, width, 6}));
    slots = add_elementwise(g, "a", "gelu", {slots});
    slots = add_matmul(g, "down", slots, add_parameter(g, "w2", {experts, 6, width}));
    slots = add_reshape(g, "made", slots, {experts, groups, capacity, width});
  } else {
    const int w = add_parameter(g, "we", {experts, width, width});
    slots = add_contraction(g, "made", "matmul", slots, w,
                            {{{experts}, {groups}, {capacity}, {width}, {width}}, {0, 1, 2, 3}, {0, 3, 4}, {0, 1, 2, 4}});
  }
  const int y = add_combine(g, "y", slots, routes, random.integer(0, 3) > 0 ? gates : -1);
  add_sum(g, "loss", add_elementwise(g, "squares", "square", {add_elementwise(g, "r", "add", {h, y}, {{0, 1}})}));
  return g;
}

/// A graph of one of the three.
inline tensor_graph random_model(random_source& random, int operators, const std::vector<std::int64_t>& sizes) {
  const int which = random.integer(0, 3);
  return which == 0   ? random_images(random, random.integer(1, 4))
         : which == 1 ? random_experts(random)
                      : random_graph(random, operators, sizes);
}

/// A forward graph in two or three segments, in its order or mixed.
inline tensor_graph segmented(random_source& random, const tensor_graph& graph) {
  const int segments = random.integer(2, 3);
  const bool mixed = random.integer(0, 1) == 0;
  std::vector<int> of;
  for (int i = 0; i < graph.size(); ++i) of.push_back(mixed ? random.integer(0, segments - 1) : i * segments / graph.size());
  return in_segments(graph, std::move(of)).first;
}

/// Costs that have nothing to do with sizes, so that every kind of program is the best one now and then.
inline spmd::problem random_problem(random_source& random, tensor_graph graph, tensor_goal goal, int most_devices) {
  spmd::problem p{.graph = std::move(graph), .goal = std::move(goal)};
  const int kinds = random.integer(1, 2);
  int left = most_devices;
  for (int k = 0; k < kinds; ++k) {
    p.kinds.push_back({"kind " + std::to_string(k), random.integer(1, left - (kinds - 1 - k))});
    left -= p.kinds.back().count;
  }
  if (kinds == 1 && p.kinds[0].count == 1) p.kinds[0].count = 2;
  std::vector<double> slowness;
  for (int k = 0; k < kinds; ++k) slowness.push_back(random.uniform(0.5, 4));
  const double network = random.uniform(0, 2);
  for (const auto& n : p.graph.nodes) {
    const double work = n.kernel ? random.uniform(0.1, 2) : 0;
    for (int k = 0; k < kinds; ++k) p.compute.push_back({work * 0.05, work * slowness[static_cast<std::size_t>(k)]});
    const double bytes = network * random.uniform(0.1, 1);
    p.collect.push_back({.all_reduce = {2 * bytes, 0},
                         .reduce_scatter = {0.1, bytes},
                         .padded_gather = {0.1, bytes},
                         .broadcast_gather = {0.8 * bytes, 0},
                         .all_to_all = {0.1, bytes / 2}});
  }
  return p;
}

/// Values of all leaves; ids are rows of the table that reads them.
inline std::map<int, tensor> random_leaves(random_source& random, const tensor_graph& graph) {
  std::map<int, tensor> leaves;
  for (int i = 0; i < graph.size(); ++i) {
    if (!is_leaf(graph.at(i))) continue;
    tensor t(graph.at(i).shape);
    std::int64_t rows = 0;
    for (const auto& n : graph.nodes)
      if (n.op == "embedding" && n.inputs[0] == i) rows = graph.at(n.inputs[1]).shape[0];
    for (auto& x : t.data) x = rows > 0 ? random.integer(0, static_cast<int>(rows) - 1) : random.uniform(-1, 1);
    leaves.emplace(i, std::move(t));
  }
  return leaves;
}

}  // namespace spmd_test
