// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/strangers_test.cpp.

#include <cstddef>
#include <string>
#include <vector>

namespace hetsched {

/// Somebody who connected to a rank, and is none.
struct stranger {
  std::string host;       ///< by number
  std::string why;        ///< what gave it away
  std::size_t count = 0;  ///< connections
};

/// "3 connections from 10.0.0.7 (2 said nothing, 1 did not know the secret)"; empty if there were none.
[[nodiscard]] std::string to_text(const std::vector<stranger>& all);

namespace detail {

/// Counts one more. However many hosts come, the list stays short.
void count_stranger(std::vector<stranger>& all, const std::string& host, const std::string& why);

}  // namespace detail
}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/stranger.ipp>
#endif
