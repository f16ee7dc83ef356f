// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/cost/models/forest.hpp>
#include <hetsched/cost/models/layer_features.hpp>
#include <hetsched/cost/models/profile.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/model/transformer.hpp>

namespace hetsched {

/// A transformer and its use, as far as the layers' times depend on them.
struct corrected_layers {
  transformer model{};
  int microbatch_size = 1;
  hetsched::precision precision = hetsched::precision::fp16;
};

inline constexpr int correction_feature_count = layer_feature_count + 4;
using correction_features = std::array<double, correction_feature_count>;

/// What a layer's correction may depend on: the features of HetAuto's Table 6, and, without units so that other devices compare,
/// which layer of a block it is, its intensity against the device's ridge, and the base model's forward and backward seconds in
/// launches of 10 us, since small layers wait for the host. `layer_count` as of the model's chain by block or by sublayer.
[[nodiscard]] correction_features correction_features_of(const corrected_layers& of, const device& d, int index, int layer_count,
                                                         const degrees& where, const stage_cost& base);

/// A measured layer beside what a cost model says of it.
struct layer_sample {
  correction_features features{};
  double base_forward_s = 0, forward_s = 0;
  double base_backward_s = 0, backward_s = 0;
};

/// Measured to modelled time of layers, forward and backward: two forests on log(measured / base).
class layer_correction {
 public:
  /// Corrects nothing.
  layer_correction() = default;

  /// A direction with a time of 0, measured or modelled, is not learned from. Throws as random_forest::train, and input_error for
  /// times that are negative or infinite and where neither direction has anything to learn from.
  [[nodiscard]] static layer_correction train(std::span<const layer_sample> samples,
                                              const forest_options& options = {.least_leaf_rows = 2}) {
    layer_correction c;
    const auto grow = [&](auto base, auto measured) {
      std::vector<double> features, targets;
      for (const auto& s : samples) {
        if (!(s.*base >= 0 && s.*measured >= 0 && std::isfinite(s.*base) && std::isfinite(s.*measured)))
          throw input_error("a layer's times must be finite and not negative");
        if (s.*base == 0 || s.*measured == 0) continue;
        features.insert(features.end(), s.features.begin(), s.features.end());
        targets.push_back(std::log(s.*measured / s.*base));
      }
      return targets.empty() ? random_forest() : random_forest::train(features, correction_feature_count, targets, options);
    };
    c.forward_ = grow(&layer_sample::base_forward_s, &layer_sample::forward_s);
    c.backward_ = grow(&layer_sample::base_backward_s, &layer_sample::backward_s);
    if (c.forward_.tree_count() == 0 && c.backward_.tree_count() == 0)
      throw input_error("a layer correction needs measured layers");
    return c;
  }

  [[nodiscard]] double forward(const correction_features& f) const { return std::exp(forward_.predict(f)); }
  [[nodiscard]] double backward(const correction_features& f) const { return std::exp(backward_.predict(f)); }

  /// Text that read() turns into an equal correction: the length of the forward forest's text, both forests.
  [[nodiscard]] std::string text() const {
    const auto first = forward_.text();
    return "hetsched-layer-correction 1\n" + std::to_string(first.size()) + "\n" + first + backward_.text();
  }

  /// Throws input_error for text that no correction has.
  [[nodiscard]] static layer_correction read(std::string_view text);

  friend bool operator==(const layer_correction&, const layer_correction&) = default;

