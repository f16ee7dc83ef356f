// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/detail/slice_transfer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/core/function_ref.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::detail {

/// Which device of a transfer plan does what with which tensors.
struct slice_place {
  int me = 0;      ///< device of the plan
  edge where;      ///< of the channels, but for ranks and part
  slice own;       ///< that this device has or is to get
  int merged = 1;  ///< see boundary_transfer
  int slots = 1;   ///< tensors at once
};

/// The messages of a transfer plan that one device gets and sends, with what they are cut from and go into.
struct slice_messages {
  struct copy {
    int from = -1;  ///< message that has come; -1: the own tensor
    slice part;
  };
  struct incoming {
    edge where;
    int channel = -1;
    int phase = 0;
    slice part;
    slice to_own = {};  ///< of a destination
    bool in_place = false;
    std::int64_t run = -1;  ///< where it begins in the own tensor that it is received into; -1: nowhere
    [[nodiscard]] bool is_own() const { return in_place || run >= 0; }
    [[nodiscard]] bool buffered() const { return !is_own(); }
  };
  struct outgoing {
    edge where;
    int channel = -1;
    int phase = 0;
    slice part;
    std::vector<copy> copies = {};
    std::vector<std::size_t> needs = {};  ///< messages that have to come first
    std::size_t next = 0;                 ///< place
    bool in_place = false;
    std::int64_t run = -1;  ///< where it begins in the tensor that it is sent from, that of its only copy; -1: nowhere
    [[nodiscard]] bool buffered() const { return !in_place && run < 0; }
  };

  slice own;
  bool source = false;
  std::vector<incoming> in;
  std::vector<outgoing> out;
};

/// `rank_of`: a device's rank. `open`: the channel of an edge. `has_bytes`: whether runs of bytes can be sent and received where
/// they are.
[[nodiscard]] slice_messages messages_of(const transfer_plan& plan, const slice_place& place, function_ref<int(int)> rank_of,
                                         function_ref<int(const edge&)> open, bool has_bytes);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/slice_messages.ipp>
#endif
