// SPDX-License-Identifier: Apache-2.0
// When a training writes checkpoints, and how it goes on from one.
#pragma once

#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/checkpoint/checkpoint_lock.hpp>

#include <train/place.hpp>

namespace train {

struct checkpoint_arguments {
  std::string folder;
  int every = 0;  ///< steps; 0: at the end only
  int keep = 3;
  bool resume = false;
  bool or_start = false;  ///< where there is nothing to go on from
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

/// Loads the newest whole checkpoint into a trainer that has not begun, on all ranks; returns its step. None: there is none, and
/// the training may start. say(text): rank 0's remarks. Throws: known_to_all if there is none, and it may not.
template <class Trainer, class Communicator, class Say>
[[nodiscard]] std::optional<std::int64_t> resume(Trainer& trainer, Communicator& comm, const checkpoint_arguments& given,
                                                 const training_notes& notes, double deadline_s, Say&& say) {
  // One rank looks for it, as that means to read all of it.
  std::vector<double> mine;
  work_together(comm, deadline_s, "looking for a checkpoint", [&](const auto& alive) {
    if (comm.rank() != 0) return;
    const auto found = hetsched::find_checkpoint(given.folder, alive);
    for (const auto& text : found.damaged) say("skips a damaged checkpoint: " + text);
    if (found.newest) {
      for (const auto& text : compare_notes(*found.newest, notes)) say(text);
      const bool replaced = found.newest->path.ends_with(hetsched::detail::replaced_suffix);
      mine = {static_cast<double>(found.newest->step), replaced ? 1.0 : 0.0};
    } else if (given.or_start) {
      say("there is no checkpoint in " + given.folder + ": begins at step 0");
    }
  });
  const auto told = gather(comm, mine, deadline_s, "looking for a checkpoint").front();
  if (told.empty() && !given.or_start)
    throw known_to_all("--resume: there is no whole checkpoint in " + given.folder +
                       " to go on from; --resume-or-start begins at step 0 then");
  if (told.empty()) return std::nullopt;
  const auto step = static_cast<std::int64_t>(told[0]);
  const auto found = hetsched::open_checkpoint(hetsched::detail::step_path(given.folder, step) +
                                               std::string(told[1] != 0 ? hetsched::detail::replaced_suffix : ""));
  auto state = trainer.state();
  // Nobody begins, and maybe replaces it, before all have read it.
  work_together(comm, deadline_s, "reading a checkpoint",
                [&](const auto& alive) { hetsched::load_checkpoint(found, state, alive); });
  trainer.set_committed_step(step);
  return step;
}

/// Writes a checkpoint; all ranks call it between steps.
template <class Trainer, class Communicator>
void save(Trainer& trainer, Communicator& comm, const checkpoint_arguments& given, const training_notes& notes,
          double deadline_s) {
  const auto step = trainer.committed_step();
  hetsched::write_checkpoint_part(given.folder, step, comm.rank(), trainer.state(true));
  (void)gather(comm, {}, deadline_s, "writing a checkpoint");
  if (comm.rank() == 0) {
    hetsched::commit_checkpoint(given.folder, step, comm.ranks(), notes);
    hetsched::prune_checkpoints(given.folder, given.keep, step);
  }
  (void)gather(comm, {}, deadline_s, "committing a checkpoint");
}

}  // namespace train
