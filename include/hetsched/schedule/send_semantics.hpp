// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/check/detail/deadlock_test.cpp.

namespace hetsched {

/// What a rank waits for when it sends. Buffered: for nothing, a channel holds any number of tensors, and a receive takes the
/// one that it names. Rendezvous: for the receive, the two take place together; the channel from one rank to another delivers
/// in the order of the sends. In both, the members of a group start together, and its lane goes on when all have ended.
enum class send_semantics { buffered, rendezvous };

}  // namespace hetsched
