// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/cost/models/hexiscale_costs.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/cost/questions/describe.hpp>
#include <hetsched/evaluate/evaluate.hpp>
#include <hetsched/plan/stage_parts.hpp>
#include <hetsched/plan/validate.hpp>
#include <hetsched/planners/priced_model.hpp>

namespace hetsched {

namespace detail {

[[nodiscard]] inline bool is_measured(const priced_model& m) {
  return std::holds_alternative<profile>(m.instead) || std::holds_alternative<replica_profile>(m.instead);
}

[[nodiscard]] inline bool is_by_hexiscale(const priced_model& m) { return std::holds_alternative<hexiscale_formulas>(m.instead); }

// The formulas of training_costs that are meant. Requires: it is priced by such.
[[nodiscard]] inline cost_formulas formulas_of(const cluster& hardware, const priced_model& m) {
  const bool knows_operators = std::holds_alternative<transformer>(m.model);
  if (m.options.formulas == cost_formulas::tile && !knows_operators)
    throw input_error("the tile formulas need a transformer, whose operators are known; found a chain of layers");
  return formulas_for(hardware, knows_operators, m.options.formulas);
}

// Layers of a profile that says nothing of it share what those of the model do, if they are as many.
template <class Profile>
[[nodiscard]] Profile with_copies(Profile measured, const priced_model& m) {
  auto& layers = measured.layers;
  const auto* const known = std::get_if<transformer>(&m.model);
  if (!known || std::any_of(layers.begin(), layers.end(), [](const auto& l) { return l.copy_of.has_value(); })) return measured;
  for (const auto by : {granularity::block, granularity::sublayer}) {
    const auto chain = make_chain(*known, by);
    if (chain.layers.size() != layers.size()) continue;
    for (std::size_t l = 0; l < layers.size(); ++l)
      if (const auto& of = chain.layers[l]; of.shared_parameters > 0)
        layers[l].copy_of = copied_part{of.owner, shared_fraction(of)};
  }
  return measured;
}

// Errors name the profile's file.
template <class Make>
[[nodiscard]] auto naming_profile(const priced_model& m, Make make) {
  try {
    return make();
  } catch (const input_error& wrong) {
    if (!is_measured(m) || m.profile_name.empty()) throw;
    throw input_error(m.profile_name + ": " + wrong.what());
  }
}

[[nodiscard]] inline std::string sizes_text(const replica_cost_model& costs) {
  const auto sizes = costs.measured_sizes();
  if (sizes.empty()) return "no device of the cluster was measured";
  std::string text = "replicas were measured at";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(sizes[i]);
  return text + " samples";
}

// What anchors are judged by, which tell the rest themselves.
[[nodiscard]] inline training_cost_options anchor_options(const cluster& hardware, const priced_model& m) {
  if (is_measured(m) || is_by_hexiscale(m))
    throw input_error("anchors scale formulas for layers and operators, by which this model is not priced");
  auto options = m.options;
  options.formulas = formulas_of(hardware, m);
  return options;
}

}  // namespace detail

HETSCHED_INLINE std::string_view costs_name(const cluster& hardware, const priced_model& model) {
  if (detail::is_measured(model)) return "profile";
  if (std::holds_alternative<std::monostate>(model.model))
    throw input_error("costs are of a model, or of a profile; there is neither");
  if (detail::is_by_hexiscale(model)) {
    if (!std::holds_alternative<transformer>(model.model))
      throw input_error("HexiScale's formulas need a transformer; found a chain of layers");
    return "hexiscale";
  }
  return detail::formulas_of(hardware, model) == cost_formulas::tile ? "tile" : "analytic";
}

HETSCHED_INLINE bool knows_shapes_only(const priced_model& model) { return std::holds_alternative<profile>(model.instead); }

HETSCHED_INLINE std::vector<std::string> priced_by_whole_layers(const cluster& hardware, const priced_model& model) {
  std::vector<std::string> names;
  if (costs_name(hardware, model) != "tile") return names;
  for (const auto& s : hardware.subclusters)
    if (!known_by_operators(s.device)) names.push_back(s.name);
  return names;
}

HETSCHED_INLINE std::optional<unused_calibration> find_unused_calibration(const cluster& hardware, const priced_model& model) {
  if (detail::is_measured(model)) return {};
  const bool by_operators = costs_name(hardware, model) == "tile";
  const auto first = [&](unused_calibration::cause why, auto&& unused) -> std::optional<unused_calibration> {
    for (std::size_t k = 0; k < hardware.subclusters.size(); ++k)
      if (unused(hardware.subclusters[k].device)) return unused_calibration{static_cast<int>(k), why};
    return {};
  };
  const auto by_whole_layers = [&](const device& d) { return !by_operators || !known_by_operators(d); };
  const auto is_calibrated = [](const device& d) { return !(d.calibration == device_calibration{}); };
  using cause = unused_calibration::cause;
  auto found =
      first(cause::class_speeds, [&](const device& d) { return d.class_speeds != device{}.class_speeds && by_whole_layers(d); });
  if (found || model.options.formulas == cost_formulas::analytic) return found;
  if (model.options.correction) found = first(cause::corrected, is_calibrated);
  return found ? found : first(cause::whole_layers, [&](const device& d) { return is_calibrated(d) && by_whole_layers(d); });
}

HETSCHED_INLINE std::vector<like_cases> like_cases_of(const cluster& hardware, const priced_model& model, bool trains) {
  if (model.options.correction) return {};
  auto basis = detail::is_measured(model) ? cost_basis::profile : basis_of(hardware);
  if (basis != cost_basis::profile && costs_name(hardware, model) != "tile" && basis != cost_basis::anchored)
    basis = cost_basis::layers;
  return cases_like(basis, trains ? std::string_view(model.options.stack.name) : "inference");
}

HETSCHED_INLINE double flops_per_sample(const priced_model& model) {
  if (const auto* const known = std::get_if<transformer>(&model.model))
    return training_flops(make_chain(*known, model.options.cut));
  if (const auto* const chain = std::get_if<layer_chain>(&model.model)) return training_flops(*chain);
  return 0;
}

HETSCHED_INLINE any_cost_model costs_on(const cluster& hardware, const priced_model& model, int microbatch_size) {
  if (const auto* const shapes = std::get_if<profile>(&model.instead))
    return any_cost_model::owner_of(profile_cost_model(hardware, detail::with_copies(*shapes, model)));
  if (detail::is_measured(model)) return any_cost_model::owner_of(replica_costs_on(hardware, model, microbatch_size));
  const auto name = costs_name(hardware, model);
  const auto* const known = std::get_if<transformer>(&model.model);
  if (name == "hexiscale")
    return any_cost_model::owner_of(hexiscale_cost_model(
        hardware, {.layers = known->layers, .hidden = known->hidden, .sequence = known->sequence},
        {.microbatch_size = microbatch_size, .element_bytes = known->parameter_bytes, .precision = model.options.precision}));
  auto options = model.options;
  options.formulas = name == "tile" ? cost_formulas::tile : cost_formulas::analytic;
  return (known ? training_costs(hardware, *known, options)
                : training_costs(hardware, std::get<layer_chain>(model.model), options))(microbatch_size);
}

HETSCHED_INLINE costs_by_size costs_on(const cluster& hardware, const priced_model& model) {
  struct made {
    cluster hardware;
    priced_model model;
    std::mutex one_at_a_time = {};
    std::map<int, any_cost_model> by_size = {};
  };
  return [all = std::shared_ptr<made>(new made{hardware, model})](int size) {
    const std::lock_guard lock(all->one_at_a_time);
    const auto known = all->by_size.find(size);
    if (known != all->by_size.end()) return known->second;
    auto costs = detail::naming_profile(all->model, [&] { return costs_on(all->hardware, all->model, size); });
    return all->by_size.emplace(size, std::move(costs)).first->second;
  };
}

HETSCHED_INLINE replica_cost_model replica_costs_on(const cluster& hardware, const priced_model& model, int microbatch_size) {
  const auto* const measured = std::get_if<replica_profile>(&model.instead);
  if (!measured) throw input_error("the model is not priced by measured replicas");
  return {
      hardware, detail::with_copies(*measured, model), {.microbatch_size = microbatch_size, .extrapolate = model.extrapolate}};
}

HETSCHED_INLINE std::string measured_sizes_text(const cluster& hardware, const priced_model& model) {
  return detail::sizes_text(replica_costs_on(hardware, model, 1));
}

HETSCHED_INLINE std::string lacking_costs(const cluster& hardware, const priced_model& model, int microbatch_size) {
  if (!std::holds_alternative<replica_profile>(model.instead)) return "";
  const auto costs = detail::naming_profile(model, [&] { return replica_costs_on(hardware, model, microbatch_size); });
  for (std::size_t s = 0; s < hardware.subclusters.size(); ++s)
    for (const auto& mesh : submeshes(hardware.subclusters[s], static_cast<int>(s)))
      if (!costs.placements(mesh).empty()) return "";
  return (model.profile_name.empty() ? "the profile" : model.profile_name) + " has no costs for microbatches of " +
         std::to_string(microbatch_size) + (microbatch_size == 1 ? " sample" : " samples") +
         " on this cluster: " + detail::sizes_text(costs);
}

HETSCHED_INLINE outcome<evaluation> evaluate(const cluster& hardware, const priced_model& model, plan p) {
  auto wide = model;
  for (const auto& line : p.pipelines)
    for (const auto& s : line.stages) {
      wide.options.max_context = std::max(wide.options.max_context, s.degrees.context);
      wide.options.max_expert = std::max(wide.options.max_expert, s.degrees.expert);
    }
  if (wide.options.batch == 0) wide.options.batch = static_cast<int>(std::min<std::int64_t>(sample_count(p), INT_MAX));
  const evaluate_options options{.flops_per_sample = flops_per_sample(model), .arithmetic = model.options.precision};
  return evaluate(hardware, costs_on(hardware, wide), std::move(p), options);
}

HETSCHED_INLINE std::vector<std::string> profile_remarks(const cluster& hardware, const priced_model& model, const plan& p) {
  std::vector<std::string> found;
  const auto* const measured = std::get_if<replica_profile>(&model.instead);
  if (!measured) return found;
  validate(hardware, p, static_cast<int>(measured->layers.size()));
  bool free_sums = false;
  for (std::size_t l = 0; l < p.pipelines.size(); ++l) {
    const auto& line = p.pipelines[l];
    for (std::size_t i = 0; i < line.stages.size(); ++i)
      for (const auto& part : parts_of(line.stages[i], line.microbatch_size)) {
        const auto costs = detail::naming_profile(model, [&] { return replica_costs_on(hardware, model, part.samples); });
        const auto sizes = costs.sizes(part.where);
        const bool summed = line.stages[i].degrees.data > 1 || !p.gradient_sync.empty();
        free_sums = free_sums || (costs.lacks_gradients(part.where) && summed);
        if (!sizes.extrapolated()) continue;
        const std::string high = sizes.high == sizes.low ? "" : " and " + std::to_string(sizes.high);
        found.push_back(stage_name(p, l, i) + ": the costs of " + std::to_string(sizes.samples) +
                        " samples on a replica are extrapolated from " + std::to_string(sizes.low) + high);
      }
  }
  if (free_sums)
    found.push_back((model.profile_name.empty() ? "the profile" : model.profile_name) +
                    " tells no gradient_bytes: adding up the gradients of replicas counts as free");
  return found;
}

HETSCHED_INLINE plan_setting setting_of(const cluster& hardware, const priced_model& model) {
  const auto name = costs_name(hardware, model);
  const bool formulas = name == "tile" || name == "analytic";
  plan_setting s{.costs = formulas && !model.correction.empty() ? "forest:" + model.correction : std::string(name),
                 .whole_layers = priced_by_whole_layers(hardware, model)};
  for (const auto& one : hardware.subclusters)
    if (one.device.is_anchored() && name != "profile")
      s.anchored.push_back({one.name, one.device.speed, one.device.class_speeds});
  if (std::holds_alternative<std::monostate>(model.model)) return s;
  s.precision = name_of(model.options.precision);
  if (formulas) s.stack = model.options.stack;
  const auto* const known = std::get_if<transformer>(&model.model);
  if (!known) return s;
  s.sequence = known->sequence;
  s.further_tokens = known->further_tokens;
  if (!formulas) return s;
  s.granularity = model.options.cut == granularity::block ? "block" : "sublayer";
  s.attention = model.options.flash_attention ? "flash" : "standard";
  return s;
}

HETSCHED_INLINE cluster anchored(const cluster& hardware, std::span<const device_anchor> anchors, const priced_model& model) {
  return anchored(hardware, anchors, detail::anchor_options(hardware, model));
}

HETSCHED_INLINE std::vector<double> anchor_residuals(const cluster& hardware, std::span<const device_anchor> anchors,
                                                     const priced_model& model) {
  return anchor_residuals(hardware, anchors, detail::anchor_options(hardware, model));
}

}  // namespace hetsched
