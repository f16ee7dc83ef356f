// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/schedule/action.hpp>

namespace hetsched {

namespace detail {

/// Whether compute lanes list waits beside the transfers that they wait for, and all of these cross from rank to rank.
[[nodiscard]] bool waits_in_compute_lanes(const schedule& order);

namespace unchecked {

// The function of the same name below, where waits_in_compute_lanes(order).
[[nodiscard]] schedule post_transfers(const schedule& order);

}  // namespace unchecked
}  // namespace detail

/// Makes what compute lanes list asynchronous, as torch.distributed.pipelining takes it: sends, receives and reductions go to
/// lanes of their own, in the same order, and leave a mark behind that lets them begin; what takes their result waits for it,
/// and waits that are listed stay. Members of groups are posted one after the other.
/// Throws: input_error for sizes, a stage map, lanes or single actions that do not make a schedule.
/// Complexity: O(actions * peers of a rank).
[[nodiscard]] schedule post_transfers(const schedule& order);

/// A schedule without its marks: what was posted begins as soon as it can, and nobody waits for its end but who takes it.
/// Throws: input_error for an action of no kind.
/// Complexity: O(actions).
[[nodiscard]] inline schedule without_marks(schedule order) {
  for (auto& l : order.lanes)
    std::erase_if(l.actions, [](const action& a) {
      detail::expect_kind(a.kind);
      return is_mark(a.kind);
    });
  return order;
}

/// A schedule as torch.distributed.pipelining runs it: a list per rank of computations, transfers, reductions and waits, all
/// of which but the computations and waits are asynchronous there. post_transfers gives it the meaning that it has there.
/// What is not listed is added as torch does: transfers as by add_transfers, a reduction behind the last gradient of each stage
/// and its sends, and its wait behind it, the wait for an activation's send behind the backward that answers it, and all other
/// waits at the end. Transfers in groups are listed one after the other. Throws: input_error for what torch has no words for, by
/// name: two directions; recomputation, transfers through host memory, reduce_scatter and optimizer; transfers in lanes of their
/// own that are not posted; and as add_transfers. Complexity: as add_transfers.
[[nodiscard]] schedule torch_order(const schedule& order);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/posting.ipp>
#endif
