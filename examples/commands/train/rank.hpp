// SPDX-License-Identifier: Apache-2.0
// One rank of a training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/rank_failure.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/measure/rank_times.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include <gpt/optimizer.hpp>
#include <train/checkpoint.hpp>
#include <train/common_work.hpp>
#include <train/layers.hpp>
#include <train/log.hpp>
#include <train/losses.hpp>
#include <train/rank_trainer.hpp>
#include <train/rate.hpp>
#include <train/running_plan.hpp>
#include <train/step_reports.hpp>
#include <train/training.hpp>

#include "../command.hpp"

namespace train {

/// A rank that computes on the host.
template <class Real>
struct host_rank {
  using real = Real;
  using tensor = gpt::tensor<Real>;
  using layer = hetsched::any_layer<tensor>;
  using optimizer = gpt::chosen_optimizer;
  using backend = hetsched::host_backend;
  using stager = hetsched::no_stager;
  static constexpr bool can_halve_boundaries = false;  ///< whether it can hand on bf16 numbers

  [[nodiscard]] static backend make_backend() { return {}; }
  [[nodiscard]] static stager make_stager() { return {}; }
  [[nodiscard]] static bool on_gpu() { return false; }
  /// `direct`: no tensor goes by way of the hosts. Throws: input_error for what ranks like this one do not do.
  static void require_supported(const gpt::config&, const hetsched::training_layout&, [[maybe_unused]] bool direct) {}
  template <class Group>
  [[nodiscard]] static layer make_layer(const gpt::config& m, int l, const Group& group, hetsched::recomputation recompute,
                                        [[maybe_unused]] bool half_boundaries) {
    return train::make_layer<Real>(m, l, group.tensor(), recompute, group.context(), group.expert(), group.tensor_shares());
  }
  [[nodiscard]] static tensor put(tensor t) { return t; }
  /// Its part of the mean over so many rows.
  [[nodiscard]] static auto loss(std::size_t rows) {
    return [rows](tensor logits, const tensor& targets) { return train::cross_entropy_part(std::move(logits), targets, rows); };
  }
  /// Seconds of every layer's forward, then of its backward. `alive`: called now and then.
  template <class Alive>
  [[nodiscard]] static std::vector<double> time_layers(const job& j, int samples, [[maybe_unused]] bool half_boundaries,
                                                       const Alive& alive) {
    std::vector<double> took;
    const auto found =
        profile_model<Real>(j.config, j.corpus, samples, {.warmup = 1, .repeats = 3, .before_layer = [&](int) { alive(); }});
    for (const auto& l : found) took.push_back(l.forward.median_s);
    for (const auto& l : found) took.push_back(l.backward.median_s);
    return took;
  }
};

/// Goes on from the newest snapshot or checkpoint, if it is told to; `result` is then as behind that step. All ranks call it.
template <class Rank, class Communicator>
void resume_training(const job& j, Communicator& comm, rank_trainer<Rank, Communicator>& trainer, const training_notes& notes,
                     job::result& result) {
  const auto& given = j.given;
  const double deadline_s = given.place.deadline_s;
  result.resumed.reset();
  if constexpr (hetsched::byte_plane<Communicator>)
    if (j.snapshots) result.resumed = resume_from_memory(*j.snapshots, *trainer, comm, given.checkpoint.folder, deadline_s, say);
  if (given.checkpoint.resume && !result.resumed && !given.checkpoint.folder.empty())
    result.resumed = resume(*trainer, comm, given.checkpoint, notes, deadline_s, say);
  result.lets_others_in = false;
  result.failure.clear();
  result.failed_rank = -1;
  result.measured.clear();
  result.times.clear();
  const auto seen = trainer->committed_step() - result.first_step;
  if (result.losses.empty() || seen < 0 || seen > static_cast<std::int64_t>(result.losses.size())) {
    result.losses.clear();
    result.first_step = trainer->committed_step();
    result.earlier_losses = given.checkpoint.resume ? losses_before(given.losses, result.first_step) : "";
  } else {
    result.losses.resize(static_cast<std::size_t>(seen));  // the steps behind are done again
  }
  // All ranks read the rows, as each may be the first one later; nobody writes any before.
  if (given.checkpoint.resume) (void)gather(comm, {0.0}, deadline_s, "reading earlier losses");
}

/// What a rank tells of its last step.
template <class Rank, class Communicator>
[[nodiscard]] std::vector<double> step_numbers(rank_trainer<Rank, Communicator>& trainer, double sent_bytes = -1) {
  return to_numbers({.times = hetsched::times_of_rank(trainer->measured(), trainer->place().group),
                     .held_bytes = static_cast<double>(trainer->held().total()),
                     .sent_bytes = sent_bytes});
}

/// Forwards and backwards of a batch, and no update. All ranks call it.
template <class Rank, class Communicator>
void run_dry(const job& j, Communicator& comm, rank_trainer<Rank, Communicator>& trainer, const hetsched::plan_file& plan,
             job::result& result) {
  const auto first = trainer.draw(j.corpus, trainer->committed_step());
  for (int pass = 0; pass < 2; ++pass) trainer.accumulate(first);  // the first makes buffers, and finds out how to multiply
  for (const auto& told : gather(comm, step_numbers(trainer), j.given.place.deadline_s, "behind the dry run"))
    result.dry_run.push_back(rank_line_of(told));
  result.plan = plan;
  result.layout = trainer->layout();
}

/// The steps of a training, and what its ranks do between them.
template <class Rank, class Communicator>
class training_steps {
 public:
  /// All ranks construct one and call run(), once. What it is made of is there for as long as it lives.
  training_steps(const job& j, Communicator& comm, const Rank& here, rank_trainer<Rank, Communicator>& trainer, common_work& work,
                 job::result& result)
      : job_(j),
        given_(j.given),
        deadline_s_(given_.place.deadline_s),
        comm_(comm),
        trainer_(trainer),
        notes_(work.notes),
        result_(result),
        rate_(rate_of(given_)),
        reports_(j, comm, work.plan, result),
        plan_(j, comm, here, trainer, work),
        saves_(comm, given_.checkpoint, work.notes, deadline_s_),
        began_at_(trainer->committed_step()) {
    command::listen_to_signals();
    if (began_at_ < given_.steps) draw_next();
  }
  training_steps(const training_steps&) = delete;
  training_steps& operator=(const training_steps&) = delete;

