// SPDX-License-Identifier: Apache-2.0
// What several planners make of one input, beside each other.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/io/page/bars_svg.hpp>
#include <hetsched/io/page/report.hpp>
#include <hetsched/plan/plan.hpp>
#include <hetsched/views/plan.hpp>

namespace command {

/// A planner's plan, evaluated; or why there is none.
struct comparison_row {
  std::string planner;
  std::string reason{};  ///< empty where there is a plan
  hetsched::plan plan{};
  double search_s = 0;
  int devices = 0;                       ///< in use
  std::optional<double> held_up_s = {};  ///< an iteration whose sends hold ranks up, if it is asked for
};

/// An iteration as plans are chosen by it: with its sends, where they hold ranks up.
[[nodiscard]] inline double chosen_s(const comparison_row& r) { return r.held_up_s.value_or(r.plan.predicted.iteration_s); }

/// The least memory that a device has left; none where capacities are not known.
[[nodiscard]] inline std::optional<hetsched::bytes_t> headroom(const hetsched::plan& p) {
  std::optional<hetsched::bytes_t> least;
  for (const auto& s : hetsched::views::stages(p))
    if (const auto left = s.memory_capacity_bytes - s.memory_bytes; s.memory_capacity_bytes > 0 && (!least || left < *least))
      least = left;
  return least;
}

/// What no plan of the planner's kind is below, of its objective; 0: not known.
[[nodiscard]] inline double bound_of(const hetsched::plan& p) {
  return p.evidence ? std::max(0.0, p.evidence->objective_bound) : 0;
}

/// What no pipelines at all are below: the bound of the planner that looks at all of them; 0: not known.
[[nodiscard]] inline double bound_of_all(const std::vector<comparison_row>& rows) {
  double bound = 0;
  for (const auto& r : rows)
    if (r.reason.empty() && r.planner == "parallel_pipelines") bound = std::max(bound, bound_of(r.plan));
  return bound;
}

/// How far a plan can be from the best of its planner's kind; where the planner has no bound, from the best of all. None where
/// nothing is known.
[[nodiscard]] inline std::optional<double> gap_of(const comparison_row& r, double bound_of_all) {
  if (const double own = bound_of(r.plan); own > 0)
    return std::max(0.0, r.held_up_s.value_or(r.plan.evidence->objective_value) / own - 1);
  if (bound_of_all > 0) return std::max(0.0, chosen_s(r) / bound_of_all - 1);
  return std::nullopt;
}

/// The plan with the shortest iteration, counting sends where they hold ranks up; null if there is none.
[[nodiscard]] inline const comparison_row* best_of(const std::vector<comparison_row>& rows) {
  const comparison_row* best = nullptr;
  for (const auto& r : rows)
    if (r.reason.empty() && (best == nullptr || chosen_s(r) < chosen_s(*best))) best = &r;
  return best;
}

/// Whether transfers hold ranks up in a plan; under some schedules they do not.
[[nodiscard]] inline bool any_held_up(const std::vector<comparison_row>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const auto& r) { return r.held_up_s.has_value(); });
}

/// The cells of a row behind the planner's name.
[[nodiscard]] inline std::vector<std::string> cells_of(const comparison_row& r, const comparison_row& best, double bound_of_all,
                                                       int all_devices, bool with_sends) {
  using namespace hetsched;
  const double seconds = r.plan.predicted.iteration_s, bound = bound_of(r.plan);
  const auto left = headroom(r.plan);
  const auto gap = gap_of(r, bound_of_all);
  std::vector<std::string> cells{format_seconds(seconds),
                                 format_number(chosen_s(r) / chosen_s(best)),
                                 bound > 0 ? format_seconds(bound) : "-",
                                 gap ? format_percent(*gap) : "-",
                                 std::to_string(r.plan.pipelines.size()),
                                 std::to_string(r.plan.pipelines.front().microbatch_size),
                                 left ? format_bytes(*left) : "-",
                                 std::to_string(r.devices) + " of " + std::to_string(all_devices),
                                 format_seconds(r.search_s)};
  if (with_sends) cells.insert(cells.begin() + 1, r.held_up_s ? format_seconds(*r.held_up_s) : "-");
  return cells;
}

