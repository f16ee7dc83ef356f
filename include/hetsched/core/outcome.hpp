// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <hetsched/core/contract.hpp>

namespace hetsched {

/// Why there is no result: nothing feasible exists; the work ended before one was found, as the caller stopped it or at a limit
/// of its own; or what was asked for is beyond what this function does at all, though another one may. The reason is a sentence
/// that a person can act on.
struct refusal {
  enum class kind { infeasible, stopped, not_applicable };
  kind why = kind::infeasible;
  std::string reason;
};

/// A value, or the reason why there is none.
template <class T>
class outcome {
 public:
  outcome(T value) : value_(std::move(value)) {}
  outcome(refusal why) : why_(std::move(why)) {}

  [[nodiscard]] bool has_value() const { return value_.has_value(); }
  explicit operator bool() const { return has_value(); }

  /// Requires: has_value().
  [[nodiscard]] T& operator*() & { return get(*this); }
  [[nodiscard]] const T& operator*() const& { return get(*this); }
  [[nodiscard]] T&& operator*() && { return std::move(get(*this)); }
  [[nodiscard]] T* operator->() { return &get(*this); }
  [[nodiscard]] const T* operator->() const { return &get(*this); }

  /// Requires: !has_value().
  [[nodiscard]] const refusal& why_not() const {
    HETSCHED_EXPECTS(!has_value());
    return why_;
  }

 private:
  template <class Self>
  static auto& get(Self& self) {
    HETSCHED_EXPECTS(self.has_value());
    return *self.value_;
  }

  std::optional<T> value_;
  refusal why_;
};

}  // namespace hetsched
