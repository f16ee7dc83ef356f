// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cases.hpp"

namespace validation {

/// Vidur's fp16 operators on A40 by the tile model and a forest, both trained without A40. FOLDER as read_operators.
[[nodiscard]] validation_part corrected_half_operators(const std::string& folder);

/// The same operators where half of the language models were measured on A40, and the other half is predicted.
[[nodiscard]] validation_part corrected_other_models(const std::string& folder);

/// NeuSight's fp32 operators, each device by a model and a forest trained without it.
[[nodiscard]] validation_part corrected_single_operators(const std::string& folder);

/// Sailor's layers with a part of them measured: tensor-parallel degrees, microbatch sizes and devices that were not, by the
/// analytic model, with forests, and by forests on time itself. FOLDER holds sailor_layers.csv.
[[nodiscard]] validation_part corrected_layers_of_sailor(const std::string& folder);

}  // namespace validation
