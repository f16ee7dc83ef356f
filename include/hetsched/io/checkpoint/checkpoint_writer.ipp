// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/io/checkpoint/checkpoint_writer.hpp>

namespace hetsched {

HETSCHED_INLINE void checkpoint_writer::copy(std::span<const state_slice> slices) { slices_ = detail::copies_in(copy_, slices); }

}  // namespace hetsched
