// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace hetsched
