// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// torchtitan.toml, for torchtitan 0.2, whose configurations are TOML; torchtitan_plan.py, which reads it for version 0.3,
/// whose configurations are Python; schedule.csv, ranks.json, and files to start it.
/// Requires: a plan that it can run, as gaps() has it.
/// Source: torchtitan 0.2.2, config/job_config.py, distributed/pipeline_parallel.py, distributed/parallel_dims.py; 0.3.0,
/// config/manager.py, config/configs.py, trainer.py.
[[nodiscard]] plan_export export_torchtitan(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/torchtitan.ipp>
#endif
