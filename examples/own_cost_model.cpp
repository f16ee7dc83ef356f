// SPDX-License-Identifier: Apache-2.0
// Planning with your own modules and costs, without base classes: a planner asks the free functions below and nothing else. It
// finds them because they live in the namespace of their first argument.
#include <cstddef>
#include <cstdio>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

namespace trainer {

/// The framework's own module.
struct module {
  double forward_flops, parameters, output_bytes;
  bool fuses_with_next;  ///< one kernel computes both, and the output between them never reaches memory
};

struct network {
  hetsched::cluster machines;
  std::vector<module> modules;
};

int layer_count(const network& net) { return static_cast<int>(net.modules.size()); }

/// This framework knows tensor parallelism only, and only inside a node.
std::vector<hetsched::placement> placements(const network&, const hetsched::submesh& mesh) {
  if (mesh.nodes > 1) return {};
  return {{mesh, {.tensor = mesh.devices_per_node}}};
}

/// Not the sum of its modules: where two neighbours fuse, a stage that holds both saves a trip through memory and over the wire.
hetsched::stage_cost stage(const network& net, hetsched::layer_range range, const hetsched::placement& where) {
  const auto& machine = subcluster_of(net.machines, where.mesh);
  const double ways = where.degrees.tensor;
  hetsched::stage_cost cost;
  for (int i = range.first; i < range.last; ++i) {
    const auto& m = net.modules[static_cast<std::size_t>(i)];
    cost.forward_s += m.forward_flops / (0.5 * machine.device.flops(hetsched::precision::fp16) * ways);
    cost.weight_bytes += static_cast<hetsched::bytes_t>(16 * m.parameters / ways);
    if (m.fuses_with_next && i + 1 < range.last) continue;
    cost.forward_s += 2 * m.output_bytes / (machine.device.memory_bandwidth * ways);
    if (ways > 1) cost.forward_s += machine.intra_node.transfer_s(m.output_bytes);
    cost.activation_bytes += static_cast<hetsched::bytes_t>(m.output_bytes / ways);
  }
  cost.backward_s = 2 * cost.forward_s;
  return cost;
}

double transfer(const network& net, int boundary, const hetsched::placement& from, const hetsched::placement& to) {
  return stage_transfer_s(net.machines, from.mesh, to.mesh, net.modules[static_cast<std::size_t>(boundary)].output_bytes);
}

}  // namespace trainer

static_assert(hetsched::stage_cost_model<trainer::network>);

int main() {
  using hetsched::catalogue_device, hetsched::gbit_per_s;
  trainer::network net;
  net.machines.subclusters = {{"a100", catalogue_device("A100-SXM4-40GB"), 1, 4, {5e-6, gbit_per_s(2400)}, {}},
                              {"t4", catalogue_device("T4"), 2, 2, {5e-6, gbit_per_s(64)}, {20e-6, gbit_per_s(25)}}};
  connect(net.machines, "a100", "t4", {.latency_s = 50e-6, .bandwidth = gbit_per_s(25)});
  for (int block = 0; block < 24; ++block)  // a convolution that fuses with the norm behind it, on 64 images
    net.modules.insert(net.modules.end(), {{1.2e12, 9e6, 50e6, true}, {1e9, 2e3, 50e6, false}});

  const auto found = hetsched::interop_dp(net.machines, net, {.microbatches = 32, .microbatch_size = 64});
  if (!found) return std::printf("no plan: %s\n", found.why_not().reason.c_str()), 1;
  int cut_pairs = 0;
  for (const auto& s : found->pipelines.front().stages) {
    std::printf("modules %2d-%2d on %d x %-4s  warm-up %d  %5.1f ms\n", s.layers.first, s.layers.last - 1,
                s.where().mesh.device_count(), subcluster_of(net.machines, s.where().mesh).name.c_str(), s.warmup,
                1e3 * (s.cost.forward_s + s.cost.backward_s));
    cut_pairs += net.modules[static_cast<std::size_t>(s.layers.last) - 1].fuses_with_next;
  }
  std::printf("iteration %.3f s; fused pairs cut apart: %d\n", found->predicted.iteration_s, cut_pairs);
  return 0;
}
