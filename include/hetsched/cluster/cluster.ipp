// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>

namespace hetsched {

HETSCHED_INLINE void connect(cluster& c, std::string_view a, std::string_view b, const link& over) {
  const auto position = [&](std::string_view name) {
    const auto found = c.find(name);
    if (!found) throw input_error("no subcluster is named " + std::string(name));
    return *found;
  };
  c.links.push_back({position(a), position(b), over});
}

}  // namespace hetsched
