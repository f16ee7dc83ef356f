// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts as Markdown: a line each on the summary page, and a page each.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cases.hpp"
#include "statistics.hpp"
#include "text.hpp"

namespace validation {

/// "NeuSight fp32 products" as "neusight-fp32-products": the name of its page and picture.
[[nodiscard]] inline std::string slug(const std::string& title) {
  std::string out;
  for (const char c : title) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
      out += c;
    else if (c >= 'A' && c <= 'Z')
      out += static_cast<char>(c - 'A' + 'a');
    else if (c == ' ' || c == '-')
      out += '-';
  }
  return out;
}

namespace detail {

using case_list = std::vector<const prediction_case*>;

[[nodiscard]] inline error_summary summary_of(const case_list& cases) {
  std::vector<double> errors;
  for (const auto* c : cases) errors.push_back(relative_error(*c));
  return summarise(errors);
}

/// Cases by a name, in the order in which the names first come.
template <class Name>
[[nodiscard]] std::vector<std::pair<std::string, case_list>> split_by(const case_list& cases, Name name) {
  std::vector<std::pair<std::string, case_list>> groups;
  for (const auto* c : cases) {
    const std::string n = name(*c);
    auto at = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == n; });
    if (at == groups.end()) at = groups.insert(at, {n, {}});
    at->second.push_back(c);
  }
  return groups;
}

[[nodiscard]] inline case_list all_cases(const validation_part& part) {
  case_list list;
  for (const auto& c : part.cases) list.push_back(&c);
  return list;
}

[[nodiscard]] inline case_list held_out(const validation_part& part) {
  case_list list;
  for (const auto& c : part.cases)
    if (c.held_out) list.push_back(&c);
  return list;
}

/// Of predictor `i`, over the cases of which it says something; "" where there are none.
[[nodiscard]] inline std::string mean_of_other(const case_list& cases, std::size_t i) {
  std::vector<double> errors;
  for (const auto* c : cases)
    if (i < c->others.size() && c->others[i] > 0) errors.push_back(c->others[i] / c->measured - 1);
  return errors.empty() ? "" : text("%.1f %%", summarise(errors).mean);
}

}  // namespace detail

/// What a part was to reach, what it reaches on what was held out, and whether that is enough.
struct verdict {
  std::string goal, measured;
  bool reached = true;
};

[[nodiscard]] inline std::vector<verdict> judge(const validation_part& part) {
  const auto held = detail::held_out(part);
  const auto groups = detail::split_by(held, [](const auto& c) { return c.group; });
  const auto all = detail::summary_of(held);
  const bool keeps_sign = part.goal_under_percent > 0;
  std::vector<verdict> found;
  if (held.empty()) return found;
  if (const double goal = part.goal_mean_percent; goal > 0) {
    const auto what = text(keeps_sign ? "over by at most %g %% on average" : "mean at most %g %%", goal);
    const auto mean_of = [&](const error_summary& s) { return keeps_sign ? s.bias : s.mean; };
    std::size_t within = 0;
    double least = 1e300, most = -1e300;
    std::string worst;
    for (const auto& [name, cases] : groups) {
      const double mean = mean_of(detail::summary_of(cases));
      within += mean <= goal;
      least = std::min(least, mean);
      if (mean > most) most = mean, worst = name;
    }
    const auto range = text("%.1f - %.1f %% (most: %s)", least, most, worst.c_str());
    if (groups.size() == 1)
      found.push_back({what, text("%.1f %%", mean_of(all)), mean_of(all) <= goal});
    else if (part.goal_of_all)
      found.push_back({what, text("%.1f %%; by group ", mean_of(all)) + range, mean_of(all) <= goal});
    else
      found.push_back(
          {what + text(", each of %zu groups", groups.size()), range + text("; %zu within", within), within == groups.size()});
  }
  if (part.goal_max_percent > 0)
    found.push_back({text("no case off by more than %g %%", part.goal_max_percent), text("%.1f %%", all.max),
                     all.max <= part.goal_max_percent});
  if (keeps_sign)
    found.push_back({text("no case under by more than %g %%", part.goal_under_percent), text("lowest %+.1f %%", all.lowest),
                     all.lowest >= -part.goal_under_percent});
  if (part.goal_rank > 0) {
    const double rank = rank_correlation(held);
    found.push_back({text("rank correlation at least %g", part.goal_rank), text("%.3f", rank), rank >= part.goal_rank});
  }
  return found;
}

/// The link from the summary to a part's page.
[[nodiscard]] inline std::string page_link(const validation_part& part) {
  return "[" + part.title + "](accuracy/" + slug(part.title) + ".md)";
}

/// How many goals are reached, and all of them, a line each.
[[nodiscard]] inline std::string goals_table(const std::vector<validation_part>& parts) {
  std::string out = "| part | goal | held out | reached |\n| --- | --- | --- | --- |\n";
  int goals = 0, reached = 0;
  for (const auto& part : parts)
    for (const auto& v : judge(part)) {
      ++goals;
      reached += v.reached;
      out += "| " + page_link(part) + " | " + v.goal + " | " + v.measured + " | " + (v.reached ? "yes" : "**no**") + " |\n";
    }
  return text("%d of %d goals are reached, judged on what was held out.\n\n", reached, goals) + out;
}

