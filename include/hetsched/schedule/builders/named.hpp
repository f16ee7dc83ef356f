// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/bidirectional.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/v_schedules.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/builders/zero_bubble.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/schedule_id.hpp>

namespace hetsched {

/// What a schedule's name leaves open.
struct build_options {
  std::vector<int> warmups = {};  ///< 1F1B family: in place of the counts of its rule
  double epsilon = default_epsilon;
  int chunks = 2;  ///< per rank, of the interleaved and looped schedules
  std::vector<bool> cross =
      {};                      ///< virtual_1f1b: boundaries between clusters, stages - 1; empty: those beyond H-1F1B's tolerance
  std::vector<int> caps = {};  ///< 1F1B family: most microbatches in flight per stage; empty: no limit
};

namespace detail {

struct named_schedule {
  schedule_id id;
  bool has_warmups;
  bool cuts_stages;  // several virtual stages per rank
  schedule (*build)(const pipeline&, int, const build_options&);
  double (*period_s)(const pipeline&) = nullptr;  // where there is a closed form
};

[[nodiscard]] inline const std::vector<int>& positive(const std::vector<int>& caps) {
  if (*std::min_element(caps.begin(), caps.end()) < 1) throw input_error("a stage that may hold no microbatch cannot run any");
  return caps;
}

[[nodiscard]] schedule from_warmups(std::vector<int> counts, int microbatches, const build_options& options);

template <warmup_rule Rule>
[[nodiscard]] schedule from_rule(const pipeline& p, int microbatches, const build_options& options) {
  const bool fastest_within = Rule == warmup_rule::exact && options.warmups.empty() && options.caps.size() == p.forward_s.size();
  return from_warmups(fastest_within ? exact_warmups_within(p, positive(options.caps)) : warmup_counts(Rule, p, options.epsilon),
                      microbatches, options);
}

template <schedule (*Build)(int, int)>
[[nodiscard]] schedule from_counts(const pipeline& p, int microbatches, const build_options&) {
  return Build(p.stages(), microbatches);
}

template <schedule (*Build)(int, int, int)>
[[nodiscard]] schedule from_chunks(const pipeline& p, int microbatches, const build_options& options) {
  return Build(p.stages(), options.chunks, microbatches);
}

[[nodiscard]] schedule from_cross(const pipeline& p, int microbatches, const build_options& options);

inline constexpr named_schedule schedule_table[] = {
    {schedule_id::gpipe, false, false, from_counts<gpipe>, gpipe_period},
    {schedule_id::one_f_one_b, true, false, from_rule<warmup_rule::one_f_one_b>},
    {schedule_id::eager_1f1b, true, false, from_rule<warmup_rule::eager>},
    {schedule_id::h1f1b, true, false, from_rule<warmup_rule::h1f1b>},
    {schedule_id::exact_1f1b, true, false, from_rule<warmup_rule::exact>},
    {schedule_id::virtual_1f1b, true, false, from_cross},
    {schedule_id::interleaved_1f1b, false, true, from_chunks<interleaved_1f1b>},
    {schedule_id::looped_bfs, false, true, from_chunks<looped_bfs>},
    {schedule_id::zb_h1, false, false, from_counts<zb_h1>},
    {schedule_id::zb_h2, false, false, from_counts<zb_h2>},
    {schedule_id::zb_v, false, true, from_counts<zb_v>},
    {schedule_id::v_half, false, true, from_counts<v_half>},
    {schedule_id::v_min, false, true, from_counts<v_min>},
    {schedule_id::dualpipe, false, true, from_counts<dualpipe>},
    {schedule_id::dualpipe_v, false, true, from_counts<dualpipe_v>},
    {schedule_id::chimera, false, true, from_counts<chimera>},
};

/// Of all builders.
[[nodiscard]] inline std::span<const named_schedule> named_schedules() { return schedule_table; }

/// Null where nothing builds the schedule, as of `searched`, and for none.
[[nodiscard]] const named_schedule* find_builder(std::optional<schedule_id> id);

}  // namespace detail

/// Every name that build_schedule takes.
[[nodiscard]] inline std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const auto& s : detail::named_schedules()) names.push_back(name_of(s.id));
  return names;
}

/// The schedule of that name in files and commands.
/// Throws: input_error for a name that the library does not know.
[[nodiscard]] schedule_id schedule_named(std::string_view name);

/// Whether warm-up counts alone tell the schedule. By name: false for one that is not known.
[[nodiscard]] bool has_warmups(schedule_id id);
[[nodiscard]] bool has_warmups(std::string_view name);

/// A schedule with one rank per stage of the pipeline, by its id or its name in files and commands.
/// Throws: input_error for an invalid pipeline, a schedule that has no builder, options of the wrong size, warm-up counts or
/// caps for a schedule that takes none, and where the builder does.
[[nodiscard]] schedule build_schedule(schedule_id id, const pipeline& p, int microbatches, const build_options& options = {});
[[nodiscard]] schedule build_schedule(std::string_view name, const pipeline& p, int microbatches,
                                      const build_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/named.ipp>
#endif
