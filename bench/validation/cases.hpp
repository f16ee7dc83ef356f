// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every part of the validation hands to the report.
#include <string>
#include <vector>

namespace validation {

/// One measurement beside its prediction.
struct prediction_case {
  std::string set{};    ///< where it was measured and what: "NeuSight fp32 products"
  std::string group{};  ///< what means are taken over: a device, or a table
  std::string what{};   ///< the row in words, for the list of the worst
  double measured = 0;
  double predicted = 0;
  bool held_out = true;          ///< nothing that went into the prediction was fitted to this row's group
  std::vector<double> others{};  ///< what the part's other predictors say, in their order; 0 where they say nothing
};

/// A set of cases that is reported together, with one picture.
struct validation_part {
  std::string title{};           ///< heading of its page in docs/accuracy
  std::string compared{};        ///< what is compared, for its line in docs/accuracy.md
  std::string unit{};            ///< of measured and predicted: "ms", "s", "GB"
  std::string method{};          ///< a few sentences of Markdown: what is predicted from what, and what was fitted to what
  double goal_mean_percent = 0;  ///< of every group; 0: none
  double goal_max_percent = 0;   ///< of every case; 0: none
  std::vector<prediction_case> cases{};
  std::string remarks{};              ///< Markdown after the tables: explanations of the worst cases, rows left out and why
  bool goal_of_all = false;           ///< the goal of the mean is for all cases together
  double goal_under_percent = 0;      ///< no prediction may be lower than measured by more; means then keep their sign
  double goal_rank = 0;               ///< least rank correlation of all cases
  std::vector<std::string> others{};  ///< names of other predictors to compare with
};

}  // namespace validation
