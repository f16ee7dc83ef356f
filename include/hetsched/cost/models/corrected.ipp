// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/corrected.hpp>

namespace hetsched {

HETSCHED_INLINE correction_features correction_features_of(const corrected_layers& of, const device& d, int index,
                                                           int layer_count, const degrees& where, const stage_cost& base) {
  const auto& m = of.model;
  validate(m);
  if (of.microbatch_size < 1) throw input_error("microbatch_size must be at least 1");
  if (index < 0 || index >= layer_count)
    throw input_error("layer " + std::to_string(index) + ": expected one of " + std::to_string(layer_count));
  if (where.data < 1) throw input_error("the data degree must be at least 1");
  if (!(d.flops(of.precision) > 0 && d.memory_bandwidth > 0 && std::isfinite(d.memory_bandwidth)))
    throw input_error("device " + d.name + " needs memory_bandwidth and a peak for " + std::string(name_of(of.precision)));
  if (!(base.forward_s >= 0 && base.backward_s >= 0)) throw input_error("a layer's times must not be negative");
  const int of_block = std::max(1, (layer_count - 2) / m.layers), inner = index - 1;
  const bool sparse = has_experts(m, inner / of_block);
  const double kind = index == 0 ? 0 : index == layer_count - 1 ? 1 : 2 + 2 * (inner % of_block) + (sparse ? 1 : 0);
  const auto table = layer_features({.sequence = static_cast<double>(m.sequence),
                                     .heads = static_cast<double>(m.heads),
                                     .head_size = static_cast<double>(m.head_size > 0 ? m.head_size : m.hidden / m.heads),
                                     .context = static_cast<double>(where.context),
                                     .tensor = static_cast<double>(where.tensor),
                                     .samples = static_cast<double>(of.microbatch_size) / where.data,
                                     .element_bytes = static_cast<double>(m.parameter_bytes)});
  constexpr std::size_t intensity = 13;  // R_cm
  constexpr double launch_s = 10e-6;
  correction_features f{};
  std::copy(table.begin(), table.end(), f.begin());
  f[layer_feature_count] = kind;
  f[layer_feature_count + 1] = table[intensity] * d.memory_bandwidth / d.flops(of.precision);
  f[layer_feature_count + 2] = base.forward_s / launch_s;
  f[layer_feature_count + 3] = base.backward_s / launch_s;
  return f;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE std::vector<placement> measured_placements(const cluster& hardware, const profile_cost_model& table) {
  std::vector<placement> all;
  for (std::size_t s = 0; s < hardware.subclusters.size(); ++s)
    for (int nodes = 1; nodes <= hardware.subclusters[s].nodes; ++nodes)
      for (int devices = 1; devices <= hardware.subclusters[s].devices_per_node; ++devices)
        for (const auto& where : table.placements({static_cast<int>(s), nodes, devices})) all.push_back(where);
  return all;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE layer_correction layer_correction::read(std::string_view text) {
  constexpr std::string_view title = "hetsched-layer-correction 1\n";
  const auto require = [](bool holds) {
    if (!holds) throw input_error("layer correction: this is not the text of one");
  };
  require(text.starts_with(title));
  text.remove_prefix(title.size());
  std::size_t size = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), size);
  require(problem == std::errc{} && stop != text.data() + text.size() && *stop == '\n');
  text.remove_prefix(as_size(stop - text.data()) + 1);
  require(size <= text.size());
  layer_correction c;
  c.forward_ = random_forest::read(text.substr(0, size));
  c.backward_ = random_forest::read(text.substr(size));
  for (const auto* f : {&c.forward_, &c.backward_})
    require(f->tree_count() == 0 || f->feature_count() == correction_feature_count);
  return c;
}

}  // namespace hetsched
