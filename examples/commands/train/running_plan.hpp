// SPDX-License-Identifier: Apache-2.0
// The plan as a training runs it, and other orders and cuts as its steps are measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/measure/median_timeline.hpp>

#include <train/common_work.hpp>
#include <train/measured.hpp>
#include <train/rank_trainer.hpp>
#include <train/recut.hpp>
#include <train/reschedule.hpp>
#include <train/training.hpp>

namespace train {

/// What it is made of is there for as long as it lives. All ranks call its members between the same steps.
template <class Rank, class Communicator>
class running_plan {
 public:
  /// `work`: its layout and orders become those that are run.
  running_plan(const job& j, Communicator& comm, const Rank& here, rank_trainer<Rank, Communicator>& trainer, common_work& work)
      : given_(j.given),
        comm_(comm),
        trainer_(trainer),
        work_(work),
        wants_timelines_(!given_.trace.empty() || !given_.report.empty() || !given_.times.empty()),
        schedule_(given_.schedule),
        plan_(work.plan.plan) {
    if (given_.replan_every > 0 && !may_reschedule(work.layout))
      throw known_to_all("--replan-every needs schedules of one direction with a stage per rank");
    if (given_.replan_layers) watch_layers(j, here);
  }

  /// Keeps what the last step took.
  void add_step() {
    if (wants_timelines_ || given_.replan_every > 0) recent_.push_back(trainer_->measured());
    if (watch_) watch_->add(trainer_->layer_times());
    if (recent_.size() > static_cast<std::size_t>(std::max(given_.trace_steps, given_.replan_every))) recent_.pop_front();
  }

  /// What all ranks have measured in these steps.
  [[nodiscard]] std::vector<std::vector<hetsched::timeline>> gather_steps(std::span<const hetsched::timeline> steps) {
    return gather_timelines(comm_, work_.layout, steps, given_.place.transport == "threads", given_.place.deadline_s);
  }

  /// Solves orders, and cuts if layers are to move, again for what the last steps took; runs them where they are shorter by
  /// enough. `done`: steps.
  void replan(std::int64_t done) {
    const auto numbers = gather_stages();
    new_cuts cuts;
    if (watch_)
      cuts = cut_again(plan_, work_.layout, work_.orders, bytes_by_pipeline_, watch_->tell(comm_), numbers, given_.replan_gain);
    auto next = watch_ ? std::move(cuts.orders) : solve_again(plan_, work_.orders, numbers);
    if (cuts.moved || next.then_s < (1 - given_.replan_gain) * next.now_s) {
      say_of(done, std::string(cuts.moved ? "layers move" : "works in another order") + ", for " +
                       hetsched::format_seconds(next.then_s) + " per iteration instead of " +
                       hetsched::format_seconds(next.now_s) + ", as " + (watch_ ? "layers" : "stages") +
                       " and links are measured" + (cuts.moved ? ": " + cuts_text(cuts.lines) : ""));
      run(std::move(next), std::move(cuts));
    } else if (std::abs(next.now_s - told_s_) > 0.1 * told_s_) {
      say_of(done, "as stages and links are measured, an iteration takes " + hetsched::format_seconds(next.now_s) +
                       ", and no other " + (watch_ ? "cuts or order" : "order") + " less than " +
                       hetsched::format_seconds(next.then_s));
      told_s_ = next.now_s;
    }
  }

  /// At the end: the plan that was run, and what its last steps took.
  void tell(job::result& result) {
    if (wants_timelines_)
      for (const auto& line : gather_steps(last(given_.trace_steps))) {
        if (line.empty()) continue;
        result.measured.push_back(hetsched::median_timeline(line));
        result.times.push_back(hetsched::action_spreads(line));
      }
    result.plan = work_.plan;
    result.plan.plan = std::move(plan_);
    if (!schedule_.empty())
      for (std::size_t p = 0; p < work_.layout.pipelines.size(); ++p)
        set_order(result.plan.plan.pipelines[p], schedule_, work_.orders[p]);
    result.layout = trainer_->layout();
  }

 private:
  void watch_layers(const job& j, const Rank& here) {
    if (!hetsched::byte_plane<Communicator> || work_.devices.on_gpus() > 0)
      throw known_to_all("--replan-layers needs ranks on the host");
    std::vector<double> expected_s;
    work_together(comm_, given_.place.deadline_s, "timing layers", [&](const auto& alive) {
      expected_s = here.time_layers(j, trainer_->pipeline().microbatch_size, work_.half_boundaries, alive);
    });
    watch_.emplace(comm_, expected_s, given_.place.deadline_s);
    for (const auto& line : work_.plan.plan.pipelines)
      bytes_by_pipeline_.push_back(bytes_of_layers(line, trainer_->parameters()));
  }

  [[nodiscard]] std::vector<hetsched::timeline> last(int steps) const {
    return {recent_.end() - std::min<std::ptrdiff_t>(steps, std::ssize(recent_)), recent_.end()};
  }

  /// Of all pipelines, as measured_stages has them.
  [[nodiscard]] std::vector<double> gather_stages() {
    std::vector<double> taken;
    for (const auto& of_pipeline : gather_steps(last(given_.replan_every))) {
      const auto measured = measured_stages(of_pipeline, static_cast<std::size_t>(of_pipeline.front().ranks));
      taken.insert(taken.end(), measured.begin(), measured.end());
    }
    // Clocks are compared by the first rank: all take its numbers.
    return gather(comm_, taken, given_.place.deadline_s, "measured times").front();
  }

  void say_of(std::int64_t done, const std::string& what) const {
    if (comm_.rank() == 0) say("step " + std::to_string(done) + ": " + what);
  }

  /// From the next step on.
  void run(new_orders next, new_cuts cuts) {
    auto& pipelines = work_.layout.pipelines;
    std::vector<hetsched::schedule> orders;
    for (std::size_t p = 0; p < next.orders.size(); ++p)
      orders.push_back(as_run(next.orders[p], pipelines[p], work_.devices, given_));
    if constexpr (hetsched::byte_plane<Communicator>)
      if (cuts.moved) {
        for (std::size_t p = 0; p < orders.size(); ++p) {
          pipelines[p].order = orders[p];
          for (std::size_t s = 0; s < cuts.lines[p].stages.size(); ++s)
            pipelines[p].stages[s].layers = cuts.lines[p].stages[s].layers;
        }
        trainer_.move_layers(work_.layout);
        plan_.pipelines = std::move(cuts.lines);
        plan_.gradient_sync.clear();  // of layers that are elsewhere now
        plan_.predicted = {.iteration_s = next.then_s};
        plan_.evidence.reset();
      }
    if (!cuts.moved) trainer_->reschedule(orders);
    work_.orders = std::move(next.orders);
    schedule_ = "auto";
    recent_.clear();
    told_s_ = next.then_s;
  }

  const arguments& given_;
  Communicator& comm_;
  rank_trainer<Rank, Communicator>& trainer_;
  common_work& work_;
  bool wants_timelines_;
  std::string schedule_;  ///< in place of the plan's; empty: as planned
  hetsched::plan plan_;   ///< with its layers where they are
  std::optional<layer_watch> watch_;
  std::vector<layer_bytes> bytes_by_pipeline_;
  std::deque<hetsched::timeline> recent_;  ///< the last steps, as measured
  double told_s_ = 0;                      ///< of the iteration, when the order was solved last
};

}  // namespace train
