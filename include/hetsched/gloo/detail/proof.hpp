// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/sha256.hpp>

namespace hetsched::detail {

using random_word = std::array<std::byte, 16>;

/// Bytes that nobody can guess.
template <std::size_t Size>
[[nodiscard]] std::array<std::byte, Size> fresh_bytes() {
  std::array<std::byte, Size> bytes{};
  if (getentropy(bytes.data(), bytes.size()) != 0) throw error("the system has no random bytes");
  return bytes;
}

/// The secret of a run: the given one, or that of the environment.
[[nodiscard]] inline std::string secret_of(const std::string& given) {
  if (!given.empty()) return given;
  const char* const set = std::getenv("HETSCHED_SECRET");
  return set ? set : "";
}

/// What the ranks of a run prove to know: of its secret, and of the word that its first rank has left in the store.
[[nodiscard]] inline sha256_digest run_key(const std::string& secret, std::span<const char> word) {
  return keyed_digest(std::as_bytes(std::span(secret)), std::as_bytes(word));
}

/// A text with the proof that one of the run has written it, at that place.
[[nodiscard]] std::vector<char> with_proof(const sha256_digest& key, const std::string& place, std::span<const char> text);

/// Takes the proof off a text. False if it has none, or one of another run, secret or place.
[[nodiscard]] bool take_proof(const sha256_digest& key, const std::string& place, std::vector<char>& text);

/// What the one that connects says first. Its proof follows when it has been challenged.
struct hello {
  std::array<char, 8> magic{'h', 'e', 't', 's', 'c', 'h', 'e', 'd'};
  std::uint32_t version = 1, from = 0, to = 0, line = 0;  ///< ranks; which of their connections
  random_word fresh{};

  [[nodiscard]] bool is_one() const { return magic == hello{}.magic && version == hello{}.version; }
};
static_assert(sizeof(hello) == 40);

/// The proof of one side of a connection, for what both have said: neither side's can be used as the other's, for other ranks or
/// a second time.
[[nodiscard]] sha256_digest proof_of(const sha256_digest& key, std::string_view side, const hello& said,
                                     const random_word& challenge);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/proof.ipp>
#endif
