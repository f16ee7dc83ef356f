// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/stranger.hpp>

namespace hetsched {

HETSCHED_INLINE std::string to_text(const std::vector<stranger>& all) {
  std::string text;
  std::vector<std::string> told;
  for (const auto& first : all) {
    bool again = false;
    for (const auto& host : told) again = again || host == first.host;
    if (again) continue;
    told.push_back(first.host);
    std::string whys;
    std::size_t count = 0;
    for (const auto& s : all) {
      if (s.host != first.host) continue;
      whys += (whys.empty() ? "" : ", ") + std::to_string(s.count) + ' ' + s.why;
      count += s.count;
    }
    text += (text.empty() ? "" : "; ") + std::to_string(count) + (count == 1 ? " connection" : " connections") + " from " +
            first.host + " (" + whys + ')';
  }
  return text;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE void count_stranger(std::vector<stranger>& all, const std::string& host, const std::string& why) {
  constexpr std::size_t most = 64;
  const std::string from = all.size() < most ? host : "other hosts";
  for (auto& s : all)
    if ((s.host == host || s.host == from) && s.why == why) {
      ++s.count;
      return;
    }
  all.push_back({from, why, 1});
}

}  // namespace hetsched::detail
