// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// stages.json, schedule.csv, ranks.json, run.py, which runs them with torch.distributed.pipelining, and files to start it.
/// Requires: a plan that it can run, as gaps() has it.
[[nodiscard]] plan_export export_torch(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/torch.ipp>
#endif
