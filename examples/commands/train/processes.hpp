// SPDX-License-Identifier: Apache-2.0
// Trainings on processes, whatever their ranks compute on.
#pragma once

#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <hetsched/core/error.hpp>
#include <hetsched/io/checkpoint/checkpoint_lock.hpp>
#include <hetsched/runtime/layout/plan_layout.hpp>

#include <train/gloo.hpp>
#include <train/training.hpp>

namespace train {

/// As long as there are ranks: those that are left go on from the last checkpoint, on a plan for as many as they are.
template <class Tensor, class Train>
void train_elastically(job& j, Train&& train) {
  using clock = std::chrono::steady_clock;
  const auto planned = j.plan;
  const auto given = j.given;
  const int planned_for =
      planned ? hetsched::make_training_layout(planned->plan, {.schedule = given.schedule, .chunks = given.chunks}).ranks() : 0;
  std::optional<hetsched::snapshot_ring> snapshots;
  if (given.snapshot_every > 0) j.snapshots = &snapshots.emplace("/dev/shm/hetsched-train-" + std::to_string(getpid()));
  const bool has_folder = !given.checkpoint.folder.empty();
  const auto body = [&](auto& comm, const hetsched::elastic_place& here) {
    tell_strangers(comm.rank(), comm.strangers());
    agree_on_way(comm, gpu_way::hosts, given.place.deadline_s);
    j.place = here.place;
    j.given = given;
    j.plan = planned;
    if (planned && here.place.ranks != planned_for) forget_plan(j);
    if (here.generation > 0) j.given.checkpoint.resume = j.given.checkpoint.or_start = true;
    std::optional<hetsched::checkpoint_lock> lock;  // let go between generations: the first rank may be another one then
    if (has_folder && here.place.rank == 0) lock.emplace(given.checkpoint.folder, here.run);
    j.somebody_waits = [&, next = clock::now()]() mutable {
      if (clock::now() < next) return false;
      next = clock::now() + std::chrono::milliseconds(200);
      return here.somebody_waits();
    };
    train(comm, here.place);
    // Whoever failed leaves, and the others go on.
    if (j.told.failed_rank == here.place.rank) throw hetsched::leaves_run(j.told.failure);
    if (j.told.failed_rank >= 0)
      throw hetsched::communication_error(j.told.failure, {}, hetsched::no_microbatch, {.microbatch = hetsched::no_microbatch});
    return !j.told.lets_others_in;
  };
  hetsched::run_elastically<Tensor>(
      j.place, options_of(given.place),
      {.joins = given.join, .settle_s = given.settle_s, .say = [](const std::string& text) { say(text); }}, body);
}

/// Trains on this process's rank, or on one after the other. train: (communicator, const process_place&), for `told`.
template <class Tensor, class Train>
void train_on_processes(job& j, Train&& train) {
  if (j.given.elastic) return train_elastically<Tensor>(j, train);
  on_gloo<Tensor>(j.given.place, j.place, [&](auto& comm) {
    agree_on_way(comm, gpu_way::hosts, j.given.place.deadline_s);
    train(comm, j.place);
  });
}

}  // namespace train
