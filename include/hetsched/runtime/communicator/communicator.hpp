// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/runtime/device/steady_time.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// What travels: between neighbouring stages (activation, gradient), between the two directions of a stage (reduction),
/// between the holders of one layer (layer_gradient), or between the ranks of a group (collective).
enum class payload : std::uint8_t { activation, gradient, reduction, layer_gradient, collective };

/// A directed channel, first in, first out. Every boundary that a stage sends over has one of its own.
struct edge {
  int from = 0;  ///< rank
  int to = 0;    ///< rank
  payload what = payload::activation;
  int direction = 0;  ///< of the schedule, in which the sender works
  int stage = 0;      ///< that sends; of a layer_gradient: the layer; of a collective: the number of the group
  int part = 0;       ///< of a tensor that travels in slices: which message of its transfer plan, from 1; 0: whole tensors
  friend constexpr bool operator==(const edge&, const edge&) = default;
};

/// Goes with every tensor that is sent. It must equal the one that the receiver expects.
struct stamp {
  std::int64_t step = 0;  ///< of a collective: the number of the call in its group
  int microbatch = 0;     ///< of a reduction or a layer_gradient: the number of the parameter; of a collective: its kind
  payload what = payload::activation;
  int direction = 0;
  int stage = 0;
  friend constexpr bool operator==(const stamp&, const stamp&) = default;
};

[[nodiscard]] constexpr const char* payload_name(payload p) {
  return p == payload::activation   ? "activation"
         : p == payload::gradient   ? "gradient"
         : p == payload::reduction  ? "reduction"
         : p == payload::collective ? "collective"
                                    : "sum of gradients";
}

namespace detail {
[[nodiscard]] constexpr bool between_stages(payload p) { return p == payload::activation || p == payload::gradient; }
[[nodiscard]] std::string of_place(payload p, int number);
}  // namespace detail

[[nodiscard]] std::string to_text(const edge& e);
[[nodiscard]] std::string to_text(const stamp& s);

/// A step that could not be finished, because a peer is stuck, has failed or runs another plan.
class communication_error : public error {
 public:
  communication_error(const std::string& text, const edge& e, int m, const action& a)
      : error(text), where(e), microbatch(m), waiting(a) {}
  edge where;      ///< to or from which the tensor did not come
  int microbatch;  ///< no_microbatch for reductions
  action waiting;  ///< that could not be done
};

enum class wait_result : std::uint8_t { progress, deadline, aborted };

/// One rank's end of all its channels: what moves tensors.
///   rank(), ranks()   its number, and how many there are
///   operation         type: a send or receive under way; end_s: when it ended, on the steady clock
///   open(edge) -> int
///                     the number of a channel; both ends call it before the first step
///   post_send(channel, stamp, Tensor&, operation&), post_receive(...)
///                     return at once. Tensor and operation stay where they are until it has ended or abort() has returned.
///                     A sent tensor then holds anything; a received one has the shape of the one that was posted
///   poll(operation&) -> bool
///                     whether it has ended
///   wait(deadline, sends) -> wait_result
///                     waits until a receive of this rank (sends: or a send) may have ended since the last such wait. Those
///                     that ended when this rank posted them need not count. A collective inside a layer may wait, too: who
///                     has run a layer polls all of its operations once more before it waits
///   abort(reason)     ends all operations of all ranks; none touches a tensor afterwards. The first reason stays, and nothing
///                     can be posted any more. Every rank that gives up calls it
///   failure() -> std::string
///                     the reason; empty if none
/// One thread at a time uses it, except that post_send and poll may be called while another thread is in wait or gather.
/// A channel delivers in the order of its sends. Stamps or shapes that differ at both ends abort.
/// Not checked: the last three sentences.
template <class C, class Tensor>
concept data_plane = requires(C& c, const edge& e, int channel, const stamp& s, Tensor& t, typename C::operation& op,
                              deadline_time until, const std::string& reason) {
  requires std::default_initializable<typename C::operation>;
  { op.end_s } -> std::convertible_to<double>;
  { c.rank() } -> std::same_as<int>;
  { c.ranks() } -> std::same_as<int>;
  { c.open(e) } -> std::same_as<int>;
  c.post_send(channel, s, t, op);
  c.post_receive(channel, s, t, op);
  { c.poll(op) } -> std::same_as<bool>;
  { c.wait(until, true) } -> std::same_as<wait_result>;
  c.abort(reason);
  { c.failure() } -> std::convertible_to<std::string>;
};

