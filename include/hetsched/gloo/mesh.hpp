// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/meeting.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

struct gloo_options {
  std::string rendezvous;  ///< for open_gloo_store()
  gloo_store store;        ///< instead of it, if not null
  /// The name of this run in the store; empty: the launcher's. In a folder, a name may be used again once its last run has
  /// ended, however it did; in other stores, never.
  std::string run;
  std::string interface;  ///< network interface to use; empty: see address
  /// This rank's own address or host name. Empty: 127.0.0.1 if all ranks are on one host; else the only address there is, or
  /// the one from which the launcher's master is reached.
  std::string address;
  double connect_deadline_s = 30;
};

namespace detail {

/// Blocks all signals of this thread while it lives, and so of threads that it makes. Gloo writes to sockets whose other end
/// may be gone, and that SIGPIPE would end the process.
class no_signals {
 public:
  no_signals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~no_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  no_signals(const no_signals&) = delete;
  no_signals& operator=(const no_signals&) = delete;

 private:
  sigset_t before_;
};

/// Two connections between every two ranks: one for tensors, and one for what must not wait behind them.
struct gloo_mesh {
  int rank = 0, ranks = 1;
  std::shared_ptr<::gloo::transport::Device> device;
  std::shared_ptr<::gloo::transport::Context> control, data;
  gloo_store store;
  meeting met;  ///< empty where ranks do not meet in a folder
};

/// A text that is the same for processes that reach each other over 127.0.0.1.
[[nodiscard]] inline std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  char name[256] = {};
  (void)gethostname(name, sizeof name - 1);
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", none).string() + " " + name;
}

/// The own address from which packets to a host leave; empty if there is none.
[[nodiscard]] inline std::string address_toward(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  std::string address;
  const int socket_number = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (socket_number >= 0 && connect(socket_number, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(socket_number, reinterpret_cast<sockaddr*>(&own), &size) == 0) {
    char text[INET_ADDRSTRLEN] = {};
    if (inet_ntop(AF_INET, &own.sin_addr, text, sizeof text)) address = text;
  }
  if (socket_number >= 0) close(socket_number);
  freeaddrinfo(found);
  return address.starts_with("127.") ? std::string() : address;
}

/// IPv4 addresses that other hosts can reach, with their interfaces.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> own_addresses() {
  std::vector<std::pair<std::string, std::string>> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* i = all; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto* const address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof text)) found.emplace_back(text, i->ifa_name);
  }
  freeifaddrs(all);
  return found;
}

[[nodiscard]] inline std::string choose_address(const process_place& place, const gloo_options& options, bool one_host) {
  if (!options.address.empty()) return options.address;
  if (one_host) return "127.0.0.1";
  const auto own = own_addresses();
  if (own.empty()) throw error("rank " + std::to_string(place.rank) + " has no network address that other hosts could reach");
  if (own.size() == 1) return own.front().first;
  std::string toward = place.master;
  if (toward.empty() && options.rendezvous.starts_with("redis:")) toward = parse_store(options.rendezvous).path_or_host;
  if (const auto address = toward.empty() ? std::string() : address_toward(toward); !address.empty()) return address;
  std::string names;
  for (const auto& [address, name] : own) names += (names.empty() ? "" : ", ") + name + " (" + address + ")";
  throw input_error("rank " + std::to_string(place.rank) + " has several network interfaces, " + names + ": say which to use");
}

[[nodiscard]] inline std::shared_ptr<::gloo::transport::Device> make_device(const process_place& place,
                                                                            const gloo_options& options, bool one_host) {
  ::gloo::transport::tcp::attr attributes;
  attributes.iface = options.interface;
  if (options.interface.empty()) attributes.hostname = choose_address(place, options, one_host);
  try {
    const no_signals in_its_thread;
    return ::gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& e) {
    throw input_error((options.interface.empty() ? "address " + attributes.hostname : "interface " + options.interface) +
                      " cannot be used: " + gloo_text(e));
  }
}

/// The names under which ranks find each other in a store.
class roll_call {
 public:
  using clock = std::chrono::steady_clock;
  roll_call(::gloo::rendezvous::Store& store, const process_place& place, const std::string& run, std::string where,
            double deadline_s, clock::time_point until)
      : store_(store),
        rank_(place.rank),
        run_(nameless(run) ? "hetsched" : run),
        run_text_(nameless(run) ? "the run without a name" : "run \"" + run + '"'),
        where_(std::move(where)),
        deadline_s_(deadline_s),
        until_(until) {}

