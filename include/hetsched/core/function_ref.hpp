// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>

namespace hetsched {

template <class Signature>
class function_ref;

/// Refers to a function or a function object, or to nothing. What it refers to must outlive it; unlike std::function it owns
/// nothing and takes next to nothing to compile.
template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  function_ref() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, function_ref> && std::is_object_v<F> &&
           std::is_invocable_r_v<Result, F&, Arguments...>) function_ref(F& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Arguments... a) -> Result { return (*static_cast<F*>(object))(static_cast<Arguments>(a)...); }) {}

  explicit operator bool() const { return call_ != nullptr; }
  /// Requires: it refers to something.
  Result operator()(Arguments... a) const { return call_(object_, static_cast<Arguments>(a)...); }

 private:
  void* object_ = nullptr;
  Result (*call_)(void*, Arguments...) = nullptr;
};

}  // namespace hetsched
