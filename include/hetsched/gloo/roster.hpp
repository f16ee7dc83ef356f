// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/detail/meeting.hpp>

namespace hetsched {

/// The members of a run between two changes of them, rank by rank.
struct generation {
  std::int64_t number = 0;
  std::vector<std::string> members;

  /// The rank of a member; -1: it is none.
  [[nodiscard]] int rank_of(const std::string& name) const {
    const auto found = std::find(members.begin(), members.end(), name);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }
};

/// Who is in a run whose ranks come and go, in a folder that all see. For each generation those that are left say that they are
/// ready, and the first to have waited long enough writes down who is in it, once and for all; so all read the same, and who
/// comes later waits for the next one.
class roster {
 public:
  using clock = std::chrono::steady_clock;

  /// `name`: this member's and no other's, without spaces and dots.
  /// Throws: error if the folder cannot be made, or not be kept from others.
  roster(std::filesystem::path folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {
    std::error_code why;
    std::filesystem::create_directories(folder_, why);
    if (!why) std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, why);
    if (why) throw error(who() + folder_.string() + " cannot be used: " + why.message());
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// Whether somebody waits for the next generation.
  [[nodiscard]] bool somebody_waits() const { return !named("waits.").empty(); }

  /// Who goes on behind a generation: of its members those that say so, each no more than settle_s behind the one before, then
  /// who waits. If that is settled without this member, it waits for a later generation.
  /// Throws: error if nothing is settled before `until`.
  [[nodiscard]] generation next(const generation& before, double settle_s, clock::time_point until) const;

  /// Waits for a generation later than `number` that this member is in.
  /// Throws: error if none comes before `until`.
  [[nodiscard]] generation wait(std::int64_t number, clock::time_point until) const;

 private:
  static constexpr std::chrono::milliseconds pause{10};

  [[nodiscard]] std::string who() const { return "member " + name_ + ": "; }
  /// What follows a beginning in the names of files, in order.
  [[nodiscard]] std::vector<std::string> named(const std::string& beginning) const {
    std::vector<std::string> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored))
      if (const auto name = entry.path().filename().string(); name.starts_with(beginning))
        found.push_back(name.substr(beginning.size()));
    std::sort(found.begin(), found.end());
    return found;
  }
  void write(const std::string& name) const {
    std::ofstream out(folder_ / name);
    if (!out.flush()) throw error((folder_ / name).string() + ": cannot be written");
  }
  void remove(const std::string& name) const {
    std::error_code ignored;
    std::filesystem::remove(folder_ / name, ignored);
  }
  [[nodiscard]] generation read(std::int64_t number) const {
    return {number, detail::words_of(folder_ / ("members." + std::to_string(number)))};
  }
  void settle(std::int64_t number, const std::vector<std::string>& members) const;

  std::filesystem::path folder_;
  std::string name_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/roster.ipp>
#endif