  void put(const std::string& name, const std::vector<char>& value) const {
    try {
      store_.set(key(name, rank_), value);
    } catch (const std::exception& e) {
      throw error("rank " + std::to_string(rank_) + " cannot enter " + run_text_ + " in the rendezvous" + where_ +
                  ", maybe as an earlier run of this name has not been cleaned up (choose another name): " + gloo_text(e));
    }
  }
  [[nodiscard]] std::vector<char> get(const std::string& name, int rank) const {
    try {
      store_.wait({key(name, rank)}, left());
      return store_.get(key(name, rank));
    } catch (const std::exception& e) {
      throw error("rank " + std::to_string(rank) + " has not come to " + run_text_ + " in the rendezvous" + where_ + " within " +
                  std::to_string(deadline_s_) + " s: " + gloo_text(e));
    }
  }
  [[nodiscard]] std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(1), std::chrono::duration_cast<std::chrono::milliseconds>(until_ - clock::now()));
  }

 private:
  /// Whether a launcher names nothing: then only the dots between the parts of a name are left.
  [[nodiscard]] static bool nameless(const std::string& run) { return run.find_first_not_of('.') == std::string::npos; }
  [[nodiscard]] std::string key(const std::string& name, int rank) const {
    return run_ + "." + name + "." + std::to_string(rank);
  }
  ::gloo::rendezvous::Store& store_;
  int rank_;
  std::string run_, run_text_, where_;
  double deadline_s_;
  clock::time_point until_;
};

/// Connects this rank with all others.
/// Throws: input_error or error that says which rank was missed, or what does not fit.
[[nodiscard]] inline gloo_mesh connect_mesh(const process_place& place, const gloo_options& options) {
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks)
    throw input_error("there is no rank " + std::to_string(place.rank) + " of " + std::to_string(place.ranks));
  gloo_mesh mesh{
      .rank = place.rank, .ranks = place.ranks, .device = {}, .control = {}, .data = {}, .store = options.store, .met = {}};
  if (place.ranks == 1) return mesh;
  const std::string run = options.run.empty() ? place.run : options.run;
  const auto until = deadline_in(options.connect_deadline_s);
  if (!mesh.store) {
    mesh.store = open_gloo_store(options.rendezvous);
    if (const auto at = parse_store(options.rendezvous); !at.redis) {
      mesh.met = meet_in_folder(at.path_or_host, place, run, options.connect_deadline_s, until);
      mesh.store = open_gloo_store("file:" + mesh.met.folder.string());
    }
  }
  const std::string where = options.rendezvous.empty() ? std::string() : " " + options.rendezvous;
  const roll_call call(*mesh.store, place, run, where, options.connect_deadline_s, until);

  const std::string self = std::to_string(place.ranks) + " " + host_identity();
  call.put("host", {self.begin(), self.end()});
  bool one_host = true;
  for (int r = 0; r < place.ranks; ++r) {
    if (r == place.rank) continue;
    const auto value = call.get("host", r);
    const std::string other(value.begin(), value.end());
    if (other.substr(0, other.find(' ')) != std::to_string(place.ranks))
      throw input_error("rank " + std::to_string(r) + " is one of " + other.substr(0, other.find(' ')) + " ranks, rank " +
                        std::to_string(place.rank) + " one of " + std::to_string(place.ranks));
    one_host = one_host && other == self;
  }

  mesh.device = make_device(place, options, one_host);
  mesh.control = mesh.device->createContext(place.rank, place.ranks);
  mesh.data = mesh.device->createContext(place.rank, place.ranks);
  std::vector<char> addresses;
  const auto contexts = {mesh.control.get(), mesh.data.get()};
  try {
    for (auto* const context : contexts) {
      context->setTimeout(call.left() / 5 + std::chrono::milliseconds(1));  // Gloo waits five times as long for a connection
      for (int r = 0; r < place.ranks; ++r) {
        if (r == place.rank) continue;
        const auto bytes = context->createPair(r)->address().bytes();
        addresses.insert(addresses.end(), bytes.begin(), bytes.end());
      }
    }
  } catch (const std::exception& e) {
    throw error("rank " + std::to_string(place.rank) + " cannot listen: " + gloo_text(e));
  }
  call.put("address", addresses);
  for (int r = 0; r < place.ranks; ++r) {
    if (r == place.rank) continue;
    const auto theirs = call.get("address", r);
    const std::size_t peers = static_cast<std::size_t>(place.ranks) - 1, size = theirs.size() / (2 * peers);
    std::size_t index = static_cast<std::size_t>(place.rank < r ? place.rank : place.rank - 1);
    for (auto* const context : contexts) {
      const auto first = theirs.begin() + static_cast<std::ptrdiff_t>(index * size);
      try {
        context->getPair(r)->connect({first, first + static_cast<std::ptrdiff_t>(size)});
      } catch (const std::exception& e) {
        throw error("rank " + std::to_string(place.rank) + " cannot connect to rank " + std::to_string(r) + ": " + gloo_text(e));
      }
      index += peers;
    }
  }
  return mesh;
}

/// Removes this run's addresses from the store, so that its name may be used again.
/// Requires: all ranks are connected.
inline void forget_addresses(const gloo_mesh& mesh) {
  std::error_code ignored;
  if (auto* const files = dynamic_cast<::gloo::rendezvous::FileStore*>(mesh.store.get()))
    for (const auto& path : files->getAllKeyFilePaths()) std::filesystem::remove(path, ignored);
  if (mesh.met.folder.empty()) return;
  std::filesystem::remove(mesh.met.own, ignored);
  std::filesystem::remove(mesh.met.folder, ignored);  // only the last rank finds it empty
}

}  // namespace detail
}  // namespace hetsched
