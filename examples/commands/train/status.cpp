// SPDX-License-Identifier: Apache-2.0
#include <train/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <ctime>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/page/bars_svg.hpp>
#include <hetsched/io/page/frontier_svg.hpp>
#include <hetsched/io/page/report.hpp>

namespace train {

namespace {

using hetsched::as_size;
using hetsched::detail::print;

constexpr std::size_t compared_steps = 10;  // whose median is how fast a rank is

double median(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 64> text{};
  (void)localtime_r(&now, &parts);
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S %Z", &parts);
  return text.data();
}

std::string short_text(double value) { return print("%.4g", value); }
std::string times_text(double factor) { return print("%.2f", factor) + " x"; }

/// Rough, and short: "3 h 20 min".
std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12));
  if (whole < 100) return std::to_string(whole) + " s";
  if (whole < 6000) return std::to_string(whole / 60) + " min";
  if (whole < 200'000) return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
  return std::to_string(whole / 86'400) + " days";
}

/// What ranks take to compute.
struct rank_speeds {
  std::vector<double> now_s;
  std::vector<std::size_t> shown;  ///< the slowest, where there are very many
  std::size_t slowest = 0;
  double usual_s = 0;  ///< the median of all
};

rank_speeds compare(std::vector<double> now_s) {
  rank_speeds found{.now_s = std::move(now_s), .shown = {}};
  auto& ranks = found.shown;
  for (std::size_t r = 0; r < found.now_s.size(); ++r) ranks.push_back(r);
  if (ranks.empty()) return found;
  std::stable_sort(ranks.begin(), ranks.end(), [&](auto a, auto b) { return found.now_s[a] > found.now_s[b]; });
  found.slowest = ranks.front();
  constexpr std::size_t most_ranks = 32;
  if (ranks.size() > most_ranks) ranks.resize(most_ranks);
  std::sort(ranks.begin(), ranks.end());
  found.usual_s = median({found.now_s.begin(), found.now_s.end()});
  return found;
}

/// `slower`: ranks that are so than at first.
std::string note_of(const rank_speeds& speeds, const std::string& slower) {
  if (!(speeds.usual_s > 0)) return {};
  const auto ranks = speeds.now_s.size();
  return "Rank " + std::to_string(speeds.slowest) + " computes longest, " +
         times_text(speeds.now_s[speeds.slowest] / speeds.usual_s) + " the median of all ranks. " +
         (slower.empty() ? std::string("No rank is much slower than at first.") : "Slower than at first: " + slower + ".") +
         " Figures are medians of " + std::to_string(compared_steps) +
         " steps, waits are the last step's; what is held is tensors between steps." +
         (speeds.shown.size() < ranks ? " Of " + std::to_string(ranks) + " ranks, the slowest are shown." : "");
}

std::string stages_text(const hetsched::rank_times& times) {
  std::string text;
  for (const auto& t : times.stages) text += (text.empty() ? "" : ", ") + std::to_string(t.stage);
  return text;
}

/// A loss as a point, of what is drawn.
struct loss_scale {
  double left, right, top, bottom;  ///< of the drawing
  double count, from, to;           ///< steps behind the first; losses at bottom and top

  [[nodiscard]] double x_of(double i) const { return left + i / count * (right - left); }
  [[nodiscard]] double y_of(double loss) const { return bottom - (loss - from) / (to - from) * (bottom - top); }
};

/// The line of the means of some hundreds of stretches, and the band that each of them lies in.
std::string losses_line(std::span<const double> losses, const loss_scale& scale) {
  const std::size_t stride = std::max<std::size_t>(1, losses.size() / 300);
  std::string line, above, below;
  for (std::size_t i = 0; i < losses.size(); i += stride) {
    const auto some = losses.subspan(i, std::min(stride, losses.size() - i));
    double sum = 0, least = scale.to, most = scale.from;
    std::size_t finite = 0;
    for (const double loss : some) {
      if (!std::isfinite(loss)) continue;
      ++finite;
      sum += loss;
      least = std::min(least, loss);
      most = std::max(most, loss);
    }
    if (finite == 0) continue;
    const double x = scale.x_of(static_cast<double>(i) + static_cast<double>(some.size() - 1) / 2);
    line += print("%s%.1f %.1f", line.empty() ? "M" : "L", x, scale.y_of(sum / static_cast<double>(finite)));
    above += print("%s%.1f %.1f", above.empty() ? "M" : "L", x, scale.y_of(most));
    below.insert(0, print("L%.1f %.1f", x, scale.y_of(least)));
  }
  return (stride > 1 ? "<path d=\"" + above + below + "Z\" class=\"band\"/>\n" : "") + "<path d=\"" + line +
         "\" class=\"line\"/>\n";
}

}  // namespace

