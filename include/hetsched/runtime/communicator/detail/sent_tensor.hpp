// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// A tensor as one end of a channel between processes knows it. Both ends are compared before bytes go into a tensor.
struct sent_tensor {
  hetsched::stamp stamp;
  std::uint64_t bytes = 0, elements = 0, shape = 0;
};

/// Why a tensor cannot be sent to a receive; empty if it can.
[[nodiscard]] std::string difference(const edge& where, const sent_tensor& sent, const sent_tensor& wanted);

/// In place of the hash of a shape: bytes without one, which fit as many of any shape.
inline constexpr std::uint64_t no_shape = 0;

/// A hash of a tensor's extents (FNV-1a).
template <class Shape>
[[nodiscard]] std::uint64_t shape_hash(const Shape& shape) {
  std::uint64_t hash = 1469598103934665603u;
  for (const auto extent : shape) {
    auto left = static_cast<std::uint64_t>(extent);
    for (int i = 0; i < 8; ++i, left >>= 8) hash = (hash ^ (left & 255u)) * 1099511628211u;
  }
  return hash;
}

struct edge_hash {
  std::size_t operator()(const edge& e) const {
    std::uint64_t mixed = 0;
    for (const int part : {e.from, e.to, static_cast<int>(e.what), e.direction, e.stage, e.part}) {
      mixed = (mixed ^ static_cast<std::uint32_t>(part)) * 0x9e3779b97f4a7c15u;
      mixed ^= mixed >> 29;
    }
    return mixed;
  }
};

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/communicator/detail/sent_tensor.ipp>
#endif
