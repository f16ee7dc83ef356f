// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/collective.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/group/detail/point_to_point_group.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// The collectives of one rank in one group, whatever the communicator.
template <class Element>
struct held_group {
  held_group() = default;
  held_group(const held_group&) = delete;
  held_group& operator=(const held_group&) = delete;
  virtual ~held_group() = default;
  virtual collective_outcome all_reduce(std::span<Element> values) = 0;
  virtual collective_outcome all_gather(std::span<const Element> mine, std::span<Element> all,
                                        std::span<const std::size_t> counts) = 0;
  virtual collective_outcome reduce_scatter(std::span<const Element> all, std::span<Element> mine,
                                            std::span<const std::size_t> counts) = 0;
  virtual collective_outcome broadcast(std::span<Element> values, int root) = 0;
  virtual collective_outcome all_to_all(std::span<const Element> send, std::span<const std::size_t> send_counts,
                                        std::span<Element> receive, std::span<const std::size_t> receive_counts) = 0;
  virtual void begin_all_gather(std::span<const Element> mine, std::span<Element> all, std::span<const std::size_t> counts) = 0;
  virtual collective_outcome end_all_gather(std::span<const Element> mine, std::span<Element> all,
                                            std::span<const std::size_t> counts) = 0;
  virtual collective_outcome await_gathers() = 0;
  /// Aborts the communicator if nobody has; nobody touches the spans of what has begun then.
  virtual void abandon() = 0;
  /// Aborts the communicator and throws.
  [[noreturn]] virtual void give_up(collective_kind kind, const collective_outcome& why) = 0;

  std::vector<std::size_t> even;  ///< counts of parts that are alike
};

/// The place of this rank in a group.
/// Throws: input_error for ranks that do not exist or are not different, or if this one is not among them.
template <class Communicator>
[[nodiscard]] int place_in(const std::vector<int>& ranks, const Communicator& comm) {
  int place = -1;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] < 0 || ranks[k] >= comm.ranks() || std::count(ranks.begin(), ranks.end(), ranks[k]) > 1)
      throw input_error("a group of " + std::to_string(ranks.size()) + " ranks of " + std::to_string(comm.ranks()) +
                        " has rank " + std::to_string(ranks[k]) + ", which is none or is there twice");
    if (ranks[k] == comm.rank()) place = static_cast<int>(k);
  }
  if (place < 0) throw input_error("rank " + std::to_string(comm.rank()) + " is not in its group");
  return place;
}

template <class Tensor, class Communicator>
struct collectives_of {
  using type = point_to_point_group<Tensor, Communicator>;
};
template <class Tensor, class Communicator>
requires has_groups<Communicator, Tensor>
struct collectives_of<Tensor, Communicator> {
  using type = decltype(std::declval<Communicator&>().open_group(std::declval<const group_place&>()));
};

}  // namespace detail

/// One rank's end of the ranks along an axis of a group of devices, whatever the communicator; a value that layers keep. A
/// default-constructed one is one rank alone: its collectives copy what has to be copied, and nothing else.
/// All ranks of the axis call the same collectives in the same order, each on its own thread, and wait in them. Spans are of
/// contiguous elements; parts and counts are in the order of the axis. Sums begin with the first rank's elements, to which the
/// others' are added in the order of the ranks, so all ranks have the bits of one device that adds in this order, whatever the
/// timing. Nothing is allocated after the first call of a size.
/// Throws: communication_error where a rank is late, the communicator is aborted or ranks call what does not fit; the
/// communicator is aborted then.
template <class Element>
class device_axis {
 public:
  device_axis() = default;
  /// Of more than one rank; see axis_group.
  device_axis(int rank, int size, std::shared_ptr<detail::held_group<Element>> held)
      : rank_(rank), size_(size), held_(std::move(held)) {}