std::string losses_svg(std::span<const double> losses, std::int64_t first_step,
                       std::span<const std::pair<std::int64_t, double>> marks) {
  constexpr double width = 400, height = 250, left = 52, right = 388, top = 34, bottom = 212;
  std::string out =
      print("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" class=\"hl\" role=\"img\">\n", width, height) +
      "<title>Loss by step</title>\n<style>.hl text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}.hl "
      "text.e{text-anchor:end}.hl text.m{text-anchor:middle}.hl text.t{font-weight:600}.hl .grid{stroke:#d8dee4}.hl "
      ".axis{stroke:#6e7781}.hl .line{fill:none;stroke:#0072b2;stroke-width:1.8}.hl .band{fill:#0072b2;opacity:.2}.hl "
      "circle{fill:#d55e00}@media(prefers-color-scheme:dark){.hl text{fill:#d7dce2}.hl .grid{stroke:#30363d}.hl "
      ".line{stroke:#56b4e9}.hl .band{fill:#56b4e9}.hl circle{fill:#e69f00}}</style>\n"
      "<text x=\"12\" y=\"20\" class=\"t\">Loss by step</text>\n";
  double low = hetsched::infinity, high = -low;
  const auto take = [&](double loss) {
    if (!std::isfinite(loss)) return;
    low = std::min(low, loss);
    high = std::max(high, loss);
  };
  for (const double loss : losses) take(loss);
  for (const auto& [step, loss] : marks) take(loss);
  if (low > high) return out + "</svg>\n";
  const double step_y = hetsched::detail::round_step(std::max(high - low, std::abs(high) * 1e-3 + 1e-12), 5);
  const double from = std::floor(low / step_y) * step_y, to = std::max(std::ceil(high / step_y) * step_y, from + step_y);
  const double count = static_cast<double>(std::max<std::size_t>(losses.size(), 2) - 1);
  const loss_scale scale{left, right, top, bottom, count, from, to};
  const auto x_of = [&](double i) { return scale.x_of(i); };
  const auto y_of = [&](double loss) { return scale.y_of(loss); };
  for (double y = from; y <= to + step_y / 2; y += step_y)
    out += print("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>", left, y_of(y), right, y_of(y),
                 y > from ? "grid" : "axis") +
           print("<text x=\"%.1f\" y=\"%.1f\" class=\"e\">", left - 6, y_of(y) + 4) +
           short_text(std::abs(y) < step_y * 1e-6 ? 0 : y) + "</text>\n";
  const double step_x = std::max(1.0, hetsched::detail::round_step(count, 5)), first = static_cast<double>(first_step);
  for (double x = std::ceil(first / step_x) * step_x; x <= first + count; x += step_x)
    out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">%.0f</text>\n", x_of(x - first), bottom + 18, x);
  out += print("<text x=\"%.1f\" y=\"%.1f\" class=\"m\">step</text>\n", (left + right) / 2, bottom + 34);
  out += losses_line(losses, scale);
  for (const auto& [step, loss] : marks)
    if (std::isfinite(loss))
      out +=
          print("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>", x_of(static_cast<double>(step - 1 - first_step)), y_of(loss)) +
          "validation behind step " + std::to_string(step - 1) + ": " + short_text(loss) + "</title></circle>\n";
  return out + "</svg>\n";
}

status_page::status_page(const std::string& path, std::string what, const hetsched::plan_file& plan, std::int64_t steps,
                         const std::vector<double>& losses, const std::int64_t& first_step)
    : what_(std::move(what)), plan_(&plan), steps_(steps), losses_(&losses), first_step_(&first_step) {
  if (!path.empty()) file_.emplace(path, side_output::how::whole);
}

status_page::~status_page() {
  if (!wanted() || ended_ || !last_) return;
  try {
    write("ended by an error, which is told on standard error", false);
  } catch (const std::exception&) {  // there is one already
  }
}

void status_page::add(const step_line& s) {
  if (!wanted()) return;
  last_ = s;
  skipped_ += !s.report.updated;
  if (s.validation_loss) validations_.emplace_back(s.report.step + 1, *s.validation_loss);
  speeds_.resize(s.ranks.size());
  ++seen_;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    auto& [first, recent] = speeds_[r];
    if (seen_ > 1 && first.size() < compared_steps) first.push_back(s.ranks[r].times.computing_s);  // the first one makes buffers
    recent.push_back(s.ranks[r].times.computing_s);
    if (recent.size() > compared_steps) recent.pop_front();
  }
}

void status_page::show(std::vector<hetsched::timeline> measured, std::int64_t step) {
  if (!wanted()) return;
  measured_ = std::move(measured);
  measured_step_ = step;
  write("trains", true);
}

