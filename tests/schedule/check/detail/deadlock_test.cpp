// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/check/detail/deadlock.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/check/check.hpp>
#include <hetsched/schedule/passes.hpp>
#include <hetsched/schedule/text.hpp>

#include "../../sound_schedule.hpp"

using namespace hetsched;
using enum action_kind;

namespace {

/// Runs the lanes as programs, any that can go on, in random turn, until none can. Sends and receives are posted to queues per
/// pair of ranks; under rendezvous the heads of a pair's queues meet, whatever they are, and must then be the two ends of one
/// transfer. Names actions by their text.
class machine {
 public:
  machine(const schedule& order, send_semantics under, random_source& random) : order_(order), under_(under) {
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions) {
        listed_.insert(to_text(a));
        explicit_ = explicit_ || is_transfer(a.kind);
      }
    at_.resize(order.lanes.size());
    posted_.resize(order.lanes.size());
    std::vector<std::size_t> turns(order.lanes.size());
    for (std::size_t i = 0; i < turns.size(); ++i) turns[i] = i;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = turns.size(); i > 1; --i)
        std::swap(turns[i - 1], turns[static_cast<std::size_t>(random.integer(0, static_cast<int>(i) - 1))]);
      for (const auto l : turns) moved = fire(l) || moved;
    }
  }

  [[nodiscard]] bool stuck() const {
    for (std::size_t l = 0; l < at_.size(); ++l)
      if (at_[l] < order_.lanes[l].actions.size()) return true;
    return false;
  }
  [[nodiscard]] bool is_done(const std::string& name) const { return done_.count(name) > 0; }
  [[nodiscard]] bool has_begun(const std::string& name) const { return begun_.count(name) > 0; }

 private:
  [[nodiscard]] static std::string name(action_kind kind, const action& like, int stage) {
    return to_text({.kind = kind, .joined = false, .direction = like.direction, .stage = stage, .microbatch = like.microbatch});
  }
  [[nodiscard]] bool has(std::initializer_list<action_kind> kinds, const action& like, int stage) const {
    return std::any_of(kinds.begin(), kinds.end(), [&](auto k) { return is_done(name(k, like, stage)); });
  }
  [[nodiscard]] bool lists(action_kind kind, const action& like, int stage) const {
    return listed_.count(name(kind, like, stage)) > 0;
  }

  /// Whether the tensor that comes from another stage is there.
  [[nodiscard]] bool input_there(const action& a, int from, bool gradient) {
    if (from < 0 || from == order_.stages) return true;
    const auto made = gradient ? has({backward, backward_input}, a, from) : has({forward}, a, from);
    if (order_.rank(a.direction, from) == order_.rank(a.direction, a.stage)) return made;
    if (explicit_)
      return gradient ? has({receive_gradient, h2d_gradient}, a, a.stage) : has({receive_activation, h2d_activation}, a, a.stage);
    if (under_ == send_semantics::buffered) return made;
    const auto& queue = boundary_[{a.direction, a.stage, gradient}];
    return !queue.empty() && queue.front() == a.microbatch;
  }

  [[nodiscard]] bool can_post(const action& a) {
    const int s = a.stage;
    if (is_compute(a.kind)) {
      const auto gather =
          to_text({.kind = all_gather, .joined = false, .direction = a.direction, .stage = s, .microbatch = no_microbatch});
      if (a.kind != backward_weight && a.kind != recompute && listed_.count(gather) > 0 && !is_done(gather)) return false;
    }
    switch (a.kind) {
      case forward:
        return input_there(a, s - 1, false);
      case backward:
      case backward_input:
        return has({lists(recompute, a, s) ? recompute : forward}, a, s) && input_there(a, s + 1, true);
      case backward_weight:
        return has({backward_input}, a, s);
      case recompute:
      case send_activation:
      case d2h_activation:
        return has({forward}, a, s);
      case send_gradient:
      case d2h_gradient:
        return has({backward, backward_input}, a, s);
      case network_activation:
        return has({d2h_activation}, a, s);
      case network_gradient:
        return has({d2h_gradient}, a, s);
      case h2d_activation:
        return has({network_activation}, a, s - 1);
      case h2d_gradient:
        return has({network_gradient}, a, s + 1);
      case receive_activation:
      case receive_gradient:
      case all_gather:
      case release:
        return true;
      case reduce_scatter:
      case reduce_gradients:
      case optimizer:
        for (int m = 0; m < order_.microbatches; ++m) {
          const action like{.kind = backward, .joined = false, .direction = a.direction, .stage = s, .microbatch = m};
          if (lists(forward, like, s) && !has({backward, backward_weight}, like, s)) return false;
        }
        for (const auto k : {reduce_scatter, reduce_gradients})
          if (a.kind > k && lists(k, a, s) && !has({k}, a, s)) return false;
        return true;
      default:  // marks: tests/schedule/posting_test.cpp
        break;
    }
    return false;
  }

  void post(const action& a, std::size_t l) {
    const int rank = order_.lanes[l].rank;
    begun_.insert(to_text(a));
    const bool gradient = a.kind == send_gradient || a.kind == receive_gradient;
    if (a.kind == send_activation || a.kind == send_gradient) {
      const int to = a.stage + (gradient ? -1 : 1);
      const action other{.kind = gradient ? receive_gradient : receive_activation,
                         .joined = false,
                         .direction = a.direction,
                         .stage = to,
                         .microbatch = a.microbatch};
      if (under_ == send_semantics::buffered) ended_.insert(to_text(a)), ended_.insert(to_text(other));
      sends_[{rank, order_.rank(a.direction, to)}].push_back({to_text(a), to_text(other)});
    } else if (a.kind == receive_activation || a.kind == receive_gradient) {
      receives_[{order_.rank(a.direction, a.stage + (gradient ? 1 : -1)), rank}].push_back(to_text(a));
    } else if (a.kind == reduce_gradients) {
      for (int c = 0; c < order_.directions; ++c)
        if (order_.rank(c, a.stage) != rank)
          partners_[to_text(a)].push_back(
              name(a.kind, {.direction = static_cast<std::int16_t>(c), .microbatch = no_microbatch}, a.stage));
    }
    if (explicit_ || under_ == send_semantics::buffered) return;
    const bool back = a.kind == backward || a.kind == backward_input;
    if (!back && a.kind != forward) return;
    if (const int from = a.stage + (back ? 1 : -1); from >= 0 && from < order_.stages && order_.rank(a.direction, from) != rank)
      boundary_[{a.direction, a.stage, back}].pop_front();
  }

  void meet() {
    if (under_ == send_semantics::buffered) return;
    for (auto& [pair, sent] : sends_) {
      auto& received = receives_[pair];
      while (!sent.empty() && !received.empty() && sent.front().second == received.front()) {
        ended_.insert(sent.front().first);
        ended_.insert(received.front());
        sent.pop_front();
        received.pop_front();
      }
    }
  }

  [[nodiscard]] bool has_ended(const action& a) {
    if (a.kind == reduce_gradients)
      return std::all_of(partners_[to_text(a)].begin(), partners_[to_text(a)].end(), [&](const auto& p) { return has_begun(p); });
    const bool transfer =
        a.kind == send_activation || a.kind == send_gradient || a.kind == receive_activation || a.kind == receive_gradient;
    return !transfer || ended_.count(to_text(a)) > 0;
  }

  bool fire(std::size_t l) {
    const auto& actions = order_.lanes[l].actions;
    if (at_[l] == actions.size()) return false;
    std::vector<action> event{actions[at_[l]]};
    for (auto i = at_[l] + 1; i < actions.size() && actions[i].joined; ++i) event.push_back(actions[i]);
    bool moved = false;
    if (!posted_[l]) {
      for (const auto& a : event)
        if (!can_post(a)) return false;
      for (const auto& a : event) post(a, l);
      posted_[l] = moved = true;
    }
    meet();
    for (const auto& a : event)
      if (!has_ended(a)) return moved;
    for (const auto& a : event) {
      done_.insert(to_text(a));
      const bool back = a.kind == backward || a.kind == backward_input;
      if (back || a.kind == forward) boundary_[{a.direction, a.stage + (back ? -1 : 1), back}].push_back(a.microbatch);
    }
    at_[l] += event.size();
    posted_[l] = false;
    return true;
  }

  const schedule& order_;
  send_semantics under_;
  bool explicit_ = false;
  std::set<std::string> listed_, begun_, done_, ended_;
  std::vector<std::size_t> at_;
  std::vector<bool> posted_;
  std::map<std::tuple<int, int, bool>, std::deque<int>> boundary_;
  std::map<std::pair<int, int>, std::deque<std::pair<std::string, std::string>>> sends_;
  std::map<std::pair<int, int>, std::deque<std::string>> receives_;
  std::map<std::string, std::vector<std::string>> partners_;
};