  void run() {
    while (done() < given_.steps && result_.stopped_by == 0 && result_.failure.empty() && !result_.lets_others_in) {
      const auto report = train_step();
      if (!report) break;
      end_step(*report);
    }
    saves_.end();
    result_.seconds += reports_.elapsed_s();
    reports_.status().end(result_.lets_others_in     ? "lets other ranks in"
                          : !result_.failure.empty() ? "stopped, as " + result_.failure
                          : result_.stopped_by != 0  ? "stopped by signal " + std::to_string(result_.stopped_by)
                                                     : std::string("done"),
                          result_.lets_others_in);
    if (!result_.lets_others_in) plan_.tell(result_);
  }

 private:
  using batch = typename rank_trainer<Rank, Communicator>::batch;

  [[nodiscard]] std::int64_t done() const { return trainer_->committed_step(); }

  void draw_next() {
    coming_.clear();
    for (int b = 0; b < given_.accumulate; ++b) coming_.push_back(trainer_.draw(job_.corpus, done(), b));
  }

  /// What this rank does alone stands between steps, where it can tell the others that it failed.
  template <class Work>
  void alone(Work work) {
    try {
      work();
    } catch (const std::exception& e) {
      if (wrong_.empty()) wrong_ = e.what();
    }
  }

  /// None: all ranks have found that it cannot be done.
  [[nodiscard]] std::optional<hetsched::step_report> train_step() {
    const auto step = done();
    trainer_->optimizer_settings().set_learning_rate(rate_.at(step));
    try {
      for (const auto& b : std::span(coming_).first(coming_.size() - 1)) trainer_.accumulate(b);
      return trainer_.step(coming_.back());
    } catch (const hetsched::agreed_error& e) {
      result_.failure = e.what();
      if (!given_.checkpoint.folder.empty() && step != began_at_) saves_.begin(*trainer_);
      return std::nullopt;
    }
  }

  void end_step(const hetsched::step_report& report) {
    plan_.add_step();
    result_.losses.push_back(report.loss);
    reports_.add_loss(report.step, report.loss);
    step_line line{.report = report, .learning_rate = rate_.at(report.step)};
    const bool shows = compare_notes(line);
    const std::vector<hetsched::timeline> latest(shows ? 1 : 0, trainer_->measured());  // layers may move below
    const bool fails = !result_.failure.empty(), last = done() == given_.steps || result_.stopped_by != 0 || fails;
    result_.lets_others_in = result_.lets_others_in && !last;
    if (!job_.validation.empty() && !fails && (last || is_due(given_.validate_every))) {
      line.validation_loss = trainer_.validate();
      result_.validations.emplace_back(done(), *line.validation_loss);
    }
    if (!given_.checkpoint.folder.empty() && (last || result_.lets_others_in || is_due(given_.checkpoint.every)))
      saves_.begin(*trainer_);
    if (!last) keep_snapshot();
    if (!last && !result_.lets_others_in && is_due(given_.replan_every)) plan_.replan(done());
    tell(line, latest);
  }

  /// Whether the steps done are a multiple of `every`; false for 0.
  [[nodiscard]] bool is_due(int every) const { return every > 0 && done() % every == 0; }

