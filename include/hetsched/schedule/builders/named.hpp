// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
  std::string_view name;
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
    {"gpipe", false, false, from_counts<gpipe>, gpipe_period},
    {schedule_name(warmup_rule::one_f_one_b), true, false, from_rule<warmup_rule::one_f_one_b>},
    {schedule_name(warmup_rule::eager), true, false, from_rule<warmup_rule::eager>},
    {schedule_name(warmup_rule::h1f1b), true, false, from_rule<warmup_rule::h1f1b>},
    {schedule_name(warmup_rule::exact), true, false, from_rule<warmup_rule::exact>},
    {"virtual_1f1b", true, false, from_cross},
    {"interleaved_1f1b", false, true, from_chunks<interleaved_1f1b>},
    {"looped_bfs", false, true, from_chunks<looped_bfs>},
    {"zb_h1", false, false, from_counts<zb_h1>},
    {"zb_h2", false, false, from_counts<zb_h2>},
    {"zb_v", false, true, from_counts<zb_v>},
    {"v_half", false, true, from_counts<v_half>},
    {"v_min", false, true, from_counts<v_min>},
    {"dualpipe", false, true, from_counts<dualpipe>},
    {"dualpipe_v", false, true, from_counts<dualpipe_v>},
    {"chimera", false, true, from_counts<chimera>},
};

/// Of all builders.
[[nodiscard]] inline std::span<const named_schedule> named_schedules() { return schedule_table; }

/// Null for a name that no builder has.
[[nodiscard]] inline const named_schedule* find_schedule(std::string_view name) {
  const auto found = std::find_if(std::begin(schedule_table), std::end(schedule_table),
                                  [name](const named_schedule& s) { return s.name == name; });
  return found == std::end(schedule_table) ? nullptr : &*found;
}

}  // namespace detail

/// What files and commands call the schedule that auto_schedule searches for. Not among schedule_names(): nothing builds it.
inline constexpr std::string_view auto_schedule_name = "auto";

/// Every name that build_schedule takes.
[[nodiscard]] inline std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const auto& s : detail::named_schedules()) names.push_back(s.name);
  return names;
}

/// A schedule by its name in files and commands, with one rank per stage of the pipeline.
/// Throws: input_error for an invalid pipeline, an unknown name, options of the wrong size, warm-up counts or caps for a
/// schedule that takes none, and where the builder does.
[[nodiscard]] schedule build_schedule(std::string_view name, const pipeline& p, int microbatches,
                                      const build_options& options = {});

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/builders/named.ipp>
#endif