struct place {
  std::size_t lane, position, event;
  action what;
};

std::map<std::string, place> places(const schedule& order) {
  std::map<std::string, place> found;
  for (std::size_t l = 0; l < order.lanes.size(); ++l) {
    std::size_t event = 0;
    for (std::size_t i = 0; i < order.lanes[l].actions.size(); ++i) {
      const auto& a = order.lanes[l].actions[i];
      event += !a.joined;
      found.insert({to_text(a), {l, i, event, a}});
    }
  }
  return found;
}

/// Whether an action can have to wait for another, by their kinds and numbers alone.
bool may_wait_for(const schedule& order, const action& a, const action& b, send_semantics under) {
  const auto one_of = [](action_kind k, std::initializer_list<action_kind> kinds) {
    return std::find(kinds.begin(), kinds.end(), k) != kinds.end();
  };
  if (b.kind == all_gather) return is_compute(a.kind) && a.stage == b.stage && a.direction == b.direction;
  if (a.kind == reduce_gradients && b.kind == reduce_gradients) return a.stage == b.stage && a.direction != b.direction;
  if (a.direction != b.direction) return false;
  if (one_of(a.kind, {reduce_scatter, reduce_gradients, optimizer}))
    return a.stage == b.stage && (one_of(b.kind, {backward, backward_weight}) ||
                                  (one_of(b.kind, {reduce_scatter, reduce_gradients}) && b.kind < a.kind));
  if (a.microbatch != b.microbatch) return false;
  const int step = b.stage - a.stage;
  const int there = moves_gradient(a.kind) ? -1 : 1;  // where the tensor goes
  switch (a.kind) {
    case forward:
      return step == 0 ? one_of(b.kind, {receive_activation, h2d_activation}) : step == -1 && b.kind == forward;
    case backward:
    case backward_input:
      return step == 0 ? one_of(b.kind, {forward, recompute, receive_gradient, h2d_gradient})
                       : step == 1 && one_of(b.kind, {backward, backward_input});
    case backward_weight:
      return step == 0 && b.kind == backward_input;
    case recompute:
    case d2h_activation:
      return step == 0 && b.kind == forward;
    case send_activation:
      return step == 0 ? b.kind == forward : under == send_semantics::rendezvous && step == there && b.kind == receive_activation;
    case send_gradient:
      return step == 0 ? one_of(b.kind, {backward, backward_input})
                       : under == send_semantics::rendezvous && step == there && b.kind == receive_gradient;
    case d2h_gradient:
      return step == 0 && one_of(b.kind, {backward, backward_input});
    case network_activation:
      return step == 0 && b.kind == d2h_activation;
    case network_gradient:
      return step == 0 && b.kind == d2h_gradient;
    case receive_activation:
      return step == -there && b.kind == send_activation;
    case receive_gradient:
      return step == -there && b.kind == send_gradient;
    case h2d_activation:
      return step == -there && b.kind == network_activation;
    case h2d_gradient:
      return step == -there && b.kind == network_gradient;
    default:
      return false;
  }
  (void)order;
}

