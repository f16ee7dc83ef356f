// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hetsched {

using sha256_digest = std::array<std::byte, 32>;

/// SHA-256 of bytes that come in pieces.
/// Source: FIPS 180-4.
class sha256 {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) {
      block_[length_++ % block_.size()] = std::to_integer<std::uint8_t>(b);
      if (length_ % block_.size() == 0) take_block();
    }
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }

  /// Complexity: constant. Nothing is to be added afterwards.
  [[nodiscard]] sha256_digest digest();

 private:
  static constexpr std::array<std::uint32_t, 64> round_constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
      0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
      0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
      0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
      0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
      0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  void take_block();

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::uint64_t length_ = 0;
};

/// What only somebody with the key can say of a message.
/// Source: RFC 2104, HMAC-SHA-256.
[[nodiscard]] sha256_digest keyed_digest(std::span<const std::byte> key, std::span<const std::byte> message);

/// Whether digests are equal, in a time that does not tell where they differ.
[[nodiscard]] inline bool same_digest(const sha256_digest& a, const sha256_digest& b) {
  std::byte differ{0};
  for (std::size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == std::byte{0};
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/core/sha256.ipp>
#endif
