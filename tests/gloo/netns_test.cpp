// SPDX-License-Identifier: Apache-2.0
#include <hetsched/gloo/gloo_communicator.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <hetsched/schedule/builders/named.hpp>
#include <hetsched/schedule/pipeline.hpp>

#include "../runtime/dense.hpp"
#include "processes.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = matrix<double>;
using channel = gloo_communicator<tensor>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool done(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

/// Two network namespaces with a cable between them: hosts, as far as sockets can tell. `usable` is false where they cannot be
/// made.
class two_hosts {
 public:
  two_hosts() {
    remove_left_over();
    const std::string add = "ip netns add ";
    usable = geteuid() == 0 && done("ip -V") && done(add + name(0)) && done(add + name(1)) &&
             done("ip link add " + device(0) + " type veth peer name " + device(1));
    for (int host = 0; host < 2 && usable; ++host) {
      const std::string inside = "ip -n " + name(host);
      usable = done("ip link set " + device(host) + " netns " + name(host)) &&
               done(inside + " addr add 10.199.7." + std::to_string(host + 1) + "/24 dev " + device(host)) &&
               done(inside + " link set " + device(host) + " up") && done(inside + " link set lo up");
    }
  }
  ~two_hosts() {
    (void)done("ip link del " + device(0));
    for (int host = 0; host < 2; ++host) (void)done("ip netns del " + name(host));
  }
  two_hosts(const two_hosts&) = delete;
  two_hosts& operator=(const two_hosts&) = delete;

  /// Takes this process to a host.
  void enter(int host) const {
    const int file = open(("/var/run/netns/" + name(host)).c_str(), O_RDONLY);
    if (file < 0 || setns(file, CLONE_NEWNET) != 0) throw std::runtime_error("no way into " + name(host));
    close(file);
  }
  [[nodiscard]] bool cut() const { return done("ip -n " + name(0) + " link set " + device(0) + " down"); }
  [[nodiscard]] std::string name(int host) const { return "hetsched" + number_ + (host == 0 ? "a" : "b"); }
  [[nodiscard]] std::string device(int host) const { return "hs" + number_ + (host == 0 ? "a" : "b"); }

  bool usable = false;

 private:
  /// Namespaces of a test that was killed.
  static void remove_left_over() {
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator("/var/run/netns", none)) {
      const std::string name = file.path().filename().string(), start = "hetsched";
      if (!name.starts_with(start)) continue;
      const int number = std::atoi(name.c_str() + start.size());
      if (number > 0 && kill(number, 0) != 0) (void)done("ip netns del " + name);
    }
  }

  std::string number_ = std::to_string(getpid());
};

}  // namespace

