// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/core/sha256.hpp>
#include <hetsched/gloo/detail/proof.hpp>
#include <hetsched/gloo/folder_store.hpp>
#include <hetsched/gloo/mesh.hpp>
#include <hetsched/gloo/torch_store.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  char name[256] = {};
  (void)gethostname(name, sizeof name - 1);
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", none).string() + " " + name;
}

[[nodiscard]] inline std::string choose_address(const process_place& place, const gloo_options& options, bool one_host) {
  if (!options.interface.empty()) {
    const auto own = own_addresses(options.interface);
    if (own.empty()) throw input_error("interface " + options.interface + " cannot be used: it is not there, or has no address");
    return own.front().address;
  }
  if (!options.address.empty()) return options.address;
  if (one_host) return "127.0.0.1";
  const auto own = own_addresses();
  if (own.empty()) throw error("rank " + std::to_string(place.rank) + " has no network address that other hosts could reach");
  if (own.size() == 1) return own.front().address;
  std::string toward = place.master;
  if (toward.empty() && !options.rendezvous.empty())
    if (const auto store = parse_store(options.rendezvous); store.kind != store_place::file) toward = store.path_or_host;
  if (const auto address = toward.empty() ? std::string() : address_toward(toward); !address.empty()) return address;
  std::string names;
  for (const auto& [address, name] : own) names += (names.empty() ? "" : ", ") + name + " (" + address + ")";
  throw input_error("rank " + std::to_string(place.rank) + " has several network interfaces, " + names + ": say which to use");
}

[[nodiscard]] inline listener open_door(const process_place& place, const gloo_options& options, bool one_host) {
  const auto address = choose_address(place, options, one_host);
  try {
    return listen_on(address);
  } catch (const error& e) {
    throw input_error((options.interface.empty() ? "" : "interface " + options.interface + ": ") + "address " + address +
                      " cannot be used: " + e.what());
  }
}

/// Throws: input_error for an address that only the own host reaches, of a rank that is not alone on one.
inline void refuse_loopback(int rank, const gloo_options& options, const std::string& address) {
  if (!address.starts_with("127.") && address != "::1") return;
  const std::string& given = options.interface.empty() ? options.address : options.interface;
  throw input_error("rank " + std::to_string(rank) + " listens at " + address +
                    (given.empty() || given == address ? "" : ", which " + printable(given) + " is on its host") +
                    ", where no other host reaches it: give it the address or the interface of a network");
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

  /// From then on what is put has a proof, and what is got has to have one.
  void prove_with(const sha256_digest& run) { proves_ = run; }

  void put(const std::string& name, const std::vector<char>& value) const {
    try {
      const auto at = key(name, rank_);
      store_.set(at, proves_ ? with_proof(*proves_, at, value) : value);
    } catch (const std::exception& e) {
      throw error("rank " + std::to_string(rank_) + " cannot enter " + run_text_ + " in the rendezvous" + where_ +
                  ", maybe as another process is this rank, too, or an earlier run of this name has not been cleaned up (choose "
                  "another name): " +
                  gloo_text(e));
    }
  }
  [[nodiscard]] std::vector<char> get(const std::string& name, int rank) const {
    const auto at = key(name, rank);
    std::vector<char> value;
    try {
      const auto note = wait_for(at);
      if (!note.empty()) throw told(note);
      value = store_.get(at);
    } catch (const told&) {
      throw;
    } catch (const std::exception& e) {
      throw error("rank " + std::to_string(rank) + " has not come to " + run_text_ + " in the rendezvous" + where_ + " within " +
                  std::to_string(deadline_s_) + " s: " + gloo_text(e));
    }
    if (proves_ && !take_proof(*proves_, at, value))
      throw input_error("rank " + std::to_string(rank) + " has another secret than rank " + std::to_string(rank_) + " in " +
                        run_text_ + " in the rendezvous" + where_ + ": all have to be given the same one");
    return value;
  }
  /// Tells those who wait in get() why this rank comes no further.
  void give_up(const std::string& why) const {
    const auto text = "rank " + std::to_string(rank_) + " cannot come to " + run_text_ + ": " + printable(why);
    try {
      store_.set(note_key(), {text.begin(), text.end()});
    } catch (const std::exception&) {  // then they find it out at their deadlines
    }
  }
  /// What a rank that gave up has told.
  class told : public error {
   public:
    using error::error;
  };
  [[nodiscard]] std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(1), std::chrono::duration_cast<std::chrono::milliseconds>(until_ - clock::now()));
  }

 private:
  /// Whether a launcher names nothing: then only the dots between the parts of a name are left.
  [[nodiscard]] static bool nameless(const std::string& run) { return run.find_first_not_of('.') == std::string::npos; }
  [[nodiscard]] std::string key(const std::string& name, int rank) const {
    return run_ + "." + name + "." + std::to_string(rank);
  }
  [[nodiscard]] std::string note_key() const { return run_ + ".failed"; }
  /// Waits for a name, or for what a rank that gives up has to tell: returns that. Throws: what the store throws.
  [[nodiscard]] std::string wait_for(const std::string& name) const {
    using namespace std::chrono_literals;
    while (true) {
      const auto slice = std::min(left(), std::chrono::milliseconds(200ms));
      const auto until = clock::now() + slice;
      try {
        store_.wait({name}, slice);
        return {};
      } catch (const std::exception&) {
        if (clock::now() < until || clock::now() >= until_) throw;
      }
      try {
        store_.wait({note_key()}, 1ms);
      } catch (const std::exception&) {
        continue;
      }
      const auto note = store_.get(note_key());
      return printable(std::string(note.begin(), note.end()));
    }
  }
  ::gloo::rendezvous::Store& store_;
  int rank_;
  std::string run_, run_text_, where_;
  double deadline_s_;
  clock::time_point until_;
  std::optional<sha256_digest> proves_;
};

