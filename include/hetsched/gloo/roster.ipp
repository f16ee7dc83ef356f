// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include <hetsched/core/compiled.hpp>
#include <hetsched/gloo/roster.hpp>

namespace hetsched {

HETSCHED_INLINE generation roster::next(const generation& before, double settle_s, clock::time_point until) const {
  const std::int64_t number = before.number + 1;
  write(std::to_string(number) + ".ready." + name_);
  std::vector<std::string> last;
  auto changed = clock::now();
  while (true) {
    if (const auto settled = read(number); !settled.members.empty())
      return settled.rank_of(name_) >= 0 ? settled : wait(number, until);
    const auto ready = named(std::to_string(number) + ".ready."), waiting = named("waits.");
    auto all = before.members;
    std::erase_if(all, [&](const auto& m) { return std::find(ready.begin(), ready.end(), m) == ready.end(); });
    const bool whole = all.size() == before.members.size();
    all.insert(all.end(), waiting.begin(), waiting.end());
    if (all != std::exchange(last, all)) changed = clock::now();
    if (whole || clock::now() - changed > std::chrono::duration<double>(settle_s)) {
      settle(number, all);
      continue;
    }
    if (clock::now() > until) throw error(who() + "not all have settled who goes on in " + folder_.string());
    std::this_thread::sleep_for(pause);
  }
}

HETSCHED_INLINE generation roster::wait(std::int64_t number, clock::time_point until) const {
  write("waits." + name_);
  while (true) {
    for (const auto& text : named("members."))
      if (const auto found = read(std::stoll(text)); found.number > number && found.rank_of(name_) >= 0) {
        remove("waits." + name_);
        return found;
      }
    if (clock::now() > until) {
      remove("waits." + name_);
      throw error(who() + "nobody has taken it in, in " + folder_.string());
    }
    std::this_thread::sleep_for(pause);
  }
}

HETSCHED_INLINE void roster::settle(std::int64_t number, const std::vector<std::string>& members) const {
  const auto part = folder_ / ("part." + name_);
  std::ofstream out(part);
  for (const auto& m : members) out << m << '\n';
  out.close();
  if (!out) throw error(part.string() + ": cannot be written");
  std::error_code somebody_was_first;
  std::filesystem::create_hard_link(part, folder_ / ("members." + std::to_string(number)), somebody_was_first);
  if (somebody_was_first && somebody_was_first != std::errc::file_exists)
    throw error(part.string() + ": cannot be linked: " + somebody_was_first.message());
  remove(part.filename().string());
  if (!somebody_was_first)
    for (const auto& m : members) remove("waits." + m);  // whether it is still there or not: it is in, once
}

}  // namespace hetsched
