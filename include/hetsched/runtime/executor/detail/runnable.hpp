// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/executor/executor_test.cpp.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/dependencies.hpp>
#include <hetsched/schedule/send_semantics.hpp>

namespace hetsched::detail {

/// A schedule as it is run, with all transfers and the reductions over directions.
/// Throws: input_error if it is not sound.
[[nodiscard]] schedule runnable(const schedule& given, send_semantics semantics);

/// What the programs of all ranks are compiled from: a schedule as it is run, and where it lists what.
class indexed_schedule {
 public:
  /// Requires: order comes from runnable(), or lists the same in other lanes.
  explicit indexed_schedule(schedule order);
  indexed_schedule(const indexed_schedule&) = delete;
  indexed_schedule& operator=(const indexed_schedule&) = delete;

  [[nodiscard]] const schedule& order() const { return order_; }
  [[nodiscard]] const action_index& index() const { return index_; }
  [[nodiscard]] bool forward_only() const { return forward_only_; }
  /// The numbers of a rank's lanes, ascending.
  [[nodiscard]] std::span<const std::size_t> lanes_of(int rank) const;

 private:
  schedule order_;
  action_index index_;
  bool forward_only_;
  std::vector<std::size_t> lanes_, first_lane_;  ///< rank by rank; where those of each rank begin
};

/// A schedule that ranks of one process run, as it was given and as it is run.
struct common_schedule {
  schedule given;
  send_semantics semantics;
  indexed_schedule run;
};
/// Throws: as runnable().
[[nodiscard]] std::shared_ptr<const common_schedule> find_common(shared_values* values, const schedule& given,
                                                                 send_semantics semantics);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/executor/detail/runnable.ipp>
#endif
