// SPDX-License-Identifier: Apache-2.0
// Planning with your own modules and your own costs: no base class, no conversion. The free functions below are all that a
// planner asks for; it finds them because they live in the namespace of their first argument.
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

namespace trainer {

/// The framework's own module.
struct module {
  std::string name;
  double forward_flops = 0;
  double parameters = 0;
  double output_bytes = 0;
  bool fuses_with_next = false;  ///< one kernel computes both, and the output between them never reaches memory
};

struct network {
  std::vector<module> modules;
  hetsched::cluster machines;
};

const hetsched::subcluster& machine(const network& net, const hetsched::placement& where) {
  return subcluster_of(net.machines, where.mesh);
}

int layer_count(const network& net) { return static_cast<int>(net.modules.size()); }

/// This framework knows tensor parallelism only, and only inside a node.
std::vector<hetsched::placement> placements(const network&, const hetsched::submesh& mesh) {
  if (mesh.nodes > 1) return {};
  return {{mesh, {.tensor = mesh.devices_per_node}}};
}

/// Not the sum of its modules: where two neighbours fuse, a stage that holds both saves a trip through memory and over the wire.
hetsched::stage_cost stage(const network& net, hetsched::layer_range range, const hetsched::placement& where) {
  const auto& gpu = machine(net, where).device;
  const auto& wire = machine(net, where).intra_node;
  const double ways = where.degrees.tensor;
  double seconds = 0, parameters = 0, kept_bytes = 0;
  for (int i = range.first; i < range.last; ++i) {
    const auto& m = net.modules[static_cast<std::size_t>(i)];
    seconds += m.forward_flops / (0.5 * gpu.flops(hetsched::precision::fp16) * ways);
    parameters += m.parameters / ways;
    if (m.fuses_with_next && i + 1 < range.last) continue;
    seconds += 2 * m.output_bytes / (gpu.memory_bandwidth * ways);
    if (ways > 1) seconds += wire.transfer_s(m.output_bytes);
    kept_bytes += m.output_bytes / ways;
  }
  return {.forward_s = seconds,
          .backward_s = 2 * seconds,
          .weight_bytes = static_cast<hetsched::bytes_t>(16 * parameters),
          .activation_bytes = static_cast<hetsched::bytes_t>(kept_bytes)};
}

double transfer(const network& net, int boundary, const hetsched::placement& from, const hetsched::placement& to) {
  return hetsched::stage_transfer_s(net.machines, from.mesh, to.mesh,
                                    net.modules[static_cast<std::size_t>(boundary)].output_bytes);
}

}  // namespace trainer

static_assert(hetsched::stage_cost_model<trainer::network>);

namespace {

hetsched::cluster two_kinds_of_machines() {
  using hetsched::gbit_per_s;
  return {.subclusters = {{.name = "a100",
                           .device = hetsched::find_device("A100-SXM4-40GB").value(),
                           .nodes = 1,
                           .devices_per_node = 4,
                           .intra_node = {.latency_s = 5e-6, .bandwidth = gbit_per_s(2400)},
                           .inter_node = {}},
                          {.name = "t4",
                           .device = hetsched::find_device("T4").value(),
                           .nodes = 2,
                           .devices_per_node = 2,
                           .intra_node = {.latency_s = 5e-6, .bandwidth = gbit_per_s(64)},
                           .inter_node = {.latency_s = 20e-6, .bandwidth = gbit_per_s(25)}}},
          .links = {{.a = 0, .b = 1, .link = {.latency_s = 50e-6, .bandwidth = gbit_per_s(25)}}}};
}

/// 24 blocks of a convolution that fuses with the normalisation behind it, on 64 images a microbatch.
trainer::network resnet_like() {
  trainer::network net{.modules = {}, .machines = two_kinds_of_machines()};
  for (int block = 0; block < 24; ++block) {
    const auto number = std::to_string(block);
    net.modules.push_back({"conv" + number, 1.2e12, 9e6, 50e6, true});
    net.modules.push_back({"norm" + number, 1e9, 2e3, 50e6, false});
  }
  return net;
}

}  // namespace

int main() {
  const auto net = resnet_like();
  const auto found = hetsched::interop_dp(net.machines, net, {.microbatches = 32, .microbatch_size = 64});
  if (!found) {
    std::printf("no plan: %s\n", found.why_not().reason.c_str());
    return 1;
  }
  int cut_pairs = 0;
  for (const auto& s : found->pipelines.front().stages) {
    const auto& first = net.modules[static_cast<std::size_t>(s.layers.first)];
    const auto& last = net.modules[static_cast<std::size_t>(s.layers.last) - 1];
    std::printf("%-6s ... %-6s  on %d x %-4s  warm-up %d  %5.1f ms + %5.1f ms  %4.1f GiB\n", first.name.c_str(),
                last.name.c_str(), s.where.mesh.device_count(), trainer::machine(net, s.where).name.c_str(), s.warmup,
                1e3 * s.forward_s, 1e3 * s.backward_s, static_cast<double>(s.memory_bytes) / static_cast<double>(hetsched::gib));
    cut_pairs += last.fuses_with_next;
  }
  std::printf("iteration %.3f s, at least %.3f s on these stages; fused pairs cut apart: %d\n", found->predicted.iteration_s,
              found->predicted.lower_bound_s, cut_pairs);
}