  /// All ranks tell what they have seen of the step and since, so that all stop behind the same one. Draws the next one's
  /// batches meanwhile. Returns whether the status page is to show the step.
  [[nodiscard]] bool compare_notes(step_line& line) {
    auto mine = step_numbers(trainer_, sent_bytes());
    bool is_written = false, somebody_waits = false, writer_failed = true;
    alone([&] {
      is_written = saves_.is_written();
      writer_failed = false;
    });
    alone([&] { somebody_waits = comm_.rank() == 0 && job_.somebody_waits && job_.somebody_waits(); });
    if (done() < given_.steps) alone([&] { draw_next(); });
    mine.insert(mine.begin(), {static_cast<double>(command::interruption), is_written ? 1.0 : 0.0, somebody_waits ? 1.0 : 0.0,
                               wrong_.empty() ? 0.0 : 1.0, writer_failed ? 1.0 : 0.0, reports_.shows(done()) ? 1.0 : 0.0});
    bool written = true, somebody_failed = false, part_failed = false, shows = false;
    for (const auto& told : gather(comm_, mine, deadline_s_, "between steps")) {
      if (told[0] != 0) result_.stopped_by = static_cast<int>(told[0]);
      written = written && told[1] != 0;
      if (told[2] != 0) result_.lets_others_in = true;
      somebody_failed = somebody_failed || told[3] != 0;
      part_failed = part_failed || told[4] != 0;
      shows = shows || told[5] != 0;
      if (reports_.wants_ranks()) line.ranks.push_back(rank_line_of(std::span(told).subspan(6)));
    }
    if (part_failed) saves_.forget();
    if (somebody_failed) find_failure();
    if (written) saves_.all_written();
    return shows;
  }

  void find_failure() {
    const auto failed = first_failure(comm_, wrong_, deadline_s_);
    if (!failed) return;
    result_.failed_rank = failed->rank;
    result_.failure = "rank " + std::to_string(failed->rank) + " failed between steps: " + failed->why;
  }

  /// Since the last call; -1: the communicator does not count.
  [[nodiscard]] double sent_bytes() {
    if constexpr (requires { comm_.bytes_sent(); }) {
      const std::optional<std::uint64_t> now = comm_.bytes_sent();
      return now ? static_cast<double>(*now - std::exchange(sent_before_, *now)) : -1.0;
    } else {
      return -1.0;
    }
  }

  /// In memory, where that is due.
  void keep_snapshot() {
    if constexpr (hetsched::byte_plane<Communicator>)
      if (job_.snapshots && (result_.lets_others_in || done() % given_.snapshot_every == 0)) try {
          job_.snapshots->keep(comm_, done(), trainer_->state(true), deadline_s_, notes_);
        } catch (const hetsched::agreed_error& e) {
          if (comm_.rank() == 0) say(std::string(e.what()) + "; the training goes on, with the snapshot before if there is one");
        }
  }

  /// `latest`: the step as measured, to be shown; empty: it is not.
  void tell(step_line& line, std::span<const hetsched::timeline> latest) {
    reports_.end_step(line);
    alone([&] { reports_.log().add(line); });
    alone([&] { reports_.status().add(line); });
    if (!latest.empty()) {
      std::vector<hetsched::timeline> seen_by_all;
      for (auto& of_pipeline : plan_.gather_steps(latest))
        if (!of_pipeline.empty()) seen_by_all.push_back(std::move(of_pipeline.front()));
      alone([&] { reports_.status().show(std::move(seen_by_all), line.report.step); });
    }
    reports_.show_progress(done(), line.report.loss);
  }

  const job& job_;
  const arguments& given_;
  double deadline_s_;
  Communicator& comm_;
  rank_trainer<Rank, Communicator>& trainer_;
  const training_notes& notes_;
  job::result& result_;
  hetsched::learning_rate rate_;
  step_reports reports_;
  running_plan<Rank, Communicator> plan_;
  std::uint64_t sent_before_ = 0;
  checkpoints saves_;
  std::string wrong_;          ///< what this rank failed at between steps
  std::vector<batch> coming_;  ///< of the next step
  std::int64_t began_at_;
};

/// One rank of the training. The result of rank 0 is whole, that of others is as far as they know it. Losses that are there
/// already are those of steps that it has seen before. Rank: host_rank, or one like it.
template <class Rank, class Communicator>
void train_rank(const job& j, Communicator& comm, const Rank& here, job::result& result) {
  auto work = agree_on_work(j, comm, here);
  rank_trainer<Rank, Communicator> trainer(j, comm, here, work);
  resume_training(j, comm, trainer, work.notes, result);
  if (j.given.dry_run) return run_dry(j, comm, trainer, work.plan, result);
  training_steps(j, comm, here, trainer, work, result).run();
}

}  // namespace train
