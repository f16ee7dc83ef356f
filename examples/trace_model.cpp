// SPDX-License-Identifier: Apache-2.0
// Planning a model of your own: write it once as a template over its tensor type, trace it on tensors that have shapes only, and
// plan what was traced. Nothing is measured and nothing computed. Operators are found by argument-dependent lookup: those of
// <hetsched/model/symbolic_operators.hpp> for traced tensors, your framework's for its own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/hetsched.hpp>
#include <hetsched/model/graph_operators.hpp>
#include <hetsched/model/symbolic_operators.hpp>
#include <hetsched/planners/interop_dp.hpp>

namespace trainer {

/// A speech encoder: a convolution over a spectrogram, blocks of attention and gated MLP, and a word for each frame.
/// `Net` makes the weights (`parameter(shape)`), and names what runs within a scope.
struct encoder {
  int blocks = 24;
  std::int64_t width = 2048, heads = 16, words = 32000;

  template <class Net, class Tensor>
  Tensor operator()(Net& net, const Tensor& spectrogram) const {
    auto x = relu(conv2d(spectrogram, net.parameter({256, 1, 3, 3}), {.stride = 4, .padding = 1}));
    const auto frames = x.shape[1], inputs = x.shape[0] * x.shape[2];
    x = linear(reshape(transpose(x, 0, 1), {frames, inputs}), net.parameter({inputs, width}));
    for (int i = 0; i < blocks; ++i) {
      const auto scope = net.scope("block " + std::to_string(i));
      x = add(x, attend(net, rms_norm(x, net.parameter({width}))));
      x = add(x, mlp(net, rms_norm(x, net.parameter({width}))));
    }
    return linear(rms_norm(x, net.parameter({width})), net.parameter({width, words}));
  }

 private:
  template <class Net, class Tensor>
  Tensor attend(Net& net, const Tensor& x) const {
    const auto frames = x.shape[0];
    const auto parts = split(linear(x, net.parameter({width, 3 * width})), {width, width, width}, 1);
    const auto by_heads = [&](const Tensor& t) { return transpose(reshape(t, {frames, heads, width / heads}), 0, 1); };
    const auto mixed = attention(rotary(by_heads(parts[0])), rotary(by_heads(parts[1])), by_heads(parts[2]));
    return linear(reshape(transpose(mixed, 0, 1), {frames, width}), net.parameter({width, width}));
  }

  template <class Net, class Tensor>
  Tensor mlp(Net& net, const Tensor& x) const {
    const auto gate = linear(x, net.parameter({width, 3 * width})), up = linear(x, net.parameter({width, 3 * width}));
    return linear(swiglu(gate, up), net.parameter({3 * width, width}));
  }
};

}  // namespace trainer

int main() {
  using hetsched::catalogue_device, hetsched::gbit_per_s;
  hetsched::cluster machines{{{"a100", catalogue_device("A100-SXM4-40GB"), 1, 4, {5e-6, gbit_per_s(2400)}, {}},
                              {"v100", catalogue_device("V100-SXM2-32GB"), 1, 4, {5e-6, gbit_per_s(1200)}, {}}}};
  connect(machines, "a100", "v100", {.latency_s = 30e-6, .bandwidth = gbit_per_s(100)});

  // One sample: 4096 frames of 80 bands. There is no axis for the batch.
  const auto graph = hetsched::trace(trainer::encoder{}, {}, hetsched::symbolic_shape{1, 4096, 80});
  const hetsched::graph_operators model(graph, {.layers = 96});
  // Each operator is timed by its shape; a graph does not say how its layers could be sharded.
  const hetsched::tile_cost_model costs(machines, model, {.microbatch_size = 4, .max_tensor = 1});
  const auto found = hetsched::interop_dp(machines, costs, {.microbatches = 32, .microbatch_size = 4});
  if (!found) {
    std::printf("no plan: %s\n", found.why_not().reason.c_str());
    return 1;
  }
  for (const auto& s : found->pipelines.front().stages)
    std::printf("%-22s and on, %2d layers, on %d x %-4s  %6.1f ms\n",
                model.chain().layers[static_cast<std::size_t>(s.layers.first)].name.c_str(), s.layers.size(),
                s.where().mesh.device_count(), subcluster_of(machines, s.where().mesh).name.c_str(),
                1e3 * (s.cost.forward_s + s.cost.backward_s));
  std::printf("%d operators in %d layers: iteration %.3f s\n", graph.size(), model.chain().size(), found->predicted.iteration_s);
  return 0;
}
