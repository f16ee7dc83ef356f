// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/cost/network/send_mode.hpp>

namespace hetsched {

/// What costs rest on, from the least sure to the surest.
enum class cost_basis {
  layers,      ///< datasheets, and formulas for whole layers
  datasheets,  ///< and the operators of transformers one by one
  calibrated,  ///< the same, with devices calibrated on some operators
  anchored,    ///< datasheets, scaled to one training that was seen on each device
  profile      ///< the layers' times as measured
};

/// How far such costs were off where somebody measured: a line of the accuracy pages, or several together.
struct like_cases {
  cost_basis basis = cost_basis::datasheets;
  std::string_view stack = {};  ///< that ran them; "inference": operators of engines; empty: whatever ran them
  std::string_view what = {};   ///< "iterations of GPT-2 on one H100"
  int cases = 0;
  double bias = 0;                            ///< mean of predicted / measured - 1
  double mean = 0;                            ///< of the absolute values
  std::string_view page = {};                 ///< in docs/accuracy/, without .md
  send_mode sends = send_mode::asynchronous;  ///< how ranks sent in what was predicted: iteration_under
};

/// All that the accuracy pages tell of costs; bench/validation/like_cases.py takes it from them.
[[nodiscard]] std::span<const like_cases> known_cases();

/// The cases that are like costs of that basis and stack; none: nothing like them was measured.
[[nodiscard]] std::vector<like_cases> cases_like(cost_basis basis, std::string_view stack);

/// What the least sure device of a cluster is priced by, where operators are known and there is no profile.
/// Throws: input_error as validate.
[[nodiscard]] cost_basis basis_of(const cluster& c);

/// "like cases -2.1 % on average, +-5.2 % (12 iterations on one H100)"; of several kinds, from the least to the most; of none,
/// that there are none. Says so where all are of iterations with sends that hold ranks up.
[[nodiscard]] std::string cases_text(std::span<const like_cases> cases);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/cost/models/like_cases.ipp>
#endif
