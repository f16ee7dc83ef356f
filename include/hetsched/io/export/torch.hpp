// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/io/export/placed_plan.hpp>

namespace hetsched {

/// stages.json, schedule.csv, ranks.json, run.py, which runs them with torch.distributed.pipelining, and files to start it.
/// Throws: inexpressible for degrees that differ between stages, for tensor, context and expert degrees, which are inside the
/// layers, and for schedules of two directions.
[[nodiscard]] plan_export export_torch(const placed_plan& placed);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/export/torch.ipp>
#endif