[[nodiscard]] inline std::vector<std::string> comparison_columns(const std::vector<comparison_row>& rows) {
  std::vector<std::string> columns{"planner",    ">iteration",  ">times best",  ">none below", ">gap",
                                   ">pipelines", ">microbatch", ">memory left", ">devices",    ">search"};
  if (any_held_up(rows)) columns.insert(columns.begin() + 2, ">with sends");
  return columns;
}

/// The rows as cells, those without a plan left out.
[[nodiscard]] inline std::vector<std::vector<std::string>> comparison_cells(const std::vector<comparison_row>& rows,
                                                                            int all_devices) {
  std::vector<std::vector<std::string>> cells;
  const auto* best = best_of(rows);
  for (const auto& r : rows) {
    if (!r.reason.empty()) continue;
    cells.push_back({r.planner});
    for (auto& cell : cells_of(r, *best, bound_of_all(rows), all_devices, any_held_up(rows)))
      cells.back().push_back(std::move(cell));
  }
  return cells;
}

/// The rows as a table, with the reasons of those without a plan below.
[[nodiscard]] inline std::string comparison_text(const std::vector<comparison_row>& rows, int all_devices) {
  const auto cells = comparison_cells(rows, all_devices);
  std::string text = cells.empty() ? "" : hetsched::format_table(comparison_columns(rows), cells);
  for (const auto& r : rows)
    if (!r.reason.empty()) text += r.planner + ": no plan: " + r.reason + "\n";
  return text;
}

[[nodiscard]] inline std::string comparison_json(const std::vector<comparison_row>& rows) {
  auto planners = nlohmann::ordered_json::array();
  for (const auto& r : rows) {
    nlohmann::ordered_json row{{"planner", r.planner}, {"search_s", r.search_s}};
    if (r.reason.empty()) {
      const double bound = bound_of(r.plan);
      const auto left = headroom(r.plan);
      const auto gap = gap_of(r, bound_of_all(rows));
      row["iteration_s"] = r.plan.predicted.iteration_s;
      if (r.held_up_s) row["iteration_with_sends_s"] = *r.held_up_s;
      row["lower_bound_s"] = bound > 0 ? nlohmann::ordered_json(bound) : nullptr;
      row["gap"] = gap ? nlohmann::ordered_json(*gap) : nullptr;
      row["complete"] = r.plan.evidence && r.plan.evidence->complete;
      row["memory_headroom_bytes"] = left ? nlohmann::ordered_json(*left) : nullptr;
      row["devices_used"] = r.devices;
      row["pipelines"] = r.plan.pipelines.size();
      row["microbatch_size"] = r.plan.pipelines.front().microbatch_size;
    } else {
      row["reason"] = r.reason;
    }
    planners.push_back(std::move(row));
  }
  const auto* best = best_of(rows);
  return hetsched::detail::dump(nlohmann::ordered_json{{"planners", std::move(planners)},
                                                       {"best", best ? nlohmann::ordered_json(best->planner) : nullptr}});
}

/// A page with the table and a bar for each planner.
[[nodiscard]] inline std::string comparison_page(const std::vector<comparison_row>& rows, int all_devices,
                                                 const std::string& origin) {
  using namespace hetsched;
  report page;
  page.title = "Planners compared";
  page.summary = origin + ". All plans are judged by the same evaluation.";
  const auto* best = best_of(rows);
  page.figures = {{"best", best->planner, format_seconds(chosen_s(*best))}};
  std::vector<bar> bars;
  for (const auto& r : rows) {
    if (r.reason.empty())
      bars.push_back({r.planner, chosen_s(r), format_seconds(chosen_s(r)), bound_of(r.plan)});
    else
      bars.push_back({r.planner, 0, "no plan"});
  }
  page.drawings = {bars_svg(bars, "Iteration; lines are what each planner has proved no plan of its kind to be below")};
  page.tables = {
      {.heading = "Plans", .note = "", .columns = comparison_columns(rows), .rows = comparison_cells(rows, all_devices)}};
  report_table refused{.heading = "No plan", .note = "", .columns = {"planner", "why"}, .rows = {}};
  for (const auto& r : rows)
    if (!r.reason.empty()) refused.rows.push_back({r.planner, r.reason});
  if (!refused.rows.empty()) page.tables.push_back(std::move(refused));
  return to_html(page);
}

}  // namespace command
