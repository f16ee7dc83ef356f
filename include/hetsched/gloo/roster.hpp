// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/rendezvous.hpp>

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

/// Who is in a run whose ranks come and go, in a store in which a name is set once. For each generation those that are left say
/// that they are ready, and the first to have waited long enough writes down who is in it, once and for all; so all read the
/// same, and who comes later waits for the next one, on numbered places behind those that were looked at before.
class roster {
 public:
  using clock = std::chrono::steady_clock;

  /// `open`: makes the store, again where it has failed. `id`: what the run's names begin with there, the same for all members of
  /// this run, and no other's. `name`: this member's and no other's, without spaces.
  roster(std::function<gloo_store()> open, std::string id, std::string name)
      : open_(std::move(open)), id_(std::move(id)), name_(std::move(name)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& id() const { return id_; }

  /// Whether somebody waits for the next generation; not, where the store fails.
  [[nodiscard]] bool somebody_waits();

  /// Who goes on behind a generation: of its members those that say so, each no more than settle_s behind the one before, then
  /// who waits. If that is settled without this member, it waits for a later generation.
  /// Throws: error if nothing is settled before `until`, the run has ended, or the store fails.
  [[nodiscard]] generation next(const generation& before, double settle_s, clock::time_point until);

  /// Waits for a generation later than `number` that this member is in.
  /// Throws: error if none comes before `until`, the run has ended, or the store fails.
  [[nodiscard]] generation wait(std::int64_t number, clock::time_point until);

  /// Whether others go on from a generation without this member, as far as they say so before `until`.
  [[nodiscard]] bool is_left_behind(const generation& before, clock::time_point until);

  /// Sets a name to this roster's id; false: it has another value.
  [[nodiscard]] bool announce(const std::string& key) { return put(key, id_); }
  /// What a name is set to, if it is.
  [[nodiscard]] std::optional<std::string> find(const std::string& key);

  /// Removes what this member has set, where the store can.
  void forget();

  /// Leaves word that the run has ended, for members that stood still and for those that join.
  void end();
  /// Whether there is such word, or the folder that was the store has been removed. Throws: error if the store fails.
  [[nodiscard]] bool has_ended();

 private:
  static constexpr std::chrono::milliseconds pause{10};

  [[nodiscard]] std::string who() const { return "member " + name_ + ": "; }
  [[nodiscard]] std::string ready_key(std::int64_t number, const std::string& member) const {
    return id_ + ".ready." + std::to_string(number) + '.' + member;
  }
  [[nodiscard]] std::string members_key(std::int64_t number) const { return id_ + ".members." + std::to_string(number); }
  [[nodiscard]] std::string waits_key(std::int64_t place) const { return id_ + ".waits." + std::to_string(place); }
  [[nodiscard]] std::string ended_key() const { return id_ + ".ended"; }
  [[nodiscard]] std::string left_key(std::int64_t place) const { return id_ + ".left." + std::to_string(place); }

  /// use(store), once more with a new one where it fails. Throws: what it throws then.
  template <class Use>
  auto with_store(Use use) {
    try {
      if (!store_) store_ = open_();
      return use(*store_);
    } catch (const std::exception&) {
      store_ = open_();
    }
    return use(*store_);
  }
  [[nodiscard]] bool has(const std::string& key);
  void require_going_on();
  /// Whether it has this value then: nobody was first with another one.
  bool put(const std::string& key, const std::string& value);

  struct settled {
    generation who;
    std::int64_t looked_at = 0;  ///< places of those who wait
  };
  [[nodiscard]] std::optional<settled> read(std::int64_t number);
  void settle(std::int64_t number, const std::vector<std::string>& members, std::int64_t looked_at);
  /// Reads on to the last generation that is settled, or to `number`.
  void catch_up(std::int64_t number);
  /// Who waits behind the first places, and how many places there are.
  [[nodiscard]] std::pair<std::vector<std::string>, std::int64_t> waiting();

  std::function<gloo_store()> open_;
  gloo_store store_;
  std::string id_, name_;
  settled last_;  ///< the last generation that was read
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/roster.ipp>
#endif
