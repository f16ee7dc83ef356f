// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cases.hpp"

namespace validation {

/// Peak memory of Sailor's processes, predicted with overheads fitted to nodes of the other kind, and what Galvatron measured of
/// one block. Warns on stderr where the shipped overheads are not what the fit to all rows gives. Throws input_error where a
/// table of the folder cannot be read.
[[nodiscard]] std::vector<validation_part> memory_parts(const std::string& data);

}  // namespace validation
