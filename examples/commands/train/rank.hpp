// SPDX-License-Identifier: Apache-2.0
// One rank of a training.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/io/format.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/communicator/rank_failure.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/executor/stager.hpp>
#include <hetsched/runtime/group/stage_group.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/measure/rank_times.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/passes.hpp>

#include <gpt/batch.hpp>
#include <gpt/model.hpp>
#include <gpt/optimizer.hpp>
#include <train/agree.hpp>
#include <train/boundaries.hpp>
#include <train/host_number.hpp>
#include <train/layers.hpp>
#include <train/log.hpp>
#include <train/losses.hpp>
#include <train/measured.hpp>
#include <train/notes.hpp>
#include <train/plan.hpp>
#include <train/rate.hpp>
#include <train/recut.hpp>
#include <train/reschedule.hpp>
#include <train/status.hpp>
#include <train/training.hpp>

#include "../command.hpp"

namespace train {

[[nodiscard]] inline gpt::chosen_optimizer make_optimizer(const arguments& given) {
  if (given.optimizer == "sgd")
    return {hetsched::sgd{.learning_rate = given.learning_rate, .momentum = given.momentum, .weight_decay = given.weight_decay}};
  return {hetsched::adamw{.learning_rate = given.learning_rate, .weight_decay = given.weight_decay}};
}

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

/// The plan for these ranks: rank 0 times the layers, all ranks then plan alike.
template <class Rank, class Communicator>
hetsched::plan_file make_plan(const job& j, Communicator& comm, const Rank& here, bool half_boundaries) {
  const equal_ranks there{.ranks = comm.ranks(),
                          .microbatches = j.given.microbatches.value_or(8),
                          .microbatch_size = j.given.microbatch_size.value_or(1)};
  std::vector<double> mine;
  const double deadline_s = j.given.place.deadline_s;
  work_together(comm, deadline_s, "timing layers", [&](const auto& alive) {
    if (comm.rank() == 0) mine = here.time_layers(j, there.microbatch_size, half_boundaries, alive);
  });
  const auto times = gather(comm, mine, deadline_s, "timing layers").front();
  const auto layers = times.begin() + gpt::layer_count(j.config);
  auto found = plan_for(j.config, there, {times.begin(), layers}, {layers, times.end()},
                        half_boundaries ? 2 : j.given.model.element_bytes());
  if (!found)
    throw no_plan("no plan for " + std::to_string(comm.ranks()) + " ranks and " + std::to_string(gpt::layer_count(j.config)) +
                  " layers: " + found.why_not().reason);
  return *std::move(found);
}

/// Stages of ZeRO stage 3 that could gather nothing, as others hold it, too, run as at stage 2. Returns whether there are some,
/// or a tied embedding's.
[[nodiscard]] inline bool keep_shared_whole(hetsched::training_layout& layout, bool tied) {
  bool some = false;
  for (auto& line : layout.pipelines)
    for (std::size_t g = 0; g < line.groups.size(); ++g) {
      const auto is_at = [&](int stage) { return static_cast<std::size_t>(line.order.rank(0, stage)) == g; };
      if (line.groups[g].zero < 3) continue;
      const bool gathers = layout.pipelines.size() == 1 && line.order.directions == 1;
      if (!gathers) line.groups[g].zero = 2;
      some = some || !gathers || (tied && (is_at(0) || is_at(line.order.stages - 1)));
    }
  return some;
}

/// One rank of the training. The result of rank 0 is whole, that of others is as far as they know it. Losses that are there
/// already are those of steps that it has seen before. Rank: host_rank, or one like it.
template <class Rank, class Communicator>
void train_rank(const job& j, Communicator& comm, const Rank& here, job::result& result) {
  using namespace hetsched;
  using tensor = typename Rank::tensor;
  using host_tensor = gpt::tensor<typename Rank::real>;
  const auto& given = j.given;
  const bool speaks = comm.rank() == 0;
  const double deadline_s = given.place.deadline_s;
  agree_on(comm, shared_options(given), deadline_s);
  std::vector<char> on_gpu;
  std::vector<double> host;
  int can_halve = 0;
  for (const auto& told :
       gather(comm, {here.on_gpu() ? 1.0 : 0.0, given.cuda_ipc ? host_number() : 0.0, Rank::can_halve_boundaries ? 1.0 : 0.0},
              deadline_s, "comparing devices")) {
    on_gpu.push_back(told[0] != 0);
    host.push_back(told[1]);
    can_halve += told[2] != 0 ? 1 : 0;
  }
  const auto some = std::count(on_gpu.begin(), on_gpu.end(), char{1});
  const bool all_on_gpus = some == std::ssize(on_gpu);
  if (!j.plan && some > 0 && !all_on_gpus)
    throw known_to_all("--device: ranks on GPUs and on the host are no equal ranks to plan for: give a --plan");
  const bool wants_halves = wants_half_boundaries(j), is_odd = j.config.hidden % 2 != 0;
  const bool half_boundaries = wants_halves && can_halve == comm.ranks() && !is_odd;
  if (speaks && wants_halves && !given.boundaries && can_halve > 0)
    say(half_boundaries ? "what lies between layers is of bf16 numbers, as the plan says: --boundaries fp32 keeps all bits"
                        : std::string("what lies between layers is of fp32 numbers, not of bf16 as the plan says: ") +
                              (is_odd ? "--hidden is odd" : "processes with --device cpu know no other"));
  const auto plan = j.plan ? *j.plan : make_plan(j, comm, here, half_boundaries);
  auto layout = make_training_layout(plan.plan, {.schedule = given.schedule, .chunks = given.chunks});
  if (keep_shared_whole(layout, !gpt::ties(j.config).empty()) && speaks)
    say("in stages of ZeRO stage 3 weights that others hold, too (other pipelines or directions, a tied embedding), stay whole, "
        "and take more memory than planned");
  // Between processes what is on a GPU goes by way of the hosts, or over NCCL, or, within a host, by CUDA IPC.
  const bool direct = some == 0 || given.place.transport == "threads" || (given.nccl && all_on_gpus);
  const auto as_run = [&](const schedule& order, const pipeline_layout& line) {
    if (direct) return order;
    return by_way_of_hosts(order, [&](int from, int to) {
      const auto first = static_cast<std::size_t>(line.first_of_group(from)),
                 second = static_cast<std::size_t>(line.first_of_group(to));
      const bool a = on_gpu[first] != 0, b = on_gpu[second] != 0;
      return (a || b) && !(a && b && (given.nccl || (given.cuda_ipc && host[first] == host[second])));
    });
  };
  here.require_supported(j.config, layout, direct);
  std::vector<schedule> orders;  // as planned
  for (auto& line : layout.pipelines) {
    orders.push_back(line.order);
    line.order = as_run(orders.back(), line);
  }
  const auto notes = notes_of(j, plan.plan);
  agree_on(comm, notes, deadline_s);

  const auto there = layout.place_of(comm.rank());
  const auto& own_line = layout.pipelines[static_cast<std::size_t>(there.pipeline)];
  const auto recompute = own_line.group(there.group).recompute;
  using trainer_type = pipeline_trainer<tensor, typename Rank::layer, Communicator, typename Rank::optimizer,
                                        typename Rank::backend, typename Rank::stager>;
  const auto backend = here.make_backend();
  const auto bound = backend.bind();
  std::optional<trainer_type> made;
  const auto make_one = [&](int layer, const typename trainer_type::group_type& group) {
    return here.make_layer(j.config, layer, group, recompute, half_boundaries);
  };
  const auto shape_after = [&](int layer, int samples) {
    auto shape = gpt::shape_after(j.config, layer, samples);
    if (half_boundaries && layer + 1 < gpt::layer_count(j.config)) shape.back() /= 2;  // counted in floats
    return shape;
  };
  try {
    made.emplace(layout, make_one, shape_after, comm, typename Rank::optimizer{make_optimizer(given)},
                 trainer_options{.deadline_s = deadline_s,
                                 .clip_norm = given.clip,
                                 .ties = gpt::ties(j.config),
                                 .on_nonfinite = nonfinite::fail,
                                 .sums_in_order = given.sums_in_order,
                                 .loss_in_parts = true,
                                 .boundary_layout =
                                     [&](const tensor_shape& whole, const degrees& d) {
                                       const std::int64_t sequence = j.config.sequence;
                                       return boundary_layout(d, static_cast<std::int64_t>(whole[0]) / sequence, sequence,
                                                              static_cast<std::int64_t>(whole[1]));
                                     }},
                 backend, here.make_stager());
  } catch (const input_error& e) {
    throw known_to_all(e.what());
  }
  auto& trainer = *made;

  result.resumed.reset();
  if constexpr (byte_plane<Communicator>)
    if (j.snapshots) result.resumed = resume_from_memory(*j.snapshots, trainer, comm, given.checkpoint.folder, deadline_s, say);
  if (given.checkpoint.resume && !result.resumed && !given.checkpoint.folder.empty())
    result.resumed = resume(trainer, comm, given.checkpoint, notes, deadline_s, say);
  result.lets_others_in = false;
  result.failure.clear();
  result.failed_rank = -1;
  result.measured.clear();
  result.times.clear();
  const auto seen = trainer.committed_step() - result.first_step;
  if (result.losses.empty() || seen < 0 || seen > static_cast<std::int64_t>(result.losses.size())) {
    result.losses.clear();
    result.first_step = trainer.committed_step();
    result.earlier_losses = given.checkpoint.resume ? losses_before(given.losses, result.first_step) : "";
  } else {
    result.losses.resize(static_cast<std::size_t>(seen));  // the steps behind are done again
  }
  // All ranks read the rows, as each may be the first one later; nobody writes any before.
  if (given.checkpoint.resume) (void)gather(comm, {0.0}, deadline_s, "reading earlier losses");

  int first_sample = 0, samples = 0;
  for (const auto& line : layout.pipelines) samples += line.order.microbatches * line.microbatch_size;
  for (std::size_t p = 0; p < static_cast<std::size_t>(there.pipeline); ++p)
    first_sample += layout.pipelines[p].order.microbatches * layout.pipelines[p].microbatch_size;
  const int microbatches = own_line.order.microbatches, size = own_line.microbatch_size;
  const stage_place place{.data = there.data, .context = there.context, .tensor = there.tensor};
  const auto own_rows = [&](const host_tensor& all) {
    return here.put(gpt::rows_of(all, j.config.sequence, trainer.group(), place, trainer.samples()));
  };
  const auto rows = static_cast<std::size_t>(size) * static_cast<std::size_t>(j.config.sequence);
  const auto loss = here.loss(rows);

  struct batch {
    std::vector<tensor> inputs, targets;
  };
  const auto draw = [&](const std::string& text, std::int64_t number, int batch_of_step = 0) {
    batch drawn;
    for (int m = 0; m < microbatches; ++m) {
      auto part = gpt::draw<typename Rank::real>(text, j.config.sequence,
                                                 {.seed = given.model.seed,
                                                  .step = number,
                                                  .first_sample = batch_of_step * samples + first_sample + m * size,
                                                  .samples = size});
      drawn.inputs.push_back(own_rows(part.inputs));
      drawn.targets.push_back(own_rows(part.targets));
    }
    return drawn;
  };
  if (given.dry_run) {
    const auto first = draw(j.corpus, trainer.committed_step());
    for (int pass = 0; pass < 2; ++pass)  // the first makes buffers, and finds out how to multiply
      trainer.accumulate(std::span<const tensor>(first.inputs), std::span<const tensor>(first.targets), loss);
    const auto mine = to_numbers(
        {.times = times_of_rank(trainer.measured(), there.group), .held_bytes = static_cast<double>(trainer.held().total())});
    for (const auto& told : gather(comm, mine, deadline_s, "behind the dry run")) result.dry_run.push_back(rank_line_of(told));
    result.plan = plan;
    result.layout = trainer.layout();
    return;
  }

  const auto rate = rate_of(given);
  command::progress_line progress;
  losses_so_far losses(speaks ? given.losses : "", result.earlier_losses);
  for (std::size_t i = 0; i < result.losses.size(); ++i)
    losses.add(result.first_step + static_cast<std::int64_t>(i), result.losses[i]);
  step_log log(speaks ? given.log : "", speaks ? given.metrics : "");
  status_page status(speaks ? given.status : "",
                     "A GPT of " + describe(j.config) + " on " + std::to_string(comm.ranks()) +
                         (comm.ranks() > 1 ? " ranks, " : " rank, ") + batch_text(plan.plan, given.accumulate) + " microbatches.",
                     plan, given.steps, result.losses, result.first_step);
  using clock = std::chrono::steady_clock;
  const auto seconds_since = [](clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); };
  const auto start = clock::now();
  auto step_start = start;
  // The same samples each time, so that losses compare.
  const auto validate = [&] {
    double sum = 0;
    for (int b = 0; b < given.validation_batches; ++b) {
      const auto drawn = draw(j.validation, b);
      sum += trainer.evaluate(std::span<const tensor>(drawn.inputs), std::span<const tensor>(drawn.targets), loss);
    }
    return sum / given.validation_batches;
  };
  const double tokens = static_cast<double>(sample_count(plan.plan)) * given.accumulate * j.config.sequence;
  const bool wants_timelines = !given.trace.empty() || !given.report.empty() || !given.times.empty();
  auto ran = given.schedule;  // empty: as planned
  const bool wants_replans = given.replan_every > 0;
  if (wants_replans && !may_reschedule(layout))
    throw known_to_all("--replan-every needs schedules of one direction with a stage per rank");
  auto now_planned = plan.plan;  // with its layers where they are
  std::optional<layer_watch> watch;
  std::vector<layer_bytes> bytes_by_pipeline;
  if (given.replan_layers) {
    if (!byte_plane<Communicator> || some > 0) throw known_to_all("--replan-layers needs ranks on the host");
    std::vector<double> expected_s;
    work_together(comm, deadline_s, "timing layers",
                  [&](const auto& alive) { expected_s = here.time_layers(j, size, half_boundaries, alive); });
    watch.emplace(comm, expected_s, deadline_s);
    for (const auto& line : plan.plan.pipelines) bytes_by_pipeline.push_back(bytes_of_layers(line, trainer.parameters()));
  }
  std::deque<timeline> recent;  // the last steps, as measured
  double told_s = 0;            // of the iteration, when the order was solved last
  std::uint64_t sent_before = 0;
  // Since the last call; -1: the communicator does not count.
  const auto sent_bytes = [&] {
    if constexpr (requires { comm.bytes_sent(); }) {
      const std::optional<std::uint64_t> now = comm.bytes_sent();
      return now ? static_cast<double>(*now - std::exchange(sent_before, *now)) : -1.0;
    } else {
      return -1.0;
    }
  };
  checkpoints saves(comm, given.checkpoint, notes, deadline_s);
  command::listen_to_signals();
  // What this rank does alone stands between steps, where it can tell the others that it failed.
  std::string wrong;
  const auto alone = [&](auto&& work) {
    try {
      work();
    } catch (const std::exception& e) {
      if (wrong.empty()) wrong = e.what();
    }
  };
  std::vector<batch> coming;  // of the next step
  const auto draw_next = [&] {
    coming.clear();
    for (int b = 0; b < given.accumulate; ++b) coming.push_back(draw(j.corpus, trainer.committed_step(), b));
  };
  const auto began_at = trainer.committed_step();
  if (began_at < given.steps) draw_next();
  while (trainer.committed_step() < given.steps && result.stopped_by == 0 && result.failure.empty() && !result.lets_others_in) {
    const auto step = trainer.committed_step();
    trainer.optimizer_settings().set_learning_rate(rate.at(step));
    step_report done;
    try {
      for (const auto& b : std::span(coming).first(coming.size() - 1))
        trainer.accumulate(std::span<const tensor>(b.inputs), std::span<const tensor>(b.targets), loss);
      done = trainer.step(std::span<const tensor>(coming.back().inputs), std::span<const tensor>(coming.back().targets), loss);
    } catch (const agreed_error& e) {
      result.failure = e.what();
      if (!given.checkpoint.folder.empty() && step != began_at) saves.begin(trainer);
      break;
    }
    if (wants_timelines || wants_replans) recent.push_back(trainer.measured());
    if (watch) watch->add(trainer.layer_times());
    if (recent.size() > static_cast<std::size_t>(std::max(given.trace_steps, given.replan_every))) recent.pop_front();
    result.losses.push_back(done.loss);
    losses.add(step, done.loss);
    step_line line{.report = done, .learning_rate = rate.at(step)};
    // All ranks stop after the same step.
    auto mine = to_numbers({.times = times_of_rank(trainer.measured(), there.group),
                            .held_bytes = static_cast<double>(trainer.held().total()),
                            .sent_bytes = sent_bytes()});
    bool is_written = false, somebody_waits = false, writer_failed = true;
    alone([&] {
      is_written = saves.is_written();
      writer_failed = false;
    });
    alone([&] { somebody_waits = speaks && j.somebody_waits && j.somebody_waits(); });
    if (trainer.committed_step() < given.steps) alone(draw_next);
    mine.insert(mine.begin(), {static_cast<double>(command::interruption), is_written ? 1.0 : 0.0, somebody_waits ? 1.0 : 0.0,
                               wrong.empty() ? 0.0 : 1.0, writer_failed ? 1.0 : 0.0,
                               status.due() || (status.wanted() && trainer.committed_step() == given.steps) ? 1.0 : 0.0});
    bool written = true, somebody_failed = false, part_failed = false, shows = false;
    for (const auto& told : gather(comm, mine, deadline_s, "between steps")) {
      if (told[0] != 0) result.stopped_by = static_cast<int>(told[0]);
      written = written && told[1] != 0;
      if (told[2] != 0) result.lets_others_in = true;
      somebody_failed = somebody_failed || told[3] != 0;
      part_failed = part_failed || told[4] != 0;
      shows = shows || told[5] != 0;
      if (log.wanted() || status.wanted()) line.ranks.push_back(rank_line_of(std::span(told).subspan(6)));
    }
    const std::vector<timeline> latest(shows ? 1 : 0, trainer.measured());  // layers may move below
    if (part_failed) saves.forget();
    if (somebody_failed)
      if (const auto failed = first_failure(comm, wrong, deadline_s)) {
        result.failed_rank = failed->rank;
        result.failure = "rank " + std::to_string(failed->rank) + " failed between steps: " + failed->why;
      }
    if (written) saves.all_written();
    const auto now = trainer.committed_step();
    const bool fails = !result.failure.empty(), last = now == given.steps || result.stopped_by != 0 || fails;
    result.lets_others_in = result.lets_others_in && !last;
    if (!j.validation.empty() && !fails && (last || (given.validate_every > 0 && now % given.validate_every == 0))) {
      line.validation_loss = validate();
      result.validations.emplace_back(now, *line.validation_loss);
    }
    if (!given.checkpoint.folder.empty() &&
        (last || result.lets_others_in || (given.checkpoint.every > 0 && now % given.checkpoint.every == 0)))
      saves.begin(trainer);
    if constexpr (byte_plane<Communicator>)
      if (j.snapshots && !last && (result.lets_others_in || now % given.snapshot_every == 0)) try {
          j.snapshots->keep(comm, now, trainer.state(true), deadline_s, notes);
        } catch (const agreed_error& e) {
          if (speaks) say(std::string(e.what()) + "; the training goes on, with the snapshot before if there is one");
        }
    if (wants_replans && !last && !result.lets_others_in && now % given.replan_every == 0) {
      const std::vector<timeline> steps(recent.end() - std::min<std::ptrdiff_t>(given.replan_every, std::ssize(recent)),
                                        recent.end());
      std::vector<double> taken;
      for (const auto& of_pipeline : gather_timelines(comm, layout, steps, given.place.transport == "threads", deadline_s)) {
        const auto measured = measured_stages(of_pipeline, static_cast<std::size_t>(of_pipeline.front().ranks));
        taken.insert(taken.end(), measured.begin(), measured.end());
      }
      // Clocks are compared by the first rank: all take its numbers.
      const auto numbers = gather(comm, taken, deadline_s, "measured times").front();
      new_cuts cuts;
      if (watch) cuts = cut_again(now_planned, layout, orders, bytes_by_pipeline, watch->tell(comm), numbers, given.replan_gain);
      auto next = watch ? std::move(cuts.orders) : solve_again(now_planned, orders, numbers);
      if (cuts.moved || next.then_s < (1 - given.replan_gain) * next.now_s) {
        if (speaks)
          say("step " + std::to_string(now) + ": " + (cuts.moved ? "layers move" : "works in another order") + ", for " +
              format_seconds(next.then_s) + " per iteration instead of " + format_seconds(next.now_s) + ", as " +
              (watch ? "layers" : "stages") + " and links are measured" + (cuts.moved ? ": " + cuts_text(cuts.lines) : ""));
        std::vector<schedule> run;
        for (std::size_t p = 0; p < next.orders.size(); ++p) run.push_back(as_run(next.orders[p], layout.pipelines[p]));
        if constexpr (byte_plane<Communicator>)
          if (cuts.moved) {
            for (std::size_t p = 0; p < run.size(); ++p) {
              layout.pipelines[p].order = run[p];
              for (std::size_t s = 0; s < cuts.lines[p].stages.size(); ++s)
                layout.pipelines[p].stages[s].layers = cuts.lines[p].stages[s].layers;
            }
            trainer.move_layers(layout, make_one, shape_after);
            now_planned.pipelines = std::move(cuts.lines);
            now_planned.gradient_sync.clear();  // of layers that are elsewhere now
            now_planned.predicted = {.iteration_s = next.then_s};
            now_planned.evidence.reset();
          }
        if (!cuts.moved) trainer.reschedule(run);
        orders = std::move(next.orders);
        ran = "auto";
        recent.clear();
        told_s = next.then_s;
      } else if (std::abs(next.now_s - told_s) > 0.1 * told_s) {
        if (speaks)
          say("step " + std::to_string(now) + ": as stages and links are measured, an iteration takes " +
              format_seconds(next.now_s) + ", and no other " + (watch ? "cuts or order" : "order") + " less than " +
              format_seconds(next.then_s));
        told_s = next.now_s;
      }
    }
    line.seconds = seconds_since(step_start);
    line.tokens_per_s = line.seconds > 0 ? tokens / line.seconds : 0;
    step_start = clock::now();
    alone([&] { log.add(line); });
    alone([&] { status.add(line); });
    if (shows) {
      std::vector<timeline> seen_by_all;
      for (auto& of_pipeline : gather_timelines(comm, layout, latest, given.place.transport == "threads", deadline_s))
        if (!of_pipeline.empty()) seen_by_all.push_back(std::move(of_pipeline.front()));
      alone([&] { status.show(std::move(seen_by_all), step); });
    }
    if (speaks)
      progress.show(static_cast<double>(now) / given.steps,
                    "step " + std::to_string(now) + " of " + std::to_string(given.steps) + ", loss " + format_number(done.loss));
  }
  saves.end();
  result.seconds += seconds_since(start);
  status.end(result.lets_others_in     ? "lets other ranks in"
             : !result.failure.empty() ? "stopped, as " + result.failure
             : result.stopped_by != 0  ? "stopped by signal " + std::to_string(result.stopped_by)
                                       : std::string("done"),
             result.lets_others_in);
  if (result.lets_others_in) return;
  if (wants_timelines) {
    const std::vector<timeline> steps(recent.end() - std::min<std::ptrdiff_t>(given.trace_steps, std::ssize(recent)),
                                      recent.end());
    for (const auto& line : gather_timelines(comm, layout, steps, given.place.transport == "threads", deadline_s)) {
      if (line.empty()) continue;
      result.measured.push_back(median_timeline(line));
      result.times.push_back(action_spreads(line));
    }
  }
  result.plan = plan;
  result.plan.plan = std::move(now_planned);
  if (!ran.empty())
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p) set_order(result.plan.plan.pipelines[p], ran, orders[p]);
  result.layout = trainer.layout();
}

}  // namespace train
