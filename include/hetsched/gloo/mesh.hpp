// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <hetsched/gloo/detail/introduction.hpp>
#include <hetsched/gloo/detail/meeting.hpp>
#include <hetsched/gloo/detail/neighbours.hpp>
#include <hetsched/gloo/detail/tcp_socket.hpp>
#include <hetsched/gloo/process_place.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/gloo/stranger.hpp>
#include <hetsched/runtime/communicator/detail/no_signals.hpp>

namespace hetsched {

struct gloo_options {
  std::string rendezvous;  ///< for open_gloo_store(); empty: the launcher's (process_place::store)
  gloo_store store;        ///< instead of it, if not null
  /// The name of this run in the store; empty: the launcher's. A name may be used again in a folder once its last run has ended,
  /// however it did; in PyTorch's store if that run's ranks have found each other; in other stores, never.
  std::string run;
  std::string interface;  ///< network interface to use; empty: see address
  /// This rank's own address, of IPv4 or IPv6, or host name. Empty: 127.0.0.1 if all ranks are on one host; else the only address
  /// there is, or the one from which the launcher's master is reached.
  std::string address;
  double connect_deadline_s = 30;
  /// What the ranks of a run prove to each other that they know, besides what they find in the store. Empty: HETSCHED_SECRET of
  /// the environment; if that is not set either, whoever can read the store can be a rank.
  std::string secret{};
  /// Seconds of silence after which the system asks another host whether it is there; six more without an answer, and its rank
  /// is lost, whether anybody waits for it or not. (A process that is stopped is known to whoever waits, at the deadline.)
  double heartbeat_s = 10;
  /// What has happened, for a log: that this process stood still. May be empty. Called by whoever waits; it must not use the
  /// communicator.
  std::function<void(const std::string&)> say{};
};

namespace detail {

/// Two connections between every two neighbours (neighbours_of): one for tensors, and one for what must not wait behind them.
struct gloo_mesh {
  int rank = 0, ranks = 1;
  std::vector<std::array<unique_socket, lines_per_pair>> lines{};  ///< by rank; see line_of
  std::unique_ptr<introduction> door{};  ///< for connections that are made later; null where all are neighbours
  std::string address{};                 ///< of the door: host, space and port
  double heartbeat_s = 10, connect_deadline_s = 30;
  gloo_store store;
  meeting met;                      ///< empty where ranks do not meet in a folder
  std::vector<stranger> strangers;  ///< turned away while ranks met
  std::function<void(const std::string&)> say{};
};

/// A text that is the same for processes that reach each other over 127.0.0.1.
[[nodiscard]] std::string host_identity();

/// The address of a door.
/// Throws: error if there can be none of this text.
[[nodiscard]] socket_address parse_address(const std::string& text);

/// Puts the lines to a rank that has been introduced into their places.
/// Throws: error if the system refuses.
void take_lines(gloo_mesh& mesh, introduction& from, int rank);

/// Connects this rank with its neighbours.
/// Throws: input_error or error that says which rank was missed, or what does not fit.
[[nodiscard]] gloo_mesh connect_mesh(const process_place& place, const gloo_options& options);

/// Removes this run's addresses from the store, so that its name may be used again.
/// Requires: all ranks are connected.
void forget_addresses(const gloo_mesh& mesh);

}  // namespace detail

/// For a process that finds, before it makes its gloo_communicator, that it cannot: the ranks that wait for it end at once with
/// its reason, not at their deadlines. In a folder, it waits up to 5 s until all others have come there to be told; in other
/// stores its note stays, under the run's name. A rank that is out of range can be told of, too.
void tell_failure(const process_place& place, const gloo_options& options, const std::string& why);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/mesh.ipp>
#endif
