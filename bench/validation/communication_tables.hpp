// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Collectives from 1 MB up, inside a node and across nodes, predicted by curves of the same group without that size and from the
/// other groups of the machine: Vidur, DeepBench, SimAI, Galvatron. Throws input_error where a table of the folder cannot be
/// read.
[[nodiscard]] std::vector<validation_part> communication_parts(const std::string& data);

}  // namespace validation
