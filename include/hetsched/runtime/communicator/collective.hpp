// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/group/axis_group_test.cpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

enum class collective_kind : std::uint8_t { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all };

[[nodiscard]] constexpr const char* collective_name(collective_kind k) {
  return k == collective_kind::all_reduce       ? "all_reduce"
         : k == collective_kind::all_gather     ? "all_gather"
         : k == collective_kind::reduce_scatter ? "reduce_scatter"
         : k == collective_kind::broadcast      ? "broadcast"
                                                : "all_to_all";
}

/// Which group: its ranks of the communicator, in its order, and what tells it from others that share two ranks with it.
struct group_place {
  std::vector<int> ranks;
  int number = 0;     ///< stage of the edges
  int direction = 0;  ///< of the edges
  friend bool operator==(const group_place&, const group_place&) = default;
};

/// How a collective has ended on this rank.
struct collective_outcome {
  wait_result result = wait_result::progress;
  int waits_for = -1;   ///< unless it is progress: the first rank of the group that has not done its part
  std::string problem;  ///< why the ranks' calls do not fit each other, if they do not
};

namespace detail {

/// The collectives of one rank in one group; parts are in the order of the group's ranks. Spans have as many elements as
/// counts say, which all ranks give alike. Sums begin with the first rank's elements, to which the others' are added in the
/// order of the ranks. The own part of all_gather and reduce_scatter may be where it is taken from.
///   all_reduce(values, deadline_s), all_gather(mine, all, counts, deadline_s), reduce_scatter(all, mine, counts, deadline_s),
///   broadcast(values, root, deadline_s), all_to_all(send, send_counts, receive, receive_counts, deadline_s)
///              -> collective_outcome; deadline_s: how long to wait without progress
/// Optional: begin_all_gather(mine, all, counts), which does not wait, and end_all_gather of the same and deadline_s, for what is
/// to go on beside it; nothing else of the group is called in between. Where others may read `mine` and `counts` behind that,
/// until the group's next call has ended, there is await_gathers(deadline_s): a call that does nothing else.
///   settle()   returns when nobody reads or writes the spans of the last call, which has not returned progress, any more;
///              the communicator has been aborted
template <class G, class Element>
concept group_collectives = requires(G& g, std::span<Element> out, std::span<const Element> in,
                                     std::span<const std::size_t> counts, double deadline_s) {
  { g.all_reduce(out, deadline_s) } -> std::same_as<collective_outcome>;
  { g.all_gather(in, out, counts, deadline_s) } -> std::same_as<collective_outcome>;
  { g.reduce_scatter(in, out, counts, deadline_s) } -> std::same_as<collective_outcome>;
  { g.broadcast(out, 0, deadline_s) } -> std::same_as<collective_outcome>;
  { g.all_to_all(in, counts, out, counts, deadline_s) } -> std::same_as<collective_outcome>;
  g.settle();
};
template <class G, class Element>
concept begins_gathers = requires(G& g, std::span<Element> out, std::span<const Element> in,
                                  std::span<const std::size_t> counts) {
  g.begin_all_gather(in, out, counts);
  { g.end_all_gather(in, out, counts, 1.0) } -> std::same_as<collective_outcome>;
};

/// How many elements loops take at once: a constant, so that they are vectorised.
inline constexpr std::size_t elements_at_once = 64;

/// sum = a + b.
template <class Element>
void add_elements(Element* __restrict sum, const Element* __restrict a, const Element* __restrict b, std::size_t n) {
  static_assert(
      small_float<Element> || requires(Element x) { static_cast<Element>(x + x); },
      "elements of a collective sum need an operator +, or to convert to float and back");
  for (std::size_t left = n / elements_at_once; left > 0; --left) {
    for (std::size_t k = 0; k < elements_at_once; ++k) sum[k] = sum_of<Element>(a[k], b[k]);
    sum += elements_at_once, a += elements_at_once, b += elements_at_once;
  }
  for (std::size_t k = 0; k < n % elements_at_once; ++k) sum[k] = sum_of<Element>(a[k], b[k]);
}
/// sum += b.
template <class Element>
void add_elements(Element* __restrict sum, const Element* __restrict b, std::size_t n) {
  for (std::size_t left = n / elements_at_once; left > 0; --left) {
    for (std::size_t k = 0; k < elements_at_once; ++k) sum[k] = sum_of<Element>(sum[k], b[k]);
    sum += elements_at_once, b += elements_at_once;
  }
  for (std::size_t k = 0; k < n % elements_at_once; ++k) sum[k] = sum_of<Element>(sum[k], b[k]);
}

/// memmove, also of no elements.
template <class Element>
void copy_elements(Element* to, const Element* from, std::size_t n) {
  if (n > 0 && to != from) std::memmove(to, from, n * sizeof(Element));
}

/// Where part k begins.
[[nodiscard]] inline std::size_t offset_of(std::span<const std::size_t> counts, std::size_t k) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < k; ++i) sum += counts[i];
  return sum;
}
/// The first element of part k of n elements that are cut as evenly as can be.
[[nodiscard]] constexpr std::size_t even_part(std::size_t n, std::size_t k, std::size_t parts) {
  return n / parts * k + (k < n % parts ? k : n % parts);
}

}  // namespace detail

/// A communicator with collectives of its own, which groups use instead of sends and receives.
///   open_group(group_place) -> an object with them; all ranks of the group call it before the first collective
/// Not checked: what detail::group_collectives says in words.
template <class C, class Tensor>
concept has_groups = requires(C& c, const group_place& g) {
  { c.open_group(g) } -> std::movable;
  requires detail::group_collectives<decltype(c.open_group(g)), typename tensor_traits<Tensor>::element>;
};

}  // namespace hetsched
