// SPDX-License-Identifier: Apache-2.0
// What a plan would be with fewer devices.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/plan/plan.hpp>

#include "../names.hpp"
#include "search.hpp"

namespace command {

/// SUBCLUSTER or SUBCLUSTER:N. Throws input_error for a name that is none, also of a principle, and for a bad number.
[[nodiscard]] inline hetsched::lost_devices parse_lost(const hetsched::cluster& c, const std::string& text) {
  const auto colon = c.find(text) ? std::string::npos : text.rfind(':');
  const auto name = text.substr(0, colon);
  const auto found = c.find(name);
  if (!found) {
    std::vector<std::string_view> known{"consecutive", "uniform"};
    for (const auto& s : c.subclusters) known.push_back(s.name);
    unknown_name("--without", name, known);
  }
  hetsched::lost_devices lost{.subcluster = *found};
  const int all = c.subclusters[static_cast<std::size_t>(*found)].device_count();
  if (colon == std::string::npos) return lost;
  const auto number = std::string_view(text).substr(colon + 1);
  const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), lost.count);
  if (wrong != std::errc{} || end != number.data() + number.size() || lost.count < 1 || lost.count > all)
    throw hetsched::input_error("--without: found " + text + ", expected " + name + ":N with N from 1 to " + std::to_string(all));
  return lost;
}

/// The best plan without some devices, and what was lost: "2 v100".
struct lesser_plan {
  std::string lost;
  hetsched::outcome<hetsched::plan> found;
};

[[nodiscard]] inline std::vector<lesser_plan> plans_without(const plan_arguments& given, const hetsched::planner_entry& planner,
                                                            const hetsched::cluster& hardware, const cost_source& source,
                                                            const std::vector<std::string>& without, progress_line& progress) {
  using hetsched::refusal;
  std::vector<lesser_plan> plans;
  for (const auto& text : without) {
    const auto lost = parse_lost(hardware, text);
    const auto fewer = without_devices(hardware, lost);
    plans.push_back({std::to_string(lost.count) + " " + hardware.subclusters[static_cast<std::size_t>(lost.subcluster)].name,
                     fewer.subclusters.empty() ? refusal{refusal::kind::infeasible, "no devices are left"}
                                               : search(given, planner, fewer, source, progress)});
  }
  return plans;
}

/// A table of what the best plan is without some devices, beside the one with all of them.
[[nodiscard]] inline std::string what_if_text(const plan_arguments& given, const hetsched::planner_entry& planner,
                                              const hetsched::cluster& hardware, const cost_source& source,
                                              const std::vector<std::string>& without, const hetsched::plan& best,
                                              progress_line& progress) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [lost, found] : plans_without(given, planner, hardware, source, without, progress)) {
    auto& row = rows.emplace_back(std::vector{lost});
    if (!found) {
      row.insert(row.end(), {"no plan", "", found.why_not().reason});
      continue;
    }
    const double change = hetsched::objective_of(*found) / hetsched::objective_of(best) - 1;
    row.insert(row.end(), {hetsched::format_objective(found->objective, hetsched::objective_of(*found)),
                           (change < 0 ? "" : "+") + hetsched::format_percent(change),
                           std::to_string(found->pipelines.size()) + (found->pipelines.size() > 1 ? " pipelines" : " pipeline") +
                               " of " + std::to_string(hetsched::microbatch_count(*found)) + " microbatches"});
  }
  return hetsched::format_table({"without", ">objective", ">change", "plan"}, rows) + "\n";
}

/// The same as JSON.
[[nodiscard]] inline nlohmann::ordered_json what_if_json(const plan_arguments& given, const hetsched::planner_entry& planner,
                                                         const hetsched::cluster& hardware, const cost_source& source,
                                                         const std::vector<std::string>& without, const hetsched::plan& best,
                                                         progress_line& progress) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [lost, found] : plans_without(given, planner, hardware, source, without, progress)) {
    nlohmann::ordered_json row{{"lost", lost}};
    if (found) {
      row["objective"] = hetsched::objective_of(*found);
      row["change"] = hetsched::objective_of(*found) / hetsched::objective_of(best) - 1;
    } else {
      row["reason"] = found.why_not().reason;
    }
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace command
