// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/torch_store.hpp>

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/gloo/gloo_communicator.hpp>

#include "../runtime/dense.hpp"
#include "any_store.hpp"

namespace {

using namespace std::chrono_literals;

/// What the daemon of PyTorch's TCPStore does with the requests of this client. tests/torch/check.py has PyTorch's own.
class torch_daemon {
 public:
  torch_daemon() : door_(hetsched::detail::listen_on("127.0.0.1")) {
    const int flags = fcntl(door_.socket.number(), F_GETFL);
    fcntl(door_.socket.number(), F_SETFL, flags & ~O_NONBLOCK);
    accepts_ = std::thread([this] {
      for (int s; (s = accept(door_.socket.number(), nullptr, nullptr)) >= 0;) {
        const std::lock_guard lock(mutex_);
        connections_.push_back(s);
        serves_.emplace_back([this, s] { serve(s); });
      }
    });
  }
  ~torch_daemon() {
    end();
    for (auto& t : serves_) t.join();
    for (const int s : connections_) close(s);
  }
  void end() {
    if (!accepts_.joinable()) return;
    shutdown(door_.socket.number(), SHUT_RDWR);
    accepts_.join();
    const std::lock_guard lock(mutex_);
    for (const int s : connections_) shutdown(s, SHUT_RDWR);
  }
  [[nodiscard]] int port() const { return std::stoi(door_.at.port); }
  [[nodiscard]] std::string text() const { return "torch://127.0.0.1:" + door_.at.port; }
  [[nodiscard]] std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  template <class Number>
  static bool get(int s, Number& value) {
    return recv(s, &value, sizeof value, MSG_WAITALL) == sizeof value;
  }
  static bool get(int s, std::string& text) {
    std::uint64_t size = 0;
    if (!get(s, size)) return false;
    text.resize(size);
    return size == 0 || recv(s, text.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  template <class Number>
  static void put(int s, Number value) {
    (void)send(s, &value, sizeof value, MSG_NOSIGNAL);
  }
  static void put(int s, const std::string& text) {
    put(s, std::uint64_t{text.size()});
    (void)send(s, text.data(), text.size(), MSG_NOSIGNAL);
  }
  void serve(int s) {
    std::uint8_t what = 0;
    std::uint32_t magic = 0;
    bool goes_on = get(s, what) && what == 0 && get(s, magic) && magic == 0x3C85F7CE;
    while (goes_on && get(s, what)) {
      std::string name, expected, value;
      std::unique_lock lock(mutex_, std::defer_lock);
      if (what == 2) {
        goes_on = get(s, name) && get(s, expected) && get(s, value);
        lock.lock();
        const auto found = values_.find(name);
        if (found == values_.end() ? expected.empty() : found->second == expected) values_[name] = value;
        put(s, values_.contains(name) ? values_[name] : expected);
      } else if (what == 3) {
        goes_on = get(s, name);
        lock.lock();
        if (!values_.contains(name)) break;
        put(s, values_[name]);
      } else if (what == 5) {
        std::uint64_t count = 0;
        goes_on = get(s, count);
        std::vector<std::string> names(count);
        for (auto& n : names) goes_on = goes_on && get(s, n);
        lock.lock();
        const bool all = std::all_of(names.begin(), names.end(), [&](const auto& n) { return values_.contains(n); });
        put(s, std::uint8_t{static_cast<std::uint8_t>(all ? 0 : 1)});
      } else if (what == 7) {
        lock.lock();
        put(s, static_cast<std::int64_t>(values_.size()));
      } else if (what == 8) {
        goes_on = get(s, name);
        lock.lock();
        put(s, static_cast<std::int64_t>(values_.erase(name)));
      } else {
        break;
      }
    }
    shutdown(s, SHUT_RDWR);
  }

  hetsched::detail::listener door_;
  std::thread accepts_;
  std::mutex mutex_;
  std::vector<int> connections_;
  std::vector<std::thread> serves_;
  std::map<std::string, std::string> values_;
};

std::vector<char> bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

TEST_CASE("PyTorch's store: values are set once, waited for and forgotten") {
  torch_daemon daemon;
  hetsched::torch_store one("127.0.0.1", daemon.port()), other("127.0.0.1", daemon.port());
  one.set("a", bytes("first"));
  CHECK(daemon.values().at("/a") == "first");
  CHECK(other.get("a") == bytes("first"));
  CHECK_THROWS_WITH_AS(other.set("a", bytes("second")), "\"a\" is there with another value", hetsched::error);
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    one.set("b", {});
    one.set("c", bytes(std::string(100'000, 'x')));
  });
  other.wait({"a", "b", "c"}, 10s);
  late.join();
  CHECK(other.get("b").empty());
  CHECK(other.get("c").size() == 100'000);
  other.set("d", bytes("stays"));
  one.forget();
  CHECK(daemon.values() == std::map<std::string, std::string>{{"/d", "stays"}});
}

TEST_CASE("PyTorch's store: what goes wrong is said, and soon") {
  torch_daemon daemon;
  const std::string name = "PyTorch's store at 127.0.0.1:" + std::to_string(daemon.port());
  hetsched::torch_store waits("127.0.0.1", daemon.port());
  CHECK_THROWS_WITH_AS(waits.wait({"never"}, 20ms), (name + ": nobody has set \"never\" in time").c_str(), hetsched::error);
  CHECK_FALSE(waits.check({"never"}));
  CHECK_THROWS_WITH_AS((void)waits.get("never"), (name + ": it has ended the connection").c_str(), hetsched::error);
  CHECK_THROWS_WITH_AS((void)waits.get("a"), (name + ": not connected any more").c_str(), hetsched::error);
  hetsched::torch_store survives("127.0.0.1", daemon.port());
  CHECK_THROWS_AS(survives.set("big", std::vector<char>((1 << 20) + 1)), hetsched::error);
  survives = hetsched::torch_store("127.0.0.1", daemon.port());
  daemon.end();
  CHECK_THROWS_AS(survives.set("a", bytes("b")), hetsched::error);
  CHECK_THROWS_AS(hetsched::torch_store("127.0.0.1", daemon.port()), hetsched::error);
}

TEST_CASE("PyTorch's store: one who answers something else is no such store") {
  auto door = hetsched::detail::listen_on("127.0.0.1");
  for (const std::string& answer : {std::string("HTTP/1.0 400 Bad Request\r\n"), std::string(8, '\xff'), std::string()}) {
    CAPTURE(answer);
    std::thread server([&] {
      pollfd one{.fd = door.socket.number(), .events = POLLIN, .revents = 0};
      poll(&one, 1, 10'000);
      const hetsched::detail::unique_socket s(accept(door.socket.number(), nullptr, nullptr));
      char taken[64];
      (void)recv(s.number(), taken, sizeof taken, 0);
      (void)send(s.number(), answer.data(), answer.size(), MSG_NOSIGNAL);
    });
    // The first eight bytes of HTTP's answer are a number of names that may be; so that answer is known by what comes next.
    CHECK_THROWS_AS(
        [&] {
          hetsched::torch_store store("127.0.0.1", std::stoi(door.at.port));
          store.set("a", bytes("b"));
        }(),
        hetsched::error);
    server.join();
  }
}

TEST_CASE("gloo: ranks meet in the store of their torchrun, run after run") {
  torch_daemon daemon;
  for (const char* run : {"a", "a", "b"}) {
    CAPTURE(run);
    std::vector<std::string> problems(3);
    std::vector<std::thread> ranks;
    for (int r = 2; r >= 0; --r)
      ranks.emplace_back([&, r] {
        hetsched::process_place place;
        place.rank = r;
        place.ranks = 3;
        place.run = run;
        place.store = daemon.text();
        try {
          hetsched::gloo_communicator<hetsched::test::matrix<float>> comm(place, hetsched::gloo_options{});
        } catch (const std::exception& e) {
          problems[static_cast<std::size_t>(r)] = e.what();
        }
      });
    for (auto& rank : ranks) rank.join();
    for (const auto& problem : problems) CHECK(problem == "");
    CHECK(daemon.values().empty());
  }
}

TEST_CASE("gloo: over PyTorch's store, too, who fails tells the others, and ranks come and go") {
  torch_daemon daemon;
  hetsched::test::check_failures_are_told(daemon.text(), "fails");
  const auto before = daemon.values();
  hetsched::test::check_ranks_come_and_go(daemon.text(), "elastic");
  for (const auto& [name, value] : daemon.values()) CHECK((before.contains(name) || name.find("roster") != std::string::npos));
}

TEST_CASE("a store whose host's name is 127.0.0.1 here is told so") {
  const std::string port = hetsched::detail::listen_on("127.0.0.1").at.port;  // closed again
  const auto refused = [&](const std::string& host) {
    try {
      const hetsched::torch_store store(host, std::stoi(port));
    } catch (const hetsched::error& e) {
      return std::string(e.what());
    }
    return std::string("connected");
  };
  CHECK(refused("localhost").find("Connection refused, and localhost is 127.0.0.1 on this host") != std::string::npos);
  CHECK(refused("127.0.0.1").ends_with(": Connection refused"));
}
