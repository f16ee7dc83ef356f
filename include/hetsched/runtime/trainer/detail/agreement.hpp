// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/layout/detail/digest.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

namespace hetsched::detail {

[[nodiscard]] digest digest_of_ranks(const training_layout& t);
[[nodiscard]] digest digest_of_stages(const training_layout& t);
[[nodiscard]] digest digest_of_schedules(const training_layout& t);

/// Of the slices that stages exchange.
[[nodiscard]] digest digest_of(const pipeline_groups& groups);

/// Which ranks differ from most others, and in what; empty: none do. `told[r][i]`: rank r's digest of aspect i. Where two
/// groups are equally large, that of the lowest rank counts as usual.
/// Complexity: O(ranks * aspects) where most agree, else O(ranks^2 * aspects).
[[nodiscard]] std::string disagreement(const std::vector<std::vector<double>>& told, std::span<const std::string_view> aspects);

template <class Optimizer>
[[nodiscard]] double settings_digest(const Optimizer& o) {
  digest d;
  if constexpr (requires { o.settings(); })
    for (const double number : o.settings()) d.add(number);
  return d.number();
}

/// What digests_of_training() tell of.
inline constexpr std::array<std::string_view, 10> training_aspects{
    "ranks and microbatches", "stages",      "schedule", "optimizer", "ties", "clipping", "sharding", "step",
    "configuration",          "element type"};

/// What has to be the same on all ranks of a training. has_factor: the optimizer scales gradients, so that norms are of those
/// before it. of_layout: common_layout's. element: of tensors.
template <class Optimizer>
[[nodiscard]] std::vector<double> digests_of_training(const std::array<double, 3>& of_layout, const Optimizer& o, bool has_factor,
                                                      const trainer_options& options, std::string_view element) {
  digest of_optimizer, of_ties, of_options, of_shards;
  of_optimizer.add(o.name()).add(std::int64_t{has_factor});
  for (const std::string_view name : o.state_names()) of_optimizer.add(name);
  of_optimizer.add(settings_digest(o));
  for (const auto& [a, b] : options.ties)
    for (const int number : {a.layer, a.number, b.layer, b.number}) of_ties.add(std::int64_t{number});
  of_options.add(options.clip_norm).add(static_cast<std::int64_t>(options.on_nonfinite));
  for (const double number : {options.scaling.scale, options.scaling.growth, options.scaling.backoff}) of_options.add(number);
  of_options.add(options.scaling.interval);
  of_shards.add(std::int64_t{options.shard_optimizer})
      .add(static_cast<std::int64_t>(options.bucket_bytes))
      .add(static_cast<std::int64_t>(options.joint_bytes))
      .add(std::int64_t{options.sums_in_order});
  return {of_layout[0],
          of_layout[1],
          of_layout[2],
          of_optimizer.number(),
          of_ties.number(),
          of_options.number(),
          of_shards.number(),
          digest().add(options.first_step).number(),
          digest().add(options.configuration_digest).number(),
          digest().add(element).number()};
}

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/detail/agreement.ipp>
#endif
