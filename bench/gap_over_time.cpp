// SPDX-License-Identifier: Apache-2.0
// How far from its bound the planner's best plan is while the search goes on: gap_over_time FOLDER writes gap-over-time.csv, with
// the processor time of calls of progress at which something has changed, and gap-over-time.svg there.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/hetsched.hpp>
#include <hetsched/planners/interop_dp.hpp>

#include "instances.hpp"
#include "svg.hpp"
#include "validation/text.hpp"

namespace {

using namespace hetsched;
using validation::number, validation::text;

struct sample {
  double seconds = 0, incumbent_s = 0, bound_s = 0;
  [[nodiscard]] double gap() const { return 1 - bound_s / incumbent_s; }
};

struct curve {
  std::string what, of_what;
  std::vector<sample> samples;
};

template <stage_cost_model Costs>
curve searched(std::string what, std::string of_what, const cluster& hardware, const Costs& costs, planning_problem problem) {
  curve c{std::move(what), std::move(of_what), {}};
  const auto start = std::clock();
  const auto note = [&](double incumbent, double bound, bool always) {
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const bool same = !c.samples.empty() && std::abs(incumbent / c.samples.back().incumbent_s - 1) < 1e-4 &&
                      std::abs(bound / c.samples.back().bound_s - 1) < 1e-4;
    if (always || !same) c.samples.push_back({seconds, incumbent, bound});
  };
  problem.progress = [&](const search_progress& state) {
    note(state.incumbent, state.bound, false);
    return true;
  };
  if (const auto found = interop_dp(hardware, costs, problem))
    note(found->predicted.iteration_s, found->evidence->objective_bound, true);
  else
    std::fprintf(stderr, "%s: %s\n", c.what.c_str(), found.why_not().reason.c_str());
  return c;
}

curve searched(std::string what, const cluster& hardware, int layers, int hidden, int size) {
  const analytic_cost_model costs(hardware, bench::gpt_chain(layers, hidden), bench::trained(size, recomputation::full));
  return searched(std::move(what), text("hidden size %d, microbatch size %d", hidden, size), hardware, costs,
                  bench::with(512, size));
}

void write_csv(const std::string& path, const std::vector<curve>& curves) {
  std::ofstream out(path);
  out << "search,seconds,incumbent_s,bound_s,gap\n";
  for (const auto& c : curves)
    for (const auto& s : c.samples)
      out << '"' << c.what << ", " << c.of_what << '"'
          << text(",%.6g,%.9g,%.9g,%.6g\n", s.seconds, s.incumbent_s, s.bound_s, s.gap());
}

// Both axes logarithmic; a gap stays until the next call.
std::string drawn(const std::vector<curve>& curves) {
  constexpr double left = 62, top = 14, wide = 520, high = 340, right = left + wide, bottom = top + high;
  constexpr double least_gap = 1e-3, most_gap = 1;
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (const auto& c : curves)
    for (const auto& s : c.samples) {
      first = std::min(first, std::max(s.seconds, 1e-4));
      last = std::max(last, s.seconds);
    }
  const double decades = std::log10(last / first) + 0.1;
  const auto x = [&](double seconds) { return left + std::log10(std::max(seconds, first) / first) / decades * wide; };
  const auto y = [&](double gap) {
    return top + std::log10(most_gap / std::clamp(gap, least_gap, most_gap)) / std::log10(most_gap / least_gap) * high;
  };
  constexpr double width = right + 280, height = bottom + 50;
  std::string light, dark;
  for (std::size_t i = 0; i < bench::inks.size(); ++i) {
    light += text(".c%zu{stroke:%s}", i, bench::inks[i].first);
    dark += text(".c%zu{stroke:%s}", i, bench::inks[i].second);
  }
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
           width, height, width, height) +
      "<title>The planner's gap over time</title>\n<style>text{font:12px sans-serif;fill:#24292f}.page{fill:#fff}" +
      ".grid{stroke:#d8dee4}.frame{stroke:#8b949e}path{fill:none}.p{stroke-width:2;stroke-linejoin:round}" + light +
      "@media(prefers-color-scheme:dark){text{fill:#d7dce2}.page{fill:#0d1117}.grid{stroke:#262c36}.frame{stroke:#6e7681}" +
      dark + "}</style>\n" + text("<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
  for (int d = -4; d <= 3; ++d) {
    const double seconds = std::pow(10.0, d);
    if (seconds < first || x(seconds) > right) continue;
    const auto label = seconds < 1 ? number(seconds * 1e3) + " ms" : number(seconds) + " s";
    out += text("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x(seconds), top, bottom) +
           text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x(seconds), bottom + 16, label.c_str());
  }
  for (const double gap : {1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001})
    out += text("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", left, y(gap), right) +
           text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s%s %%</text>\n", left - 6, y(gap) + 4,
                gap == least_gap ? "≤ " : "", number(100 * gap).c_str());
  out +=
      text("<rect class=\"frame\" fill=\"none\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n", left, top, wide, high);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& samples = curves[i].samples;
    if (samples.empty()) continue;
    out += text("<path class=\"p c%zu\" d=\"M%.1f %.1f", i, x(samples.front().seconds), y(samples.front().gap()));
    auto known = text("%.1f", y(samples.front().gap()));
    for (const auto& s : samples)
      if (const auto now = text("%.1f", y(s.gap())); now != known) {
        out += text("H%.1fV%s", x(s.seconds), now.c_str());
        known = now;
      }
    const auto& end = samples.back();
    out += text("H%.1f\"/><path class=\"p c%zu\" style=\"stroke-width:7;stroke-linecap:round\" d=\"M%.1f %.1fh0\"/>\n",
                x(end.seconds), i, x(end.seconds), y(end.gap()));
  }
  double at = top + 12;
  for (std::size_t i = 0; i < curves.size(); ++i, at += 40) {
    out += text("<path class=\"p c%zu\" d=\"M%.0f %.0fh18\"/>", i, right + 14, at - 4) +
           text("<text x=\"%.0f\" y=\"%.0f\">%s</text>", right + 38, at, bench::escaped(curves[i].what).c_str()) +
           text("<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", right + 38, at + 15, bench::escaped(curves[i].of_what).c_str());
  }
  out += text("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">processor time</text>\n", left + wide / 2, bottom + 38) +
         text("<text transform=\"translate(13 %.0f)rotate(-90)\" text-anchor=\"middle\">gap</text>\n", top + high / 2);
  return out + "</svg>\n";
}

}  // namespace

