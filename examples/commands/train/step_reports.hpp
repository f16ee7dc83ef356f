// SPDX-License-Identifier: Apache-2.0
// What a training tells of its steps as it goes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/io/format.hpp>

#include <train/log.hpp>
#include <train/losses.hpp>
#include <train/status.hpp>
#include <train/training.hpp>

#include "../command.hpp"

namespace train {

/// All that is written and shown step by step: by rank 0, but the clock runs on all ranks. Plan and result are there for as long
/// as it lives.
class step_reports {
 public:
  /// Losses that the result has are those of steps before.
  step_reports(const job& j, control comm, const hetsched::plan_file& plan, const job::result& result)
      : given_(j.given),
        speaks_(comm.rank() == 0),
        tokens_(static_cast<double>(sample_count(plan.plan)) * given_.accumulate * j.config.sequence),
        losses_(speaks_ ? given_.losses : "", result.earlier_losses),
        log_(speaks_ ? given_.log : "", speaks_ ? given_.metrics : ""),
        status_(speaks_ ? given_.status : "",
                "A GPT of " + describe(j.config) + " on " + std::to_string(comm.ranks()) +
                    (comm.ranks() > 1 ? " ranks, " : " rank, ") + batch_text(plan.plan, given_.accumulate) + " microbatches.",
                plan, given_.steps, result.losses, result.first_step) {
    for (std::size_t i = 0; i < result.losses.size(); ++i)
      losses_.add(result.first_step + static_cast<std::int64_t>(i), result.losses[i]);
    start_ = step_start_ = clock::now();
  }

  [[nodiscard]] double elapsed_s() const { return since(start_); }
  /// Whether there is somebody to tell what each rank took.
  [[nodiscard]] bool wants_ranks() const { return log_.wanted() || status_.wanted(); }
  /// Whether the status page is to show the last of `done` steps.
  [[nodiscard]] bool shows(std::int64_t done) const { return status_.due() || (status_.wanted() && done == given_.steps); }

  void add_loss(std::int64_t step, double loss) { losses_.add(step, loss); }
  /// What the step took until now, from the last one's end on.
  void end_step(step_line& line) {
    line.seconds = since(step_start_);
    line.tokens_per_s = line.seconds > 0 ? tokens_ / line.seconds : 0;
    step_start_ = clock::now();
  }
  [[nodiscard]] step_log& log() { return log_; }
  [[nodiscard]] status_page& status() { return status_; }
  void show_progress(std::int64_t done, double loss) {
    if (speaks_)
      progress_.show(
          static_cast<double>(done) / given_.steps,
          "step " + std::to_string(done) + " of " + std::to_string(given_.steps) + ", loss " + hetsched::format_number(loss));
  }

 private:
  using clock = std::chrono::steady_clock;
  [[nodiscard]] static double since(clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); }

  const arguments& given_;
  bool speaks_;
  double tokens_;  ///< of a step
  command::progress_line progress_;
  losses_so_far losses_;
  step_log log_;
  status_page status_;
  clock::time_point start_{}, step_start_{};
};

}  // namespace train
