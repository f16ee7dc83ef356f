// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <hetsched/core/error.hpp>

#include <gpt/tensor.hpp>

namespace gpt {

/// What a layer keeps of one text, so that the next position need not look at the others again.
template <class Real>
struct cache {
  std::size_t length = 0;  ///< positions so far
  tensor<Real> rows;       ///< of attention: sequence x (keys, values); none before the first position
};

/// Throws input_error for no further positions, and for more than a sequence has.
template <class Real>
void require_room(const cache<Real>& past, std::size_t more, std::size_t sequence) {
  if (more == 0 || past.length + more > sequence)
    throw hetsched::input_error(std::to_string(more) + " positions cannot follow " + std::to_string(past.length) +
                                ": a sequence has " + std::to_string(sequence));
}

}  // namespace gpt
