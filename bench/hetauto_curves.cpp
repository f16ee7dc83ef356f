// SPDX-License-Identifier: Apache-2.0
// The best plan of hetauto so far against rollouts, by its own constants and by the paper's: hetauto_curves FOLDER writes
// hetauto-curves.csv and hetauto-curves.svg there. Of an odd number of seeds, the median counts.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/planners/hetauto.hpp>

#include "hetauto_instances.hpp"
#include "svg.hpp"
#include "validation/text.hpp"

namespace {

using namespace hetsched;
using validation::number, validation::text;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t fewest = 32, most = 100'000;
constexpr int seeds = 9;

struct sample {
  std::int64_t rollouts = 0;
  double best_s = 0;
};

struct curve {
  std::string experiment, constants;
  std::vector<sample> samples;  // at equal rollouts for all curves
};

std::vector<std::int64_t> marks() {
  std::vector<std::int64_t> all;
  for (double x = fewest; x < most; x *= 1.15) all.push_back(static_cast<std::int64_t>(x));
  all.push_back(most);
  return all;
}

curve searched(const bench::experiment& given, std::string constants, hetauto_options options) {
  options.search.rollouts = most;
  options.search.round = 8;
  const auto at = marks();
  std::vector<std::vector<double>> best(at.size());  // of the seeds
  for (int seed = 0; seed < seeds; ++seed) {
    auto problem = given.problem;
    std::size_t next = 0;
    double known_s = infinity;
    const auto note = [&](std::int64_t rollouts, double best_s) {
      for (; next < at.size() && at[next] < rollouts; ++next) best[next].push_back(known_s);
      known_s = best_s;
    };
    problem.progress = [&](const search_progress& now) {
      note(now.steps, now.incumbent);
      return true;
    };
    options.search.seed = static_cast<std::uint64_t>(seed);
    const auto found = hetauto(given.hardware, given.costs, problem, options);
    note(most + 1, found ? found->predicted.iteration_s : infinity);
  }
  curve c{given.name, std::move(constants), {}};
  for (std::size_t i = 0; i < at.size(); ++i) {
    std::nth_element(best[i].begin(), best[i].begin() + seeds / 2, best[i].end());
    c.samples.push_back({at[i], best[i][seeds / 2]});
  }
  return c;
}

void write_csv(const std::string& path, const std::vector<curve>& curves) {
  std::ofstream out(path);
  out << "experiment,constants,rollouts,best_s\n";
  for (const auto& c : curves)
    for (const auto& s : c.samples)
      if (s.best_s < infinity) out << c.experiment << ',' << c.constants << ',' << s.rollouts << text(",%.9g\n", s.best_s);
}

// Rollouts logarithmic; the iteration over the shortest one of the experiment, too, up to four times it.
std::string drawn(const std::vector<curve>& curves) {
  constexpr double left = 62, top = 14, wide = 520, high = 300, right = left + wide, bottom = top + high, worst = 4;
  const auto x = [&](double rollouts) { return left + std::log(rollouts / fewest) / std::log(1.0 * most / fewest) * wide; };
  const auto y = [&](double ratio) { return bottom - std::log(std::min(ratio, worst)) / std::log(worst) * high; };
  const auto shortest = [&](const std::string& experiment) {
    double least = infinity;
    for (const auto& c : curves)
      if (c.experiment == experiment) least = std::min(least, c.samples.back().best_s);
    return least;
  };
  std::string light, dark;
  for (std::size_t i = 0; i < 3; ++i) {
    light += text(".c%zu{stroke:%s}", i, bench::inks[i].first);
    dark += text(".c%zu{stroke:%s}", i, bench::inks[i].second);
  }
  constexpr double width = right + 230, height = bottom + 50;
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
           width, height, width, height) +
      "<title>The best plan of hetauto against rollouts</title>\n<style>text{font:12px sans-serif;fill:#24292f}.page{fill:#fff}" +
      ".grid{stroke:#d8dee4}.frame{stroke:#8b949e}path{fill:none}.p{stroke-width:2;stroke-linejoin:round}" +
      ".d{stroke-dasharray:6 4}" + light +
      "@media(prefers-color-scheme:dark){text{fill:#d7dce2}.page{fill:#0d1117}.grid{stroke:#262c36}.frame{stroke:#6e7681}" +
      dark + "}</style>\n" + text("<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
  for (const auto& [rollouts, label] :
       {std::pair{100, "100"}, std::pair{1000, "1,000"}, std::pair{10'000, "10,000"}, std::pair{100'000, "100,000"}})
    out += text("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x(rollouts), top, bottom) +
           text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x(rollouts), bottom + 16, label);
  for (const double ratio : {1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0})
    out += text("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", left, y(ratio), right) +
           text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s%s</text>\n", left - 6, y(ratio) + 4,
                ratio == worst ? "≥ " : "", number(ratio).c_str());
  out +=
      text("<rect class=\"frame\" fill=\"none\" x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\"/>\n", left, top, wide, high);
  double legend = top + 12;
  for (std::size_t i = 0; i < curves.size(); ++i, legend += 24) {
    const auto& c = curves[i];
    const auto kind = text("p c%zu%s", i / 2, i % 2 == 1 ? " d" : "");
    const double least = shortest(c.experiment);
    std::string path;
    for (const auto& s : c.samples)
      if (s.best_s < infinity) {
        const auto now = text("%.1f", y(s.best_s / least)), when = text("%.1f", x(static_cast<double>(s.rollouts)));
        path += path.empty() ? "M" + when + " " + now : "H" + when + "V" + now;
      }
    out += "<path class=\"" + kind + "\" d=\"" + path + "\"/>" +
           text("<path class=\"%s\" d=\"M%.0f %.0fh28\"/>", kind.c_str(), right + 14, legend - 4) +
           text("<text x=\"%.0f\" y=\"%.0f\">%s, %s: %s s</text>\n", right + 50, legend, c.experiment.c_str(),
                c.constants.c_str(), number(c.samples.back().best_s).c_str());
  }
  out += text("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">rollouts</text>\n", left + wide / 2, bottom + 38) +
         text("<text transform=\"translate(13 %.0f)rotate(-90)\" text-anchor=\"middle\">iteration over the shortest</text>\n",
              top + high / 2);
  return out + "</svg>\n";
}

}  // namespace

int main(int count, char** given) {
  if (count != 2) return std::fprintf(stderr, "usage: hetauto_curves FOLDER\n"), 2;
  std::vector<curve> curves;
  for (const int n : {1, 2, 3}) {
    const auto experiment = bench::hetauto_experiment(n);
    curves.push_back(searched(experiment, "ours", {}));
    curves.push_back(searched(experiment, "the paper's", {.search = published_tree_search()}));
  }
  const std::string folder = given[1];
  write_csv(folder + "/hetauto-curves.csv", curves);
  std::ofstream(folder + "/hetauto-curves.svg") << drawn(curves);
}
