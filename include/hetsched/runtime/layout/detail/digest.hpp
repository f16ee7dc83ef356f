// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <hetsched/core/checksum.hpp>

namespace hetsched::detail {

/// A checksum that tells values apart, small enough to travel as a double.
class digest {
 public:
  digest& add(std::span<const std::byte> bytes) {
    value_ = crc64(bytes, value_);
    return *this;
  }
  digest& add(std::int64_t number) { return add(std::as_bytes(std::span(&number, 1))); }
  digest& add(double number) { return add(std::bit_cast<std::int64_t>(number)); }
  digest& add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    return add(std::as_bytes(std::span(text.data(), text.size())));
  }
  [[nodiscard]] double number() const { return static_cast<double>(value_ >> 11); }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace hetsched::detail
