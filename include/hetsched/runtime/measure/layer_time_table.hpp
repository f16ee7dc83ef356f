// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <hetsched/core/number_table.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

namespace hetsched {

/// What layers take where: as measured on the ranks that have them; elsewhere as expected, times the factor by which the rank's
/// own layers differ from what was expected of them (the median, of two in the middle the lower one), and times that by which
/// this layer differed from the rank's others when it was there. So a rank that has become slower is so for all layers, and a
/// layer that became slower on one rank alone is not taken to be so on others, nor forgotten there when it has left: if it is
/// slow everywhere, that is found out when it has moved. For partition, to find where layers should be now.
/// Example, on every rank, every few steps, with the medians of trainer.layer_times() of all ranks:
///   for (int r = 0; r < ranks; ++r) table.measured(r, told[r]);
///   const auto next = partition({.seconds = table.seconds(), .devices = std::vector<int>(ranks, 1),
///                                .microbatches = 8, .in_order = true});
///   if (next && next->cuts != cuts) trainer.move_layers(...);
class layer_time_table {
 public:
  /// [rank][layer], expected per microbatch.
  /// Throws: input_error unless both have the same rows of the same length, finite and above 0.
  layer_time_table(const number_table& forward_s, const number_table& backward_s);

  /// Takes over what all layers took that a rank has now.
  /// Throws: input_error for a rank or a layer that there is none of, and times that are not finite or negative.
  /// Complexity: O(n log n).
  void measured(int rank, std::span<const layer_time> took);

  [[nodiscard]] int ranks() const { return static_cast<int>(rows_.size()); }
  [[nodiscard]] int layers() const { return static_cast<int>(rows_.front().cells.size()); }
  /// Requires: a rank and a layer of the table.
  [[nodiscard]] layer_time of(int rank, int layer) const;
  [[nodiscard]] number_table seconds() const;  ///< [rank][layer], forward and backward together

 private:
  struct cell {
    double forward_s = 0, backward_s = 0;            ///< expected
    double forward_factor = 1, backward_factor = 1;  ///< measured last beside expected
    double beside = 1;                               ///< the rank's factor then; a lone layer's says nothing of others
    bool here = false;
  };
  struct row {
    double factor = 1;  ///< of all its layers
    std::vector<cell> cells;
  };
  std::vector<row> rows_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/measure/layer_time_table.ipp>
#endif
