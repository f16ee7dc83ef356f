// SPDX-License-Identifier: Apache-2.0
// What HAP's evaluation ran (EuroSys 2024, sec. 7.1): four models on two machines of V100s and six of P100s. Table 1 has numbers
// of parameters only, in units of 2^20. Sizes are those of the published artifact (config.py, models.py), with 8 layers, which
// give these numbers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/operators/tile.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/model/tensor_experts.hpp>
#include <hetsched/model/tensor_images.hpp>
#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/reshard/price.hpp>
#include <hetsched/spmd/costs.hpp>

namespace hap {

using namespace hetsched;

inline int linear(tensor_graph& g, int x, std::int64_t to, const std::string& name) {
  const int w = add_parameter(g, name + ".w", {g.at(x).shape.back(), to});
  const int y = add_matmul(g, name + ".xw", x, w);
  return add_elementwise(g, name, "add", {y, add_parameter(g, name + ".b", {to})}, {{0, 1}});
}

inline int normed(tensor_graph& g, int x, const std::string& name) {
  const auto width = g.at(x).shape.back();
  const int weight = add_parameter(g, name + ".w", {width}), bias = add_parameter(g, name + ".b", {width});
  return add_layernorm(g, name, {x, weight, bias});
}

/// VGG19 on images of 32 x 32: five blocks of convolutions, their one pixel spread over 7 x 7, and three layers.
inline tensor_graph vgg19(std::int64_t batch) {
  tensor_graph g{.format = number_format::fp32};
  int x = add_placeholder(g, "images", {batch, 3, 32, 32});
  const std::vector<std::pair<int, int>> blocks{{64, 2}, {128, 2}, {256, 4}, {512, 4}, {512, 4}};  // channels, convolutions
  int number = 0;
  for (const auto& [channels, convolutions] : blocks) {
    for (int i = 0; i < convolutions; ++i) {
      const auto name = "conv" + std::to_string(++number);
      x = add_convolution(g, name + ".xw", x, add_parameter(g, name + ".w", {channels, g.at(x).shape[1], 3, 3}), 1, 1);
      x = add_elementwise(g, name, "add", {x, add_parameter(g, name + ".b", {channels, 1, 1})}, {{0, 1}});
      x = add_elementwise(g, name + ".relu", "relu", {x});
    }
    x = add_pooling(g, "pool" + std::to_string(number), x, true, {2, 2, 2, 0});
  }
  x = add_reshape(g, "flat", add_expand(g, "spread", x, {batch, 512, 7, 7}), {batch, 512 * 49});
  x = add_elementwise(g, "fc1.relu", "relu", {linear(g, x, 4096, "fc1")});
  x = add_elementwise(g, "fc2.relu", "relu", {linear(g, x, 4096, "fc2")});
  add_sum(g, "loss", add_softmax(g, "p", linear(g, x, 10, "fc3")));
  return g;
}

struct encoder_sizes {
  std::int64_t batch, sequence, hidden = 768, heads = 12;
  int layers = 8, experts = 0;  ///< experts: in every second layer
};

inline int attention(tensor_graph& g, int x, const encoder_sizes& s, const std::string& name) {
  const auto heads = [&](const char* which) {
    const int y = linear(g, x, s.hidden, name + which);
    const int split = add_reshape(g, name + which + ".split", y, {s.batch, s.sequence, s.heads, s.hidden / s.heads});
    return add_transpose(g, name + which + ".heads", split, {0, 2, 1, 3});
  };
  const int q = heads("q"), k = heads("k"), v = heads("v");
  const int weights = add_softmax(g, name + "weights", add_matmul(g, name + "scores", q, k, false, true));
  const int turned = add_transpose(g, name + "turned", add_matmul(g, name + "context", weights, v), {0, 2, 1, 3});
  return linear(g, add_reshape(g, name + "joined", turned, {s.batch, s.sequence, s.hidden}), s.hidden, name + "out");
}

/// Two experts of each token, in groups of a sequence, with room for 2.5 times an even share.
inline int experts(tensor_graph& g, int x, const encoder_sizes& s, const std::string& name) {
  const std::int64_t capacity = ceil_div(5 * s.sequence, 2 * s.experts);
  const int wg = add_parameter(g, name + "gate.w", {s.hidden, s.experts});
  const int gates = add_softmax(g, name + "gates", add_matmul(g, name + "gate", x, wg));
  const int routes = add_route(g, name + "routes", gates, 2, capacity);
  const int slots = add_dispatch(g, name + "slots", x, routes);
  const auto product = [&](int y, std::int64_t from, std::int64_t to, const std::string& what) {
    const int w = add_parameter(g, name + what + ".w", {s.experts, from, to});
    return add_contraction(g, name + what, "matmul", y, w,
                           {{{s.experts}, {s.batch}, {capacity}, {from}, {to}}, {0, 1, 2, 3}, {0, 3, 4}, {0, 1, 2, 4}});
  };
  const int up = product(slots, s.hidden, 4 * s.hidden, "up");
  const int down = product(add_elementwise(g, name + "relu", "relu", {up}), 4 * s.hidden, s.hidden, "down");
  return add_combine(g, name + "combined", down, routes, gates);
}

inline int encoder(tensor_graph& g, int x, const encoder_sizes& s) {
  for (int l = 0; l < s.layers; ++l) {
    const auto name = "layer" + std::to_string(l) + ".";
    x = normed(g, add_elementwise(g, name + "sum1", "add", {x, attention(g, x, s, name)}, {{0, 1}}), name + "norm1");
    int y = -1;
    if (s.experts > 0 && l % 2 == 1)
      y = experts(g, x, s, name);
    else
      y = linear(g, add_elementwise(g, name + "relu", "relu", {linear(g, x, 4 * s.hidden, name + "up")}), s.hidden,
                 name + "down");
    x = normed(g, add_elementwise(g, name + "sum2", "add", {x, y}, {{0, 1}}), name + "norm2");
  }
  return x;
}

/// ViT on images of 32 x 32 in 64 patches; its classifier reads the mean of patches, where the artifact's has a token of its own.
inline tensor_graph vit(std::int64_t batch) {
  tensor_graph g{.format = number_format::fp32};
  const encoder_sizes s{.batch = batch, .sequence = 64};
  int x = linear(g, add_placeholder(g, "patches", {batch, s.sequence, 48}), s.hidden, "embedding");
  x = add_elementwise(g, "placed", "add", {x, add_parameter(g, "places", {s.sequence, s.hidden})}, {{0, 1}});
  x = add_sum(g, "mean", add_transpose(g, "turned", encoder(g, x, s), {1, 0, 2}), {batch, s.hidden});
  add_sum(g, "loss", add_softmax(g, "p", linear(g, x, 10, "head")));
  return g;
}

/// BERT-Base, or with experts BERT-MoE, on 33,278 words (WikiText-2), of which there are as many more as make GPUs divide them.
inline tensor_graph bert(std::int64_t batch, int gpus, bool with_experts) {
  tensor_graph g{.format = number_format::fp32};
  const encoder_sizes s{.batch = batch, .sequence = 128, .experts = with_experts ? 2 * gpus : 0};
  const std::int64_t words = gpus * (33278 / gpus + 1);
  const int table = add_parameter(g, "table", {words, s.hidden});
  const int x = add_embedding(g, "embedding", add_placeholder(g, "ids", {batch, s.sequence}), table);
  add_sum(g, "loss", add_softmax(g, "p", linear(g, encoder(g, x, s), words, "head")));
  return g;
}

inline const std::vector<std::string>& names() {
  static const std::vector<std::string> all{"VGG19", "ViT", "BERT-Base", "BERT-MoE"};
  return all;
}

/// One of the models by its number, for so many GPUs: samples for each of them as in sec. 7.1.
inline tensor_graph model(int which, int gpus) {
  return which == 0 ? vgg19(64 * gpus) : which == 1 ? vit(64 * gpus) : bert((which == 2 ? 64 : 32) * gpus, gpus, which == 3);
}

/// Two machines with V100s and six with P100s, with as many GPUs each; 10.4 Gbit/s between machines.
inline cluster machines(int gpus_each) {
  const hetsched::link between{2e-5, 1.3e9};
  cluster c;
  const auto add = [&](const char* name, const char* device, int nodes, double bytes_per_s) {
    c.subclusters.push_back({.name = name,
                             .device = *find_device(device),
                             .nodes = nodes,
                             .devices_per_node = gpus_each,
                             .intra_node = {1e-5, bytes_per_s},
                             .inter_node = between});
  };
  add("v100", "V100-SXM2-16GB", 2, 120e9);
  add("p100", "P100-PCIe-16GB", 6, 12e9);
  c.links.push_back({0, 1, between});
  return c;
}

/// Products at the FLOP/s that the artifact's authors profiled (worker.py), all else at the bandwidth of memory.
inline double seconds_on(const tile_device& device, const operator_shape& op) {
  const double products = flops(op), speed = device.multiprocessors == 80 ? 3858755112937.0 : 2149250936815.0;
  return products > 0 ? products / speed : op.traffic_bytes / device.memory_bandwidth;
}

/// Two segments of a model: convolutions and the rest, experts and the rest, head and the rest. Tokens go over the border as
/// dispatched, so that the exchange there is the all-to-all that experts need.
inline std::vector<int> segments(const tensor_graph& g) {
  std::vector<int> of;
  bool behind = false;
  for (const auto& n : g.nodes) {
    if (n.name == "spread" || n.name == "head.xw") behind = true;
    of.push_back(behind ? 1 : 0);
    if (n.op == "dispatch") behind = true;
    if (n.name.ends_with(".down") && n.op == "matmul" && n.shape.size() == 4) behind = false;
  }
  return of;
}

/// The training of a model as a problem, in one segment or two.
inline spmd::problem problem(int which, int gpus_each, bool in_two = false) {
  const auto c = machines(gpus_each);
  auto graph = model(which, 8 * gpus_each);
  if (in_two) graph = in_segments(graph, segments(graph)).first;
  auto goal = add_backward(graph, graph.size() - 1);
  std::vector<device_group> groups;
  for (int i = 0; i < 2; ++i) groups.push_back({.mesh = {i, c.subclusters[static_cast<std::size_t>(i)].nodes, gpus_each}});
  return *spmd::make_problem(c, devices_of(c, groups), std::move(graph), std::move(goal), seconds_on);
}

/// Shares by the devices' speed.
inline std::vector<double> by_speed(const spmd::problem& p) {
  const double v100 = 3858755112937.0, p100 = 2149250936815.0, all = v100 * p.kinds[0].count + p100 * p.kinds[1].count;
  return {v100 / all, p100 / all};
}

}  // namespace hap
