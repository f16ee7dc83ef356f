// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_text.hpp>

namespace hetsched {

/// What a step of devices is: work of one; a tensor or slice that goes from one to another, by the devices themselves or by way
/// of their hosts; or what several do together.
enum class device_step_kind : std::uint8_t { computation, transfer, host_transfer, collective };

struct device_step {
  device_step_kind kind = device_step_kind::computation;
  std::vector<int> members = {};  ///< devices: one, or the sender and the receiver, or all of a collective, each once
  std::vector<int> needs = {};    ///< numbers of the steps that end before it begins; a computation needs the one before it, too
  int pipeline = 0;
  action what{};  ///< of a transfer, as the sender lists it; of a collective inside layers, the computation that calls it
  int part = 0;   ///< which piece of the action, message of a transfer, call inside the action, or bucket of gradients
  friend bool operator==(const device_step&, const device_step&) = default;
};

/// All that devices do in an iteration. Devices issue transfers and collectives; a device does what it has issued strictly one
/// after the other, and a transfer or collective lasts until it has begun on all its members. Computations go on beside that.
struct device_program {
  int devices = 0;
  std::vector<device_step> steps;
  friend bool operator==(const device_program&, const device_program&) = default;
};

/// In which order each device issues: numbers of steps.
struct device_order {
  std::vector<std::vector<int>> of_device;
  friend bool operator==(const device_order&, const device_order&) = default;
};

/// An order, or why there is none: a cycle of steps each of which waits for the next, as a sentence.
struct found_device_order {
  device_order order;
  std::vector<std::string> cycles;
};

[[nodiscard]] constexpr bool is_issued(device_step_kind k) {
  return k == device_step_kind::transfer || k == device_step_kind::collective;
}

[[nodiscard]] std::string to_text(const device_step& s);

namespace detail {

/// Throws: input_error for a step without members, with one that is not there or there twice, or that needs one that is not
/// there; and a transfer that has not two.
void validate(const device_program& program);

}  // namespace detail

/// Proves an order: all devices come to their end if each issues in it.
/// Returns: nothing if that is so; else what is missing or listed where it is not issued, or the cycles, one sentence each.
/// Throws: input_error for a program whose steps have members or needs that cannot be.
/// Complexity: O(steps + members + needs).
[[nodiscard]] std::vector<std::string> check_device_order(const device_program& program, const device_order& order);

/// Finds an order: communication in the order in which it takes place where every step is done as soon as it can be. A program
/// that can be run at all has one, and gets one that check_device_order proves, as all devices follow one list.
/// Throws: as check_device_order.
/// Complexity: O(steps + members + needs).
[[nodiscard]] found_device_order find_device_order(const device_program& program);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/check/device_order.ipp>
#endif