/// A data plane that also sends from, and receives into, a part of a tensor in host memory: nobody has to copy it out first.
///   post_send_bytes(channel, stamp, bytes, operation&), post_receive_bytes(...)
///                     as post_send and post_receive. What is sent is not changed. Where only one end posts bytes, the other's
///                     tensor has as many
/// Not checked: any of that.
template <class C>
concept byte_plane = requires(C& c, int channel, const stamp& s, std::span<const std::byte> out, std::span<std::byte> in,
                              typename C::operation& op) {
  c.post_send_bytes(channel, s, out, op);
  c.post_receive_bytes(channel, s, in, op);
};

/// A data plane that can be waited for along with others.
///   on_wake(function) what it calls, on any thread, when a wait of this rank may return; the function does not use the plane
/// Not checked: that it is called.
template <class C>
concept waking_plane = requires(C& c, std::function<void()> ring) {
  c.on_wake(ring);
};

/// A send or receive that a rank makes in every step.
struct planned_operation {
  int channel = -1;
  bool sends = false;
  stamp what;  ///< of the first step
  std::size_t bytes = 0;
};
/// All that a rank sends and receives in a step, in the order in which it begins; what is in one group begins at once.
using communication_plan = std::vector<std::vector<planned_operation>>;

/// A data plane whose operations begin in an order that it is told beforehand, whatever the order in which they are posted.
///   set_plan(plan)    all ranks of the plane call it, behind their last open() and before they post
/// Optional: orders(channel) -> bool, whether the operations of a channel are of that kind; else all are. another() -> C, a plane
/// of the same ranks with an order of its own, of which all ranks begin operations behind those of this one, or before them; what
/// a trainer needs.
/// Not checked: that the plans of all ranks can be carried out strictly in their order. See check_issue_order.
template <class C>
concept ordered_plane = requires(C& c, communication_plan plan) {
  c.set_plan(std::move(plan));
};

/// An ordered plane over which layers call collectives in device memory, in the order of its plan: an empty group stands for one
/// computation, with what it calls, or for other work of the device that has its turn there.
///   may_call() -> bool  whether the plan has come to such a group; if not, a wait ends when it does
///   end_calls()         behind the computation: the plan goes on
/// Not checked: any of that.
template <class C>
concept calling_plane = ordered_plane<C> && requires(C& c) {
  { c.may_call() } -> std::same_as<bool>;
  c.end_calls();
};

/// One rank's end of what ranks agree over: a few numbers, and whether they go on.
///   rank(), ranks(), abort(reason), failure()
///                     as those of a data_plane
///   gather(mine, all, deadline) -> wait_result
///                     gives every rank's numbers to every rank: all[r] are rank r's. All ranks call it equally often, each with
///                     as many numbers as it likes, while other operations go on. A round that one rank has finished all
///                     finish, unless a process or connection is lost in that moment
/// Not checked: that all ranks call gather equally often.
template <class C>
concept control_plane = requires(C& c, deadline_time until, const std::string& reason, std::span<const double> mine,
                                 std::vector<std::vector<double>>& all) {
  { c.rank() } -> std::same_as<int>;
  { c.ranks() } -> std::same_as<int>;
  c.abort(reason);
  { c.failure() } -> std::convertible_to<std::string>;
  { c.gather(mine, all, until) } -> std::same_as<wait_result>;
};

