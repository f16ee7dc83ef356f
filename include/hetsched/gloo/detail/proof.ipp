// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/proof.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<char> with_proof(const sha256_digest& key, const std::string& place, std::span<const char> text) {
  std::vector<char> all(place.begin(), place.end());
  all.push_back('\0');
  all.insert(all.end(), text.begin(), text.end());
  const auto proof = keyed_digest(key, std::as_bytes(std::span(all)));
  all.assign(text.begin(), text.end());
  const std::size_t before = all.size();
  all.resize(before + proof.size());
  std::memcpy(all.data() + before, proof.data(), proof.size());
  return all;
}

HETSCHED_INLINE bool take_proof(const sha256_digest& key, const std::string& place, std::vector<char>& text) {
  sha256_digest proof{};
  if (text.size() < proof.size()) return false;
  const std::size_t before = text.size() - proof.size();
  std::memcpy(proof.data(), text.data() + before, proof.size());
  text.resize(before);
  const auto expected = with_proof(key, place, text);
  sha256_digest right{};
  std::memcpy(right.data(), expected.data() + before, right.size());
  return same_digest(proof, right);
}

HETSCHED_INLINE sha256_digest proof_of(const sha256_digest& key, std::string_view side, const hello& said,
                                       const random_word& challenge) {
  std::vector<std::byte> all(side.size() + sizeof said + sizeof challenge);
  std::memcpy(all.data(), side.data(), side.size());
  std::memcpy(all.data() + side.size(), &said, sizeof said);
  std::memcpy(all.data() + side.size() + sizeof said, challenge.data(), sizeof challenge);
  return keyed_digest(key, all);
}

}  // namespace hetsched::detail
