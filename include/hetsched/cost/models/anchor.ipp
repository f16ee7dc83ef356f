// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/anchor.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

namespace detail {

/// The speed at which a device of this subcluster is as fast as an anchor says.
[[nodiscard]] inline double speed_of(subcluster one, const device_anchor& a, training_cost_options options) {
  const auto fail = [&](const std::string& what) { throw input_error("the anchor of device " + a.device + what); };
  if ((a.tokens_per_s != 0) == (a.layer_s != 0)) fail(" needs one time: tokens_per_s, or layer_s");
  const bool of_layer = a.layer_s != 0;
  if (of_layer && !(a.layer_s > 0 && std::isfinite(a.layer_s))) fail(": layer_s must be finite and positive");
  if (!of_layer && !(a.tokens_per_s > 0 && std::isfinite(a.tokens_per_s))) fail(": tokens_per_s must be finite and positive");
  if (a.microbatches < 0 || (of_layer && a.microbatches > 0)) fail(": microbatches are of an iteration, and at least 0");
  validate_zero(a.zero);
  options.precision = a.precision;
  options.cut = granularity::block;
  options.recompute = {a.recompute};
  options.zero = {a.zero};
  options.max_context = a.degrees.context;
  options.max_expert = a.degrees.expert;
  const auto& d = a.degrees;
  if (std::min({d.data, d.context, d.tensor, d.expert}) < 1) fail(": degrees must be at least 1");
  const int devices = d.device_count();
  if (a.nodes < 1 || devices % a.nodes != 0) fail(": its devices are not as many on each of its nodes");
  one.nodes = a.nodes;
  one.devices_per_node = devices / a.nodes;
  const double wanted_s =
      of_layer ? a.layer_s : static_cast<double>(a.microbatch_size) * a.model.sequence / (a.tokens_per_s * devices);
  const placement where{.mesh = {0, one.nodes, one.devices_per_node}, .degrees = d, .recompute = a.recompute, .zero = a.zero};
  const auto layers = make_chain(a.model, options.cut).size();
  double speed = 1;
  // Exchanges do not scale, so what is left to computing shrinks as they take their part: to a fixed point.
  for (int round = 0; round < 60; ++round) {
    one.device.speed = speed;
    const auto costs = training_costs({.subclusters = {one}, .links = {}}, a.model, options)(a.microbatch_size);
    const auto offered = costs.placements(where.mesh);
    if (round == 0 && std::none_of(offered.begin(), offered.end(), [&](const placement& p) { return p.degrees == d; }))
      fail(": its degrees do not divide heads, experts, sequence or the " + std::to_string(a.microbatch_size) +
           " samples of a microbatch");
    const auto stage = costs.stage(of_layer ? layer_range{1, 2} : layer_range{0, layers}, where);
    const double update_s = a.microbatches > 0 ? costs.update({0, layers}, where) / a.microbatches : 0;
    const double ratio = (stage.total_s() + update_s) / wanted_s;
    speed *= ratio;
    if (!(speed >= 0.01 && speed <= 100))
      fail(" says " +
           (of_layer ? std::to_string(a.layer_s) + " seconds of a layer"
                     : std::to_string(a.tokens_per_s) + " tokens per second of each device") +
           ", and its datasheet is more than a "
           "hundred times off, or exchanges alone take longer: are the units those of one device, and are model and degrees "
           "those that were measured?");
    if (std::abs(ratio - 1) < 1e-9) break;
  }
  return speed;
}

}  // namespace detail

HETSCHED_INLINE cluster anchored(cluster hardware, std::span<const device_anchor> anchors, const training_cost_options& options) {
  std::map<std::string, std::vector<double>> logs;  // of speeds, by device
  for (const auto& a : anchors) {
    const double devices = 1.0 * a.degrees.data * a.degrees.context * a.degrees.tensor;  // may be more than an int holds
    const subcluster* found = nullptr;  // the first with enough devices in a node
    int most = 0;
    for (const auto& s : hardware.subclusters) {
      if (s.device.name != a.device) continue;
      most = std::max(most, s.devices_per_node);
      if (!found && devices <= 1.0 * s.devices_per_node * std::max(a.nodes, 1) && a.nodes <= s.nodes) found = &s;
    }
    if (most == 0) throw input_error("no subcluster has device " + a.device + ", which is anchored");
    if (!found)
      throw input_error("the anchor of device " + a.device + " needs more devices than the " + std::to_string(most) +
                        " of a node" + (a.nodes == 1 ? "" : ", or more nodes than there are"));
    logs[a.device].push_back(std::log(detail::speed_of(*found, a, options)));
  }
  for (auto& s : hardware.subclusters) {
    const auto found = logs.find(s.device.name);
    if (found == logs.end()) continue;
    double sum = 0;
    for (const double x : found->second) sum += x;
    s.device.speed = std::exp(sum / static_cast<double>(found->second.size()));
  }
  return hardware;
}

}  // namespace hetsched
