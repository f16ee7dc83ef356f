// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <limits>
#include <sstream>
#include <thread>

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/detail/meeting.hpp>
#include <hetsched/gloo/folder_store.hpp>
#include <hetsched/gloo/roster.hpp>
#include <hetsched/gloo/torch_store.hpp>

namespace hetsched {

HETSCHED_INLINE bool roster::has(const std::string& key) {
  return with_store([&](::gloo::rendezvous::Store& store) {
    if (auto* const folder = dynamic_cast<folder_store*>(&store)) return folder->check(key);
    if (auto* const torch = dynamic_cast<torch_store*>(&store)) return torch->check({key});
    if (auto* const redis = dynamic_cast<::gloo::rendezvous::RedisStore*>(&store)) return redis->check({key});
    try {
      store.wait({key}, std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      return false;
    }
    return true;
  });
}

HETSCHED_INLINE bool roster::put(const std::string& key, const std::string& value) {
  return with_store([&](::gloo::rendezvous::Store& store) {
    try {
      store.set(key, {value.begin(), value.end()});
      return true;
    } catch (const std::exception&) {
      if (const auto there = find(key)) return *there == value;
      throw;
    }
  });
}

HETSCHED_INLINE std::optional<std::string> roster::find(const std::string& key) {
  if (!has(key)) return std::nullopt;
  const auto value = with_store([&](::gloo::rendezvous::Store& store) { return store.get(key); });
  return std::string(value.begin(), value.end());
}

HETSCHED_INLINE std::optional<roster::settled> roster::read(std::int64_t number) {
  const auto text = find(members_key(number));
  if (!text) return std::nullopt;
  settled found{.who = {.number = number, .members = {}}};
  std::istringstream in(*text);
  in >> found.looked_at;
  for (std::string member; in >> member;) found.who.members.push_back(member);
  return found;
}

HETSCHED_INLINE void roster::settle(std::int64_t number, const std::vector<std::string>& members, std::int64_t looked_at) {
  auto text = std::to_string(looked_at);
  for (const auto& m : members) text += ' ' + m;
  put(members_key(number), text);
}

HETSCHED_INLINE void roster::catch_up(std::int64_t number) {
  while (last_.who.number < number) {
    auto next = read(last_.who.number + 1);
    if (!next) return;
    last_ = *std::move(next);
  }
}

HETSCHED_INLINE std::pair<std::vector<std::string>, std::int64_t> roster::waiting() {
  std::vector<std::string> names;
  auto place = last_.looked_at;
  for (;; ++place) {
    const auto who = find(waits_key(place));
    if (!who) return {std::move(names), place};
    if (!has(left_key(place))) names.push_back(who->substr(0, who->find(' ')));
  }
}

HETSCHED_INLINE bool roster::somebody_waits() {
  try {
    catch_up(std::numeric_limits<std::int64_t>::max());
    return !waiting().first.empty();
  } catch (const std::exception&) {
    return false;
  }
}

HETSCHED_INLINE generation roster::next(const generation& before, double settle_s, clock::time_point until) {
  const std::int64_t number = before.number + 1;
  require_going_on();
  put(ready_key(number, name_), "ready");
  catch_up(before.number);
  std::vector<std::string> last;
  auto changed = clock::now();
  while (true) {
    if (const auto found = read(number)) return found->who.rank_of(name_) >= 0 ? found->who : wait(number, until);
    require_going_on();
    auto all = before.members;
    std::erase_if(all, [&](const auto& m) { return !has(ready_key(number, m)); });
    const bool whole = all.size() == before.members.size();
    const auto [waits, places] = waiting();
    all.insert(all.end(), waits.begin(), waits.end());
    if (all != std::exchange(last, all)) changed = clock::now();
    if (whole || clock::now() - changed > std::chrono::duration<double>(settle_s)) {
      settle(number, all, places);
      continue;
    }
    if (clock::now() > until) throw error(who() + "not all have settled who goes on in " + id_);
    std::this_thread::sleep_for(pause);
  }
}

HETSCHED_INLINE generation roster::wait(std::int64_t number, clock::time_point until) {
  require_going_on();
  catch_up(std::numeric_limits<std::int64_t>::max());
  auto place = last_.looked_at;
  for (const auto mine = name_ + ' ' + detail::fresh_nonce(); !put(waits_key(place), mine);) ++place;
  for (auto behind = std::max(number, last_.who.number);; std::this_thread::sleep_for(pause)) {
    while (const auto found = read(behind + 1)) {
      if (found->who.rank_of(name_) >= 0) return found->who;
      ++behind;
    }
    require_going_on();
    if (clock::now() > until) {
      try {
        put(left_key(place), "left");
      } catch (const std::exception&) {  // nobody is left to read it
      }
      throw error(who() + "nobody has taken it in, in " + id_);
    }
  }
}

HETSCHED_INLINE bool roster::is_left_behind(const generation& before, clock::time_point until) {
  try {
    for (;; std::this_thread::sleep_for(pause)) {
      if (has(members_key(before.number + 1))) return true;
      for (const auto& m : before.members)
        if (m != name_ && has(ready_key(before.number + 1, m))) return true;
      if (clock::now() > until) return false;
    }
  } catch (const std::exception&) {
    return false;
  }
}

HETSCHED_INLINE void roster::end() {
  try {
    put(ended_key(), "ended");
  } catch (const std::exception&) {  // with the store, nobody finds this run
  }
}

HETSCHED_INLINE bool roster::has_ended() {
  const bool is_gone = store_ && with_store([](::gloo::rendezvous::Store& store) {
                         auto* const folder = dynamic_cast<folder_store*>(&store);
                         return folder && !folder->is_there();
                       });
  return is_gone || has(ended_key());
}

HETSCHED_INLINE void roster::require_going_on() {
  if (has_ended()) throw error(who() + "the run has ended that met in " + id_);
}

HETSCHED_INLINE void roster::forget() {
  try {
    if (auto* const torch = dynamic_cast<torch_store*>(store_.get())) torch->forget();
    if (auto* const folder = dynamic_cast<folder_store*>(store_.get())) folder->forget();
  } catch (const error&) {  // they are of this run alone
  }
}

}  // namespace hetsched
