// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/validate.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/anchor.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/layer.hpp>

namespace hetsched {

namespace detail {

// An anchor, and the nodes that it is judged on.
class anchored_stage {
 public:
  // Throws input_error, naming the device, for an anchor that makes no sense.
  anchored_stage(subcluster one, const device_anchor& a, training_cost_options options)
      : one_(std::move(one)), a_(a), options_(std::move(options)) {
    if ((a.tokens_per_s != 0) == (a.layer_s != 0)) fail(" needs one time: tokens_per_s, or layer_s");
    one_.device.speed = 1;
    one_.device.class_speeds = {1, 1, 1};
    if (of_layer() && !(a.layer_s > 0 && std::isfinite(a.layer_s))) fail(": layer_s must be finite and positive");
    if (!of_layer() && !(a.tokens_per_s > 0 && std::isfinite(a.tokens_per_s))) fail(": tokens_per_s must be finite and positive");
    if (a.microbatches < 0 || (of_layer() && a.microbatches > 0)) fail(": microbatches are of an iteration, and at least 0");
    if (a.only && !of_layer()) fail(": operators of one class are anchored by layer_s");
    validate_zero(a.zero);
    options_.precision = a.precision;
    options_.cut = granularity::block;
    // A layer alone adds to no earlier gradients; in an iteration without its ends all microbatches do.
    options_.batch = of_layer()
                         ? a.microbatch_size
                         : static_cast<int>(std::min<std::int64_t>(std::int64_t{a.microbatch_size} * a.microbatches, INT_MAX));
    options_.recompute = {a.recompute};
    options_.zero = {a.zero};
    options_.max_context = a.degrees.context;
    options_.max_expert = a.degrees.expert;
    const auto& d = a.degrees;
    if (std::min({d.data, d.context, d.tensor, d.expert}) < 1) fail(": degrees must be at least 1");
    const int devices = d.device_count();
    if (a.nodes < 1 || devices % a.nodes != 0) fail(": its devices are not as many on each of its nodes");
    one_.nodes = a.nodes;
    one_.devices_per_node = devices / a.nodes;
    where_ = {.mesh = {0, one_.nodes, one_.devices_per_node}, .degrees = d, .recompute = a.recompute, .zero = a.zero};
    layers_ = make_chain(a.model, options_.cut).size();
    const auto offered = costs().placements(where_.mesh);
    if (std::none_of(offered.begin(), offered.end(), [&](const placement& p) { return p.degrees == d; }))
      fail(": its degrees do not divide heads, experts, sequence or the " + std::to_string(a.microbatch_size) +
           " samples of a microbatch");
  }

  // The speed of the operators that it is of, all others being as the datasheet has them.
  [[nodiscard]] double class_speed() {
    if (options_.formulas == cost_formulas::analytic || !known_by_operators(one_.device))
      fail(" is of " + std::string(at(operator_class_names, *a_.only)) + ": the device is priced by whole layers");
    // What a layer computes grows evenly with each operator's time, unless launches or gathers are as long.
    options_.stack.host_launch_s = 0;
    options_.zero = {0};
    where_.zero = 0;
    const double whole_s = seconds();
    at(one_.device.class_speeds, *a_.only) = 2;
    const double modelled_s = 2 * (whole_s - seconds());
    if (!(modelled_s > 1e-9 * whole_s)) fail(": its layer has no " + std::string(at(operator_class_names, *a_.only)));
    const double speed = modelled_s / a_.layer_s;
    if (!(speed >= 0.01 && speed <= 100)) far_off();
    return speed;
  }

  // The speed of all classes of operators but those of `known`.
  [[nodiscard]] double speed_beside(const std::array<std::optional<double>, 3>& known) {
    const double measured_s = wanted_s();
    const auto seconds_at = [&](double speed) {
      one_.device.speed = speed;
      for (std::size_t k = 0; k < known.size(); ++k) one_.device.class_speeds[k] = known[k] ? *known[k] / speed : 1;
      return seconds();
    };
    double slow = 0.01, fast = 100;
    if (!(seconds_at(slow) >= measured_s && seconds_at(fast) <= measured_s)) far_off();
    while (fast / slow > 1 + 1e-10) {
      const double middle = std::sqrt(slow * fast);
      (seconds_at(middle) > measured_s ? slow : fast) = middle;
    }
    return std::sqrt(slow * fast);
  }

  // The time that the model has for it where the device is as fast as `d`, over the one that was measured, less 1.
  [[nodiscard]] double residual(const device& d) {
    double longer = 1;
    if (a_.only) {
      longer = class_speed() / (d.speed * at(d.class_speeds, *a_.only));
    } else {
      one_.device.speed = d.speed;
      one_.device.class_speeds = d.class_speeds;
      longer = seconds() / wanted_s();
    }
    if (!(longer >= 0.01 && longer <= 100)) far_off();
    return longer - 1;
  }

