// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Whole training iterations that others published, from model sizes, datasheets and schedules: Megatron-LM's tables, and ZeRO-3
/// beside them. FOLDER holds megatron_tables.csv. Throws input_error where it cannot be read.
[[nodiscard]] std::vector<validation_part> megatron_iterations(const std::string& folder);

}  // namespace validation
