// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/torch/torch_test.cpp.

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// Whether a tensor has such elements in the memory of this device; unless told otherwise, the host's.
template <class Element>
[[nodiscard]] bool is_torch(const at::Tensor& t, const c10::Device& device = at::kCPU) {
  return t.defined() && t.scalar_type() == c10::CppTypeToScalarType<Element>::value && t.device() == device &&
         t.layout() == at::kStrided;
}

/// Throws: input_error for a tensor that is undefined. `what`: it is.
inline void require_defined(const at::Tensor& t, std::string_view what) {
  if (!t.defined()) throw input_error(std::string(what) + " is an undefined torch::Tensor");
}

/// Throws: input_error for a tensor that is undefined, of elements of another type, or not in this device's memory. `what`: it
/// is.
template <class Element>
void require_torch(const at::Tensor& t, std::string_view what, const c10::Device& device = at::kCPU) {
  require_defined(t, what);
  if (is_torch<Element>(t, device)) return;
  std::ostringstream text;
  text << what << " is of " << t.scalar_type() << " on " << t.device() << ", expected is "
       << c10::CppTypeToScalarType<Element>::value << " on " << device;
  throw input_error(text.str());
}

/// The same numbers, contiguous, in memory that nobody else holds: `t` itself where it is so.
[[nodiscard]] inline at::Tensor alone(at::Tensor t) {
  t = t.contiguous();
  return t.use_count() > 1 || t.storage().use_count() > 1 ? t.clone() : t;
}

/// How the runtime sees a tensor of LibTorch with elements of this type.
template <class Tensor, class Element>
struct torch_traits {
  using element = Element;
  static constexpr memory_space space = memory_space::host;
  static constexpr bool is_handle = true;
  static at::IntArrayRef shape(const Tensor& t) {
    require_defined(t, "a tensor");
    return t.sizes();
  }
  static Element* data(Tensor& t) {
    require_torch<Element>(t, "a tensor");
    return t.template mutable_data_ptr<Element>();
  }
  static const Element* data(const Tensor& t) {
    require_torch<Element>(t, "a tensor");
    return t.template const_data_ptr<Element>();
  }
  static Tensor make(const tensor_shape& s) {
    std::vector<std::int64_t> extents;
    for (const auto extent : s) extents.push_back(static_cast<std::int64_t>(extent));
    return at::empty(extents, c10::CppTypeToScalarType<Element>::value);
  }
  /// Throws: input_error for what is undefined, of another type or elsewhere.
  static bool contiguous(const Tensor& t) {
    require_torch<Element>(t, "a tensor");
    return t.is_contiguous();
  }
};

}  // namespace detail

/// A tensor of LibTorch that the runtime takes for one of such elements: at::BFloat16, double, ... Made of any torch::Tensor,
/// as another handle of it.
template <class Element>
struct torch_tensor : at::Tensor {
  torch_tensor() = default;
  torch_tensor(at::Tensor t) : at::Tensor(std::move(t)) {}
};

/// torch::Tensor: floats in host memory. Undefined ones, and those of other elements or on other devices, are refused where the
/// runtime meets them; strided ones where they are handed over (t.contiguous() is what to hand over).
template <>
struct tensor_traits<at::Tensor> : detail::torch_traits<at::Tensor, float> {};
template <class Element>
struct tensor_traits<torch_tensor<Element>> : detail::torch_traits<torch_tensor<Element>, Element> {};

}  // namespace hetsched
