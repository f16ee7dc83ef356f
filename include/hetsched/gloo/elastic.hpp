// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/roster_test.cpp.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
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

/// What a body of run_elastically throws on a rank that leaves the run, while the others go on without it: it is not taken
/// for one that stood still.
class leaves_run : public error {
 public:
  using error::error;
};

/// What a body of run_elastically is told.
struct elastic_place {
  process_place place;  ///< in this generation
  std::int64_t generation = 0;
  std::string run;                       ///< the same in all generations, and no other's
  std::function<bool()> somebody_waits;  ///< to be taken in; asks the store
};

namespace detail {

/// What the names of a run's roster begin with: behind this come digits of its own for each time that it is begun.
[[nodiscard]] inline std::string roster_prefix(const std::string& run) { return "roster-" + name_hash(run) + '-'; }

/// The first member's: it clears away what earlier runs of that name have left in a folder, and tells those that join where the
/// roster is in another store.
/// Throws: error where an earlier run has left its name in such a store.
[[nodiscard]] roster make_roster(const std::string& where, const std::string& run, const std::string& id, std::string name);
/// Of a run that is under way: in a folder, it is made by make_roster alone.
[[nodiscard]] roster open_roster(const std::string& where, const std::string& id, std::string name);

/// The id of the one roster of a run that can be joined. Throws: input_error if there is none, or several.
[[nodiscard]] std::string find_roster(const std::string& where, const std::string& run);

/// Removes a roster that nobody needs any more, where the store can; the first member's: so that it is known for one that has
/// ended.
void remove_roster(const std::string& where, roster& r, bool first);

/// The roster of those that begin a run, on each of them.
template <class Communicator>
[[nodiscard]] roster begin_roster(Communicator& comm, const std::string& where, const std::string& run, double deadline_s) {
  const auto id_of = [&](double digits) { return roster_prefix(run) + std::to_string(static_cast<std::int64_t>(digits)); };
  const std::string name = "r" + std::to_string(comm.rank());
  std::optional<roster> made;
  double mine = 0;
  if (comm.rank() == 0) {
    for (const auto b : fresh_bytes<6>()) mine = mine * 256 + std::to_integer<int>(b);
    made.emplace(make_roster(where, run, id_of(mine), name));
  }
  std::vector<std::vector<double>> all;
  if (comm.gather(std::vector<double>{mine}, all, deadline_in(deadline_s)) != wait_result::progress)
    throw error("rank " + std::to_string(comm.rank()) + ", agreeing on a roster: " + comm.failure());
  return made ? *std::move(made) : open_roster(where, id_of(all[0][0]), name);
}

}  // namespace detail

/// Calls body(comm, elastic_place) -> bool on the ranks that are there, again whenever they change: when one is lost (a
/// communication_error), and when body returns false on all ranks, which lets in who waits. Ranks keep their order, those that
/// come are behind. Ends when body returns true, which all ranks do alike. What body keeps outside of a generation is to be of
/// use to other ranks than before, such as a checkpoint.
/// Requires: a rendezvous in a folder, Redis or PyTorch's store. One that joins has no launcher: where the launcher of the others
/// names the run, it needs that name.
/// A rank that stood still while the others went on without it waits to be taken in again, by whatever error but leaves_run it
/// finds so.
/// Throws: what body throws but for communication_error; the last one of these, if ranks do not find together again or this
/// one is alone.
template <pipeline_tensor Tensor, class Body>
void run_elastically(process_place place, gloo_options options, const elastic_options& elastic, Body body) {
  const std::string where = options.rendezvous.empty() ? place.store : options.rendezvous;
  (void)detail::parse_store(where);
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
    options.run = run + "." + known->id() + "." + std::to_string(now.number);
  };
  if (elastic.joins) {
    known.emplace(detail::open_roster(where, detail::find_roster(where, run), "j" + detail::fresh_nonce()));
    enter(known->wait(-1, deadline_in(elastic.join_s)));
  } else {
    for (int r = 0; r < place.ranks; ++r) now.members.push_back("r" + std::to_string(r));
  }
  for (int failures = 0;;) {
    bool met = false;
    std::string lost;
    try {
      gloo_communicator<Tensor> comm(place, options);
      if (!known) known.emplace(detail::begin_roster(comm, where, run, options.connect_deadline_s));
      met = true;
      const elastic_place here{place, now.number, known->id(), [&] { return known->somebody_waits(); }};
      bool done = false;
      try {
        done = body(comm, here);
      } catch (const communication_error&) {
        comm.abort("");  // others may wait for this rank yet
        throw;
      } catch (const std::exception& e) {
        const bool bad_input = dynamic_cast<const input_error*>(&e) != nullptr;  // all find it, or hear that this rank has left
        const bool leaves = dynamic_cast<const leaves_run*>(&e) != nullptr;      // the others know it
        if (!leaves && comm.ask() == wait_result::aborted &&
            known->is_left_behind(now, deadline_in(bad_input ? 0 : elastic.settle_s + 1)))
          throw communication_error("the others have gone on without this rank: " + std::string(e.what()), {}, no_microbatch, {});
        if (!bad_input) comm.abort("rank " + std::to_string(place.rank) + " failed: " + e.what());
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
  detail::remove_roster(where, *known, place.rank == 0);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/elastic.ipp>
#endif
