// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/network/collective_test.cpp.

#include <concepts>

namespace hetsched {

/// Anything that says how long a message takes: a link, or a curve fitted to measurements.
template <class T>
concept transfer_model = requires(const T& model, double bytes) {
  { model.transfer_s(bytes) } -> std::convertible_to<double>;
};

}  // namespace hetsched