/// Takes "rank R NAME" from the front.
std::string take_name(std::string& text, const schedule& order, const std::map<std::string, place>& where) {
  REQUIRE(text.substr(0, 5) == "rank ");
  text.erase(0, 5);
  const auto space = text.find(' ');
  const int rank = std::stoi(text.substr(0, space));
  text.erase(0, space + 1);
  const auto end = text.find_first_of(" ,");
  const auto name = text.substr(0, end);
  text.erase(0, end == std::string::npos ? text.size() : end);
  REQUIRE(where.count(name) == 1);
  REQUIRE(order.lanes[where.at(name).lane].rank == rank);
  return name;
}

bool take(std::string& text, const std::string& words) {
  if (text.substr(0, words.size()) != words) return false;
  text.erase(0, words.size());
  return true;
}

/// That each step of the cycle that a finding names is a wait that no execution ends.
void verify_cycle(const schedule& order, const std::string& finding, random_source& random) {
  CAPTURE(finding);
  auto text = finding;
  send_semantics under = send_semantics::buffered;
  if (!take(text, "deadlock (buffered): ")) {
    REQUIRE(take(text, "deadlock (rendezvous): "));
    under = send_semantics::rendezvous;
  }
  const machine run(order, under, random);
  const auto where = places(order);
  const auto first = take_name(text, order, where);
  if (take(text, " comes before ")) {  // a group that a channel's order takes apart
    const auto second = take_name(text, order, where);
    REQUIRE(take(text, " in the channel, but "));
    const auto taken = take_name(text, order, where);
    REQUIRE(take(text, " before "));
    const auto later = take_name(text, order, where);
    CHECK(where.at(first).position < where.at(second).position);
    CHECK(where.at(taken).position < where.at(later).position);
    CHECK(may_wait_for(order, where.at(first).what, where.at(later).what, under));
    CHECK(may_wait_for(order, where.at(second).what, where.at(taken).what, under));
    return;
  }
  auto at = first;
  while (true) {
    REQUIRE(take(text, " waits for "));
    const auto awaited = take_name(text, order, where);
    const auto &a = where.at(at).what, &b = where.at(awaited).what;
    if (take(text, ", whose input the channel delivers first")) {
      CHECK(where.at(at).lane == where.at(awaited).lane);
      CHECK(a.stage == b.stage);
      const int from = a.stage + (a.kind == forward ? -1 : 1);
      const auto made = [&](const action& x) {
        for (const auto k : {forward, backward, backward_input})
          if ((k == forward) == (a.kind == forward))
            if (const auto p = where.find(
                    to_text({.kind = k, .joined = false, .direction = a.direction, .stage = from, .microbatch = x.microbatch}));
                p != where.end())
              return p->second.position;
        FAIL("not made");
        return std::size_t{0};
      };
      CHECK(made(b) < made(a));
    } else {
      CHECK(may_wait_for(order, a, b, under));
    }
    CHECK_FALSE(run.is_done(at));
    CHECK_FALSE(run.is_done(awaited));
    at = awaited;
    if (take(text, ", behind ")) {
      at = take_name(text, order, where);
      CHECK(where.at(at).lane == where.at(awaited).lane);
      CHECK(where.at(at).event < where.at(awaited).event);
    } else if (take(text, ", one event with ")) {
      at = take_name(text, order, where);
      CHECK(where.at(at).lane == where.at(awaited).lane);
      CHECK(where.at(at).event == where.at(awaited).event);
      CHECK(at != awaited);
    }
    if (text.empty()) break;
    REQUIRE(take(text, ", which"));
  }
  CHECK(at == first);
}

