// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/evaluate/evaluate_test.cpp.

#include <hetsched/cost/network/send_mode.hpp>
#include <hetsched/evaluate/evaluation.hpp>

namespace hetsched {

/// Seconds of an iteration of an evaluated plan whose ranks send so: sends and receives stand in the order of computing, where
/// add_transfers puts them, and each holds up both of its ranks. Memory is as it was.
/// Throws: input_error for a plan that was not evaluated or was changed since, and for one whose own schedule lists transfers,
/// unless they are to be asynchronous.
/// Complexity: that of simulate, for each pipeline.
[[nodiscard]] double iteration_under(const evaluation& judged, send_mode sends);

/// How ranks send under a plan whose trainer sends so: asynchronously where there is nothing to send, where a rank has several
/// virtual stages, whose transfers are posted ahead (Megatron-LM's overlap_p2p_comm), where a schedule of the plan's own lists
/// its transfers, and under virtual_1f1b, which is made for transfers beside computing.
/// Throws: input_error for no way to send.
[[nodiscard]] send_mode sends_under(const plan& p, send_mode trainer);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/evaluate/sends.ipp>
#endif
