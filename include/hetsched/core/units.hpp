// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// Bytes are signed 64-bit counts, seconds and rates (bytes/s, FLOP/s) are doubles.
using bytes_t = std::int64_t;

inline constexpr bytes_t kib = bytes_t{1} << 10;
inline constexpr bytes_t mib = bytes_t{1} << 20;
inline constexpr bytes_t gib = bytes_t{1} << 30;

/// Bytes per second of a link quoted in Gbit/s (decimal, as vendors quote it), whatever the number.
[[nodiscard]] constexpr double gbit_per_s(double rate) { return rate * 1e9 / 8; }

/// The sum of two counts.
/// Throws: input_error where it does not fit 64 bits.
[[nodiscard]] constexpr std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t result{};
  if (__builtin_add_overflow(a, b, &result)) throw input_error("integer overflow in a sum");
  return result;
}

/// The product of counts.
/// Throws: input_error where it does not fit 64 bits.
template <class... Factors>
[[nodiscard]] constexpr std::int64_t checked_mul(std::int64_t a, std::int64_t b, Factors... rest) {
  std::int64_t result{};
  if (__builtin_mul_overflow(a, b, &result)) throw input_error("integer overflow in a product");
  if constexpr (sizeof...(rest) > 0) return checked_mul(result, static_cast<std::int64_t>(rest)...);
  return result;
}

/// The smallest integer >= a / b.
/// Throws: input_error unless a >= 0 and b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  if (a < 0 || b <= 0)
    throw input_error("a division of " + std::to_string(a) + " by " + std::to_string(b) + ", expected at least 0 by at least 1");
  return a / b + (a % b != 0);
}

}  // namespace hetsched
