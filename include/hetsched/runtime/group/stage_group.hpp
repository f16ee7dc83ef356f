// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/group/stage_place.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

/// Ranks along an axis that have no collectives.
struct bare_axis {
  template <class Communicator>
  bare_axis(const Communicator& comm, const std::vector<int>& ranks, const axis_options&)
      : rank_(place_in(ranks, comm)), size_(static_cast<int>(ranks.size())) {}
  bare_axis() = default;
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool connects() const { return size_ == 1; }

 private:
  int rank_ = 0, size_ = 1;
};

/// Those of hosts do not reach into devices.
template <class Tensor, class Communicator>
struct axis_of {
  using type = std::conditional_t<tensor_traits<Tensor>::space == memory_space::device && !has_groups<Communicator, Tensor>,
                                  bare_axis, axis_group<Tensor, Communicator>>;
};
template <class Tensor, class Communicator>
requires requires { typename Communicator::axis; }
struct axis_of<Tensor, Communicator> {
  using type = typename Communicator::axis;
};
template <class Tensor, class Communicator>
requires requires(const Communicator& c) { c.open_axis(std::vector<int>(), axis_options()); }
struct axis_of<Tensor, Communicator> {
  using type = decltype(std::declval<const Communicator&>().open_axis(std::vector<int>(), axis_options()));
};

/// This rank's end of an axis.
template <class Tensor, class Communicator>
[[nodiscard]] typename axis_of<Tensor, Communicator>::type open_axis(const Communicator& comm, std::vector<int> ranks,
                                                                     const axis_options& options) {
  if constexpr (requires { comm.open_axis(ranks, options); })
    return comm.open_axis(ranks, options);
  else
    return {comm, std::move(ranks), options};
}

}  // namespace detail

struct stage_group_options {
  int stage = 0;                           ///< of the schedule
  int direction = 0;                       ///< of the schedule, if the stage has a group in both
  std::vector<double> tensor_shares = {};  ///< empty: equal
  double deadline_s = 30;
};

/// What a layer knows of the devices of its stage: their degrees, this rank's place, and the axes through it.
template <pipeline_tensor Tensor, data_plane<Tensor> Communicator>
class stage_group {
 public:
  /// An axis_group, what the communicator has in its place, or, where it has no collectives for these tensors, a place alone.
  using axis = typename detail::axis_of<Tensor, Communicator>::type;

  /// How many numbers its axes take of each stage; see axis_options.
  static constexpr int axes = 4;

  /// A stage on one device.
  stage_group() = default;

  /// `ranks`: those of the stage, of the communicator, as their places say. All of them make one before the first collective.
  /// Throws: input_error for degrees that are not positive or not of so many ranks, for others than data ranks where there are no
  /// collectives for these tensors, and as axis_group.
  stage_group(Communicator comm, const std::vector<int>& ranks, const hetsched::degrees& d,
              const stage_group_options& options = {})
      : degrees_(d), tensor_shares_(options.tensor_shares) {
    if (d.data < 1 || d.context < 1 || d.tensor < 1 ||
        std::int64_t{d.data} * d.context * d.tensor != static_cast<std::int64_t>(ranks.size()))
      throw input_error("stage " + std::to_string(options.stage) + " has " + std::to_string(ranks.size()) +
                        " ranks, which are no group of " + std::to_string(d.data) + " x " + std::to_string(d.context) + " x " +
                        std::to_string(d.tensor) + " (data, context, tensor)");
    int index = 0;
    while (index < static_cast<int>(ranks.size()) && at(ranks, index) != comm.rank()) ++index;
    if (index == static_cast<int>(ranks.size()))
      throw input_error("rank " + std::to_string(comm.rank()) + " is not in the group of stage " + std::to_string(options.stage));
    place_ = place_of(d, index);
    const auto along = [&](const char* name, int number, int size, int stage_place::*moving, int first = 0) {
      std::vector<int> members;
      for (int k = first; k < first + size; ++k) {
        auto p = place_;
        p.*moving = k;
        members.push_back(at(ranks, index_of(d, p)));
      }
      const axis_options how{.name = std::string("the ") + name + " axis of stage " + std::to_string(options.stage),
                             .number = axes * options.stage + number,
                             .direction = options.direction,
                             .deadline_s = options.deadline_s};
      return detail::open_axis<Tensor>(comm, std::move(members), how);
    };
    const auto calling = [&](axis a) {
      if constexpr (requires { a.connects(); })
        if (!a.connects())
          throw input_error("stage " + std::to_string(options.stage) +
                            " has context, tensor or expert ranks, and the communicator no collectives for them");
      return a;
    };
    data_ = along("data", 0, d.data, &stage_place::data);
    context_ = calling(along("context", 1, d.context, &stage_place::context));
    tensor_ = calling(along("tensor", 2, d.tensor, &stage_place::tensor));
    if (d.expert == 1) return;
    if (d.expert < 1 || d.data % d.expert != 0)
      throw input_error("stage " + std::to_string(options.stage) + " cannot share out experts among " + std::to_string(d.expert) +
                        " of " + std::to_string(d.data) + " data ranks");
    expert_ = calling(along("expert", 3, d.expert, &stage_place::data, place_.data / d.expert * d.expert));
  }

  [[nodiscard]] const hetsched::degrees& degrees() const { return degrees_; }
  [[nodiscard]] const stage_place& place() const { return place_; }
  [[nodiscard]] const axis& data() const { return data_; }
  [[nodiscard]] const axis& context() const { return context_; }
  [[nodiscard]] const axis& tensor() const { return tensor_; }
  /// How its ranks are to share heads and columns; empty: equally.
  [[nodiscard]] const std::vector<double>& tensor_shares() const { return tensor_shares_; }
  /// Data ranks that follow each other and have different experts.
  [[nodiscard]] const axis& expert() const { return expert_; }

 private:
  hetsched::degrees degrees_;
  stage_place place_;
  axis data_, context_, tensor_, expert_;
  std::vector<double> tensor_shares_;
};

}  // namespace hetsched
