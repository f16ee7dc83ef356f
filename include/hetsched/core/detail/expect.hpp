// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/builders/warmup_test.cpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hetsched::detail {

// What public functions ask of their arguments. Each throws input_error with the place, the value and what was expected.

/// Says what was found and expected. Throws: input_error.
[[noreturn]] void refuse_value(std::string_view what, const std::string& found, const std::string& expected);

/// A number in a message: six significant digits.
[[nodiscard]] std::string number_text(double value);

/// Requires value to be finite and at least 0.
void expect_natural(double value, std::string_view what);

/// The same of every value of what[i].
void expect_naturals(std::span<const double> values, std::string_view what);

/// Requires 0 <= value <= 1e9: how much a search may do, in units of which a billion takes longer than anybody waits.
void expect_effort(double value, std::string_view what);

/// Requires value to be finite and more than 0.
void expect_positive(double value, std::string_view what);

/// Requires low <= value <= high.
void expect_count(std::int64_t value, std::string_view what, std::int64_t low = 1, std::int64_t high = INT64_MAX);

/// Requires as many values as there are of something.
void expect_size(std::size_t found, std::size_t wanted, std::string_view what, std::string_view of);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/core/detail/expect.ipp>
#endif
