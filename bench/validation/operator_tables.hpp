// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Measured operators and whole models, every device predicted by the tile model with constants fitted without its chip:
/// NeuSight, Vidur, DeepBench, LLMCompass. Throws input_error where a table of the folder cannot be read.
[[nodiscard]] std::vector<validation_part> operator_parts(const std::string& data);

}  // namespace validation
