// SPDX-License-Identifier: Apache-2.0
// Planning a model of your own: write it once as a template over its tensor type, trace it on tensors that have shapes only, and
// plan what was traced. Nothing is measured and nothing computed. Operators are found by argument-dependent lookup: those of
// <hetsched/model/symbolic_operators.hpp> for traced tensors, your framework's for its own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include <hetsched/cost/tile_cost.hpp>
#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/model/graph_operators.hpp>
#include <hetsched/model/symbolic_operators.hpp>

namespace trainer {

/// A speech encoder: convolutions over a spectrogram, then blocks of attention and gated MLP, and a word for each frame.
/// `Net` makes the weights (`parameter(shape)`), and names what runs within a scope.
struct encoder {
  int blocks = 24;
  std::int64_t width = 2048, heads = 16, words = 32000;

  template <class Net, class Tensor>
  Tensor operator()(Net& net, const Tensor& spectrogram) const {
    auto x = stem(net, spectrogram);
    for (int i = 0; i < blocks; ++i) {
      const auto scope = net.scope("block " + std::to_string(i));
      x = add(x, attend(net, norm(net, x)));
      x = add(x, mlp(net, norm(net, x)));
    }
    const auto scope = net.scope("words");
    return linear(norm(net, x), net.parameter({width, words}));
  }

 private:
  /// [1 x frames x bands] to [frames / 4 x width]
  template <class Net, class Tensor>
  Tensor stem(Net& net, const Tensor& spectrogram) const {
    const auto scope = net.scope("stem");
    auto x = relu(conv2d(spectrogram, net.parameter({256, 1, 3, 3}), {.stride = 2, .padding = 1}));
    x = relu(conv2d(x, net.parameter({256, 256, 3, 3}), {.stride = 2, .padding = 1}));
    const auto frames = x.shape[1], inputs = x.shape[0] * x.shape[2];
    return linear(reshape(transpose(x, 0, 1), {frames, inputs}), net.parameter({inputs, width}));
  }

  template <class Net, class Tensor>
  Tensor norm(Net& net, const Tensor& x) const {
    return rms_norm(x, net.parameter({width}));
  }

  template <class Net, class Tensor>
  Tensor attend(Net& net, const Tensor& x) const {
    const auto scope = net.scope("attention");
    const auto frames = x.shape[0];
    const auto parts = split(linear(x, net.parameter({width, 3 * width})), {width, width, width}, 1);
    const auto by_heads = [&](const Tensor& t) { return transpose(reshape(t, {frames, heads, width / heads}), 0, 1); };
    const auto mixed = attention(rotary(by_heads(parts[0])), rotary(by_heads(parts[1])), by_heads(parts[2]));
    return linear(reshape(transpose(mixed, 0, 1), {frames, width}), net.parameter({width, width}));
  }

  template <class Net, class Tensor>
  Tensor mlp(Net& net, const Tensor& x) const {
    const auto scope = net.scope("mlp");
    const auto gate = linear(x, net.parameter({width, 3 * width})), up = linear(x, net.parameter({width, 3 * width}));
    return linear(swiglu(gate, up), net.parameter({3 * width, width}));
  }
};

}  // namespace trainer

namespace {

hetsched::cluster two_kinds_of_machines() {
  using hetsched::gbit_per_s;
  const auto machines = [](const char* name, const char* device, int nodes, int devices, double gbit) {
    return hetsched::subcluster{.name = name,
                                .device = hetsched::find_device(device).value(),
                                .nodes = nodes,
                                .devices_per_node = devices,
                                .intra_node = {.latency_s = 5e-6, .bandwidth = gbit_per_s(gbit)},
                                .inter_node = {.latency_s = 20e-6, .bandwidth = gbit_per_s(100)}};
  };
  return {.subclusters = {machines("a100", "A100-SXM4-40GB", 1, 4, 2400), machines("v100", "V100-SXM2-32GB", 1, 4, 1200)},
          .links = {{.a = 0, .b = 1, .link = {.latency_s = 30e-6, .bandwidth = gbit_per_s(100)}}}};
}

}  // namespace

int main() {
  // One sample: 4096 frames of 80 bands. There is no axis for the batch.
  const auto graph =
      hetsched::trace(trainer::encoder{}, {.format = hetsched::number_format::fp16}, hetsched::symbolic_shape{1, 4096, 80});
  hetsched::graph_operators model(graph, {.layers = 96});
  const auto& layers = model.layers();
  std::printf("%d operators, %.2f G parameters; %d layers of %zu kinds\n", graph.size(),
              static_cast<double>(parameter_count(layers.chain)) / 1e9, layers.chain.size(),
              std::set(layers.kind.begin(), layers.kind.end()).size());

  const auto machines = two_kinds_of_machines();
  // Each operator is timed by its shape; a graph does not say how its layers could be sharded.
  const hetsched::tile_cost_model costs(machines, model, {.microbatch_size = 4, .max_tensor = 1});
  const auto found = hetsched::interop_dp(machines, costs, {.microbatches = 32, .microbatch_size = 4});
  if (!found) {
    std::printf("no plan: %s\n", found.why_not().reason.c_str());
    return 1;
  }
  for (const auto& s : found->pipelines.front().stages) {
    const auto& first = layers.chain.layers[static_cast<std::size_t>(s.layers.first)];
    const auto& last = layers.chain.layers[static_cast<std::size_t>(s.layers.last) - 1];
    std::printf("%-22s ... %-22s on %d x %-4s  %6.1f ms + %6.1f ms  %4.1f GiB\n", first.name.c_str(), last.name.c_str(),
                s.where.mesh.device_count(), subcluster_of(machines, s.where.mesh).name.c_str(), 1e3 * s.forward_s,
                1e3 * s.backward_s, static_cast<double>(s.memory_bytes) / static_cast<double>(hetsched::gib));
  }
  std::printf("iteration %.3f s, at least %.3f s on these stages\n", found->predicted.iteration_s,
              found->predicted.lower_bound_s);
}
