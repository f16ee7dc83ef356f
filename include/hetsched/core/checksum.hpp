// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <hetsched/core/index.hpp>

namespace hetsched {

namespace detail {

/// tables[k][b]: what byte b does to the remainder when k more bytes follow it.
inline constexpr auto crc64_tables = [] {
  constexpr std::uint64_t polynomial = 0xc96c5795d7870f42u;  // ECMA-182, the lowest bit first
  std::array<std::array<std::uint64_t, 256>, 8> tables{};
  for (std::uint64_t b = 0; b < 256; ++b) {
    std::uint64_t r = b;
    for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ (r & 1 ? polynomial : 0);
    tables[0][b] = r;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ at(tables[0], tables[k - 1][b] & 0xff);
  return tables;
}();

}  // namespace detail

/// The CRC-64/XZ of bytes; `before`: the checksum of the bytes in front of them. Finds every change of up to 64 bits in a
/// row, and all but one in 2^64 of the others.
/// Complexity: O(bytes), about 1 GB/s.
/// Source: ECMA-182, annex B (polynomial).
[[nodiscard]] constexpr std::uint64_t crc64(std::span<const std::byte> bytes, std::uint64_t before = 0) {
  const auto& t = detail::crc64_tables;
  std::uint64_t r = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < 8; ++k) word |= static_cast<std::uint64_t>(bytes[i + k]) << (8 * k);
    r ^= word;
    std::uint64_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) next ^= at(t[7 - k], (r >> (8 * k)) & 0xff);
    r = next;
  }
  for (; i < bytes.size(); ++i) r = (r >> 8) ^ at(t[0], (r ^ static_cast<std::uint64_t>(bytes[i])) & 0xff);
  return ~r;
}

}  // namespace hetsched
