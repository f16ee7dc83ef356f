// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/gloo/detail/introduction.hpp>
#include <hetsched/gloo/detail/proof.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>
#include <hetsched/gloo/stranger.hpp>

#include "../runtime/dense.hpp"

using namespace hetsched;
using namespace hetsched::test;
using detail::hello, detail::random_word, detail::unique_socket;

namespace {

using tensor = matrix<double>;
using channel = gloo_communicator<tensor>;
using bytes = std::vector<char>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string text_of(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

/// A connection to a listener; none if it is refused.
unique_socket visit(const std::string& host, const std::string& port) {
  const auto at = detail::find_address(host, port);
  unique_socket s(socket(at.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(s.number(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(s.number(), at.data(), at.size) != 0) return {};
  return s;
}
void tell(const unique_socket& s, const void* what, std::size_t size) { (void)send(s.number(), what, size, MSG_NOSIGNAL); }
template <class T>
bool hear(const unique_socket& s, T& what) {
  return recv(s.number(), &what, sizeof what, MSG_WAITALL) == static_cast<ssize_t>(sizeof what);
}

/// One stranger of six kinds. Those that hold their connection are added to `held`.
void disturb(random_source& random, const std::string& host, const std::string& port, std::vector<unique_socket>& held) {
  auto s = visit(host, port);
  if (!s) return;
  const auto noise = [&](std::size_t size) {
    bytes all(size);
    for (auto& c : all) c = static_cast<char>(random.integer(-128, 127));
    tell(s, all.data(), all.size());
  };
  switch (random.integer(0, 5)) {
    case 0:  // garbage
      return noise(static_cast<std::size_t>(random.integer(1, 5000)));
    case 1: {  // what Gloo's pairs say: sizes, operation, slot, offset, length, offset
      const std::uint64_t preamble[] = {48 + 1024, static_cast<std::uint64_t>(random.integer(0, 9)), 0, 0, 1024, 1ull << 63};
      tell(s, preamble, sizeof preamble);
      return noise(1024);
    }
    case 2: {  // a frame
      bytes frame;
      detail::append_frame(frame, detail::frame_kind::abort, 0, "gone", 4);
      return tell(s, frame.data(), frame.size());
    }
    case 3: {  // a hello as ranks say it, and no proof
      const hello said{.from = 2, .to = 0, .line = static_cast<std::uint32_t>(random.integer(0, 1))};
      tell(s, &said, sizeof said);
      random_word challenge;
      if (hear(s, challenge)) noise(32);
      return;
    }
    case 4:  // it only comes and goes
      return;
    default:  // it stays, and has said a part at most
      if (random.integer(0, 1) == 0) tell(s, "hetsched", 8);
      held.push_back(std::move(s));
  }
}

/// A store of this process that tells when a rank has written its address, and where it listens.
class watched_store : public ::gloo::rendezvous::HashStore {
 public:
  explicit watched_store(std::function<void(const std::string&, const std::string&)> on_address)
      : on_address_(std::move(on_address)) {}
  void set(const std::string& key, const bytes& value) override {
    HashStore::set(key, value);  // first: ranks answer at their doors when they have all addresses
    if (const auto at = key.find(".address."); at != std::string::npos)
      on_address_(key.substr(at + 9), {value.begin(), value.end() - sizeof(sha256_digest)});
  }

 private:
  std::function<void(const std::string&, const std::string&)> on_address_;
};

}  // namespace

TEST_CASE("[threads] gloo: 200 strangers while ranks meet, and more while they run, are turned away by name") {
  random_source random(19);
  std::mutex guard;
  std::map<std::string, detail::host_and_port> doors;
  std::vector<unique_socket> held;
  const auto store = std::make_shared<watched_store>([&](const std::string& rank, const std::string& at) {
    const auto space = at.find(' ');
    {
      const std::lock_guard hold(guard);
      doors[rank] = {at.substr(0, space), at.substr(space + 1)};
    }
    if (rank != "2") return;
    // The others wait for this rank to call: their doors are open.
    for (int door = 0; door < 2;) {
      const std::lock_guard hold(guard);
      door = static_cast<int>(doors.count("0") + doors.count("1"));
    }
    for (int i = 0; i < 200; ++i) disturb(random, doors[i % 2 == 0 ? "0" : "1"].host, doors[i % 2 == 0 ? "0" : "1"].port, held);
  });
  std::vector<std::optional<channel>> ends(3);
  const auto began = std::chrono::steady_clock::now();
  for (const auto& failure : on_ranks(3, [&](int r) {
         gloo_options options;
         options.store = store;
         ends[static_cast<std::size_t>(r)].emplace(process_place{.rank = r, .ranks = 3, .launcher = {}, .master = {}, .run = {}},
                                                   options);
       }))
    CHECK(text_of(failure) == "");
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  std::size_t count = 0;
  for (int r = 0; r < 2; ++r)
    for (const auto& s : ends[static_cast<std::size_t>(r)]->strangers()) {
      CHECK(s.host == "127.0.0.1");
      count += s.count;
    }
  CHECK(count > 100);  // those in the queue of a door that closes have not been heard
  CHECK(ends[2]->strangers().empty());
  CHECK(contains(to_text(ends[0]->strangers()), "from 127.0.0.1 ("));

  std::atomic<bool> over{false};
  int let_in = 0;
  std::thread others([&] {
    while (!over)
      for (const auto& [rank, door] : doors) {
        let_in += bool(visit(door.host, door.port));
        disturb(random, door.host, door.port, held);
      }
  });
  for (const auto& failure : on_ranks(3, [&](int r) {
         auto& end = *ends[static_cast<std::size_t>(r)];
         for (int round = 0; round < 50; ++round) {
           std::vector<std::vector<double>> all;
           REQUIRE(end.gather(std::vector<double>{1.0 * r, 1.0 * round}, all, deadline_in(20)) == wait_result::progress);
           for (int k = 0; k < 3; ++k) REQUIRE(all[static_cast<std::size_t>(k)] == std::vector<double>{1.0 * k, 1.0 * round});
         }
       }))
    CHECK(text_of(failure) == "");
  over = true;
  others.join();
  CHECK(let_in == 0);
  ends[0]->abort("\x1b[2Jgone");
  CHECK(ends[1]->wait(deadline_in(20), true) == wait_result::aborted);
  CHECK(ends[1]->failure() == "\\x1b[2Jgone");
}

TEST_CASE("[threads] gloo: a run with another secret is refused by name") {
  const auto store = make_process_store();
  const auto failures = on_ranks(3, [&](int r) {
    gloo_options options;
    options.store = store;
    options.connect_deadline_s = 5;
    options.secret = r == 1 ? "another" : "right";
    const channel end({.rank = r, .ranks = 3, .launcher = {}, .master = {}, .run = {}}, options);
  });
  for (const int r : {0, 2})
    CHECK(contains(text_of(failures[static_cast<std::size_t>(r)]), "rank 1 has another secret than rank " + std::to_string(r)));
  CHECK(contains(text_of(failures[1]), "rank 0 has another secret than rank 1"));
}

TEST_CASE("[threads] gloo: who listens or calls without the key of the run is named at the deadline") {
  const auto key = keyed_digest({}, {}), other = keyed_digest(key, {});
  auto door = detail::listen_on("127.0.0.1");
  const auto at = detail::find_address(door.at.host, door.at.port);
  const auto failures = on_ranks(2, [&](int r) {
    detail::introduction ranks(r, 2, r == 0 ? key : other, r == 0 ? std::move(door.socket) : unique_socket());
    if (r == 1) ranks.call(0, at);
    ranks.run(std::chrono::steady_clock::now() + std::chrono::milliseconds(500), 0.5);
  });
  const auto called = text_of(failures[0]), calls = text_of(failures[1]);
  CAPTURE(called);
  CAPTURE(calls);
  CHECK(contains(called, "rank 0: rank 1 has not called, within 0.5"));
  CHECK(contains(called, "; turned away: "));
  CHECK(contains(called, " from 127.0.0.1 ("));
  CHECK(contains(called, "did not know the secret"));
  CHECK(contains(calls, "rank 1: rank 0 cannot be reached at 127.0.0.1:" + door.at.port + ", as "));
}

TEST_CASE("[threads] gloo: proofs are of one connection, one side and one pair") {
  const auto key = keyed_digest({}, {});
  auto door = detail::listen_on("127.0.0.1");
  const auto at = door.at;
  detail::introduction ranks(0, 3, key, std::move(door.socket));
  std::thread meets([&] {
    try {
      ranks.run(std::chrono::steady_clock::now() + std::chrono::seconds(2), 2);
    } catch (const error&) {
    }
  });
  const hello said{.from = 1, .to = 0, .line = 0};
  sha256_digest first{};
  const auto is_let_in = [&](const hello& h, const std::function<sha256_digest(const random_word&)>& proof) {
    const auto s = visit(at.host, at.port);
    random_word challenge;
    tell(s, &h, sizeof h);
    if (!hear(s, challenge)) return false;
    const auto mine = proof(challenge);
    tell(s, mine.data(), mine.size());
    sha256_digest theirs;
    return hear(s, theirs) && same_digest(theirs, detail::proof_of(key, "is called", h, challenge));
  };
  CHECK(is_let_in(said, [&](const random_word& c) { return first = detail::proof_of(key, "calls", said, c); }));
  CHECK(!is_let_in(said, [&](const random_word&) { return first; }));
  CHECK(!is_let_in(said, [&](const random_word& c) { return detail::proof_of(key, "is called", said, c); }));
  auto of_other = said;
  of_other.from = 2;
  CHECK(!is_let_in(of_other, [&](const random_word& c) { return detail::proof_of(key, "calls", said, c); }));
  CHECK(is_let_in(of_other, [&](const random_word& c) { return detail::proof_of(key, "calls", of_other, c); }));
  for (auto wrong : {hello{.from = 0, .to = 0}, hello{.from = 3, .to = 0}, hello{.from = 2, .to = 1}, hello{.from = 1, .line = 2},
                     hello{.version = 2, .from = 1}})
    CHECK(!is_let_in(wrong, [&](const random_word& c) { return detail::proof_of(key, "calls", wrong, c); }));
  meets.join();
  CHECK(to_text(ranks.strangers()) ==
        "8 connections from 127.0.0.1 (3 did not know the secret, 5 said something else than ranks do)");
}

TEST_CASE("[threads] gloo: a door that stays open turns away strangers, and counts them") {
  constexpr int ranks = 17;
  std::mutex guard;
  detail::host_and_port door;
  const auto store = std::make_shared<watched_store>([&](const std::string& rank, const std::string& at) {
    const std::lock_guard hold(guard);
    if (rank == "1") door = {at.substr(0, at.find(' ')), at.substr(at.find(' ') + 1)};
  });
  std::vector<std::optional<channel>> ends(ranks);
  rethrow_first(on_ranks(ranks, [&](int r) {
    gloo_options options;
    options.store = store;
    ends[static_cast<std::size_t>(r)].emplace(process_place{.rank = r, .ranks = ranks, .launcher = {}, .master = {}, .run = {}},
                                              options);
  }));
  const auto silent = visit(door.host, door.port);
  for (const std::uint32_t from : {16u, 5u}) {  // one that may call, and one that has met it
    const auto s = visit(door.host, door.port);
    const hello said{.from = from, .to = 1, .line = 0};
    tell(s, &said, sizeof said);
    random_word challenge;
    REQUIRE(hear(s, challenge));
    const auto proof = detail::proof_of(sha256_digest{}, "calls", said, challenge);
    tell(s, proof.data(), proof.size());
    char nothing;
    CHECK(!hear(s, nothing));
  }
  CHECK(contains(to_text(ends[1]->strangers()), "2 did not know the secret"));
  CHECK(ends[0]->strangers().empty());
  // Who is a rank is let in beside them.
  const edge e{16, 1, payload::activation, 0, 0};
  random_source random(7);
  auto sent = random_matrix<double>(random, 1, 3);
  tensor taken(1, 3);
  channel::operation send, receive;
  ends[1]->post_receive(ends[1]->open(e), {}, taken, receive);
  ends[16]->post_send(ends[16]->open(e), {}, sent, send);
  for (const auto until = deadline_in(20); !ends[1]->poll(receive) && std::chrono::steady_clock::now() < until;)
    (void)ends[1]->wait(deadline_in(0.1), false);
  CHECK(taken == sent);
  for (const auto& end : ends) CHECK(end->failure() == "");
}

TEST_CASE("[threads] gloo: a door for which the system has no more files rests, and takes less once ranks have met") {
  const auto key = keyed_digest({}, {});
  auto door = detail::listen_on("127.0.0.1");
  const auto at = detail::find_address(door.at.host, door.at.port);
  detail::introduction ranks(0, 64, key, std::move(door.socket), {1});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::thread calls([&] {
    detail::introduction other(1, 64, key, unique_socket(), {0});
    other.call(0, at);
    other.run(until, 20);
  });
  ranks.run(until, 20);
  calls.join();
  CHECK(ranks.newcomer() == 1);
  std::vector<unique_socket> guests;
  for (int i = 0; i < 140; ++i) {
    guests.push_back(visit(door.at.host, door.at.port));
    ranks.look(100);
  }
  CHECK(to_text(ranks.strangers()) == "12 connections from 127.0.0.1 (12 said nothing, or too little)");
  guests.clear();
  while (ranks.is_busy() && std::chrono::steady_clock::now() < until) ranks.look(10);

  pollfd work{.fd = ranks.watched(), .events = POLLIN, .revents = 0};
  const auto guest = visit(door.at.host, door.at.port);
  CHECK(poll(&work, 1, 10000) == 1);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  auto none = before;
  {
    const unique_socket next(dup(2));
    none.rlim_cur = static_cast<rlim_t>(next.number());
  }
  setrlimit(RLIMIT_NOFILE, &none);
  ranks.look(0);
  const int told = poll(&work, 1, 0);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(told == 0);
  CHECK(ranks.is_busy());
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  ranks.look(0);  // lets it in
  tell(guest, bytes(sizeof(hello), 'x').data(), sizeof(hello));
  while (ranks.is_busy() && std::chrono::steady_clock::now() < until) ranks.look(10);
  CHECK(contains(to_text(ranks.strangers()), " 1 said something else than ranks do"));
}

TEST_CASE("gloo: a call is given up at its deadline, which does not count the time in which the process stood still") {
  detail::introduction ranks(1, 2, keyed_digest({}, {}), unique_socket());
  const auto began = std::chrono::steady_clock::now();
  const auto after = [&](double seconds) { return began + std::chrono::milliseconds(std::llround(1000 * seconds)); };
  ranks.call(0, detail::find_address("127.0.0.1", "1"), after(0.5));  // nobody listens there
  std::this_thread::sleep_until(after(1.2));
  CHECK(ranks.give_up_one().first == -1);
  while (ranks.give_up_one().first < 0 && std::chrono::steady_clock::now() < after(20)) ranks.look(10);
  CHECK(std::chrono::steady_clock::now() >= after(1.7));
  CHECK(std::chrono::steady_clock::now() < after(20));
  CHECK(!ranks.is_busy());
}

TEST_CASE("[threads] gloo: ranks meet over IPv6") {
  try {
    (void)detail::listen_on("::1");
  } catch (const error& e) {
    MESSAGE("skipped: ::1 cannot be used: " << e.what());
    return;
  }
  const auto store = make_process_store();
  std::vector<std::optional<channel>> ends(2);
  for (const auto& failure : on_ranks(2, [&](int r) {
         gloo_options options;
         options.store = store;
         options.address = "::1";
         ends[static_cast<std::size_t>(r)].emplace(process_place{.rank = r, .ranks = 2, .launcher = {}, .master = {}, .run = {}},
                                                   options);
       }))
    CHECK(text_of(failure) == "");
}

TEST_CASE("strangers are told by host, and the list stays short") {
  std::vector<stranger> all;
  CHECK(to_text(all).empty());
  detail::count_stranger(all, "10.0.0.7", "said nothing");
  CHECK(to_text(all) == "1 connection from 10.0.0.7 (1 said nothing)");
  detail::count_stranger(all, "10.0.0.8", "left");
  detail::count_stranger(all, "10.0.0.7", "left");
  CHECK(to_text(all) == "2 connections from 10.0.0.7 (1 said nothing, 1 left); 1 connection from 10.0.0.8 (1 left)");
  for (int i = 0; i < 1000; ++i) detail::count_stranger(all, "10.1.0." + std::to_string(i), "left");
  CHECK(all.size() <= 66);
  CHECK(contains(to_text(all), "from other hosts ("));
}
