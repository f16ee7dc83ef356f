// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hetsched {

/// A text of somebody else's, for a message: control characters, which could move the cursor of a terminal or begin a line of a
/// log, become "\x1b". All else stays as it is, UTF-8 too, and the ends of lines if they are to be kept.
[[nodiscard]] std::string printable(std::string_view text, bool keep_lines = false);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/core/printable.ipp>
#endif
