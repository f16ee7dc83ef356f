// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/group_checkpoint_test.cpp.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <hetsched/core/state_slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/layer/parameter.hpp>
#include <hetsched/runtime/layer/tensor.hpp>

namespace hetsched::detail {

/// What state_slice calls a tensor's elements.
template <class Tensor>
[[nodiscard]] std::string element_name() {
  using element = typename tensor_traits<Tensor>::element;
  const char kind = std::is_floating_point_v<element> || small_float<element> ? 'f'
                    : std::is_signed_v<element>                               ? 'i'
                    : std::is_unsigned_v<element>                             ? 'u'
                                                                              : 'b';
  return kind + std::to_string(8 * sizeof(element));
}

/// A tensor's elements (side b of the runs) as those of the whole parameter (side a), or of what is kept for it.
template <class Tensor>
[[nodiscard]] state_slice state_of(const model_parameter& m, std::string_view name, Tensor& t, const strided_runs& r) {
  const auto apart = r.rows > 1 ? r.stride_b : 0;
  const auto count = static_cast<std::size_t>((r.rows - 1) * apart + r.length);
  return {.layer = m.id.layer,
          .name = std::string(name) + "." + std::to_string(m.id.number),
          .element = element_name<Tensor>(),
          .shape = m.shape,
          .first = static_cast<std::size_t>(r.first_a),
          .bytes = std::as_writable_bytes(std::span(tensor_traits<Tensor>::data(t) + r.first_b, count)),
          .rows = static_cast<std::size_t>(r.rows),
          .apart = r.rows > 1 ? static_cast<std::size_t>(r.stride_a) : 0,
          .held_apart = static_cast<std::size_t>(apart)};
}

}  // namespace hetsched::detail
