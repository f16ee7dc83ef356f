// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpt/tensor.hpp>

namespace gpt {

/// A matrix or a part of one, without a copy. The products below take these and nothing else, so each is compiled once:
/// products are most of what Eigen costs the compiler.
template <class Real>
using part = Eigen::Ref<matrix<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class Real>
using const_part = Eigen::Ref<const matrix<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;

/// c = a b. Here and below, c is no part of a or b.
template <class Real>
void multiply(part<Real> c, const const_part<Real>& a, const const_part<Real>& b) {
  c.noalias() = a * b;
}

/// c = a b^T
template <class Real>
void multiply_transposed(part<Real> c, const const_part<Real>& a, const const_part<Real>& b) {
  c.noalias() = a * b.transpose();
}

/// c += a b
template <class Real>
void add_plain_product(part<Real> c, const const_part<Real>& a, const const_part<Real>& b) {
  c.noalias() += a * b;
}

/// c += a^T b
template <class Real>
void add_product(part<Real> c, const const_part<Real>& a, const const_part<Real>& b) {
  c.noalias() += a.transpose() * b;
}

}  // namespace gpt