/// Moves one event of a lane to another place, or swaps two.
void disturb(schedule& order, random_source& random) {
  auto& l = order.lanes[static_cast<std::size_t>(random.integer(0, static_cast<int>(order.lanes.size()) - 1))];
  std::vector<std::vector<action>> events;
  for (const auto& a : l.actions) {
    if (!a.joined) events.emplace_back();
    events.back().push_back(a);
  }
  const int count = static_cast<int>(events.size());
  if (count < 2) return;
  const int from = random.integer(0, count - 1);
  const int to = std::clamp(from + random.integer(-4, 4), 0, count - 1);
  if (random.integer(0, 1) == 0) {
    std::swap(events[static_cast<std::size_t>(from)], events[static_cast<std::size_t>(to)]);
  } else {
    auto event = events[static_cast<std::size_t>(from)];
    events.erase(events.begin() + from);
    events.insert(events.begin() + to, event);
  }
  auto& event = events[static_cast<std::size_t>(random.integer(0, count - 1))];
  if (event.size() > 1 && random.integer(0, 3) == 0) {  // also within a group
    std::swap(event[0], event[1]);
    std::swap(event[0].joined, event[1].joined);
  }
  l.actions.clear();
  for (const auto& e : events) l.actions.insert(l.actions.end(), e.begin(), e.end());
}

schedule random_lowered(random_source& random) {
  auto order = test::sound_schedule(random, test::random_sound_options(random));
  const bool lists = std::any_of(order.lanes.begin(), order.lanes.end(), [](const lane& l) {
    return std::any_of(l.actions.begin(), l.actions.end(), [](const action& a) { return is_transfer(a.kind); });
  });
  if (!lists) {
    if (random.integer(0, 1) == 0) return order;
    order = add_transfers(order);
    if (random.integer(0, 1) == 0) {
      const int modulus = random.integer(1, 3);
      order = stage_transfers(order, [&](int from, int to) { return (from + to) % modulus == 0; });
    }
  }
  if (random.integer(0, 2) == 0) order = group_transfers(order);
  if (random.integer(0, 2) == 0) order = split_streams(order);
  return order;
}

}  // namespace

