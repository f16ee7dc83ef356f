// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

HETSCHED_INLINE void refuse_value(std::string_view what, const std::string& found, const std::string& expected) {
  throw input_error(std::string(what) + " is " + found + ", expected " + expected);
}

HETSCHED_INLINE void expect_natural(double value, std::string_view what) {
  if (!(value >= 0 && value < infinity)) refuse_value(what, number_text(value), "a finite number of at least 0");
}

HETSCHED_INLINE void expect_naturals(std::span<const double> values, std::string_view what) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(values[i] >= 0 && values[i] < infinity)) expect_natural(values[i], std::string(what) + "[" + std::to_string(i) + "]");
}

HETSCHED_INLINE void expect_effort(double value, std::string_view what) {
  if (!(value >= 0 && value <= 1e9)) refuse_value(what, number_text(value), "0 to 1e9");
}

HETSCHED_INLINE void expect_positive(double value, std::string_view what) {
  if (!(value > 0 && value < infinity)) refuse_value(what, number_text(value), "a finite number above 0");
}

HETSCHED_INLINE void expect_count(std::int64_t value, std::string_view what, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse_value(what, std::to_string(value),
               high == INT64_MAX ? "at least " + std::to_string(low) : std::to_string(low) + " to " + std::to_string(high));
}

HETSCHED_INLINE void expect_size(std::size_t found, std::size_t wanted, std::string_view what, std::string_view of) {
  if (found == wanted) return;
  throw input_error(std::string(what) + " has " + std::to_string(found) + " values, expected " + std::to_string(wanted) + ", " +
                    std::string(of));
}

}  // namespace hetsched::detail
