// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hetsched {

/// A whole number from 0 on, as large as it has to be.
class natural {
 public:
  natural() = default;
  natural(std::uint64_t value) {  // NOLINT: every number is one
    for (; value > 0; value >>= 32) digits_.push_back(static_cast<std::uint32_t>(value));
  }

  /// Complexity: O(digits).
  natural& operator+=(const natural& other);

  /// Requires: other <= *this. Complexity: O(digits).
  natural& operator-=(const natural& other);

  friend natural operator+(natural a, const natural& b) { return a += b; }
  friend natural operator-(natural a, const natural& b) { return a -= b; }

  /// Complexity: O(digits of a * digits of b).
  friend natural operator*(const natural& a, const natural& b) {
    natural product;
    product.digits_.resize(a.digits_.size() + b.digits_.size());
    for (std::size_t i = 0; i < a.digits_.size(); ++i) {
      std::uint64_t carry = 0;
      for (std::size_t j = 0; j < b.digits_.size(); ++j) {
        carry += std::uint64_t{a.digits_[i]} * b.digits_[j] + product.digits_[i + j];
        product.digits_[i + j] = static_cast<std::uint32_t>(carry);
        carry >>= 32;
      }
      product.digits_[i + b.digits_.size()] = static_cast<std::uint32_t>(carry);
    }
    product.trim();
    return product;
  }
  natural& operator*=(const natural& other) { return *this = *this * other; }

  friend bool operator==(const natural&, const natural&) = default;
  friend bool operator<(const natural& a, const natural& b) {
    if (a.digits_.size() != b.digits_.size()) return a.digits_.size() < b.digits_.size();
    return std::lexicographical_compare(a.digits_.rbegin(), a.digits_.rend(), b.digits_.rbegin(), b.digits_.rend());
  }

  /// In decimal digits. Complexity: O(digits^2).
  friend std::string to_string(const natural& n) {
    auto left = n;
    std::string text;
    while (!left.digits_.empty()) {
      std::uint64_t rest = 0;
      for (std::size_t i = left.digits_.size(); i-- > 0;) {
        rest = rest << 32 | left.digits_[i];
        left.digits_[i] = static_cast<std::uint32_t>(rest / 1'000'000'000);
        rest %= 1'000'000'000;
      }
      left.trim();
      for (int d = 0; d < 9 && (rest > 0 || !left.digits_.empty()); ++d, rest /= 10) text += static_cast<char>('0' + rest % 10);
    }
    std::reverse(text.begin(), text.end());
    return text.empty() ? "0" : text;
  }

 private:
  void trim() {
    while (!digits_.empty() && digits_.back() == 0) digits_.pop_back();
  }

  std::vector<std::uint32_t> digits_;  // the least first; the last is not 0
};

/// In decimal digits, or rounded to two where that is shorter, as 1.4e110.
[[nodiscard]] std::string short_text(const natural& n);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/core/natural.ipp>
#endif
