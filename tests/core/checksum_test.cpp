// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/random.hpp>

namespace {

std::uint64_t crc_of(std::string_view text) { return hetsched::crc64(std::as_bytes(std::span(text))); }

/// The definition: a division of polynomials, bit by bit.
std::uint64_t divided(std::span<const std::byte> bytes) {
  std::uint64_t r = ~std::uint64_t{0};
  for (const auto b : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((r ^ (static_cast<std::uint64_t>(b) >> bit)) & 1) != 0;
      r = (r >> 1) ^ (odd ? 0xc96c5795d7870f42u : 0);
    }
  return ~r;
}

std::vector<std::byte> random_bytes(hetsched::random_source& random, int count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (auto& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

}  // namespace

TEST_CASE("CRC-64/XZ has its published check value") {
  CHECK(crc_of("123456789") == 0x995dc9bbdf1939fau);
  CHECK(crc_of("") == 0);
  constexpr std::byte digits[] = {std::byte{'1'}, std::byte{'2'}, std::byte{'3'}, std::byte{'4'}, std::byte{'5'},
                                  std::byte{'6'}, std::byte{'7'}, std::byte{'8'}, std::byte{'9'}};
  static_assert(hetsched::crc64(digits) == 0x995dc9bbdf1939fau);
}

TEST_CASE("a checksum is the remainder of the division, whatever the pieces") {
  hetsched::random_source random(1);
  for (int size = 0; size < 100; ++size) {
    CAPTURE(size);
    const auto bytes = random_bytes(random, size);
    const auto whole = hetsched::crc64(bytes);
    CHECK(whole == divided(bytes));
    const auto cut = static_cast<std::size_t>(random.integer(0, size));
    CHECK(hetsched::crc64(std::span(bytes).subspan(cut), hetsched::crc64(std::span(bytes).first(cut))) == whole);
  }
}

TEST_CASE("a checksum changes with every single bit") {
  hetsched::random_source random(2);
  auto bytes = random_bytes(random, 300);
  const auto whole = hetsched::crc64(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK(hetsched::crc64(bytes) != whole);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}
