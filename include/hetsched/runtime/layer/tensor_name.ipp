// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/runtime/layer/tensor_name.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<tensor_name> names_of_layers::joined() const {
  std::vector<tensor_name> all;
  if (std::all_of(names.begin(), names.end(), [](const auto& own) { return own.empty(); })) return all;
  int first = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto prefix = std::to_string(i) + '.';
    const int count = static_cast<int>(counts[i]);
    for (const auto& [name, number] : names[i]) {
      if (number < 0 || number >= count)
        throw input_error("layer " + std::to_string(i) + " of a list or tuple: found \"" + name + "\" of tensor " +
                          std::to_string(number) + ", expected one of " + std::to_string(count));
      all.emplace_back(prefix + name, first + number);
    }
    for (int n = 0; n < count && names[i].empty(); ++n) all.emplace_back(prefix + std::to_string(n), first + n);
    first += count;
  }
  return all;
}

}  // namespace hetsched::detail
