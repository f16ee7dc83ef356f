// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/error.hpp>

#include <gpt/config.hpp>
#include <gpt/embedding.hpp>
#include <gpt/norm.hpp>
#include <gpt/product.hpp>

namespace gpt {

/// The last norm, and a score per token of the vocabulary: the product with each row of a table. All of it on every rank of a
/// tensor axis, for its slice of the sequence.
template <class Real>
class head {
 public:
  struct context {
    typename norm<Real>::context norm;
    tensor<Real> output, norm_gradient;
    tensor<Real> last;  ///< row
  };

  /// The table's numbers come from `random`: the embedding's, if the two are tied. Precondition: the config is valid.
  head(const config& m, hetsched::random_source random)
      : table_(token_table<Real>(m, random)), norm_(m.norm, static_cast<std::size_t>(m.hidden)) {}

  /// x: (samples * sequence) x hidden; returns logits, as many rows x vocab.
  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    c.output.resize(x.rows(), table_.value.rows());
    multiply_transposed<Real>(map(c.output), map(norm_.forward(x, c.norm)), map(table_.value));
    return c.output;
  }
  /// Of the last position only: 1 x vocab. Throws input_error if there is none.
  const tensor<Real>& infer(const tensor<Real>& x, context& c) {
    if (x.rows() == 0) throw hetsched::input_error("a text without positions has no last one");
    c.last.resize(1, x.columns());
    map(c.last) = map(x).bottomRows(1);
    return forward(c.last, c);
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    c.norm_gradient.resize(gradient.rows(), table_.value.columns());
    multiply<Real>(map(c.norm_gradient), map(gradient), map(table_.value));
    return norm_.backward_input(c.norm_gradient, c.norm);
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    add_product<Real>(map(table_.gradient), map(gradient), map(c.norm.output));
    norm_.backward_weight(c.norm_gradient, c.norm);
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }

  /// The table first.
  [[nodiscard]] tensor_list<Real> parameters() { return join<Real>({table_.value}, norm_.parameters()); }
  [[nodiscard]] tensor_list<Real> gradients() { return join<Real>({table_.gradient}, norm_.gradients()); }
  [[nodiscard]] cut_list parameter_cuts() const {
    auto cuts = norm_.parameter_cuts();
    cuts.insert(cuts.begin(), on_slices());
    return cuts;
  }

 private:
  parameter<Real> table_;
  norm<Real> norm_;
};

}  // namespace gpt
