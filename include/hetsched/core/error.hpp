// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/core/units_test.cpp.

#include <stdexcept>

namespace hetsched {

/// Base of every exception that the library throws: bad input, or a fault of the outside world.
/// A search that finds nothing is not an exception; see outcome.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Input that breaks a documented rule: a wrong file, a negative time, an unknown name.
class input_error : public error {
 public:
  using error::error;
};

}  // namespace hetsched
