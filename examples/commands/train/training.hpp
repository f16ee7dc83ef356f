// SPDX-License-Identifier: Apache-2.0
// What hetsched-train is asked for, and what comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/io/checkpoint/snapshot_ring.hpp>
#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>
#include <hetsched/schedule/timeline.hpp>

#include <train/checkpoint.hpp>
#include <train/log.hpp>
#include <train/model.hpp>
#include <train/place.hpp>

namespace train {

struct arguments {
  model_arguments model;
  place_arguments place;
  checkpoint_arguments checkpoint;
  std::string plan, schedule, text, optimizer = "adamw";
  std::string trace, report, losses, out_plan, log, metrics, times, status;
  int trace_steps = 1;     ///< of which trace, report and times tell
  std::string validation;  ///< text
  int validate_every = 0, validation_batches = 4;
  std::optional<int> microbatches, microbatch_size;
  int steps = 100, chunks = 2, accumulate = 1;
  double learning_rate = 3e-3, momentum = 0, weight_decay = 0, clip = 1;
  std::string decay = "constant";  ///< of the learning rate
  std::int64_t warmup = 0;
  double rate_floor = 0;
  bool json = false;
  bool dry_run = false;                ///< forwards and backwards of one batch, and no update
  bool elastic = false, join = false;  ///< ranks may be lost and come; this one comes
  double settle_s = 2;
  int snapshot_every = 0;  ///< steps; 0: never
  int replan_every = 0;    ///< steps; 0: never
  double replan_gain = 0.05;
  bool replan_layers = false;                     ///< layers move between stages, too
  std::string device = "cpu", products = "bf16";  ///< where ranks compute, and of what numbers products are on GPUs
  std::optional<std::string> boundaries;          ///< of what numbers is what lies between layers, on GPUs; none: as planned
  bool graphs = false, nccl = false, cuda_ipc = false;
  bool sums_in_order = false;  ///< of gradients over NCCL, too
};

/// What all ranks do, and what is told in the end: by rank 0, on processes by each of its own.
struct job {
  arguments given;
  gpt::config config;
  std::string corpus, validation;  ///< texts
  hetsched::process_place place;
  std::optional<hetsched::plan_file> plan;       ///< none: to be made
  std::function<bool()> somebody_waits = {};     ///< to be let in; empty: nobody can
  hetsched::snapshot_ring* snapshots = nullptr;  ///< in memory; null: none

  struct result {
    hetsched::plan_file plan;
    hetsched::training_layout layout;
    std::optional<std::int64_t> resumed;
    std::int64_t first_step = 0;
    std::vector<double> losses;
    std::string earlier_losses;                                ///< rows of the CSV from before the first step
    std::vector<std::pair<std::int64_t, double>> validations;  ///< by steps done
    double seconds = 0;
    int stopped_by = 0;                                       ///< signal
    std::string failure;                                      ///< that ended it behind a step, on all ranks; empty: none
    int failed_rank = -1;                                     ///< whose failure it is; -1: of no rank alone
    bool lets_others_in = false;                              ///< the training is not over: it goes on with those that wait
    std::vector<hetsched::timeline> measured;                 ///< by pipeline: the last step, or the median of the last ones
    std::vector<std::vector<hetsched::action_spread>> times;  ///< by pipeline
    std::vector<rank_line> dry_run;                           ///< by rank
  };
  result told;
};

/// The ranks at hand cannot all be used.
class no_plan : public hetsched::error {
 public:
  using error::error;
};

/// Has the ranks at hand plan anew, for the same samples per step.
inline void forget_plan(job& j) {
  // In microbatches that all of the plan's can be cut into.
  int size = 0;
  for (const auto& line : j.plan->plan.pipelines) size = std::gcd(size, line.microbatch_size);
  j.given.microbatches = static_cast<int>(sample_count(j.plan->plan)) / size;
  j.given.microbatch_size = size;
  j.plan.reset();
}

/// Trains on all ranks of this process, and fills `told`.
void train_on_hosts(job& j);
void train_on_gpus(job& j);

/// What a step trains.
[[nodiscard]] inline std::string batch_text(const hetsched::plan& p, int batches) {
  std::string text;
  for (const auto& line : p.pipelines)
    text += (text.empty() ? "" : " + ") + std::to_string(line.microbatches) + " x " + std::to_string(line.microbatch_size);
  return batches > 1 ? std::to_string(batches) + " x (" + text + ")" : text;
}

/// Lines on standard error, whole ones.
inline void say(const std::string& text) { std::cerr << "hetsched-train: " + text + '\n' << std::flush; }

}  // namespace train