/// What connect_mesh does once there is a store.
inline void connect_all(gloo_mesh& mesh, roll_call& call, const process_place& place, const gloo_options& options,
                        roll_call::clock::time_point until) {
  if (place.rank == 0) {
    const auto word = fresh_bytes<32>();
    const auto* const chars = reinterpret_cast<const char*>(word.data());
    call.put("word", {chars, chars + word.size()});
  }
  const auto key = run_key(secret_of(options.secret), call.get("word", 0));
  call.prove_with(key);
  const std::string self = std::to_string(place.ranks) + " " + host_identity();
  call.put("host", {self.begin(), self.end()});
  const auto network_of = [](const std::string& host) { return host.substr(0, host.rfind(' ')); };  // without its name
  bool one_host = true, one_network = true;
  // Where ranks are many, the first looks at all, and tells.
  const bool looks = is_mesh(place.ranks) || place.rank == 0;
  for (int r = 0; r < place.ranks; ++r) {
    if (r == place.rank || (r > 0 && !looks)) continue;
    const auto value = call.get("host", r);
    const std::string other(value.begin(), value.end());
    if (other.substr(0, other.find(' ')) != std::to_string(place.ranks))
      throw input_error("rank " + std::to_string(r) + " is one of " + printable(other.substr(0, other.find(' '))) +
                        " ranks, rank " + std::to_string(place.rank) + " one of " + std::to_string(place.ranks));
    one_host = one_host && other == self;
    one_network = one_network && network_of(other) == network_of(self);
  }
  if (!is_mesh(place.ranks)) {
    if (looks) call.put("hosts", {one_host ? '1' : '0', one_network ? '1' : '0'});
    const auto told = looks ? std::vector<char>{} : call.get("hosts", 0);
    one_host = looks ? one_host : told == std::vector<char>{'1', '1'};
    one_network = looks ? one_network : !told.empty() && told.back() == '1';
  }

  auto door = open_door(place, options, one_host);
  mesh.address = door.at.host + ' ' + door.at.port;
  call.put("address", {mesh.address.begin(), mesh.address.end()});
  if (!one_network) refuse_loopback(place.rank, options, door.at.host);
  const auto neighbours = neighbours_of(place.rank, place.ranks);
  auto ranks = std::make_unique<introduction>(place.rank, place.ranks, key, std::move(door.socket), neighbours);
  for (const int r : neighbours) {
    const auto theirs = call.get("address", r);  // also of higher ones, who call: it comes, or why it does not
    if (one_network && r > place.rank) continue;
    const std::string text{theirs.begin(), theirs.end()};
    if (!one_network) refuse_loopback(r, {}, text.substr(0, text.find(' ')));
    if (r < place.rank) ranks->call(r, parse_address(text));  // higher ones call
  }
  ranks->run(until, options.connect_deadline_s);
  mesh.strangers = ranks->strangers();
  mesh.lines.resize(as_size(place.ranks));
  for (const int r : neighbours) take_lines(mesh, *ranks, r);
  if (!is_mesh(place.ranks)) mesh.door = std::move(ranks);
}