  /// This rank's place on the axis.
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// values: the sum over all ranks, on all of them.
  void all_reduce(std::span<Element> values) const {
    if (size_ > 1) check(collective_kind::all_reduce, held_->all_reduce(values));
  }
  /// all: the parts of all ranks, counts[k] elements of rank k, of which `mine` is this rank's; it may lie in its place.
  void all_gather(std::span<const Element> mine, std::span<Element> all, std::span<const std::size_t> counts) const {
    expect_parts(all.size(), mine.size(), counts);
    if (size_ > 1)
      check(collective_kind::all_gather, held_->all_gather(mine, all, counts));
    else
      detail::copy_elements(all.data(), mine.data(), mine.size());
  }
  /// Parts of one size.
  void all_gather(std::span<const Element> mine, std::span<Element> all) const { all_gather(mine, all, even(mine.size())); }
  /// The two halves of all_gather, with the same arguments, which stay where they are in between: what goes on there does not
  /// hold up the others, and a communicator that moves bytes by itself works beside it. Between them the axis is used for nothing
  /// else; who cannot come to the second one calls abandon(). Others may read `mine` and `counts` until the next collective of
  /// the axis has ended, be it await_gathers(), which moves nothing.
  void begin_all_gather(std::span<const Element> mine, std::span<Element> all, std::span<const std::size_t> counts) const {
    expect_parts(all.size(), mine.size(), counts);
    if (size_ > 1) held_->begin_all_gather(mine, all, counts);
  }
  void end_all_gather(std::span<const Element> mine, std::span<Element> all, std::span<const std::size_t> counts) const {
    if (size_ > 1)
      check(collective_kind::all_gather, held_->end_all_gather(mine, all, counts));
    else
      detail::copy_elements(all.data(), mine.data(), mine.size());
  }
  void await_gathers() const {
    if (size_ > 1) check(collective_kind::all_gather, held_->await_gathers());
  }
  void abandon() const {
    if (size_ > 1) held_->abandon();
  }
  /// mine: the sum over all ranks of part rank() of `all`, of which counts[k] elements are part k; it may lie in its place.
  void reduce_scatter(std::span<const Element> all, std::span<Element> mine, std::span<const std::size_t> counts) const {
    expect_parts(all.size(), mine.size(), counts);
    if (size_ > 1)
      check(collective_kind::reduce_scatter, held_->reduce_scatter(all, mine, counts));
    else
      detail::copy_elements(mine.data(), all.data(), mine.size());
  }
  /// Parts of one size.
  void reduce_scatter(std::span<const Element> all, std::span<Element> mine) const {
    reduce_scatter(all, mine, even(mine.size()));
  }
  /// values: those of rank `root` of the axis.
  void broadcast(std::span<Element> values, int root) const {
    HETSCHED_EXPECTS(root >= 0 && root < size_);
    if (size_ > 1) check(collective_kind::broadcast, held_->broadcast(values, root));
  }
  /// send: a part for each rank; receive: the parts that they have for this one. The two do not overlap.
  void all_to_all(std::span<const Element> send, std::span<const std::size_t> send_counts, std::span<Element> receive,
                  std::span<const std::size_t> receive_counts) const {
    HETSCHED_EXPECTS(send_counts.size() == count() && send.size() == detail::offset_of(send_counts, count()));
    HETSCHED_EXPECTS(receive_counts.size() == count() && receive.size() == detail::offset_of(receive_counts, count()));
    if (size_ > 1)
      check(collective_kind::all_to_all, held_->all_to_all(send, send_counts, receive, receive_counts));
    else
      detail::copy_elements(receive.data(), send.data(), send.size());
  }

 private:
  [[nodiscard]] std::size_t count() const { return as_size(size_); }
  void expect_parts([[maybe_unused]] std::size_t all, [[maybe_unused]] std::size_t mine,
                    [[maybe_unused]] std::span<const std::size_t> counts) const {
    HETSCHED_EXPECTS(counts.size() == count() && at(counts, rank_) == mine);
    HETSCHED_EXPECTS(all == detail::offset_of(counts, count()));
  }
  [[nodiscard]] std::span<const std::size_t> even(const std::size_t& part) const {
    if (size_ == 1) return {&part, 1};
    held_->even.assign(count(), part);
    return held_->even;
  }
  void check(collective_kind kind, const collective_outcome& outcome) const {
    if (outcome.result != wait_result::progress) held_->give_up(kind, outcome);
  }

  int rank_ = 0, size_ = 1;
  std::shared_ptr<detail::held_group<Element>> held_;
};

/// What tells groups apart, and how patient they are.
struct axis_options {
  std::string name = "group";  ///< in errors
  int number = 0;              ///< groups that share two ranks have different numbers or directions
  int direction = 0;
  double deadline_s = 30;  ///< how long a rank waits for another
  /// What is planned, for transports that make room for it when they connect.
  std::size_t most_bytes = 0;  ///< of a collective, of all ranks' parts together
  bool scatters = false;       ///< whether it is reduce_scatter and all_gather, not all_reduce alone
};

