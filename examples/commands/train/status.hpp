// SPDX-License-Identifier: Apache-2.0
// The page on which a person sees how a training is doing, while it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/schedule/timeline.hpp>

#include <train/log.hpp>
#include <train/side_output.hpp>

namespace hetsched {
struct report;
}

namespace train {

/// A page that is written again every few seconds, and at the end. Empty path: none. What it cannot show yet is left out.
class status_page {
 public:
  /// `what`: a sentence about the training. `steps`: of all of it. `losses`: from step `first_step` on; they stay where they are.
  status_page(const std::string& path, std::string what, const hetsched::plan_file& plan, std::int64_t steps,
              const std::vector<double>& losses, const std::int64_t& first_step);
  status_page(const status_page&) = delete;
  status_page& operator=(const status_page&) = delete;
  /// Where nobody told how it ended, that is what the page tells.
  ~status_page();

  [[nodiscard]] bool wanted() const { return file_.has_value(); }
  /// Whether the next step is to be shown: not so often that it takes time from the training.
  [[nodiscard]] bool due() const { return wanted() && clock::now() >= next_; }

  void add(const step_line& s);
  /// The last step as measured, by pipeline.
  void show(std::vector<hetsched::timeline> measured, std::int64_t step);
  /// Writes the last page. `goes_on`: the training continues with other ranks, which will write the next one.
  void end(const std::string& how, bool goes_on);

 private:
  using clock = std::chrono::steady_clock;
  /// Seconds of computing of a rank.
  struct speed {
    std::deque<double> first, recent;
  };

  void write(const std::string& state, bool goes_on);
  [[nodiscard]] std::string text(const std::string& state, bool goes_on) const;
  void add_figures(hetsched::report& page, bool goes_on) const;
  /// The table of ranks; returns their pictures.
  [[nodiscard]] std::string add_ranks(hetsched::report& page) const;
  void add_timelines(hetsched::report& page) const;

  std::optional<side_output> file_;
  std::string what_;
  const hetsched::plan_file* plan_;
  std::int64_t steps_;
  const std::vector<double>* losses_;
  const std::int64_t* first_step_;
  std::optional<step_line> last_;
  std::vector<std::pair<std::int64_t, double>> validations_;  ///< steps done, and the loss
  std::vector<speed> speeds_;                                 ///< by rank
  std::vector<hetsched::timeline> measured_;
  std::int64_t measured_step_ = 0, skipped_ = 0, seen_ = 0;
  clock::time_point next_{};
  bool ended_ = false;
};

/// A picture of losses over steps: of very many, the least, the greatest and the mean of neighbours. `marks`: others, as dots.
[[nodiscard]] std::string losses_svg(std::span<const double> losses, std::int64_t first_step,
                                     std::span<const std::pair<std::int64_t, double>> marks);

}  // namespace train
