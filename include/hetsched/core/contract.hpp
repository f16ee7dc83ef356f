// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

namespace hetsched::detail {

[[noreturn]] inline void contract_violated(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken precondition: %s\n", file, line, condition);
  std::abort();
}

}  // namespace hetsched::detail

// Checked in Debug builds, and elsewhere when HETSCHED_CONTRACTS is defined; not part of the API.
#if !defined(NDEBUG) || defined(HETSCHED_CONTRACTS)
#define HETSCHED_EXPECTS(condition) ((condition) ? void() : ::hetsched::detail::contract_violated(#condition, __FILE__, __LINE__))
#else
#define HETSCHED_EXPECTS(condition) void()
#endif
