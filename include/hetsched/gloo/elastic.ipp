// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/elastic.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::vector<std::filesystem::path> find_rosters(const std::filesystem::path& folder, const std::string& run) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(roster_prefix(run))) found.push_back(entry.path());
  return found;
}

}  // namespace hetsched::detail
