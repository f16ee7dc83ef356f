// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>

namespace hetsched::detail {

HETSCHED_INLINE schedule from_warmups(std::vector<int> counts, int microbatches, const build_options& options) {
  const auto stages = counts.size();
  if (!options.warmups.empty()) {
    if (options.warmups.size() != stages)
      throw input_error(std::to_string(options.warmups.size()) + " warm-up counts for " + std::to_string(stages) + " stages");
    counts = options.warmups;
  }
  if (!options.caps.empty()) {
    if (options.caps.size() != stages)
      throw input_error(std::to_string(options.caps.size()) + " caps for " + std::to_string(stages) + " stages");
    counts = capped_warmups(std::move(counts), positive(options.caps));
  }
  return one_f_one_b(counts, microbatches);
}

HETSCHED_INLINE schedule from_cross(const pipeline& p, int microbatches, const build_options& options) {
  const auto boundaries = as_size(p.stages()) - 1;
  if (!options.cross.empty() && options.cross.size() != boundaries)
    throw input_error("cross needs one entry per boundary (stages - 1), or none");
  const auto counts = virtual_1f1b_warmups(options.cross.empty() ? slow_boundaries(p, options.epsilon) : options.cross);
  return from_warmups(counts, microbatches, options);
}

HETSCHED_INLINE const named_schedule* find_builder(std::optional<schedule_id> id) {
  if (!id) return nullptr;
  for (const auto& s : schedule_table)
    if (s.id == *id) return &s;
  return nullptr;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE bool has_warmups(schedule_id id) {
  const auto* known = detail::find_builder(id);
  return known && known->has_warmups;
}

HETSCHED_INLINE bool has_warmups(std::string_view name) {
  const auto id = find_schedule_id(name);
  return id && has_warmups(*id);
}

HETSCHED_INLINE schedule_id schedule_named(std::string_view name) {
  if (const auto id = find_schedule_id(name)) return *id;
  std::string known;
  for (const auto other : schedule_names()) known += (known.empty() ? "" : ", ") + std::string(other);
  throw input_error("there is no schedule \"" + std::string(name) + "\"; there are " + known);
}

HETSCHED_INLINE schedule build_schedule(schedule_id id, const pipeline& p, int microbatches, const build_options& options) {
  validate(p);
  const auto* s = detail::find_builder(id);
  if (id == schedule_id::searched) throw input_error("auto is no builder: auto_schedule finds it");
  if (!s) throw input_error("there is no schedule " + std::to_string(static_cast<int>(id)));
  if (!s->has_warmups && !(options.warmups.empty() && options.caps.empty()))
    throw input_error("the schedule " + std::string(name_of(id)) + " takes no warm-up counts and no caps");
  return s->build(p, microbatches, options);
}

HETSCHED_INLINE schedule build_schedule(std::string_view name, const pipeline& p, int microbatches,
                                        const build_options& options) {
  validate(p);
  return build_schedule(schedule_named(name), p, microbatches, options);
}

}  // namespace hetsched