HETSCHED_INLINE socket_address parse_address(const std::string& text) {
  const auto space = text.find(' ');
  return find_address(text.substr(0, space), space == text.npos ? "" : text.substr(space + 1));
}

HETSCHED_INLINE void take_lines(gloo_mesh& mesh, introduction& from, int rank) {
  for (std::size_t line = 0; line < lines_per_pair; ++line) {
    auto connected = from.take(rank, line);
    constexpr int on = 1;
    if (!keep_alive(connected, mesh.heartbeat_s) || setsockopt(connected.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
      throw error("rank " + std::to_string(mesh.rank) + " cannot connect to rank " + std::to_string(rank) + ": " +
                  std::strerror(errno));
    at(mesh.lines, rank)[line] = std::move(connected);
  }
}

HETSCHED_INLINE gloo_mesh connect_mesh(const process_place& place, const gloo_options& options) {
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks)
    throw input_error("there is no rank " + std::to_string(place.rank) + " of " + std::to_string(place.ranks));
  gloo_mesh mesh{.rank = place.rank, .ranks = place.ranks, .store = options.store, .met = {}, .strangers = {}};
  mesh.say = options.say;
  mesh.heartbeat_s = options.heartbeat_s;
  mesh.connect_deadline_s = options.connect_deadline_s;
  if (place.ranks == 1) return mesh;
  const std::string run = options.run.empty() ? place.run : options.run;
  const auto until = deadline_in(options.connect_deadline_s);
  const std::string& rendezvous = options.rendezvous.empty() ? place.store : options.rendezvous;
  if (!mesh.store) {
    mesh.store = open_gloo_store(rendezvous);
    if (const auto at = parse_store(rendezvous); at.kind == store_place::file) {
      mesh.met = meet_in_folder(at.path_or_host, place, run, options.connect_deadline_s, until);
      mesh.store = open_gloo_store("file:" + mesh.met.folder.string());
    }
  }
  const std::string where = rendezvous.empty() ? std::string() : " " + rendezvous;
  roll_call call(*mesh.store, place, run, where, options.connect_deadline_s, until);
  try {
    connect_all(mesh, call, place, options, until);
  } catch (const roll_call::told&) {
    throw;
  } catch (const std::exception& e) {
    call.give_up(e.what());
    throw;
  }
  return mesh;
}
HETSCHED_INLINE void forget_addresses(const gloo_mesh& mesh) {
  std::error_code ignored;
  if (auto* const files = dynamic_cast<folder_store*>(mesh.store.get())) files->forget();
  try {
    if (auto* const torch = dynamic_cast<torch_store*>(mesh.store.get())) torch->forget();
  } catch (const error&) {  // who is connected needs no store
  }
  if (mesh.met.folder.empty()) return;
  std::filesystem::remove(mesh.met.own, ignored);
  std::filesystem::remove(mesh.met.folder, ignored);  // only the last rank finds it empty
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void tell_failure(const process_place& place, const gloo_options& options, const std::string& why) {
  if (place.ranks < 2 || place.rank < 0) return;
  const std::string run = options.run.empty() ? place.run : options.run;
  const std::string& rendezvous = options.rendezvous.empty() ? place.store : options.rendezvous;
  try {
    if (!options.store)
      if (const auto at = detail::parse_store(rendezvous); at.kind == detail::store_place::file) {
        std::filesystem::create_directories(at.path_or_host);
        return detail::tell_folder(at.path_or_host, place, run, why, std::chrono::seconds(5));
      }
    const auto store = options.store ? options.store : open_gloo_store(rendezvous);
    detail::roll_call(*store, place, run, "", 0, detail::roll_call::clock::now()).give_up(why);
  } catch (const std::exception&) {  // nobody can be told
  }
}

}  // namespace hetsched
