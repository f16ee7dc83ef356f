// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cuda/trainer_test.cpp.

namespace hetsched::detail {

/// What a stage of these layers is on a backend.
template <class Backend, class Tensor, class Layers>
struct stage_on {
  using type = Layers;
};
template <class Backend, class Tensor, class Layers>
requires requires { typename Backend::template stage<Tensor, Layers>; }
struct stage_on<Backend, Tensor, Layers> {
  using type = typename Backend::template stage<Tensor, Layers>;
};

}  // namespace hetsched::detail
