// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched {

namespace detail {

/// What a rank has and lacks of a training's state, as numbers that all ranks gather, and what it therefore sends.
class state_moves {
 public:
  /// Throws: input_error for slices that do not lie in their tensors, or of tensors that `wanted` does not list.
  state_moves(std::span<const state_slice> owned, std::span<const state_slice> wanted);

  [[nodiscard]] const std::vector<double>& told() const { return told_; }

  /// Bytes that lie in a row on both sides.
  struct run {
    const std::byte* from = nullptr;  ///< null: another rank's
    std::byte* to = nullptr;          ///< null: another rank's
    std::size_t bytes = 0;
  };
  struct runs_with {
    std::vector<run> out, in;
  };
  /// What each rank sends rank `me` or gets from it, by rank, in an order that both know; of itself, what it keeps. `all`: what
  /// ranks have told.
  /// Throws: input_error unless all list the same tensors, and each element that this rank wants is owned by one rank.
  [[nodiscard]] std::vector<runs_with> runs(int me, const std::vector<std::vector<double>>& all) const;

 private:
  /// Rows of a tensor, by its number in the list of all.
  struct piece {
    std::size_t tensor = 0;
    element_rows of;
  };
  struct pieces {
    std::vector<piece> owned, wanted;
  };
  static pieces read(std::span<const double> told);

  std::span<const state_slice> owned_, wanted_;  ///< those with elements are pieces, in this order
  std::vector<std::size_t> sizes_;               ///< of the elements of each tensor
  std::vector<double> told_;
};

/// What a rank sends to each other one, and room for what it gets.
struct state_parcels {
  std::vector<std::vector<std::byte>> out, in;

  state_parcels(const std::vector<state_moves::runs_with>& runs, std::size_t me) : out(runs.size()), in(runs.size()) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      if (r == me) continue;
      std::size_t bytes = 0;
      for (const auto& piece : runs[r].in) bytes += piece.bytes;
      in[r].resize(bytes);
      for (const auto& piece : runs[r].out) out[r].insert(out[r].end(), piece.from, piece.from + piece.bytes);
    }
  }
};

}  // namespace detail

/// Fills the slices that each rank wants with what ranks own between them, over the communicator and without files: how a
/// training goes on under another plan at once. All ranks call it, with the same tensors in `wanted`, as those that
/// pipeline_trainer::state() lists: what a rank has nothing of without elements. Of `owned` each element is on one rank, as in
/// state(true), and none is wanted in place: they are copies, or of another trainer.
/// Throws: input_error unless it is so, and communication_error if a rank fails or is late; the communicator has then been
/// aborted, and slices may be filled in part.
/// Complexity: O(n log n + rows) for the n slices of all ranks; holds what this rank sends and gets twice.
/// Example:
///   auto slices = next.state();
///   move_state(comm, before.state(true), slices, 30);
///   next.state_loaded();
template <class Communicator>
requires control_plane<Communicator> && byte_plane<Communicator>
void move_state(Communicator& comm, std::span<const state_slice> owned, std::span<state_slice> wanted, double deadline_s) {
  const auto where = [](int from, int to) {
    return edge{.from = from, .to = to, .what = payload::collective, .direction = 0, .stage = -1};
  };
  const auto fail = [&](wait_result why, const edge& e) {
    auto text = "rank " + std::to_string(comm.rank()) + ", while state is moved: ";
    if (const std::string cause = comm.failure(); why == wait_result::aborted || !cause.empty())
      text += "ended, as " + cause;
    else
      text += "not all of it has come within " + std::to_string(deadline_s) + " s";
    comm.abort(text);
    throw communication_error(text, e, no_microbatch, {});
  };
  std::vector<detail::state_moves::runs_with> runs;
  try {
    const detail::state_moves mine(owned, wanted);
    std::vector<std::vector<double>> all;
    if (const auto r = detail::with_blame(comm, comm.gather(mine.told(), all, deadline_in(deadline_s)));
        r != wait_result::progress)
      fail(r, {.from = -1, .to = comm.rank()});
    runs = mine.runs(comm.rank(), all);
  } catch (const input_error& e) {
    comm.abort("rank " + std::to_string(comm.rank()) + ", while state is moved: " + e.what());
    throw;
  }
  const auto ranks = as_size(comm.ranks()), me = as_size(comm.rank());
  // All memory before the first transfer, so that none is given up while others write there.
  auto [out, in] = detail::state_parcels(runs, me);
  std::vector<typename Communicator::operation> sends(ranks), receives(ranks);
  const stamp what{.step = 0, .microbatch = 0, .what = payload::collective, .direction = 0, .stage = -1};
  try {
    for (std::size_t r = 0; r < ranks; ++r)
      if (!in[r].empty())
        comm.post_receive_bytes(comm.open(where(static_cast<int>(r), comm.rank())), what, std::span(in[r]), receives[r]);
    for (std::size_t r = 0; r < ranks; ++r)
      if (!out[r].empty())
        comm.post_send_bytes(comm.open(where(comm.rank(), static_cast<int>(r))), what, std::span(std::as_const(out[r])),
                             sends[r]);
  } catch (const std::exception& e) {
    comm.abort("rank " + std::to_string(comm.rank()) + ", while state is moved: " + e.what());
    throw;
  }
  for (const auto& piece : runs[me].in) std::copy_n(piece.from, piece.bytes, piece.to);
  const auto until = deadline_in(deadline_s);
  const auto finish = [&](typename Communicator::operation& op, const edge& e, bool of_send) {
    while (!comm.poll(op))
      if (const auto r = detail::with_blame(comm, comm.wait(until, of_send)); r != wait_result::progress && !comm.poll(op))
        fail(r, e);
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    if (in[r].empty()) continue;
    finish(receives[r], where(static_cast<int>(r), comm.rank()), false);
    const std::byte* from = in[r].data();
    for (const auto& piece : runs[r].in) {
      std::copy_n(from, piece.bytes, piece.to);
      from += piece.bytes;
    }
  }
  for (std::size_t r = 0; r < ranks; ++r)
    if (!out[r].empty()) finish(sends[r], where(comm.rank(), static_cast<int>(r)), true);
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/move_state.ipp>
#endif
