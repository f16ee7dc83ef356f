// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/roster_test.cpp.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/detail/meeting.hpp>
#include <hetsched/gloo/gloo_communicator.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/gloo/roster.hpp>

namespace hetsched {

struct elastic_options {
  bool joins = false;    ///< this process joins a run that is under way, instead of being one of those that begin it
  double settle_s = 2;   ///< how much later than others a rank may say that it goes on
  double join_s = 3600;  ///< how long one that joins waits to be taken in
  int failures = 3;      ///< how often in a row a generation may fail that does not meet, or has lost nobody
  std::function<void(const std::string&)> say;  ///< what has happened, for a log; may be empty
};

/// What a body of run_elastically is told.
struct elastic_place {
  process_place place;  ///< in this generation
  std::int64_t generation = 0;
  std::string run;                       ///< the same in all generations, and no other's
  std::function<bool()> somebody_waits;  ///< to be taken in; asks the file system
};

namespace detail {

/// Where the roster of a run is: behind this come letters of its own for each time that it is begun.
[[nodiscard]] inline std::string roster_prefix(const std::string& run) { return "roster-" + name_hash(run) + '-'; }
[[nodiscard]] std::vector<std::filesystem::path> find_rosters(const std::filesystem::path& folder, const std::string& run);

/// The roster of those that begin a run: the first one clears away what earlier runs of that name have left.
template <class Communicator>
[[nodiscard]] roster begin_roster(Communicator& comm, const std::filesystem::path& folder, const std::string& run,
                                  double deadline_s) {
  double mine = 0;
  if (comm.rank() == 0) {
    for (const auto& old : find_rosters(folder, run)) {
      std::error_code why;
      std::filesystem::remove_all(old, why);
      if (why) throw error(old.string() + ", of an earlier run, cannot be cleared away: " + why.message());
    }
    const auto drawn = fresh_bytes<6>();
    for (const auto b : drawn) mine = mine * 256 + std::to_integer<int>(b);
  }
  std::vector<std::vector<double>> all;
  if (comm.gather(std::vector<double>{mine}, all, deadline_in(deadline_s)) != wait_result::progress)
    throw error("rank " + std::to_string(comm.rank()) + ", agreeing on a roster: " + comm.failure());
  return {folder / (roster_prefix(run) + std::to_string(static_cast<std::int64_t>(all[0][0]))),
          "r" + std::to_string(comm.rank())};
}

}  // namespace detail

/// Calls body(comm, elastic_place) -> bool on the ranks that are there, again whenever they change: when one is lost (a
/// communication_error), and when body returns false on all ranks, which lets in who waits. Ranks keep their order, those that
/// come are behind. Ends when body returns true, which all ranks do alike. What body keeps outside of a generation is to be of
/// use to other ranks than before, such as a checkpoint.
/// Requires: a rendezvous in a folder. One that joins has no launcher: where the launcher of the others names the run, it needs
/// that name.
/// Throws: what body throws but for communication_error; the last one of these, if ranks do not find together again or this
/// one is alone.
template <pipeline_tensor Tensor, class Body>
void run_elastically(process_place place, gloo_options options, const elastic_options& elastic, Body body) {
  const auto at = detail::parse_store(options.rendezvous.empty() ? place.store : options.rendezvous);
  if (at.kind != detail::store_place::file)
    throw input_error("ranks that come and go have to meet in a folder: write file:FOLDER");
  const std::filesystem::path folder = at.path_or_host;
  std::string run = options.run.empty() ? place.run : options.run;
  if (run.find_first_not_of('.') == std::string::npos) run.clear();  // the launcher names nothing
  const auto say = [&](const std::string& text) {
    if (elastic.say) elastic.say(text);
  };
  std::optional<roster> known;
  generation now;
  const auto enter = [&](generation next) {
    now = std::move(next);
    place.rank = now.rank_of(known->name());
    place.ranks = static_cast<int>(now.members.size());
    options.run = run + "." + known->folder().filename().string() + "." + std::to_string(now.number);
  };
  if (elastic.joins) {
    const auto rosters = detail::find_rosters(folder, run);
    if (rosters.size() != 1)
      throw input_error(folder.string() + ": expected one run to join, found " + std::to_string(rosters.size()));
    known.emplace(rosters.front(), "j" + detail::fresh_nonce());
    enter(known->wait(-1, deadline_in(elastic.join_s)));
  } else {
    for (int r = 0; r < place.ranks; ++r) now.members.push_back("r" + std::to_string(r));
  }
  for (int failures = 0;;) {
    bool met = false;
    std::string lost;
    try {
      gloo_communicator<Tensor> comm(place, options);
      if (!known) known.emplace(detail::begin_roster(comm, folder, run, options.connect_deadline_s));
      met = true;
      const elastic_place here{place, now.number, known->folder().filename().string(), [&] { return known->somebody_waits(); }};
      bool done = false;
      try {
        done = body(comm, here);
      } catch (const input_error&) {
        throw;  // all find it, or hear that this rank has left
      } catch (const communication_error&) {
        comm.abort("");  // others may wait for this rank yet
        throw;
      } catch (const std::exception& e) {
        comm.abort("rank " + std::to_string(place.rank) + " failed: " + e.what());
        throw;
      }
      if (done) break;
    } catch (const input_error&) {
      throw;
    } catch (const communication_error& e) {
      lost = e.what();
      if (place.ranks == 1 || failures >= elastic.failures) throw;
    } catch (const error& e) {
      if (met || !known || failures >= elastic.failures) throw;
      lost = e.what();
    }
    if (!lost.empty()) say(lost);
    auto next = known->next(now, elastic.settle_s, deadline_in(options.connect_deadline_s + elastic.settle_s));
    failures = !lost.empty() && next.members == now.members ? failures + 1 : 0;
    enter(std::move(next));
    say("generation " + std::to_string(now.number) + ": rank " + std::to_string(place.rank) + " of " +
        std::to_string(place.ranks));
  }
  std::error_code ignored;
  if (place.rank == 0) std::filesystem::remove_all(known->folder(), ignored);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/elastic.ipp>
#endif
