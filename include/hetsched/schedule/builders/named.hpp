// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/builders/bidirectional.hpp>
#include <hetsched/schedule/builders/interleaved.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/v_schedules.hpp>
#include <hetsched/schedule/builders/virtual_1f1b.hpp>
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
};

[[nodiscard]] inline const std::vector<int>& positive(const std::vector<int>& caps) {
  if (*std::min_element(caps.begin(), caps.end()) < 1) throw input_error("a stage that may hold no microbatch cannot run any");
  return caps;
}

[[nodiscard]] inline schedule from_warmups(std::vector<int> counts, int microbatches, const build_options& options) {
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

[[nodiscard]] inline schedule from_cross(const pipeline& p, int microbatches, const build_options& options) {
  const auto boundaries = static_cast<std::size_t>(p.stages()) - 1;
  if (!options.cross.empty() && options.cross.size() != boundaries)
    throw input_error("cross needs one entry per boundary (stages - 1), or none");
  const auto counts = virtual_1f1b_warmups(options.cross.empty() ? slow_boundaries(p, options.epsilon) : options.cross);
  return from_warmups(counts, microbatches, options);
}

inline constexpr named_schedule schedule_table[] = {
    {"gpipe", false, false, from_counts<gpipe>},
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

}  // namespace detail

/// Every name that build_schedule takes.
[[nodiscard]] inline std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const auto& s : detail::named_schedules()) names.push_back(s.name);
  return names;
}

/// A schedule by its name in files and commands, with one rank per stage of the pipeline.
/// Throws: input_error for an invalid pipeline, an unknown name, options of the wrong size, warm-up counts or caps for a
/// schedule that takes none, and where the builder does.
[[nodiscard]] inline schedule build_schedule(std::string_view name, const pipeline& p, int microbatches,
                                             const build_options& options = {}) {
  validate(p);
  std::string known;
  for (const auto& s : detail::named_schedules()) {
    if (s.name == name) {
      if (!s.has_warmups && !(options.warmups.empty() && options.caps.empty()))
        throw input_error("the schedule " + std::string(name) + " takes no warm-up counts and no caps");
      return s.build(p, microbatches, options);
    }
    known += (known.empty() ? "" : ", ") + std::string(s.name);
  }
  if (name == "auto") throw input_error("auto is no builder: auto_schedule finds it");
  throw input_error("there is no schedule \"" + std::string(name) + "\"; there are " + known);
}

}  // namespace hetsched