TEST_CASE("none is reported in sound schedules, and every planted deadlock is found") {
  random_source random(301);
  int sound = 0, planted = 0, buffered = 0;
  const int wanted = 5000 / test::sanitizer_share;
  while (sound < wanted || planted < wanted) {
    auto order = random_lowered(random);
    const auto text = to_csv(order);
    CAPTURE(text);
    if (sound < wanted) {
      REQUIRE(check(order) == std::vector<std::string>{});
      REQUIRE_FALSE(machine(order, send_semantics::buffered, random).stuck());
      REQUIRE_FALSE(machine(order, send_semantics::rendezvous, random).stuck());
      ++sound;
    }
    const bool only_without_buffers = random.integer(0, 1) == 1;
    for (int tries = 0; tries < 20; ++tries) {
      const auto before = order;
      disturb(order, random);
      const auto disturbed = to_csv(order);
      CAPTURE(disturbed);
      const bool is_stuck = machine(order, send_semantics::rendezvous, random).stuck();
      const auto findings = check(order);
      REQUIRE(findings.empty() == !is_stuck);
      if (!is_stuck) continue;
      const bool even_buffered = machine(order, send_semantics::buffered, random).stuck();
      REQUIRE(even_buffered == !check(order, {.semantics = {send_semantics::buffered}}).empty());
      REQUIRE((findings[0].substr(0, 20) == "deadlock (buffered):") == even_buffered);
      for (const auto& finding : findings) verify_cycle(order, finding, random);
      if (even_buffered && only_without_buffers) {
        order = before;
        continue;
      }
      buffered += even_buffered;
      ++planted;
      break;
    }
  }
  CHECK(buffered > planted / 4);
  CHECK(planted - buffered > planted / 4);
}

TEST_CASE("receives posted too early: sound with buffers, a deadlock under rendezvous") {
  // Four stages on three ranks, the last back on the first. Rank 1 posts the receive of a gradient before that of microbatch 2,
  // so rank 0 cannot get rid of microbatch 2 and does not come to the receive that rank 2 needs to go on to that gradient.
  const std::string rank_0 =
      "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0F1,0SEND_F1,0F2,0SEND_F2,3RECV_F1,3F1,3B1,3SEND_B1,3RECV_F2,3F2,3B2,0RECV_B0,"
      "0B0,3SEND_B2,0RECV_B1,0B1,0RECV_B2,0B2\n";
  const auto rank_1 = [](const std::string& receives) {
    return "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1," + receives +
           ",1F2,1SEND_F2,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1,1RECV_B2,1B2,1SEND_B2\n";
  };
  const std::string rank_2 =
      "2RECV_F0,2F0,2SEND_F0,2RECV_B0,2RECV_F1,2F1,2SEND_F1,2B0,2SEND_B0,2RECV_F2,2F2,2RECV_B1,2SEND_F2,2B1,2SEND_B1,2RECV_B2,"
      "2B2,2SEND_B2\n";
  CHECK(check(parse_schedule_csv(rank_0 + rank_1("1RECV_F2,1RECV_B0") + rank_2)).empty());
  const auto early = parse_schedule_csv(rank_0 + rank_1("1RECV_B0,1RECV_F2") + rank_2);
  CHECK(check(early, {.semantics = {send_semantics::buffered}}).empty());
  const std::vector<std::string> cycle{
      "deadlock (rendezvous): rank 0 0SEND_F2 waits for rank 1 1RECV_F2, behind rank 1 1RECV_B0, which waits for rank 2 "
      "2SEND_B0, "
      "behind rank 2 2SEND_F1, which waits for rank 0 3RECV_F1, behind rank 0 0SEND_F2"};
  CHECK(check(early) == cycle);
  CHECK(check(early, {.semantics = {send_semantics::rendezvous}}) == cycle);
  // In one group they start together, and in streams of their own they wait for nobody else.
  CHECK(check(group_transfers(early)).empty());
  CHECK(check(split_streams(early)).empty());
}