namespace detail {

/// Aborts the communicator, calls settle() and throws.
template <class Communicator, class Settle>
[[noreturn]] void give_up_collective(Communicator& comm, const group_place& place, const axis_options& options,
                                     collective_kind kind, const collective_outcome& why, Settle&& settle) {
  const auto result = with_blame(comm, why.result);
  std::string text = "rank " + std::to_string(comm.rank()) + ": " + collective_name(kind) + " over " + options.name + " (ranks";
  for (const int r : place.ranks) text += " " + std::to_string(r);
  text += ")";
  if (!why.problem.empty())
    text += ": " + why.problem;
  else if (why.waits_for >= 0)
    text += " waits for rank " + std::to_string(why.waits_for);
  if (result == wait_result::deadline) text += ", for " + std::to_string(options.deadline_s) + " s";
  if (result == wait_result::aborted && why.problem.empty()) text += "; ended, as " + std::string(comm.failure());
  comm.abort(text);
  settle();
  throw communication_error(text, {why.waits_for, comm.rank(), payload::collective, options.direction, options.number},
                            no_microbatch, {});
}

}  // namespace detail

/// The device_axis of some ranks of a communicator. Its own collectives are used if it has groups, else sends and receives.
template <pipeline_tensor Tensor, data_plane<Tensor> Communicator>
class axis_group : public device_axis<typename tensor_traits<Tensor>::element> {
  using element = typename tensor_traits<Tensor>::element;
  using own_collectives = typename detail::collectives_of<Tensor, Communicator>::type;

 public:
  /// Whether others may read what this rank gives to a gather in halves behind the second one.
  static constexpr bool lends_parts = requires(own_collectives & own) { own.await_gathers(1.0); };

  axis_group() = default;

  /// `ranks`: of the communicator, in the order of the axis, this rank's among them. All of them make one before the first
  /// collective. Ranks that are alone open nothing.
  /// Throws: input_error for ranks that do not exist or are not different, or if this one is not among them.
  axis_group(Communicator comm, std::vector<int> ranks, axis_options options = {})
      : device_axis<element>(make(comm, std::move(ranks), std::move(options))) {}

 private:
  struct held final : detail::held_group<element> {
    held(const Communicator& c, group_place p, axis_options o)
        : comm(c), place(std::move(p)), options(std::move(o)), own(open(comm, place)) {}
    static own_collectives open(Communicator& comm, const group_place& place) {
      if constexpr (has_groups<Communicator, Tensor>)
        return comm.open_group(place);
      else
        return own_collectives(comm, place);
    }
    collective_outcome all_reduce(std::span<element> values) override { return own.all_reduce(values, options.deadline_s); }
    collective_outcome all_gather(std::span<const element> mine, std::span<element> all,
                                  std::span<const std::size_t> counts) override {
      return own.all_gather(mine, all, counts, options.deadline_s);
    }
    collective_outcome reduce_scatter(std::span<const element> all, std::span<element> mine,
                                      std::span<const std::size_t> counts) override {
      return own.reduce_scatter(all, mine, counts, options.deadline_s);
    }
    collective_outcome broadcast(std::span<element> values, int root) override {
      return own.broadcast(values, root, options.deadline_s);
    }
    collective_outcome all_to_all(std::span<const element> send, std::span<const std::size_t> send_counts,
                                  std::span<element> receive, std::span<const std::size_t> receive_counts) override {
      return own.all_to_all(send, send_counts, receive, receive_counts, options.deadline_s);
    }
    void begin_all_gather(std::span<const element> mine, std::span<element> all, std::span<const std::size_t> counts) override {
      if constexpr (detail::begins_gathers<own_collectives, element>) own.begin_all_gather(mine, all, counts);
    }
    collective_outcome end_all_gather(std::span<const element> mine, std::span<element> all,
                                      std::span<const std::size_t> counts) override {
      if constexpr (detail::begins_gathers<own_collectives, element>)
        return own.end_all_gather(mine, all, counts, options.deadline_s);
      else
        return own.all_gather(mine, all, counts, options.deadline_s);
    }
    collective_outcome await_gathers() override {
      if constexpr (lends_parts)
        return own.await_gathers(options.deadline_s);
      else
        return {};
    }
    void abandon() override {
      if (comm.failure().empty())
        comm.abort("rank " + std::to_string(comm.rank()) + " has given up what goes over " + options.name);
      own.settle();
    }
    [[noreturn]] void give_up(collective_kind kind, const collective_outcome& why) override {
      detail::give_up_collective(comm, place, options, kind, why, [&] { own.settle(); });
    }
    Communicator comm;
    group_place place;
    axis_options options;
    own_collectives own;
  };

  static device_axis<element> make(Communicator& comm, std::vector<int> ranks, axis_options options) {
    const int rank = detail::place_in(ranks, comm), size = static_cast<int>(ranks.size());
    if (size == 1) return {};
    group_place place{.ranks = std::move(ranks), .number = options.number, .direction = options.direction};
    return {rank, size, std::make_shared<held>(comm, std::move(place), std::move(options))};
  }
};

}  // namespace hetsched
