// SPDX-License-Identifier: Apache-2.0
// When a training writes checkpoints, and how it goes on from one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/checkpoint/checkpoint_lock.hpp>
#include <hetsched/io/checkpoint/checkpoint_writer.hpp>
#include <hetsched/io/checkpoint/snapshot_ring.hpp>

#include <train/place.hpp>

namespace train {

struct checkpoint_arguments {
  std::string folder;
  int every = 0;  ///< steps; 0: at the end only
  int keep = 3;
  bool resume = false;
  bool or_start = false;  ///< where there is nothing to go on from
  bool behind = false;    ///< they are written while the training goes on
};

/// What a training is, in its checkpoints. With another model, precision or optimizer it cannot go on; with other settings it
/// can, but the losses will be others.
using training_notes = std::map<std::string, std::string>;

/// Throws input_error if a checkpoint cannot be gone on from; returns what is different otherwise, a line each.
[[nodiscard]] inline std::vector<std::string> compare_notes(const hetsched::checkpoint& c, const training_notes& now) {
  std::vector<std::string> different;
  for (const auto& [key, value] : now) {
    const auto then = c.info.find(key);
    const std::string before = then == c.info.end() ? "nothing" : then->second;
    if (before == value) continue;
    if (key == "model" || key == "precision" || key == "optimizer")
      throw hetsched::input_error(c.path + ": its " + key + " is \"" + before + "\", not \"" + value + "\"");
    different.push_back("resumes with " + key + " " + value + ", which was " + before);
  }
  return different;
}

/// The newest whole checkpoint of a folder, the same on all ranks. say(text): rank 0's remarks. Throws as compare_notes, on rank
/// 0.
[[nodiscard]] inline std::optional<hetsched::checkpoint> find_newest(control comm, const std::string& folder,
                                                                     const training_notes& notes, double deadline_s,
                                                                     const std::function<void(const std::string&)>& say) {
  // One rank looks for it, as that means to read all of it.
  std::vector<double> mine;
  work_together(comm, deadline_s, "looking for a checkpoint", [&](const auto& alive) {
    if (comm.rank() != 0) return;
    const auto found = hetsched::find_checkpoint(folder, alive);
    for (const auto& text : found.damaged) say("skips a damaged checkpoint: " + text);
    if (!found.newest) return;
    for (const auto& text : compare_notes(*found.newest, notes)) say(text);
    const bool replaced = found.newest->path.ends_with(hetsched::detail::replaced_suffix);
    mine = {static_cast<double>(found.newest->step), replaced ? 1.0 : 0.0};
  });
  const auto told = gather(comm, mine, deadline_s, "looking for a checkpoint").front();
  if (told.empty()) return std::nullopt;
  return hetsched::open_checkpoint(hetsched::detail::step_path(folder, static_cast<std::int64_t>(told[0])) +
                                   std::string(told[1] != 0 ? hetsched::detail::replaced_suffix : ""));
}

/// Fills every rank's slices with what a checkpoint holds of them; returns when all have read it. `whole`: the slices are all
/// that it may hold; else it may hold more, as the state of the optimizer is no matter of who asks for parameters. Throws:
/// file_error if it lacks a tensor, or has one too many.
inline void load_on_all(control comm, const hetsched::checkpoint& from, std::span<hetsched::state_slice> slices,
                        double deadline_s, bool whole = true) {
  work_together(comm, deadline_s, "reading a checkpoint", [&](const auto& alive) {
    const auto unmatched = hetsched::load_checkpoint(from, slices, {.strict = whole, .alive = alive});
    if (!unmatched.missing.empty()) throw hetsched::file_error(from.path, {}, "lacks " + unmatched.missing.front());
  });
}

/// Loads the newest whole checkpoint into a trainer that has not begun, on all ranks; returns its step. None: there is none, and
/// the training may start. say(text): rank 0's remarks. Throws: known_to_all if there is none, and it may not.
template <class Trainer, class Say>
[[nodiscard]] std::optional<std::int64_t> resume(Trainer& trainer, control comm, const checkpoint_arguments& given,
                                                 const training_notes& notes, double deadline_s, Say&& say) {
  const auto found = find_newest(comm, given.folder, notes, deadline_s, say);
  if (!found && !given.or_start)
    throw known_to_all("--resume: there is no whole checkpoint in " + given.folder +
                       " to go on from; --resume-or-start begins at step 0 then");
  if (!found) {
    if (comm.rank() == 0) say("there is no checkpoint in " + given.folder + ": begins at step 0");
    return std::nullopt;
  }
  auto state = trainer.state();
  // Nobody begins, and maybe replaces it, before all have read it.
  load_on_all(comm, *found, state, deadline_s);
  trainer.state_loaded();
  trainer.set_committed_step(found->step);
  return found->step;
}

/// Loads the last snapshot in memory, if there is one and no checkpoint is newer; returns its step. All ranks call it.
template <class Trainer, class Communicator, class Say>
[[nodiscard]] std::optional<std::int64_t> resume_from_memory(hetsched::snapshot_ring& snapshots, Trainer& trainer,
                                                             Communicator& comm, const std::string& folder, double deadline_s,
                                                             Say&& say) {
  const auto found = snapshots.find(comm, deadline_s);
  std::vector<double> newest;  // on the disk, as rank 0 sees it
  if (comm.rank() == 0 && !folder.empty())
    for (const auto& s : hetsched::detail::list_steps(folder))
      if (s.suffix.empty()) newest.push_back(static_cast<double>(s.step));
  newest = gather(comm, newest, deadline_s, "looking for a snapshot").front();
  if (!found || (!newest.empty() && newest.front() > static_cast<double>(found->step))) return std::nullopt;
  auto state = trainer.state();
  load_on_all(comm, *found, state, deadline_s);
  trainer.state_loaded();
  trainer.set_committed_step(found->step);
  if (comm.rank() == 0) say("goes on from the snapshot in memory of step " + std::to_string(found->step));
  return found->step;
}

/// The checkpoints that a training writes. All ranks call its members between steps.
class checkpoints {
 public:
  checkpoints(control comm, const checkpoint_arguments& given, training_notes notes, double deadline_s)
      : comm_(comm), given_(given), notes_(std::move(notes)), deadline_s_(deadline_s), writer_(given.folder) {}

