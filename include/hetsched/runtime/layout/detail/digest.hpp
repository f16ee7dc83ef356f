// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hetsched::detail {

/// A checksum that tells values apart, small enough to travel as a double.
class digest {
 public:
  digest& add(std::span<const std::byte> bytes);
  digest& add(std::int64_t number);
  digest& add(double number);
  digest& add(std::string_view text);
  [[nodiscard]] double number() const { return static_cast<double>(value_ >> 11); }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/layout/detail/digest.ipp>
#endif