 private:
  random_forest forward_, backward_;
};

namespace detail {

// Placements of the cluster that the profile has.
[[nodiscard]] std::vector<placement> measured_placements(const cluster& hardware, const profile_cost_model& table);

}  // namespace detail

/// The layers of a profile that lie on the cluster, beside what `base` says of them. The profile must be of `of`: its model and
/// microbatch size; samples of several can be trained on together. Throws input_error as profile_cost_model and
/// for a model or microbatch that makes no sense.
template <additive_cost_model Base>
[[nodiscard]] std::vector<layer_sample> layer_samples(const Base& base, const cluster& hardware, const corrected_layers& of,
                                                      const profile& measured) {
  validate(of.model);
  if (of.microbatch_size < 1) throw input_error("microbatch_size must be at least 1");
  const profile_cost_model table(hardware, measured);
  const int layers = cost_of::layer_count(base);
  if (table.layer_count() != layers) throw input_error("the profile has another number of layers than the cost model");
  std::vector<layer_sample> samples;
  for (const auto& where : detail::measured_placements(hardware, table)) {
    const auto& d = at(hardware.subclusters, where.mesh.subcluster).device;
    for (int l = 0; l < layers; ++l) {
      const auto said = cost_of::layer(base, l, where), seen = table.layer(l, where);
      samples.push_back({correction_features_of(of, d, l, layers, where.degrees, said), said.forward_s, seen.forward_s,
                         said.backward_s, seen.backward_s});
    }
  }
  return samples;
}

/// A cost model whose layer times are corrected by what was measured, also on shapes, degrees and devices that were not: the
/// base's forward and backward times by the forests' factors, or, where a profile is given that has the layer, as it says.
/// Placements, memory, transfers and updates are the base's. An additive_cost_model; a layer costs two forest queries or,
/// with an exact profile, O(its placements).
template <additive_cost_model Base>
class corrected_cost_model {
 public:
  /// `hardware` is the base's cluster. Throws input_error as layer_samples for `exact`, the profile to take as it is, may be
  /// empty.
  corrected_cost_model(Base base, cluster hardware, corrected_layers of, layer_correction correction, profile exact = {})
      : base_(std::move(base)), cluster_(std::move(hardware)), of_(std::move(of)), correction_(std::move(correction)) {
    validate(cluster_);
    validate(of_.model);
    if (of_.microbatch_size < 1) throw input_error("microbatch_size must be at least 1");
    if (exact.layers.empty()) return;
    exact_.emplace(cluster_, std::move(exact));
    if (exact_->layer_count() != layer_count()) throw input_error("the profile has another number of layers than the cost model");
    known_ = detail::measured_placements(cluster_, *exact_);
  }

  [[nodiscard]] int layer_count() const { return cost_of::layer_count(base_); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return cost_of::placements(base_, mesh); }

  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    auto cost = cost_of::layer(base_, index, where);
    const double backward_s = cost.backward_s;
    if (std::find(known_.begin(), known_.end(), where) != known_.end()) {
      const auto seen = exact_->layer(index, where);
      cost.forward_s = seen.forward_s;
      cost.backward_s = seen.backward_s;
    } else {
      const auto& d = at(cluster_.subclusters, where.mesh.subcluster).device;
      const auto f = correction_features_of(of_, d, index, layer_count(), where.degrees, cost);
      cost.forward_s *= correction_.forward(f);
      cost.backward_s *= correction_.backward(f);
    }
    if (backward_s > 0)
      for (double* part : {&cost.weight_backward_s, &cost.sums_s, &cost.staged_sums_s}) *part *= cost.backward_s / backward_s;
    return cost;
  }

  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return sum_of_layers(*this, layers, where); }

  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return cost_of::transfer(base_, boundary, from, to, near);
  }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return cost_of::gradient_sync(base_, layers, holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return cost_of::overheads(base_, where); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const { return cost_of::copies(base_, where); }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return cost_of::update(base_, layers, where); }
  [[nodiscard]] std::int64_t transfer_class(const placement& where) const requires detail::cost_model::has_transfer_class<Base> {
    return cost_of::transfer_class(base_, where);
  }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return cost_of::boundary_class(base_, boundary); }

 private:
  Base base_;
  cluster cluster_;
  corrected_layers of_;
  layer_correction correction_;
  std::optional<profile_cost_model> exact_;
  std::vector<placement> known_;  // that `exact_` has
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/corrected.ipp>
#endif
