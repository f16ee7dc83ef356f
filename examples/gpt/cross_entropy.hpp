// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

#include <hetsched/runtime/executor/executor.hpp>

#include <gpt/embedding.hpp>
#include <gpt/tensor.hpp>

namespace gpt {

/// -log of the probability that the softmax of a row of logits gives its target, the sum over these rows divided by all_rows,
/// and its gradient. Ranks that have some of a microbatch's all_rows rows each so add up to the mean.
/// logits: rows x vocab, over which the gradient is written; targets: rows x 1. Logits of any size do not overflow. Throws
/// input_error for other numbers of targets than rows and for a number that is no token.
template <class Real>
[[nodiscard]] hetsched::loss_value<tensor<Real>> cross_entropy_part(tensor<Real> logits, const tensor<Real>& targets,
                                                                    std::size_t all_rows) {
  if (targets.rows() != logits.rows() || targets.columns() != 1)
    throw hetsched::input_error("cross_entropy needs one target per row of logits");
  auto x = map(logits);
  const double share = 1 / static_cast<double>(all_rows);
  double value = 0;
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const auto target = static_cast<Eigen::Index>(token_at(targets.data(), static_cast<std::size_t>(i), logits.columns()));
    auto row = x.row(i).array();
    const Real largest = row.maxCoeff(), wanted = x(i, target);
    row = (row - largest).exp();
    const Real sum = row.sum();
    value += share * (std::log(static_cast<double>(sum)) + static_cast<double>(largest) - static_cast<double>(wanted));
    row *= static_cast<Real>(share) / sum;
    x(i, target) -= static_cast<Real>(share);
  }
  return {value, std::move(logits)};
}

/// The mean over all rows; see cross_entropy_part.
template <class Real>
[[nodiscard]] hetsched::loss_value<tensor<Real>> cross_entropy(tensor<Real> logits, const tensor<Real>& targets) {
  const auto rows = logits.rows();
  return cross_entropy_part(std::move(logits), targets, rows);
}

}  // namespace gpt