  /// Begins one, and ends it unless it is to be written while the training goes on. None where that step's has been begun.
  template <class Trainer>
  void begin(Trainer& trainer) {
    const auto step = trainer.committed_step();
    if (std::exchange(begun_, step) == step) return;
    commit();
    if (given_.behind)
      writer_.begin(step, comm_.rank(), trainer.state(true));
    else
      hetsched::write_checkpoint_part(given_.folder, step, comm_.rank(), trainer.state(true));
    written_ = step;
    if (!given_.behind) end();
  }
  /// Whether this rank has written its part, which it tells the others between steps. Throws what writing has thrown.
  [[nodiscard]] bool is_written() { return writer_.is_done(); }
  /// Goes on where all ranks have told that they have.
  void all_written() {
    if (!written_) return;
    if (comm_.rank() == 0) writer_.begin_commit(*written_, comm_.ranks(), notes_, given_.keep);
    written_.reset();
  }
  /// Gives up the one whose parts are under way, as a rank could not write its own.
  void forget() {
    written_.reset();
    begun_.reset();
  }
  /// Returns when the last one is whole.
  void end() {
    if (given_.folder.empty()) return;
    commit();
    wait("committing a checkpoint");
  }

 private:
  void commit() {
    if (!written_) return;
    wait("writing a checkpoint");
    all_written();
  }
  void wait(const std::string& what) {
    work_together(comm_, deadline_s_, what, [&](const auto& alive) {
      constexpr auto look = std::chrono::microseconds(200);
      for (; !writer_.is_done(); std::this_thread::sleep_for(look)) alive();
    });
  }

  control comm_;
  checkpoint_arguments given_;
  training_notes notes_;
  double deadline_s_;
  hetsched::checkpoint_writer writer_;
  std::optional<std::int64_t> written_;  ///< the step of parts that wait for others
  std::optional<std::int64_t> begun_;    ///< the step of the last one
};

}  // namespace train