/// A control plane that tells ranks that have stopped from those that wait themselves.
///   ask() -> wait_result  deadline if all other ranks answer, whatever they are at. Else, after a second, it aborts with the
///                         names of those that do not, and returns aborted, as it does where another rank aborts meanwhile
/// Not checked: any of that.
template <class C>
concept asking_plane = control_plane<C> && requires(C& c) {
  { c.ask() } -> std::same_as<wait_result>;
};

namespace detail {

/// Whether channels may begin as they are posted, though others are ordered.
template <class C>
inline constexpr bool partly_ordered = requires(const C& c, int channel) {
  c.orders(channel);
};

/// The same plane or, where operations have an order, another one.
template <class C>
[[nodiscard]] C another(const C& comm) {
  if constexpr (requires { comm.another(); })
    return comm.another();
  else
    return comm;
}

/// What to tell of a wait that has ended without progress: a rank that was waited for need not be the one to blame.
template <class C>
[[nodiscard]] wait_result with_blame(C& comm, wait_result ended) {
  if constexpr (asking_plane<C>)
    if (ended == wait_result::deadline) return comm.ask();
  return ended;
}

}  // namespace detail

/// Both planes in one, as pipelines need them. A router makes one of several.
template <class C, class Tensor>
concept communicator = data_plane<C, Tensor> && control_plane<C>;

namespace detail {

/// Says what a communicator lacks, one message for each member: the first thing that everything made for a communicator type
/// asks.
template <class C, class Tensor>
consteval void require_communicator() {
  static_assert(
      requires(C & c) {
        { c.rank() } -> std::same_as<int>;
      },
      "the communicator has no rank() that returns an int");
  static_assert(
      requires(C & c) {
        { c.ranks() } -> std::same_as<int>;
      },
      "the communicator has no ranks() that returns an int");
  static_assert(
      requires(C & c, const edge& e) {
        { c.open(e) } -> std::same_as<int>;
      },
      "the communicator has no open(const edge&) that returns an int");
  if constexpr (!requires(typename C::operation & op) {
                  { op.end_s } -> std::convertible_to<double>;
                }) {
    static_assert(
        requires(typename C::operation & op) { op.end_s; }, "the communicator has no member type `operation` with a time end_s");
  } else {
    using operation = typename C::operation;
    static_assert(std::default_initializable<operation>, "the communicator's operation is not default-constructible");
    static_assert(
        requires(C & c, int channel, const stamp& s, Tensor& t, operation& op) { c.post_send(channel, s, t, op); },
        "the communicator has no post_send(int, const stamp&, Tensor&, operation&)");
    static_assert(
        requires(C & c, int channel, const stamp& s, Tensor& t, operation& op) { c.post_receive(channel, s, t, op); },
        "the communicator has no post_receive(int, const stamp&, Tensor&, operation&)");
    static_assert(
        requires(C & c, operation & op) {
          { c.poll(op) } -> std::same_as<bool>;
        },
        "the communicator has no poll(operation&) that returns a bool");
  }
  static_assert(
      requires(C & c, deadline_time until) {
        { c.wait(until, true) } -> std::same_as<wait_result>;
      },
      "the communicator has no wait(deadline_time, bool) that returns a wait_result");
  static_assert(
      requires(C & c, const std::string& reason) { c.abort(reason); }, "the communicator has no abort(const std::string&)");
  static_assert(
      requires(C & c) {
        { c.failure() } -> std::convertible_to<std::string>;
      },
      "the communicator has no failure() that returns a string");
  static_assert(
      requires(C & c, deadline_time until, std::span<const double> mine, std::vector<std::vector<double>> & all) {
        { c.gather(mine, all, until) } -> std::same_as<wait_result>;
      },
      "the communicator has no gather(std::span<const double>, std::vector<std::vector<double>>&, deadline_time) that returns "
      "a wait_result");
}

}  // namespace detail

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/communicator/communicator.ipp>
#endif
