// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/elastic.hpp>
#include <hetsched/gloo/folder_store.hpp>

namespace hetsched::detail {

[[nodiscard]] inline std::vector<std::filesystem::path> rosters_in(const std::filesystem::path& folder, const std::string& run) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(roster_prefix(run))) found.push_back(entry.path());
  return found;
}

HETSCHED_INLINE roster open_roster(const std::string& where, const std::string& id, std::string name) {
  const auto at = parse_store(where);
  if (at.kind != store_place::file) return {[where] { return open_gloo_store(where); }, id, std::move(name)};
  return {[folder = std::filesystem::path(at.path_or_host) / id] { return std::make_shared<folder_store>(folder, false); }, id,
          std::move(name)};
}

HETSCHED_INLINE roster make_roster(const std::string& where, const std::string& run, const std::string& id, std::string name) {
  const auto at = parse_store(where);
  auto made = open_roster(where, id, std::move(name));
  if (at.kind != store_place::file) {
    if (!made.announce(roster_prefix(run) + "begun"))
      throw error(where + " has the members of an earlier run of this name: choose another name");
    return made;
  }
  std::error_code why;
  for (const auto& old : rosters_in(at.path_or_host, run)) {
    std::filesystem::remove_all(old, why);
    if (why) throw error(old.string() + ", of an earlier run, cannot be cleared away: " + why.message());
  }
  const auto folder = std::filesystem::path(at.path_or_host) / id;
  std::filesystem::create_directories(folder, why);
  if (!why) std::filesystem::permissions(folder, std::filesystem::perms::owner_all, why);
  if (why) throw error(folder.string() + " cannot be used: " + why.message());
  return made;
}

HETSCHED_INLINE std::string find_roster(const std::string& where, const std::string& run) {
  const auto at = parse_store(where);
  if (at.kind != store_place::file) {
    if (const auto id = open_roster(where, {}, {}).find(roster_prefix(run) + "begun"))
      if (!open_roster(where, *id, {}).has_ended()) return *id;
    throw input_error(where + ": expected one run to join, found 0");
  }
  const auto rosters = rosters_in(at.path_or_host, run);
  if (rosters.size() != 1)
    throw input_error(at.path_or_host + ": expected one run to join, found " + std::to_string(rosters.size()));
  return rosters.front().filename().string();
}

HETSCHED_INLINE void remove_roster(const std::string& where, roster& r, bool first) {
  const auto at = parse_store(where);
  std::error_code ignored;
  if (at.kind != store_place::file) {
    r.forget();
    if (first) r.end();
  } else if (first) {
    std::filesystem::remove_all(std::filesystem::path(at.path_or_host) / r.id(), ignored);
  }
}

}  // namespace hetsched::detail
