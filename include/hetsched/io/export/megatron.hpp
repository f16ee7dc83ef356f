// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// The layout of virtual stages in the language of Megatron-LM's --pipeline-model-parallel-layout: E, t for each block, m for
/// each module that predicts a token further on, which stays with the head, L, with | between stages; three and more equal stages
/// in a row as (...|)*n. Requires: as blocks_of_stages. Source: Megatron-LM, core/transformer/pipeline_parallel_layer_layout.py.
[[nodiscard]] std::string megatron_layout(const placed_plan& placed);

/// The flags of Megatron-LM that pretrain_gpt.py needs beside those of model and data, without the layout. Recomputation and
/// ZeRO are settings of all stages: see common_recomputation and common_zero, which add to `remarks`.
/// Requires: a plan that it can run, as gaps() has it.
/// Source: Megatron-LM, training/arguments.py and core/pipeline_parallel/schedules.py, core 0.14 to 0.19.
[[nodiscard]] std::vector<std::string> megatron_flags(const placed_plan& placed, std::vector<std::string>& remarks);

/// pipeline_layout.txt, ranks.json, and files to start it: for Megatron-LM from core 0.14 on.
/// Requires: a plan that it can run.
[[nodiscard]] plan_export export_megatron(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/megatron.ipp>
#endif
