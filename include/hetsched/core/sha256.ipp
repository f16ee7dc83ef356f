// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/sha256.hpp>

namespace hetsched {

HETSCHED_INLINE sha256_digest keyed_digest(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    sha256 of_key;
    of_key.add(key);
    const auto shorter = of_key.digest();
    for (std::size_t i = 0; i < shorter.size(); ++i) padded[i] = shorter[i];
  } else {
    for (std::size_t i = 0; i < key.size(); ++i) padded[i] = key[i];
  }
  sha256 inner, outer;
  for (auto& b : padded) b ^= std::byte{0x36};
  inner.add(padded);
  inner.add(message);
  for (auto& b : padded) b ^= std::byte{0x36} ^ std::byte{0x5c};
  outer.add(padded);
  outer.add(inner.digest());
  return outer.digest();
}

HETSCHED_INLINE sha256_digest sha256::digest() {
  const std::uint64_t bits = length_ * 8;
  constexpr std::byte end{0x80}, nothing{0};
  add(std::span(&end, 1));
  while (length_ % block_.size() != block_.size() - 8) add(std::span(&nothing, 1));
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto b = static_cast<std::byte>(bits >> shift & 255u);
    add(std::span(&b, 1));
  }
  sha256_digest out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)) & 255u);
  return out;
}

HETSCHED_INLINE void sha256::take_block() {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 64; ++i) {
    if (i < 16) {
      for (std::size_t k = 0; k < 4; ++k) w[i] = w[i] << 8 | block_[4 * i + k];
      continue;
    }
    const std::uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
    const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> round{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += round[i];
}

}  // namespace hetsched
