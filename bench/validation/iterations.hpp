// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Whole training iterations that others published, from model sizes, datasheets and schedules: Megatron-LM's tables, ZeRO-3
/// beside them, and MPT under FSDP. FOLDER holds megatron_tables.csv and mosaic_mpt_fsdp.csv. Throws input_error where they
/// cannot be read.
[[nodiscard]] std::vector<validation_part> megatron_iterations(const std::string& folder);

}  // namespace validation
