// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/builders/period_test.cpp.

#include <cstddef>
#include <vector>

#include <hetsched/core/index.hpp>

namespace hetsched {

/// The times of one microbatch on S stages, in seconds. Stage 0 is the first in the forward direction;
/// boundary i lies between stages i and i + 1.
struct pipeline {
  std::vector<double> forward_s;                 ///< S
  std::vector<double> backward_s;                ///< S
  std::vector<double> transfer_s;                ///< S - 1: activation, downstream
  std::vector<double> gradient_transfer_s = {};  ///< S - 1, or empty: as transfer_s
  std::vector<double> weight_backward_s = {};    ///< S, or empty: of backward_s, the part that is the weight gradient
  std::vector<double> activation_bytes = {};     ///< S, or empty (1 each): held per microbatch in flight
  /// S - 1, or empty: of transfer_s, until the next activation can set out; empty: all of it. Less where a transfer has phases on
  /// different ports. Two numbers are all there is to tell: through stations that take d_1, d_2, ... of every tensor in turn, the
  /// m-th arrives when it sets out plus the sum of d, but not before the one ahead of it plus the largest d.
  std::vector<double> transfer_occupied_s = {};
  /// The same of gradients; empty: as activations if gradients take as long as these, else all of gradient_transfer_s.
  std::vector<double> gradient_transfer_occupied_s = {};

  [[nodiscard]] int stages() const { return static_cast<int>(forward_s.size()); }
  /// Compute time of stage i: t_i = f_i + b_i.
  [[nodiscard]] double compute_s(int i) const { return at(forward_s, i) + at(backward_s, i); }
  [[nodiscard]] double activation_s(int i) const { return at(transfer_s, i); }
  [[nodiscard]] double gradient_s(int i) const {
    return gradient_transfer_s.empty() ? at(transfer_s, i) : at(gradient_transfer_s, i);
  }
  /// Both ways over boundary i: the 2c_i of the papers.
  [[nodiscard]] double round_trip_s(int i) const { return activation_s(i) + gradient_s(i); }
  /// Until the next tensor can set out over boundary i.
  [[nodiscard]] double activation_occupied_s(int i) const {
    return transfer_occupied_s.empty() ? activation_s(i) : at(transfer_occupied_s, i);
  }
  [[nodiscard]] double gradient_occupied_s(int i) const {
    if (!gradient_transfer_occupied_s.empty()) return at(gradient_transfer_occupied_s, i);
    return gradient_transfer_s.empty() ? activation_occupied_s(i) : gradient_s(i);
  }
  /// The longer of both: the least period of boundary i.
  [[nodiscard]] double occupied_s(int i) const {
    const double there_s = activation_occupied_s(i), back_s = gradient_occupied_s(i);
    return there_s < back_s ? back_s : there_s;
  }
  /// The dearer way over boundary i.
  [[nodiscard]] double slower_way_s(int i) const { return activation_s(i) < gradient_s(i) ? gradient_s(i) : activation_s(i); }

  friend bool operator==(const pipeline&, const pipeline&) = default;
};

/// What inference takes of a pipeline: nothing goes back.
/// Throws: input_error for an invalid pipeline.
[[nodiscard]] pipeline forward_part(pipeline p);

/// Checks a pipeline.
/// Throws: input_error unless the sizes agree, S >= 1, every time is finite and not negative, and no part longer than the whole.
void validate(const pipeline& p);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/pipeline.ipp>
#endif