TEST_CASE("sends that cross: sound with buffers or in groups") {
  const std::string rank_0 = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n";
  const std::string grouped_0 = "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0)GROUP,0B0,0RECV_B1,0B1\n";
  const std::string rank_1 = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  const std::string grouped_1 = "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1)GROUP,1F1,1B1,1SEND_B1\n";
  const auto crossing = parse_schedule_csv(rank_0 + rank_1);
  CHECK(check(crossing, {.semantics = {send_semantics::buffered}}).empty());
  CHECK(check(crossing) == std::vector<std::string>{
                               "deadlock (rendezvous): rank 0 0SEND_F1 waits for rank 1 1RECV_F1, behind rank 1 1SEND_B0, which "
                               "waits for rank 0 0RECV_B0, behind rank 0 0SEND_F1"});
  CHECK(check(parse_schedule_csv(grouped_0 + grouped_1)).empty());
  // The members of a group start together, so one group is enough.
  CHECK(check(parse_schedule_csv(grouped_0 + rank_1)).empty());
  CHECK(check(parse_schedule_csv(rank_0 + grouped_1)).empty());
  // A receive of what follows from one's own next action blocks whatever the channels.
  CHECK(check(parse_schedule_csv("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")) ==
        std::vector<std::string>{"deadlock (buffered): rank 0 0RECV_B0 waits for rank 1 1SEND_B0, behind rank 1 1RECV_F0, which "
                                 "waits for rank 0 0SEND_F0, behind rank 0 0RECV_B0"});
}

TEST_CASE("a channel whose ends disagree") {
  CHECK(
      check(parse_schedule_csv("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                               "1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n")) ==
      std::vector<std::string>{"deadlock (rendezvous): rank 0 0SEND_F0 waits for rank 1 1RECV_F0, behind rank 1 1RECV_F1, which "
                               "waits for rank 0 0SEND_F1, behind rank 0 0SEND_F0"});
  const auto grouped = parse_schedule_csv(
      "0F0,0F1,(0SEND_F0;0SEND_F1)GROUP,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "(1RECV_F1;1RECV_F0)GROUP,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
  CHECK(check(grouped) ==
        std::vector<std::string>{"deadlock (rendezvous): rank 0 0SEND_F0 comes before rank 0 0SEND_F1 in the channel, but rank 1 "
                                 "1RECV_F1 before rank 1 1RECV_F0"});
  CHECK(check(grouped, {.semantics = {send_semantics::buffered}}).empty());
  // Where no transfer is listed, a boundary delivers in the order in which its tensors were computed.
  CHECK(
      check(parse_schedule_csv("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n")) ==
      std::vector<std::string>{"deadlock (rendezvous): rank 1 1F1 waits for rank 1 1F0, whose input the channel delivers first, "
                               "behind rank 1 1F1"});
}

TEST_CASE("computations that wait for each other, and a reduction that two ranks come to in different order") {
  CHECK(
      check(parse_schedule_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")) ==
      std::vector<std::string>{"deadlock (buffered): rank 0 0B0 waits for rank 1 1B0, behind rank 1 1F1, which waits for rank 0 "
                               "0F1, behind rank 0 0B0"});
  CHECK(check(parse_schedule_csv("0B0,0F0\n")) ==
        std::vector<std::string>{"deadlock (buffered): rank 0 0B0 waits for rank 0 0F0, behind rank 0 0B0"});
  CHECK(check(parse_schedule_csv("(0F0;0B0)OVERLAP_F_B\n")) ==
        std::vector<std::string>{"deadlock (buffered): rank 0 0B0 waits for rank 0 0F0, one event with rank 0 0B0"});
  CHECK(check(parse_schedule_csv("0F0,1F1r1,1B1r1,0B0,0REDUCE_GRAD,1REDUCE_GRADr1\n"
                                 "0F1r1,1F0,1B0,0B1r1,1REDUCE_GRAD,0REDUCE_GRADr1\n")) ==
        std::vector<std::string>{"deadlock (buffered): rank 0 0REDUCE_GRAD waits for rank 1 0REDUCE_GRADr1, behind rank 1 "
                                 "1REDUCE_GRAD, which waits for rank 0 1REDUCE_GRADr1, behind rank 0 0REDUCE_GRAD"});
}

TEST_CASE("two cycles apart are both named") {
  const auto findings = check(parse_schedule_csv("0B0,0F0\n1B0,1F0\n"));
  REQUIRE(findings.size() == 2);
  CHECK(findings[0] == "deadlock (buffered): rank 0 0B0 waits for rank 0 0F0, behind rank 0 0B0");
  CHECK(findings[1] == "deadlock (buffered): rank 1 1B0 waits for rank 1 1F0, behind rank 1 1B0");
}
