// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/builders/named_test.cpp.

#include <array>
#include <cstddef>
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

inline constexpr std::array<std::string_view, 17> schedule_id_names{
    "gpipe", "1f1b", "eager_1f1b", "h1f1b", "exact_1f1b", "virtual_1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1",
    "zb_h2", "zb_v", "v_half",     "v_min", "dualpipe",   "dualpipe_v",   "chimera",          "auto"};

}  // namespace detail

/// The schedule's name in files and commands.
[[nodiscard]] constexpr std::string_view name_of(schedule_id id) {
  const auto i = static_cast<std::size_t>(id);
  return i < detail::schedule_id_names.size() ? detail::schedule_id_names[i] : "";
}

/// The schedule of that name; none if the library knows no such.
[[nodiscard]] constexpr std::optional<schedule_id> find_schedule_id(std::string_view name) {
  for (std::size_t i = 0; i < detail::schedule_id_names.size(); ++i)
    if (detail::schedule_id_names[i] == name) return static_cast<schedule_id>(i);
  return {};
}

/// What files and commands call the schedule that auto_schedule searches for. Not among schedule_names(): nothing builds it.
inline constexpr std::string_view auto_schedule_name = name_of(schedule_id::searched);

}  // namespace hetsched