/// All parts, a line each: what was compared, and the errors of what was held out, or of all where nothing was.
[[nodiscard]] inline std::string parts_table(const std::vector<validation_part>& parts) {
  std::string out =
      "| part | compared | cases | mean | median | worst |\n"
      "| --- | --- | ---: | ---: | ---: | ---: |\n";
  for (const auto& part : parts) {
    const auto held = detail::held_out(part), cases = held.empty() ? detail::all_cases(part) : held;
    const auto s = detail::summary_of(cases);
    const auto* worst =
        *std::max_element(cases.begin(), cases.end(), [](const auto* a, const auto* b) { return off_by(*a) < off_by(*b); });
    out += "| " + page_link(part) + " | " + part.compared + (held.empty() ? " (fitted)" : "") +
           text(" | %d | %.1f %% | %.1f %% | %+.1f %% |\n", s.rows, s.mean, s.median, 100 * relative_error(*worst));
  }
  return out;
}

/// A line for each group. Where groups have several sets, these have columns with their means if they are few, else lines.
[[nodiscard]] inline std::string errors_table(const validation_part& part) {
  const auto cases = detail::all_cases(part);
  const auto by_set = [](const prediction_case& c) { return c.set; };
  const auto groups = detail::split_by(cases, [](const auto&c) { return c.group; }), sets = detail::split_by(cases, by_set);
  const bool columns =
      groups.size() > 1 && sets.size() > 1 && sets.size() <= 6 &&
      std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return detail::split_by(g.second, by_set).size() > 1; });
  std::string out = "| group | rows | mean | median | max |", rule = "\n| --- | ---: | ---: | ---: | ---: |";
  const auto column = [&](const std::string& title) {
    out += " " + title + " |";
    rule += " ---: |";
  };
  column("bias");
  for (const auto* title : {"lowest", "highest"}) column(title);
  if (columns)
    for (const auto& [set, list] : sets) column(set + ", mean");
  for (const auto& other : part.others) column("*" + other + "*, mean");
  out += rule + "\n";
  const auto line = [&](const std::string& name, const detail::case_list& list) {
    const auto s = detail::summary_of(list);
    out += "| " + name + text(" | %d | %.1f %% | %.1f %% | %.1f %% |", s.rows, s.mean, s.median, s.max);
    out += text(" %+.1f %% |", s.bias);
    out += text(" %+.1f %% | %+.1f %% |", s.lowest, s.highest);
    const auto here = detail::split_by(list, by_set);
    if (columns)
      for (const auto& set : sets) {
        const auto at = std::find_if(here.begin(), here.end(), [&](const auto& h) { return h.first == set.first; });
        out += at == here.end() ? " |" : text(" %.1f %% |", detail::summary_of(at->second).mean);
      }
    for (std::size_t i = 0; i < part.others.size(); ++i) out += " " + detail::mean_of_other(list, i) + " |";
    out += "\n";
  };
  for (const auto& [name, list] : groups) {
    const auto held =
        static_cast<std::size_t>(std::count_if(list.begin(), list.end(), [](const auto* c) { return c->held_out; }));
    const auto here = detail::split_by(list, by_set);
    const bool lines = !columns && here.size() > 1;
    line((lines ? "**" + name + "**" : name) + (held == list.size() ? ""
                                                : held == 0         ? " (fitted)"
                                                                    : text(" (%zu held out)", held)),
         list);
    if (lines)
      for (const auto& [set, of_set] : here) line(name + ": " + set, of_set);
  }
  if (groups.size() > 1) line("**all**", cases);
  return out;
}

/// The ten cases that are off by the largest factors, at most two of each group and set.
[[nodiscard]] inline std::string worst_table(const validation_part& part) {
  auto cases = detail::held_out(part);
  if (cases.empty()) cases = detail::all_cases(part);
  std::stable_sort(cases.begin(), cases.end(), [](const auto* a, const auto* b) { return off_by(*a) > off_by(*b); });
  std::string out = "| worst | group | measured | predicted | predicted / measured |\n| --- | --- | ---: | ---: | ---: |\n";
  const auto unit = part.unit.empty() ? "" : " " + part.unit;
  std::map<std::pair<std::string, std::string>, int> shown;
  int lines = 0;
  for (const auto* c : cases) {
    if (lines == 10) break;
    if (++shown[{c->group, c->set}] > 2) continue;
    ++lines;
    out += "| " + (c->set == c->group ? "" : c->set + ": ") + c->what + " | " + c->group + " | " + number(c->measured) + unit +
           " | " + number(c->predicted) + unit + text(" | %.2f |\n", c->predicted / c->measured);
  }
  return out;
}

/// The page of a part; its picture lies beside it.
[[nodiscard]] inline std::string part_page(const validation_part& part) {
  auto remarks = part.remarks;
  while (remarks.ends_with('\n')) remarks.pop_back();
  return "# " + part.title + "\n\n" + part.method + "\n\n![" + part.title + ": predicted against measured](" + slug(part.title) +
         ".svg)\n\n" + errors_table(part) + "\n" + worst_table(part) + (remarks.empty() ? "" : "\n" + remarks + "\n") +
         "\n[All parts](../accuracy.md), and [how to read this page](../accuracy.md#how-to-read-the-pages).\n";
}

}  // namespace validation
