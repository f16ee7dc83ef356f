// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

/// A schedule as it is run, with all transfers and the reductions over directions.
/// Throws: input_error if it is not sound.
[[nodiscard]] schedule runnable(const schedule& given, send_semantics semantics);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/runnable.ipp>
#endif
