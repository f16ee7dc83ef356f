// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cases.hpp"

namespace validation {

/// Whole training iterations of Sailor's plans on GH200 and mixed RTX nodes, from layers measured alone. FOLDER holds
/// sailor_layers.csv and sailor_e2e.csv. Throws input_error where they cannot be read.
[[nodiscard]] validation_part sailor_iterations(const std::string& folder);

/// The layers themselves, forward and backward, from shapes and datasheets.
[[nodiscard]] validation_part sailor_layers(const std::string& folder);

/// Forward of a layer of Llama-2 7B in bf16 on A100. FOLDER holds galvatron/.
[[nodiscard]] validation_part galvatron_layers(const std::string& folder);

}  // namespace validation
