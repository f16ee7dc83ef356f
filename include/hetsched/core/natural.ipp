// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/core/natural.hpp>

namespace hetsched {

HETSCHED_INLINE std::string short_text(const natural& n) {
  const auto digits = to_string(n);
  if (digits.size() <= 7) return digits;
  int first = (digits[0] - '0') * 10 + (digits[1] - '0') + (digits[2] >= '5' ? 1 : 0);
  auto exponent = digits.size() - 1;
  if (first == 100) {
    first = 10;
    ++exponent;
  }
  return std::to_string(first / 10) + "." + std::to_string(first % 10) + "e" + std::to_string(exponent);
}

HETSCHED_INLINE natural& natural::operator+=(const natural& other) {
  digits_.resize(std::max(digits_.size(), other.digits_.size()));
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < digits_.size(); ++i) {
    carry += std::uint64_t{digits_[i]} + (i < other.digits_.size() ? other.digits_[i] : 0);
    digits_[i] = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  if (carry > 0) digits_.push_back(static_cast<std::uint32_t>(carry));
  return *this;
}

HETSCHED_INLINE natural& natural::operator-=(const natural& other) {
  HETSCHED_EXPECTS(other.digits_.size() <= digits_.size());
  std::uint64_t borrow = 0;
  for (std::size_t i = 0; i < digits_.size(); ++i) {
    const std::uint64_t taken = borrow + (i < other.digits_.size() ? other.digits_[i] : 0);
    borrow = digits_[i] < taken ? 1 : 0;
    digits_[i] = static_cast<std::uint32_t>(digits_[i] - taken);
  }
  HETSCHED_EXPECTS(borrow == 0);
  trim();
  return *this;
}

}  // namespace hetsched
