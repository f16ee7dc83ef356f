// SPDX-License-Identifier: Apache-2.0
// Options that all ranks have to be given alike.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <train/place.hpp>
#include <train/training.hpp>

namespace train {

/// By option, what was given; empty: nothing. What the training's notes say is not among them.
[[nodiscard]] inline std::map<std::string, std::string> shared_options(const arguments& given) {
  const auto& c = given.checkpoint;
  const auto flag = [](bool is_set) { return std::string(is_set ? "given" : ""); };
  return {{"--checkpoint", c.folder},
          {"--checkpoint-behind", flag(c.behind)},
          {"--every", std::to_string(c.every)},
          {"--resume", flag(c.resume)},
          {"--resume-or-start", flag(c.or_start)},
          {"--steps", std::to_string(given.steps)},
          {"--dry-run", flag(given.dry_run)},
          {"--accumulate", std::to_string(given.accumulate)},
          {"--trace or --report", flag(!given.trace.empty() || !given.report.empty() || !given.times.empty())},
          {"--snapshot-every", std::to_string(given.snapshot_every)},
          {"--replan-every", std::to_string(given.replan_every)},
          {"--replan-gain", std::to_string(given.replan_gain)},
          {"--replan-layers", flag(given.replan_layers)},
          {"--trace-steps", std::to_string(given.trace_steps)},
          {"--validation", flag(!given.validation.empty())},
          {"--validate-every", std::to_string(given.validate_every)},
          {"--validation-batches", std::to_string(given.validation_batches)},
          {"--plan", flag(!given.plan.empty())},
          {"--schedule", given.schedule},
          {"--chunks", std::to_string(given.chunks)},
          {"--boundaries", given.boundaries.value_or("")},
          {"--microbatches", given.microbatches ? std::to_string(*given.microbatches) : ""},
          {"--microbatch-size", given.microbatch_size ? std::to_string(*given.microbatch_size) : ""}};
}

/// Throws known_to_all, on all ranks, for the first of some settings that a rank has otherwise than rank 0. Throws as gather.
inline void agree_on(control comm, const std::map<std::string, std::string>& settings, double deadline_s) {
  std::string text;
  for (const auto& [name, value] : settings) text += name + '\n' + value + '\n';
  const auto told = gather(comm, {text.begin(), text.end()}, deadline_s, "comparing options");
  const auto values_of = [&](std::size_t rank) {
    std::vector<std::string> lines(1);
    for (const double c : told[rank])
      if (c == '\n')
        lines.emplace_back();
      else
        lines.back() += static_cast<char>(c);
    return lines;
  };
  const auto first = values_of(0);
  for (std::size_t r = 1; r < told.size(); ++r) {
    const auto other = values_of(r);
    for (std::size_t i = 0; i + 1 < first.size() && i + 1 < other.size(); i += 2)
      if (first[i + 1] != other[i + 1]) {
        const auto shown = [](const std::string& value) { return value.empty() ? "not given" : value; };
        throw known_to_all(first[i] + ": " + shown(first[i + 1]) + " on rank 0, " + shown(other[i + 1]) + " on rank " +
                           std::to_string(r));
      }
  }
}

}  // namespace train
