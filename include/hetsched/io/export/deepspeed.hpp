// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// ds_config.json, stages.json, ranks.json, run.py, which cuts a list of layers as the plan does, and files to start it.
/// DeepSpeed's partition_method takes no list of cuts: run.py has a PipelineModule whose _partition_layers does.
/// Stages that recompute anything recompute fully, and ZeRO is at most 1, which is what its pipelines take.
/// Requires: a plan that it can run, as gaps() has it.
/// Source: DeepSpeed 0.19, runtime/pipe/module.py, runtime/pipe/engine.py, runtime/engine.py (_do_optimizer_sanity_check).
[[nodiscard]] plan_export export_deepspeed(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/deepspeed.ipp>
#endif
