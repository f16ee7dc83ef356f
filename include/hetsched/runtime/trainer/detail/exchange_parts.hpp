// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/gradient_exchange_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/trainer/detail/exchange_plan.hpp>
#include <hetsched/runtime/trainer/detail/tensor_runs.hpp>

// What a rank's exchange of gradients consists of.
namespace hetsched::detail {

/// What is sent or received, and how far it has come in a step.
template <class Tensor, class Operation, class Moment>
struct exchange_message {
  edge where;      ///< with the layer, for errors and stamps
  int number = 0;  ///< of the parameter in its layer
  int channel = -1;
  bool incoming = false, is_term = false;
  bool by_host = false;  ///< its transport takes host memory
  std::size_t part = 0;
  std::vector<std::size_t> terms;  ///< of the part, which it takes along
  Tensor buffer;
  Tensor landed;   ///< what has come by way of the host, on the device
  Moment ready{};  ///< when it is filled on the device
  Operation* done = nullptr;
  bool made = false, filled = false, posted = false, has_landed = false;
};

/// Gradients of this rank that are added up as one.
template <class Tensor>
struct exchange_term {
  std::vector<std::size_t> stages;  ///< whose gradients it has
  std::vector<tensor_runs<Tensor>> at;
};

/// A part of a bucket that this rank holds.
template <class Tensor>
struct exchange_part {
  planned_part plan;  ///< contributions' terms are numbers of the below
  std::vector<exchange_term<Tensor>> terms;
  std::vector<std::size_t> stages;              ///< whose gradients or parameters it takes or changes
  std::vector<tensor_runs<Tensor>> targets;     ///< that become the sum: gradients or, where owners update, parameters
  std::size_t first_owned = 0, last_owned = 0;  ///< of the rank's owned pieces, those that lie here
  bool in_place = false;                        ///< messages are added to the only term here
  bool needs_sum = false, needs_other = false;
  int made = 0;              ///< of the tensors below
  Tensor sum, other, spare;  ///< room to add in
  Tensor* total = nullptr;   ///< where the sum is, once there is one; null: in its place
  bool added = false, finished = false;
};

/// Sends to a rank, which follow each other.
struct outgoing_channel {
  int channel = -1;
  std::vector<std::size_t> messages;  ///< in their order
  std::size_t next = 0;               ///< not posted yet
};

}  // namespace hetsched::detail