int main(int count, char** given) {
  if (count != 2) return std::fprintf(stderr, "usage: gap_over_time FOLDER\n"), 2;
  std::vector<curve> curves;
  {
    const auto hardware = bench::subclusters(2, 4);
    const analytic_cost_model costs(hardware, bench::gpt_chain(146, 8192), bench::trained_any_way(4));
    curves.push_back(
        searched("64 GPUs in 2 subclusters", "GPT-39B, all ways to save memory", hardware, costs, bench::with(128, 4)));
  }
  const auto four = bench::subclusters(4, 32);
  curves.push_back(searched("1024 GPUs in 4 subclusters", four, 1024, 8192, 1));
  curves.push_back(searched("1024 GPUs in 4 subclusters", four, 1024, 8192, 4));
  curves.push_back(searched("1024 GPUs in 4 subclusters", four, 1024, 12288, 16));
  curves.push_back(searched("1536 GPUs in 12 subclusters", bench::subclusters(12, 16), 1025, 8192, 1));
  curves.push_back(searched("4096 GPUs in 8 subclusters", bench::subclusters(8, 64), 1025, 8192, 1));
  const std::string folder = given[1];
  write_csv(folder + "/gap-over-time.csv", curves);
  std::ofstream(folder + "/gap-over-time.svg") << drawn(curves);
}
