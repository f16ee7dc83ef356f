// SPDX-License-Identifier: Apache-2.0
// What a training writes about each step as it goes: lines of JSON, and metrics as Prometheus reads them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/io/format.hpp>
#include <hetsched/runtime/measure/rank_times.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

#include <train/side_output.hpp>

namespace train {

struct rank_line {
  hetsched::rank_times times;
  double held_bytes = 0;
  double sent_bytes = -1;  ///< to other processes, in the step; -1: nobody counts
};

/// As numbers that can be gathered, and back.
[[nodiscard]] inline std::vector<double> to_numbers(const rank_line& line) {
  std::vector<double> numbers{line.held_bytes, line.sent_bytes, line.times.span_s, line.times.computing_s};
  for (const auto& s : line.times.stages)
    numbers.insert(numbers.end(), {static_cast<double>(s.direction), static_cast<double>(s.stage), s.forward_s, s.backward_s});
  return numbers;
}
[[nodiscard]] inline rank_line rank_line_of(std::span<const double> numbers) {
  rank_line line{.times = {.span_s = numbers[2], .computing_s = numbers[3]}, .held_bytes = numbers[0], .sent_bytes = numbers[1]};
  for (std::size_t i = 4; i + 4 <= numbers.size(); i += 4)
    line.times.stages.push_back({.direction = static_cast<int>(numbers[i]),
                                 .stage = static_cast<int>(numbers[i + 1]),
                                 .forward_s = numbers[i + 2],
                                 .backward_s = numbers[i + 3]});
  return line;
}

struct step_line {
  hetsched::step_report report;
  double learning_rate = 0;
  double seconds = 0;  ///< from the end of the step before, evaluations and checkpoints included
  double tokens_per_s = 0;
  std::optional<double> validation_loss{};
  std::vector<rank_line> ranks{};
};

[[nodiscard]] inline std::string json_line(const step_line& s) {
  nlohmann::ordered_json line{{"level", s.report.updated ? "info" : "warning"},
                              {"step", s.report.step},
                              {"loss", s.report.loss},
                              {"gradient_norm", s.report.gradient_norm},
                              {"updated", s.report.updated},
                              {"learning_rate", s.learning_rate},
                              {"seconds", s.seconds},
                              {"tokens_per_s", s.tokens_per_s}};
  if (s.validation_loss) line["validation_loss"] = *s.validation_loss;
  auto& ranks = line["ranks"] = nlohmann::ordered_json::array();
  for (const auto& r : s.ranks) {
    auto stages = nlohmann::ordered_json::array();
    for (const auto& t : r.times.stages) {
      nlohmann::ordered_json stage{{"stage", t.stage}};
      if (t.direction != 0) stage["direction"] = t.direction;
      stage["forward_s"] = t.forward_s;
      stage["backward_s"] = t.backward_s;
      stages.push_back(std::move(stage));
    }
    ranks.push_back({{"computing_s", r.times.computing_s},
                     {"span_s", r.times.span_s},
                     {"held_bytes", static_cast<std::int64_t>(r.held_bytes)}});
    if (r.sent_bytes >= 0) ranks.back()["sent_bytes"] = static_cast<std::int64_t>(r.sent_bytes);
    ranks.back()["stages"] = std::move(stages);
  }
  return line.dump() + '\n';
}

/// The text exposition format: https://prometheus.io/docs/instrumenting/exposition_formats.
[[nodiscard]] inline std::string metrics_text(const step_line& s, std::int64_t skipped,
                                              const std::optional<double>& validation_loss) {
  std::string text;
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::json(value).dump() : value > 0 ? "+Inf" : value < 0 ? "-Inf" : "NaN";
  };
  const auto metric = [&](const std::string& name, const char* type, const char* help) {
    text += "# HELP hetsched_" + name + ' ' + help + "\n# TYPE hetsched_" + name + ' ' + type + '\n';
  };
  const auto value = [&](const std::string& name, const std::string& labels, double is) {
    text += "hetsched_" + name + labels + ' ' + number(is) + '\n';
  };
  const auto one = [&](const std::string& name, const char* type, const char* help, double is) {
    metric(name, type, help);
    value(name, "", is);
  };
  one("steps_total", "counter", "Steps that are done, those before a resume included.", static_cast<double>(s.report.step + 1));
  one("steps_skipped_total", "counter", "Steps of this run without an update, as something was not finite.",
      static_cast<double>(skipped));
  one("loss", "gauge", "Mean loss of the last step.", s.report.loss);
  if (validation_loss) one("validation_loss", "gauge", "Mean loss of the last evaluation.", *validation_loss);
  one("gradient_norm", "gauge", "Norm of the gradients of the last step, before clipping.", s.report.gradient_norm);
  one("learning_rate", "gauge", "Learning rate of the last step.", s.learning_rate);
  one("step_seconds", "gauge", "How long the last step took.", s.seconds);
  one("tokens_per_second", "gauge", "Tokens per second in the last step.", s.tokens_per_s);
  const auto rank_label = [](std::size_t r) { return "rank=\"" + std::to_string(r) + '"'; };
  metric("rank_computing_seconds", "gauge", "Computations of a rank in the last step.");
  for (std::size_t r = 0; r < s.ranks.size(); ++r)
    value("rank_computing_seconds", '{' + rank_label(r) + '}', s.ranks[r].times.computing_s);
  metric("rank_held_bytes", "gauge", "Tensors that a rank holds between steps.");
  for (std::size_t r = 0; r < s.ranks.size(); ++r) value("rank_held_bytes", '{' + rank_label(r) + '}', s.ranks[r].held_bytes);
  const bool counted = std::any_of(s.ranks.begin(), s.ranks.end(), [](const auto& r) { return r.sent_bytes >= 0; });
  if (counted) metric("rank_sent_bytes", "gauge", "Tensors that a rank sent to other processes in the last step.");
  for (std::size_t r = 0; counted && r < s.ranks.size(); ++r)
    value("rank_sent_bytes", '{' + rank_label(r) + '}', s.ranks[r].sent_bytes);
  metric("stage_seconds", "gauge", "Computations of a stage in the last step.");
  for (std::size_t r = 0; r < s.ranks.size(); ++r)
    for (const auto& t : s.ranks[r].times.stages)
      for (const bool forward : {true, false})
        value("stage_seconds",
              '{' + rank_label(r) + ",stage=\"" + std::to_string(t.stage) + "\",direction=\"" + std::to_string(t.direction) +
                  "\",pass=\"" + (forward ? "forward" : "backward") + "\"}",
              forward ? t.forward_s : t.backward_s);
  return text;
}

/// Both files; empty paths: none. Nothing is written before the first step. Lines go behind those of earlier runs; metrics are
/// replaced as a whole, so that whoever reads them sees one step.
class step_log {
 public:
  step_log(const std::string& lines, const std::string& metrics) {
    if (!lines.empty()) lines_.emplace(lines, side_output::how::behind);
    if (!metrics.empty()) metrics_.emplace(metrics, side_output::how::whole);
  }
  [[nodiscard]] bool wanted() const { return lines_ || metrics_; }
  void add(const step_line& s) {
    skipped_ += !s.report.updated;
    if (s.validation_loss) validation_loss_ = s.validation_loss;
    if (lines_) lines_->add(json_line(s));
    if (metrics_) metrics_->add(metrics_text(s, skipped_, validation_loss_));
  }

 private:
  std::optional<side_output> lines_, metrics_;
  std::int64_t skipped_ = 0;
  std::optional<double> validation_loss_{};
};

}  // namespace train