void status_page::end(const std::string& how, bool goes_on) {
  ended_ = true;
  if (wanted() && last_) write(how, goes_on);
}

void status_page::write(const std::string& state, bool goes_on) {
  const auto start = clock::now();
  file_->add(text(state, goes_on));
  const auto now = clock::now();
  next_ = now + std::max<clock::duration>(std::chrono::seconds(2), 50 * (now - start));
}

void status_page::add_figures(hetsched::report& page, bool goes_on) const {
  const auto& s = *last_;
  page.figures = {{"loss", short_text(s.report.loss), "of step " + std::to_string(s.report.step)}};
  if (!validations_.empty())
    page.figures.push_back(
        {"validation", short_text(validations_.back().second), "behind step " + std::to_string(validations_.back().first - 1)});
  page.figures.push_back({"throughput", short_text(s.tokens_per_s), "tokens per second"});
  page.figures.push_back({"step", hetsched::format_seconds(s.seconds), "all in all"});
  if (goes_on)
    page.figures.push_back({"to go", duration_text(static_cast<double>(steps_ - s.report.step - 1) * s.seconds),
                            "if steps take as long as the last"});
  page.figures.push_back({"gradient norm", short_text(s.report.gradient_norm), "before clipping"});
  page.figures.push_back({"learning rate", short_text(s.learning_rate), "of the last step"});
  if (skipped_ > 0) page.figures.push_back({"skipped", std::to_string(skipped_), "steps, as something was not finite"});
}

std::string status_page::add_ranks(hetsched::report& page) const {
  using namespace hetsched;
  std::vector<double> now_of_all;
  for (const auto& of_rank : speeds_) now_of_all.push_back(median(of_rank.recent));
  const auto speeds = compare(std::move(now_of_all));
  std::vector<bar> computing, holding;
  report_table table{.heading = "Ranks",
                     .note = {},
                     .columns = {"rank", "stages", ">computes", ">waits", ">at first", ">now", ">holds"},
                     .rows = {}};
  std::string slower;
  for (const auto r : speeds.shown) {
    const auto& [times, held_bytes, sent_bytes] = last_->ranks[r];
    const auto& [first, recent] = speeds_[r];
    const auto name = "rank " + std::to_string(r), held = format_bytes(static_cast<bytes_t>(held_bytes));
    const double now_s = speeds.now_s[r], first_s = first.empty() ? 0 : median(first);
    const double factor = first_s > 0 ? now_s / first_s : 1;
    computing.push_back({name, now_s, format_seconds(now_s), speeds.usual_s});
    holding.push_back({name, held_bytes, held});
    table.rows.push_back({name, stages_text(times), format_seconds(now_s),
                          format_seconds(std::max(times.span_s - times.computing_s, 0.0)),
                          first_s > 0 ? format_seconds(first_s) : "", first_s > 0 ? times_text(factor) : "", held});
    if (factor >= 1.3 && recent.size() == compared_steps)
      slower += (slower.empty() ? "" : ", ") + name + " (" + times_text(factor) + ")";
  }
  if (computing.empty()) return {};
  table.note = note_of(speeds, slower);
  page.tables.push_back(std::move(table));
  constexpr int width = 400;
  return bars_svg(computing, "Computes (line: median)", width) + bars_svg(holding, "Holds", width);
}

void status_page::add_timelines(hetsched::report& page) const {
  for (std::size_t p = 0; p < measured_.size() && p < plan_->plan.pipelines.size(); ++p) {
    auto section =
        hetsched::plan_section(plan_->plan.pipelines[p], plan_->subclusters, measured_[p], plan_->plan.predicted.period_s);
    section.heading =
        (measured_.size() > 1 ? "Pipeline " + std::to_string(p) + ": stages" : std::string("Stages")) + " as planned";
    section.timeline_heading = "Timeline of step " + std::to_string(measured_step_) + ", as measured";
    page.sections.push_back(std::move(section));
  }
}

std::string status_page::text(const std::string& state, bool goes_on) const {
  hetsched::report page;
  page.title = "Training: step " + std::to_string(last_->report.step + 1) + " of " + std::to_string(steps_);
  page.summary = what_ + " As of " + now_text() + ": " + state + (goes_on ? "; the page looks for news every few seconds." : ".");
  page.refresh_s = goes_on ? 5 : 0;
  add_figures(page, goes_on);
  const auto bars = add_ranks(page);
  page.drawings.push_back(
      "<style>.board{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:16px}.board "
      "svg{min-width:0;max-width:560px}</style>\n<div class=\"board\">\n" +
      losses_svg(*losses_, *first_step_, validations_) + bars + "</div>");
  add_timelines(page);
  return to_html(page);
}

}  // namespace train
