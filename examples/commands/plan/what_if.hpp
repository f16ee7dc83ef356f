// SPDX-License-Identifier: Apache-2.0
// What a plan would be with fewer devices.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cluster/without_devices.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/planners/find_plan.hpp>
#include <hetsched/planners/what_if.hpp>

#include "../count_text.hpp"
#include "../names.hpp"
#include "pages.hpp"
#include "search.hpp"

namespace command {

/// SUBCLUSTER (one of its devices), SUBCLUSTER:N or SUBCLUSTER:all. Throws input_error for a name that is none, also of a
/// principle, and for a bad number.
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
  if (number == "all") {
    lost.count = all;
    return lost;
  }
  const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), lost.count);
  if (wrong != std::errc{} || end != number.data() + number.size() || lost.count < 1 || lost.count > all)
    throw hetsched::input_error("--without: found " + text + ", expected " + name + ":N with N from 1 to " + std::to_string(all) +
                                ", or " + name + ":all");
  return lost;
}

/// The best plan without some devices, told by the whole cluster, of which the last devices of a subcluster are lost.
struct lesser_plan {
  hetsched::lost_devices lost;
  hetsched::outcome<hetsched::plan> found;
  std::optional<double> held_up_s = {};  ///< an iteration of it whose sends hold ranks up
};

/// "2 v100", or "2 of 8 devices of v100".
[[nodiscard]] inline std::string lost_text(const hetsched::cluster& hardware, const hetsched::lost_devices& lost) {
  return std::to_string(lost.count) + " " + hetsched::at(hardware.subclusters, lost.subcluster).name;
}
[[nodiscard]] inline std::string lost_of_all_text(const hetsched::cluster& hardware, const hetsched::lost_devices& lost) {
  const auto& of = hetsched::at(hardware.subclusters, lost.subcluster);
  return std::to_string(lost.count) + " of " + std::to_string(of.device_count()) +
         (of.device_count() == 1 ? " device of " : " devices of ") + of.name;
}

/// What a plan with some devices less is compared by: the objective, or the iteration with sends that hold ranks up.
[[nodiscard]] inline double compared(const hetsched::plan& p, std::optional<double> held_up_s) {
  return p.objective == hetsched::plan_objective::iteration && held_up_s ? *held_up_s : hetsched::objective_of(p);
}

/// The best plans without what is lost, each found in the whole time; they and the best one agree, of which that may change.
[[nodiscard]] inline std::vector<lesser_plan> plans_without(const plan_arguments& given, const hetsched::planner_entry& planner,
                                                            const hetsched::cluster& hardware, const cost_source& source,
                                                            const std::vector<hetsched::lost_devices>& losses,
                                                            hetsched::plan& best) {
  hetsched::what_if_plans plans{.all = std::move(best)};
  for (const auto& lost : losses) {
    const auto left = without_devices(hardware, lost);
    progress_line progress;
    const auto request = request_for(left, source.priced(), request_of(given, source, left, progress));
    plans.left.push_back(find_plan_without(hardware, lost, request, planner));
  }
  const auto held_up_s = [&](const hetsched::plan& p) { return iteration_with_sends(given, hardware, source, p); };
  // Plans that must use all devices are none for more of them, and those for noise or biased devices are chosen by something
  // else.
  if (!given.use_all_devices && given.quantile == 0 && given.device_bias == 0)
    share_plans(hardware, losses, plans, [&](const hetsched::plan& p) { return compared(p, held_up_s(p)); });
  best = std::move(plans.all);
  std::vector<lesser_plan> all;
  for (std::size_t k = 0; k < losses.size(); ++k) {
    auto& found = plans.left[k];
    const auto own_s = found ? held_up_s(*found) : std::nullopt;
    all.push_back({losses[k], std::move(found), own_s});
  }
  return all;
}

/// A table of what the best plan is without some devices, beside the one with all of them; and the stages of each. Iterations are
/// those with sends where these hold ranks up.
[[nodiscard]] inline std::string what_if_text(const hetsched::cluster& hardware, const std::vector<lesser_plan>& plans,
                                              const hetsched::plan& best, std::optional<double> best_held_up_s) {
  std::vector<std::vector<std::string>> rows;
  std::string stages;
  for (const auto& [lost, found, held_up_s] : plans) {
    const auto text = lost_of_all_text(hardware, lost);
    auto& row = rows.emplace_back(std::vector{text});
    if (!found) {
      row.insert(row.end(), {"no plan", "", found.why_not().reason});
      continue;
    }
    const double change = compared(*found, held_up_s) / compared(best, best_held_up_s) - 1;
    row.insert(row.end(),
               {objective_text(*found, compared(*found, held_up_s)), (change < 0 ? "" : "+") + hetsched::format_percent(change),
                command::count_text(static_cast<std::int64_t>(found->pipelines.size()), "pipeline") + " of " +
                    command::count_text(hetsched::microbatch_count(*found), "microbatch")});
    stages += "\nwithout " + text + ":\n" + stages_text(hardware, *found);
  }
  return hetsched::format_table({"without", ">objective", ">change", "plan"}, rows) + stages;
}

/// The same as JSON.
[[nodiscard]] inline nlohmann::ordered_json what_if_json(const hetsched::cluster& hardware, const std::vector<lesser_plan>& plans,
                                                         const hetsched::plan& best, std::optional<double> best_held_up_s) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [lost, found, held_up_s] : plans) {
    nlohmann::ordered_json row{{"lost", lost_text(hardware, lost)}};
    if (found) {
      row["objective"] = hetsched::objective_of(*found);
      if (held_up_s) row["iteration_with_sends_s"] = *held_up_s;
      row["change"] = compared(*found, held_up_s) / compared(best, best_held_up_s) - 1;
      row["plan"] = hetsched::detail::document_of(to_json(*found, hardware));
    } else {
      row["reason"] = found.why_not().reason;
    }
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace command
