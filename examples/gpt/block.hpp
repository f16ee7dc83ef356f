// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <utility>

#include <gpt/attention.hpp>
#include <gpt/cache.hpp>
#include <gpt/experts.hpp>
#include <gpt/mlp.hpp>
#include <gpt/norm.hpp>

namespace gpt {

/// One transformer block, normalised before its halves: m = x + attention(norm(x)), y = m + mlp(norm(m)). On a tensor axis sums
/// and norms are those of this rank's slice of every sequence. Inner: what stands for the MLP.
template <class Real, class Inner = mlp<Real>>
class block {
 public:
  struct context {
    typename norm<Real>::context norm_1, norm_2;
    typename attention<Real>::context attention;
    typename Inner::context mlp;
    tensor<Real> middle, output;
    tensor<Real> middle_gradient, input_gradient;
  };

  /// `recomputes`, `others`, m.sequence: see attention. Precondition: the config is valid for the ranks of the axis.
  block(const config& m, hetsched::random_source random, const sequence_slices<Real>& slices = sequence_slices<Real>(),
        bool recomputes = false, ring<Real> others = ring<Real>()) requires std::same_as<Inner, mlp<Real>>
      : block(m, random, slices, recomputes, std::move(others), [&](auto& own) { return Inner(m, own, slices); }) {}
  /// One with experts.
  block(const config& m, hetsched::random_source random, const sequence_slices<Real>& slices, bool recomputes, ring<Real> others,
        expert_axis<Real> axis) requires std::same_as<Inner, experts<Real>>
      : block(m, random, slices, recomputes, std::move(others),
              [&](auto& own) { return Inner(m, own, slices, std::move(axis)); }) {}

 private:
  template <class Make>
  block(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices, bool recomputes, ring<Real> others,
        Make make)
      : norm_1_(m.norm, static_cast<std::size_t>(m.hidden)),
        norm_2_(m.norm, static_cast<std::size_t>(m.hidden)),
        attention_(m, random, slices, recomputes, std::move(others)),
        mlp_(make(random)),
        sequence_(static_cast<std::size_t>(m.sequence)) {}

 public:
  /// x: (samples * sequence / ranks of the axis) x hidden.
  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    add(c.middle, x, attention_.forward(norm_1_.forward(x, c.norm_1), c.attention));
    add(c.output, c.middle, mlp_.forward(norm_2_.forward(c.middle, c.norm_2), c.mlp));
    return c.output;
  }
  /// Of the positions after those in the cache, on one device; throws as require_room.
  const tensor<Real>& infer(const tensor<Real>& x, context& c, cache<Real>& past) {
    require_room(past, x.rows(), sequence_);
    add(c.middle, x, attention_.infer(norm_1_.forward(x, c.norm_1), c.attention, past));
    add(c.output, c.middle, mlp_.forward(norm_2_.forward(c.middle, c.norm_2), c.mlp));
    past.length += x.rows();
    return c.output;
  }
  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    add(c.middle_gradient, gradient, norm_2_.backward_input(mlp_.backward_input(gradient, c.mlp), c.norm_2));
    add(c.input_gradient, c.middle_gradient,
        norm_1_.backward_input(attention_.backward_input(c.middle_gradient, c.attention), c.norm_1));
    return c.input_gradient;
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    mlp_.backward_weight(gradient, c.mlp);
    norm_2_.backward_weight(mlp_.input_gradient(c.mlp), c.norm_2);
    attention_.backward_weight(c.middle_gradient, c.attention);
    norm_1_.backward_weight(attention_.input_gradient(c.attention), c.norm_1);
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }

  [[nodiscard]] tensor_list<Real> parameters() {
    return join<Real>(join<Real>(norm_1_.parameters(), attention_.parameters()),
                      join<Real>(norm_2_.parameters(), mlp_.parameters()));
  }
  [[nodiscard]] tensor_list<Real> gradients() {
    return join<Real>(join<Real>(norm_1_.gradients(), attention_.gradients()), join<Real>(norm_2_.gradients(), mlp_.gradients()));
  }
  [[nodiscard]] cut_list parameter_cuts() const {
    return join(join(norm_1_.parameter_cuts(), attention_.parameter_cuts()),
                join(norm_2_.parameter_cuts(), mlp_.parameter_cuts()));
  }

 private:
  static void add(tensor<Real>& sum, const tensor<Real>& a, const tensor<Real>& b) {
    sum.resize(a.rows(), a.columns());
    map(sum) = map(a) + map(b);
  }

  norm<Real> norm_1_, norm_2_;
  attention<Real> attention_;
  Inner mlp_;
  std::size_t sequence_;
};

}  // namespace gpt
