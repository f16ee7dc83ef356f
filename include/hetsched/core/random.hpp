// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// Random numbers by SplitMix64.
/// Determinism: the same seed gives the same numbers on every machine.
/// Source: Steele, Lea, Flood 2014.
class random_source {
 public:
  using result_type = std::uint64_t;

  explicit constexpr random_source(std::uint64_t seed) : state_(seed) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }

  constexpr result_type operator()() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// Uniform in [0, 1).
  [[nodiscard]] constexpr double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }

  /// Uniform in [low, high).
  [[nodiscard]] constexpr double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Uniform integer in [low, high], both ends included.
  /// Throws: input_error if high is less than low.
  [[nodiscard]] constexpr int integer(int low, int high) {
    if (high < low) throw input_error("no integer is at least " + std::to_string(low) + " and at most " + std::to_string(high));
    return static_cast<int>(low + static_cast<std::int64_t>(uniform() * (static_cast<double>(high) - low + 1)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace hetsched