 private:
  [[nodiscard]] bool of_layer() const { return a_.layer_s != 0; }
  [[noreturn]] void fail(const std::string& what) const { throw input_error("the anchor of device " + a_.device + what); }
  [[noreturn]] void far_off() const {
    fail(" says " +
         (of_layer() ? std::to_string(a_.layer_s) + " seconds of a layer"
                     : std::to_string(a_.tokens_per_s) + " tokens per second of each device") +
         ", and its datasheet is more than a hundred times off, or exchanges and what has anchors of its own take longer: are "
         "the units those of one device, and are model and degrees those that were measured?");
  }
  // That were measured of what seconds() prices.
  [[nodiscard]] double wanted_s() const {
    if (of_layer()) return a_.layer_s;
    return static_cast<double>(a_.microbatch_size) * a_.model.sequence / (a_.tokens_per_s * a_.degrees.device_count());
  }
  [[nodiscard]] any_cost_model costs() const {
    return training_costs({.subclusters = {one_}, .links = {}}, a_.model, options_)(a_.microbatch_size);
  }
  [[nodiscard]] double seconds() const {
    const auto by = costs();
    const layer_range all{0, layers_};
    const double update_s = a_.microbatches > 0 ? by.update(all, where_) / a_.microbatches : 0;
    return by.stage(of_layer() ? layer_range{1, 2} : all, where_).total_s() + update_s;
  }

  subcluster one_;
  const device_anchor& a_;
  training_cost_options options_;
  placement where_{};
  int layers_ = 0;
};

[[nodiscard]] inline double geometric_mean(std::span<const double> speeds) {
  double sum = 0;
  for (const double s : speeds) sum += std::log(s);
  return std::exp(sum / static_cast<double>(speeds.size()));
}

// The nodes that an anchor is judged on: the first with enough devices.
[[nodiscard]] inline const subcluster& nodes_of(const cluster& hardware, const device_anchor& a) {
  const double devices = 1.0 * a.degrees.data * a.degrees.context * a.degrees.tensor;  // may be more than an int holds
  int most = 0;
  for (const auto& s : hardware.subclusters) {
    if (s.device.name != a.device) continue;
    most = std::max(most, s.devices_per_node);
    if (devices <= 1.0 * s.devices_per_node * std::max(a.nodes, 1) && a.nodes <= s.nodes) return s;
  }
  if (most == 0) throw input_error("no subcluster has device " + a.device + ", which is anchored");
  throw input_error("the anchor of device " + a.device + " needs more devices than the " + std::to_string(most) + " of a node" +
                    (a.nodes == 1 ? "" : ", or more nodes than there are"));
}

}  // namespace detail

HETSCHED_INLINE cluster anchored(cluster hardware, std::span<const device_anchor> anchors, const training_cost_options& options) {
  validate(hardware);
  struct seen {
    std::array<std::vector<double>, 3> of_class;
    std::array<std::optional<double>, 3> known;
    std::vector<double> beside;
  };
  std::map<std::string, seen> devices;
  for (const auto& a : anchors)
    if (a.only)
      at(devices[a.device].of_class, *a.only)
          .push_back(detail::anchored_stage(detail::nodes_of(hardware, a), a, options).class_speed());
  for (auto& [name, found] : devices)
    for (std::size_t k = 0; k < found.known.size(); ++k)
      if (!found.of_class[k].empty()) found.known[k] = detail::geometric_mean(found.of_class[k]);
  for (const auto& a : anchors) {
    auto& found = devices[a.device];
    if (a.only) continue;
    if (std::all_of(found.known.begin(), found.known.end(), [](const auto& k) { return k.has_value(); }))
      throw input_error("the anchor of device " + a.device + " is not used: each class of operators has one of its own");
    found.beside.push_back(detail::anchored_stage(detail::nodes_of(hardware, a), a, options).speed_beside(found.known));
  }
  for (auto& s : hardware.subclusters) {
    const auto of = devices.find(s.device.name);
    if (of == devices.end()) continue;
    const auto& [of_class, known, beside] = of->second;
    const double speed = beside.empty() ? 1 : detail::geometric_mean(beside);
    if (std::none_of(known.begin(), known.end(), [](const auto& k) { return k.has_value(); })) {
      s.device.speed = speed;
      s.device.class_speeds = {1, 1, 1};
      continue;
    }
    s.device.speed = 1;
    for (std::size_t k = 0; k < known.size(); ++k) s.device.class_speeds[k] = known[k].value_or(speed);
  }
  return hardware;
}

HETSCHED_INLINE std::vector<double> anchor_residuals(const cluster& hardware, std::span<const device_anchor> anchors,
                                                     const training_cost_options& options) {
  std::vector<double> all;
  for (const auto& a : anchors) {
    const auto& nodes = detail::nodes_of(hardware, a);
    all.push_back(detail::anchored_stage(nodes, a, options).residual(nodes.device));
  }
  return all;
}

}  // namespace hetsched
