// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/builders/named_test.cpp.

#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

namespace hetsched {

/// The schedules that the library knows: those that build_schedule makes, and last the one that auto_schedule searches for.
enum class schedule_id {
  gpipe,
  one_f_one_b,
  eager_1f1b,
  h1f1b,
  exact_1f1b,
  virtual_1f1b,
  interleaved_1f1b,
  looped_bfs,
  zb_h1,
  zb_h2,
  zb_v,
  v_half,
  v_min,
  dualpipe,
  dualpipe_v,
  chimera,
  searched
};

namespace detail {

inline constexpr std::string_view schedule_id_names[]{
    "gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1",
    "zb_h2", "zb_v", "v_half",     "v_min", "dualpipe",   "dualpipe_v",   "chimera",          "auto"};

}  // namespace detail

/// The schedule's name in files and commands.
[[nodiscard]] constexpr std::string_view name_of(schedule_id id) {
  const auto i = static_cast<std::size_t>(id);
  return i < std::size(detail::schedule_id_names) ? detail::schedule_id_names[i] : "";
}

/// The schedule of that name; none if the library knows no such.
[[nodiscard]] std::optional<schedule_id> find_schedule_id(std::string_view name);

/// What files and commands call the schedule that auto_schedule searches for. Not among schedule_names(): nothing builds it.
inline constexpr std::string_view auto_schedule_name = name_of(schedule_id::searched);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/schedule_id.ipp>
#endif