TEST_CASE("gloo between two network namespaces: the right address is found, and a cut link ends the step at the deadline") {
  const two_hosts hosts;
  if (!hosts.usable) {
    MESSAGE("skipped: network namespaces need root and iproute2");
    return;
  }
  const auto order = build_schedule("1f1b", pipeline{.forward_s = {1, 1}, .backward_s = {1, 1}, .transfer_s = {0.1}}, 4);
  const scratch_folder folder;
  constexpr double deadline_s = 2;
  process_group processes(2, [&](int rank, const auto& say) {
    hosts.enter(rank);
    const task<double> t(1, {1, 1}, 4);
    std::vector<dense_stage<double>> own;
    own.push_back(t.stage(rank));
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    channel comm({.rank = rank, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, options);
    pipeline_executor<tensor, dense_stage<double>, channel> executor(order, own, t.boundaries(), comm,
                                                                     {.deadline_s = deadline_s});
    try {
      for (int step = 0;; ++step) {
        executor.step(std::span<const tensor>(t.inputs), std::span<const tensor>(t.targets), task<double>::loss);
        if (step == 20) say("steps");
      }
    } catch (const communication_error& e) {
      return std::string(e.what());
    }
  });
  for (int r = 0; r < 2; ++r) REQUIRE(processes.hear(r) == "steps");
  const double cut_s = steady_now_s();
  REQUIRE(hosts.cut());
  for (int r = 0; r < 2; ++r) {
    CAPTURE(r);
    const auto last = processes.hear(r, 30);
    CAPTURE(last);
    CHECK(contains(last, "rank " + std::to_string(r) + ", step "));
    // The link may be cut while either end is the one that sends.
    CHECK(
        (contains(last, " waits for the ") || contains(last, " is not received: ") || contains(last, " finds no room for the ")));
    CHECK(contains(last, ", microbatch "));
    CHECK(contains(last, "; ended, as rank " + std::to_string(1 - r) + " has not answered for a second"));
    CHECK(steady_now_s() - cut_s < 20);
  }
}

TEST_CASE("gloo between two network namespaces: a host that is cut off is known although nobody waits for it") {
  const two_hosts hosts;
  if (!hosts.usable) {
    MESSAGE("skipped: network namespaces need root and iproute2");
    return;
  }
  const scratch_folder folder;
  process_group processes(2, [&](int rank, const auto& say) {
    hosts.enter(rank);
    gloo_options options;
    options.rendezvous = "file:" + folder.path;
    options.heartbeat_s = 1;
    channel comm({.rank = rank, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, options);
    say("connected");
    for (int k = 0; k < 2000 && comm.failure().empty(); ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return comm.failure();
  });
  for (int r = 0; r < 2; ++r) REQUIRE(processes.hear(r) == "connected");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // nothing is under way
  REQUIRE(hosts.cut());
  for (int r = 0; r < 2; ++r) {
    const auto last = processes.hear(r, 30);
    CAPTURE(last);
    CHECK(contains(last, "rank " + std::to_string(1 - r) + " was lost: "));
  }
}

TEST_CASE("gloo: of several interfaces one must be chosen, or be the way to the master") {
  const two_hosts hosts;
  if (!hosts.usable) {
    MESSAGE("skipped: network namespaces need root and iproute2");
    return;
  }
  // A second cable, between the same two.
  REQUIRE(done("ip link add " + hosts.device(0) + "2 netns " + hosts.name(0) + " type veth peer name " + hosts.device(1) +
               "2 netns " + hosts.name(1)));
  for (int host = 0; host < 2; ++host) {
    const std::string inside = "ip -n " + hosts.name(host), device = hosts.device(host) + "2";
    REQUIRE(done(inside + " addr add 10.199.8." + std::to_string(host + 1) + "/24 dev " + device));
    REQUIRE(done(inside + " link set " + device + " up"));
  }
  const scratch_folder folder;
  const auto meet = [&](const std::string& run, const std::string& master, bool by_interface, bool by_address) {
    process_group processes(2, [&](int rank, const auto&) {
      hosts.enter(rank);
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      options.run = run;
      options.connect_deadline_s = 5;
      if (by_interface) options.interface = hosts.device(rank) + "2";
      if (by_address) options.address = "10.199.8." + std::to_string(rank + 1);
      const channel comm({.rank = rank, .ranks = 2, .launcher = {}, .master = master, .run = {}}, options);
      return std::string("connected");
    });
    return processes.hear(0, 30) + "; " + processes.hear(1, 30);
  };
  const auto unknown = meet("unknown", "", false, false);
  CAPTURE(unknown);
  CHECK(contains(unknown, "threw: rank 0 has several network interfaces, "));
  CHECK(contains(unknown, hosts.device(0) + "2 (10.199.8.1)"));
  CHECK(contains(unknown, "say which to use"));
  CHECK(meet("interface", "", true, false) == "connected; connected");
  CHECK(meet("address", "", false, true) == "connected; connected");
  CHECK(meet("master", "10.199.8.1", false, false) == "connected; connected");
}

TEST_CASE("gloo between two network namespaces: an address that is 127.0.0.1 is told by all, at once") {
  const two_hosts hosts;
  if (!hosts.usable) {
    MESSAGE("skipped: network namespaces need root and iproute2");
    return;
  }
  for (const int wrong : {0, 1}) {
    const scratch_folder folder;
    const double start_s = steady_now_s();
    process_group processes(2, [&](int rank, const auto&) {
      hosts.enter(rank);
      gloo_options options;
      options.rendezvous = "file:" + folder.path;
      if (rank == wrong) options.address = "localhost";
      try {
        const channel comm({.rank = rank, .ranks = 2, .launcher = {}, .master = {}, .run = {}}, options);
      } catch (const input_error& e) {
        return std::string(e.what());
      }
      return std::string("connected");
    });
    for (int r = 0; r < 2; ++r) {
      const auto said = processes.hear(r, 25);
      CAPTURE(said);
      CHECK(contains(said, "rank " + std::to_string(wrong) + " listens at 127.0.0.1"));
      CHECK(contains(said, "where no other host reaches it"));
      CHECK(contains(said, "which localhost is on its host") == (r == wrong));
    }
    CHECK(steady_now_s() - start_s < 20);
  }
}
