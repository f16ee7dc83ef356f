// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/layout/detail/digest.hpp>

namespace hetsched::detail {

HETSCHED_INLINE digest& digest::add(std::span<const std::byte> bytes) {
  value_ = crc64(bytes, value_);
  return *this;
}

HETSCHED_INLINE digest& digest::add(std::int64_t number) { return add(std::as_bytes(std::span(&number, 1))); }

HETSCHED_INLINE digest& digest::add(double number) { return add(std::bit_cast<std::int64_t>(number)); }

HETSCHED_INLINE digest& digest::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  return add(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace hetsched::detail
