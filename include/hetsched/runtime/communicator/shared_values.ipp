// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <typeindex>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>

namespace hetsched {

HETSCHED_INLINE std::shared_ptr<const void> shared_values::find_any(std::type_index type, function_ref<bool(const void*)> alike,
                                                                    function_ref<std::shared_ptr<const void>()> make) {
  const std::lock_guard lock(guard_);
  std::erase_if(held_, [](const auto& one) { return one.second.expired(); });
  for (const auto& [of, one] : held_)
    if (of == type)
      if (auto found = one.lock(); found && alike(found.get())) return found;
  auto made = make();
  held_.emplace_back(type, made);
  return made;
}

}  // namespace hetsched
