// SPDX-License-Identifier: Apache-2.0
// A plan for the ranks at hand, where none is given, and the ranks of one that is.
#pragma once

#include <vector>

#include <hetsched/core/outcome.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/io/json/plan_json.hpp>

#include <gpt/config.hpp>

namespace train {

struct equal_ranks {
  int ranks = 1;
  int microbatches = 1;
  int microbatch_size = 1;
};

/// The best plan that keeps all of some equal ranks busy; forward_s, backward_s: of every layer. Memory is taken as plenty.
/// Deterministic.
[[nodiscard]] hetsched::outcome<hetsched::plan_file> plan_for(const gpt::config& m, const equal_ranks& there,
                                                              std::vector<double> forward_s, std::vector<double> backward_s,
                                                              int element_bytes);

/// Makes a plan for layers cut finer than blocks (hetsched-plan's granularity sublayer: three a block) one for the GPT's layers:
/// every cut goes to the nearest between blocks that leaves all stages a layer. Returns whether any was elsewhere. Throws
/// input_error if there are more stages than layers.
bool cut_between_blocks(const gpt::config& m, hetsched::plan& p);

/// Who works for a plan: device n is the launcher's rank n, if there are as many as the subclusters have devices, or not as many
/// as the plan has ranks; else ranks take the stages in turn.
struct planned_ranks {
  int count = 0;
  std::vector<int> launched = {};  ///< of each; empty: in turn
  bool there = false;              ///< whether they are, each once
};

/// The ranks of a plan that has `count` of them. processes: whether a launcher has started them, else threads take the stages in
/// turn.
[[nodiscard]] planned_ranks find_ranks(const hetsched::plan_file& file, int count, bool processes,
                                       const hetsched::process_place& place);

/// Numbers this process among those that have work. Returns whether it has. Requires: ranks.there.
[[nodiscard]] bool enter(hetsched::process_place& place, const planned_ranks& ranks);

}  // namespace train
