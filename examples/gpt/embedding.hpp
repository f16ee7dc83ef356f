// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <string>

#include <gpt/cache.hpp>
#include <gpt/config.hpp>
#include <gpt/parameter.hpp>

namespace gpt {

/// The whole number in a tensor of tokens. Throws input_error if it is none, or not below `vocab`.
template <class Real>
[[nodiscard]] std::size_t token_at(const Real* tokens, std::size_t i, std::size_t vocab) {
  const Real token = tokens[i];
  if (!(token >= 0 && token < static_cast<Real>(vocab)) || token != static_cast<Real>(static_cast<std::size_t>(token)))
    throw hetsched::input_error("token " + std::to_string(i) + " is " + std::to_string(token) +
                                ", not a whole number from 0 to " + std::to_string(vocab - 1));
  return static_cast<std::size_t>(token);
}

/// The table of tokens, a row of `hidden` numbers each; embedding and head begin with the same if they are tied. So wide that
/// tokens differ beside what blocks add to them, and logits, products with rows of length sqrt(hidden), are near even.
template <class Real>
[[nodiscard]] parameter<Real> token_table(const config& m, hetsched::random_source& random) {
  return parameter<Real>(static_cast<std::size_t>(m.vocab), static_cast<std::size_t>(m.hidden),
                         0.5 / std::sqrt(static_cast<double>(m.hidden)), random);
}

/// Rows of a table for tokens, plus learned rows for positions, if there are any. The tables are whole on every rank of a tensor
/// axis, which looks up its slice of the sequence.
template <class Real>
class embedding {
 public:
  struct context {
    const Real* tokens = nullptr;
    tensor<Real> output, input_gradient;
  };

  /// Of part `part` of `parts` of every sequence. Precondition: the config is valid, and its sequence divisible by them.
  embedding(const config& m, hetsched::random_source random, std::size_t part = 0, std::size_t parts = 1)
      : tokens_(token_table<Real>(m, random)), length_(static_cast<std::size_t>(m.sequence) / parts), first_(length_ * part) {
    if (m.positions == position_kind::learned)
      positions_ = parameter<Real>(static_cast<std::size_t>(m.sequence), static_cast<std::size_t>(m.hidden), 0.02, random);
  }

  /// tokens: (samples * sequence / parts) x 1. Throws input_error for a number that is no token.
  const tensor<Real>& forward(const tensor<Real>& tokens, context& c) { return look_up(tokens, c, first_); }
  /// Of the positions after those in the cache, on one device; throws as require_room, too.
  const tensor<Real>& infer(const tensor<Real>& tokens, context& c, cache<Real>& past) {
    require_room(past, tokens.rows(), length_);
    const auto& found = look_up(tokens, c, past.length);
    past.length += tokens.rows();
    return found;
  }
  /// Zero: tokens have no gradient.
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    c.input_gradient.resize(gradient.rows(), 1);
    map(c.input_gradient).setZero();
    return c.input_gradient;
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    for (std::size_t r = 0; r < gradient.rows(); ++r) {
      const auto row = map(gradient).row(static_cast<Eigen::Index>(r));
      map(tokens_.gradient).row(static_cast<Eigen::Index>(c.tokens[r])) += row;
      if (has_positions()) map(positions_.gradient).row(position(r, first_)) += row;
    }
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    backward_weight(gradient, c);
    return backward_input(gradient, c);
  }

  /// The table of tokens first.
  [[nodiscard]] tensor_list<Real> parameters() {
    return has_positions() ? tensor_list<Real>{tokens_.value, positions_.value} : tensor_list<Real>{tokens_.value};
  }
  [[nodiscard]] tensor_list<Real> gradients() {
    return has_positions() ? tensor_list<Real>{tokens_.gradient, positions_.gradient} : tensor_list<Real>{tokens_.gradient};
  }
  [[nodiscard]] cut_list parameter_cuts() const { return cut_list(has_positions() ? 2 : 1, on_slices()); }

 private:
  [[nodiscard]] bool has_positions() const { return positions_.value.size() > 0; }
  /// `first`: the first row's.
  [[nodiscard]] Eigen::Index position(std::size_t row, std::size_t first) const {
    return static_cast<Eigen::Index>(first + row % length_);
  }
  const tensor<Real>& look_up(const tensor<Real>& tokens, context& c, std::size_t first) {
    c.tokens = tokens.data();
    c.output.resize(tokens.rows(), tokens_.value.columns());
    auto output = map(c.output);
    for (std::size_t r = 0; r < tokens.rows(); ++r) {
      auto row = output.row(static_cast<Eigen::Index>(r));
      row = map(tokens_.value).row(static_cast<Eigen::Index>(token_at(tokens.data(), r, tokens_.value.rows())));
      if (has_positions()) row += map(positions_.value).row(position(r, first));
    }
    return c.output;
  }
  parameter<Real> tokens_, positions_;
  std::size_t length_, first_;  ///< of this rank's slice
};

}  // namespace gpt
