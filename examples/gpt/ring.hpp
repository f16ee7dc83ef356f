// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/runtime/group/axis_group.hpp>

#include <gpt/tensor.hpp>

namespace gpt {

/// The ranks of a context axis as a ring: each has a slice of every sequence, in their order, and what belongs to it goes round
/// (Liu et al. 2023). With one rank nothing is sent.
template <class Real>
class ring {
 public:
  explicit ring(hetsched::device_axis<Real> axis = {})
      : axis_(std::move(axis)),
        sent_(static_cast<std::size_t>(axis_.size())),
        received_(static_cast<std::size_t>(axis_.size())) {}

  [[nodiscard]] int size() const { return axis_.size(); }
  [[nodiscard]] int rank() const { return axis_.rank(); }

  /// Whose slice is here after so many passes.
  [[nodiscard]] int owner(int passes) const { return (rank() + size() - passes) % size(); }

  /// Hands a tensor, of one shape on all ranks, to the next rank, and gets that of the rank before in its place.
  void pass(tensor<Real>& slice) {
    if (size() == 1) return;
    arriving_.resize(slice.rows(), slice.columns());
    const auto next = static_cast<std::size_t>((rank() + 1) % size());
    const auto before = static_cast<std::size_t>((rank() + size() - 1) % size());
    sent_.assign(sent_.size(), 0);
    received_.assign(received_.size(), 0);
    sent_[next] = received_[before] = slice.size();
    axis_.all_to_all({slice.data(), slice.size()}, sent_, {arriving_.data(), arriving_.size()}, received_);
    swap(slice, arriving_);
  }

 private:
  hetsched::device_axis<Real> axis_;
  tensor<Real> arriving_;                     ///< of no use between calls
  std::vector<std::size_t> sent_, received_;  ///< elements, by rank
};

}  // namespace gpt
