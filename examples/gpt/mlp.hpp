// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <gpt/activation.hpp>
#include <gpt/config.hpp>
#include <gpt/parallel_linear.hpp>

namespace gpt {

/// Two linear layers with a function between them; a gated one has a first layer twice as wide. Ranks of a tensor axis have a
/// part of the width each.
template <class Real>
class mlp {
 public:
  struct context {
    typename column_linear<Real>::context up;
    typename row_linear<Real>::context down;
    tensor<Real> sigmoid, active;  ///< rows x ffn
    tensor<Real> up_gradient;
  };

  mlp(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices = sequence_slices<Real>())
      : function_{m.activation == activation_kind::swiglu, slices.own(m.ffn_width())},
        up_(static_cast<std::size_t>(m.hidden),
            std::vector<std::size_t>(function_.gated ? 2 : 1, static_cast<std::size_t>(m.ffn_width())), m.bias,
            static_cast<std::size_t>(m.sequence), slices, random),
        down_(static_cast<std::size_t>(m.ffn_width()), static_cast<std::size_t>(m.hidden), m.bias, m.residual_gain(),
              static_cast<std::size_t>(m.sequence), slices, random) {}

  const tensor<Real>& forward(const tensor<Real>& input, context& c) {
    function_.forward(up_.forward(input, c.up), c.sigmoid, c.active);
    return down_.forward(c.active, c.down);
  }

  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    function_.backward(map(down_.backward_input(gradient, c.down)), c.up.product.output, c.sigmoid, c.up_gradient);
    return up_.backward_input(c.up_gradient, c.up);
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    down_.backward_weight(gradient, c.down);
    up_.backward_weight(c.up_gradient, c.up);
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }
  /// What backward_input has returned.
  [[nodiscard]] const tensor<Real>& input_gradient(const context& c) const { return up_.input_gradient(c.up); }

  [[nodiscard]] tensor_list<Real> parameters() { return join<Real>(up_.parameters(), down_.parameters()); }
  [[nodiscard]] tensor_list<Real> gradients() { return join<Real>(up_.gradients(), down_.gradients()); }
  [[nodiscard]] cut_list parameter_cuts() const { return join(up_.parameter_cuts(), down_.parameter_cuts()); }

 private:
  activation<Real> function_;
  column_linear<Real> up_;
  row_linear<Real> down_;
};

}  // namespace gpt
