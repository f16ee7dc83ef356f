// SPDX-License-Identifier: Apache-2.0
// A plan for the ranks at hand, where none is given.
#pragma once

#include <vector>

#include <hetsched/core/outcome.hpp>
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

}  // namespace train
