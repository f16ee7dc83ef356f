// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/outcome.hpp>
#include <hetsched/cost/models/anchor.hpp>
#include <hetsched/cost/models/like_cases.hpp>
#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/models/replica_profile.hpp>
#include <hetsched/cost/models/training_costs.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/evaluate/evaluation.hpp>
#include <hetsched/model/layer.hpp>
#include <hetsched/model/transformer.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// HexiScale's formulas for equal blocks of a transformer, its embedding and head left out: hexiscale_cost_model.
struct hexiscale_formulas {};

/// A model, and what it is priced by on any cluster and for any microbatch size. Example:
///     const priced_model by_formulas{.model = llama(), .options = {.precision = precision::bf16}};
///     const priced_model as_measured{.instead = read_profile("profile.json")};
struct priced_model {
  /// What is trained; nothing: only its costs are known, from a profile.
  std::variant<std::monostate, transformer, layer_chain> model = {};
  /// In place of the formulas of training_costs: HexiScale's, or what was measured.
  std::variant<std::monostate, hexiscale_formulas, profile, replica_profile> instead = {};
  bool extrapolate = false;            ///< a replica_profile beyond the sizes that were measured
  training_cost_options options = {};  ///< of formulas; of a model beside a profile its precision and cut count
  std::string correction = {};         ///< the file of options.correction, by which plans remember it
  std::string profile_name = {};       ///< the profile's file, for messages
};

/// What plans of it are priced by on a cluster: "profile", "hexiscale", "tile" or "analytic".
/// Throws: input_error where there is neither a model nor a profile, and where formulas need a transformer that the model is not.
[[nodiscard]] std::string_view costs_name(const cluster& hardware, const priced_model& model);

/// Whether they are a profile of whole shapes, which has one microbatch size, and does not tell what several pipelines add up.
[[nodiscard]] bool knows_shapes_only(const priced_model& model);

/// Subclusters whose devices are priced by whole layers, while those of others are by the operators of layers.
/// Throws: as costs_name.
[[nodiscard]] std::vector<std::string> priced_by_whole_layers(const cluster& hardware, const priced_model& model);

/// What is known of a subcluster's devices by their operators, and the costs of a model do not use.
struct unused_calibration {
  enum class cause {
    class_speeds,  ///< speeds of classes of operators, of devices that are priced by whole layers
    whole_layers,  ///< a calibration, of devices that are priced by whole layers, or of a model without operators
    corrected      ///< a calibration beside a correction, which corrects what datasheets say
  };
  int subcluster = 0;
  cause why = cause::whole_layers;
  friend bool operator==(const unused_calibration&, const unused_calibration&) = default;
};

/// The first calibration, or speed of classes of operators, that would go unused without a word; none: all are used, or costs
/// that know none were asked for: measured ones, and for calibrations the analytic formulas. Throws: as costs_name.
[[nodiscard]] std::optional<unused_calibration> find_unused_calibration(const cluster& hardware, const priced_model& model);

/// Where somebody measured what such costs say, in training by the stack of the options; none of costs with a correction, which
/// is the user's own. `trains`: else of inference. Throws: as costs_name and basis_of.
[[nodiscard]] std::vector<like_cases> like_cases_of(const cluster& hardware, const priced_model& model, bool trains = true);

/// Operations of one sample, forward and backward; 0 where the model is not known.
[[nodiscard]] double flops_per_sample(const priced_model& model);

/// Costs of microbatches of that many samples. Layers of a profile that tells nothing of it share the parameters that the model's
/// share, if they are as many. Throws: as costs_name, and as the cost model that it is.
[[nodiscard]] any_cost_model costs_on(const cluster& hardware, const priced_model& model, int microbatch_size);

/// The same of any size, each made once; copies share them, also between threads. Errors name the profile's file.
[[nodiscard]] costs_by_size costs_on(const cluster& hardware, const priced_model& model);

/// Costs of replicas as measured. Throws: input_error unless they are, and as replica_cost_model.
[[nodiscard]] replica_cost_model replica_costs_on(const cluster& hardware, const priced_model& model, int microbatch_size);

/// "replicas were measured at 1, 2 samples", or that no device of the cluster was. Throws: as replica_costs_on.
[[nodiscard]] std::string measured_sizes_text(const cluster& hardware, const priced_model& model);

/// Why no stage can have costs at a microbatch size, as it was not measured; empty where some can.
/// Throws: as replica_costs_on where it is of a replica_profile; else nothing.
[[nodiscard]] std::string lacking_costs(const cluster& hardware, const priced_model& model, int microbatch_size);

/// What a plan is worth by a model's costs: evaluate, by the costs of all its sizes, also of context and expert degrees beyond
/// those that the options offer to planners, and of the plan's samples unless the options tell a batch. Throws: as costs_on and
/// evaluate.
[[nodiscard]] outcome<evaluation> evaluate(const cluster& hardware, const priced_model& model, plan p);

/// What to know of a plan's costs from a replica_profile, as sentences: stages whose sizes were not measured, and sums of
/// gradients that count as free, as the profile does not tell their bytes. None for other costs. Throws: as replica_costs_on, as
/// validate of a plan, and for a stage that the profile has no costs for.
[[nodiscard]] std::vector<std::string> profile_remarks(const cluster& hardware, const priced_model& model, const plan& p);

/// What a plan remembers of its costs. Throws: as costs_name.
[[nodiscard]] plan_setting setting_of(const cluster& hardware, const priced_model& model);

/// The cluster with devices as fast as they were seen to train, by the formulas and the stack that plans are priced by.
/// Throws: input_error for anchors beside what is measured or HexiScale's, which have no use for them, and as anchored.
[[nodiscard]] cluster anchored(const cluster& hardware, std::span<const device_anchor> anchors, const priced_model& model);

/// How far off each anchor is there, see anchor_residuals. Throws: as anchored.
[[nodiscard]] std::vector<double> anchor_residuals(const cluster& hardware, std::span<const device_anchor> anchors,
                                                   const priced_model& model);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/planners/priced_model.ipp>
#endif
