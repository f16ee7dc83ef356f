// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <hetsched/runtime/executor/executor.hpp>

#include <gpt/embedding.hpp>
#include <gpt/tensor.hpp>

namespace gpt {

/// -log of the probability that the softmax of a row of logits gives its target, the sum over these rows divided by all_rows,
/// and its gradient. Ranks that have some of a microbatch's all_rows rows each so add up to the mean.
/// logits: rows x vocab; targets: rows x 1. Logits of any size do not overflow. Throws input_error for other numbers of targets
/// than rows and for a number that is no token.
template <class Real>
[[nodiscard]] hetsched::loss_value<tensor<Real>> cross_entropy_part(const tensor<Real>& logits, const tensor<Real>& targets,
                                                                    std::size_t all_rows) {
  if (targets.rows() != logits.rows() || targets.columns() != 1)
    throw hetsched::input_error("cross_entropy needs one target per row of logits");
  hetsched::loss_value<tensor<Real>> found{0, tensor<Real>(logits.rows(), logits.columns())};
  const auto x = map(logits);
  auto gradient = map(found.gradient);
  const double share = 1 / static_cast<double>(all_rows);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const auto target = static_cast<Eigen::Index>(token_at(targets.data(), static_cast<std::size_t>(i), logits.columns()));
    const Real largest = x.row(i).maxCoeff();
    auto row = gradient.row(i).array();
    row = (x.row(i).array() - largest).exp();
    const Real sum = row.sum();
    found.value +=
        share * (std::log(static_cast<double>(sum)) + static_cast<double>(largest) - static_cast<double>(x(i, target)));
    row *= static_cast<Real>(share) / sum;
    gradient(i, target) -= static_cast<Real>(share);
  }
  return found;
}

/// The mean over all rows; see cross_entropy_part.
template <class Real>
[[nodiscard]] hetsched::loss_value<tensor<Real>> cross_entropy(const tensor<Real>& logits, const tensor<Real>& targets) {
  return cross_entropy_part(logits, targets, logits.rows());
}

}  // namespace gpt
