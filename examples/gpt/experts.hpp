// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <gpt/activation.hpp>
#include <gpt/config.hpp>
#include <gpt/expert_axis.hpp>
#include <gpt/parameter.hpp>
#include <gpt/product.hpp>
#include <gpt/sequence_slices.hpp>

namespace gpt {

/// MLPs of which every row takes the few that a router likes best for it: y = sum of p_e mlp_e(x), with p the softmax of the
/// router's scores over all experts (Fedus et al. 2022). No row is left out, however many want an expert, and the loss does not
/// ask for balance. Ranks of an expert axis have some experts each, to which rows travel; ranks of a tensor axis a part of each
/// expert's width. The experts' matrices lie one below the other, each as hidden x width.
template <class Real>
class experts {
 public:
  struct context {
    tensor<Real> all, gradient;     ///< rows of all slices; of the outputs' gradients
    tensor<Real> chances;           ///< rows x experts
    tensor<Real> chances_gradient;  ///< then the scores'
    expert_route route;
    tensor<Real> asked, answers;                          ///< rows in the order of the route, before and behind the experts
    tensor<Real> input, inside, sigmoid, active, output;  ///< of this rank's experts, expert by expert
    tensor<Real> output_gradient, active_gradient, inside_gradient;
    tensor<Real> sum, all_gradient, slice, input_gradient;
  };

  experts(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices = sequence_slices<Real>(),
          expert_axis<Real> others = expert_axis<Real>())
      : function_{m.activation == activation_kind::swiglu, slices.own(m.ffn_width())},
        hidden_(static_cast<std::size_t>(m.hidden)),
        sequence_(static_cast<std::size_t>(m.sequence)),
        experts_(static_cast<std::size_t>(m.experts)),
        chosen_(static_cast<std::size_t>(m.experts_per_token)),
        slices_(slices),
        others_(std::move(others)) {
    const auto width = static_cast<std::size_t>(m.ffn_width());
    const part_of columns = slices_.columns();
    const part_of rows{.dimension = 0, .first = others_.part(), .last = others_.part() + 1, .parts = others_.parts()};
    const double scale = 1 / std::sqrt(static_cast<double>(m.hidden));
    router_ = parameter<Real>(hidden_, experts_, scale, random);
    const std::vector<std::size_t> pieces(function_.gated ? 2 : 1, width);
    up_ = parameter<Real>(experts_ * hidden_, pieces, scale, random, columns, rows);
    down_ = parameter<Real>(experts_ * hidden_, {width}, m.residual_gain() / std::sqrt(static_cast<double>(width)), random,
                            columns, rows);
    if (!m.bias) return;
    up_bias_ = parameter<Real>(here(), up_.value.columns());
    down_bias_ = parameter<Real>(here(), hidden_);
  }

  /// x: this rank's slice of the rows.
  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    const auto& rows = slices_.gather(x, sequence_, c.all);
    if (&rows != &c.all) c.all = rows;
    choose(c);
    c.asked.resize(c.route.rows.size(), hidden_);
    for (std::size_t i = 0; i < c.route.rows.size(); ++i) row(c.asked, i) = row(c.all, c.route.rows[i]);
    others_.send(c.route, c.asked, c.input);
    c.inside.resize(c.input.rows(), up_.value.columns());
    for_each_expert(c, [&](Eigen::Index e, Eigen::Index first, Eigen::Index count) {
      auto inside = map(c.inside).middleRows(first, count);
      multiply<Real>(inside, map(c.input).middleRows(first, count), matrix_of(up_.value, e));
      if (has_bias()) inside.rowwise() += map(up_bias_.value).row(e);
    });
    function_.forward(c.inside, c.sigmoid, c.active);
    c.output.resize(c.input.rows(), hidden_);
    for_each_expert(c, [&](Eigen::Index e, Eigen::Index first, Eigen::Index count) {
      auto output = map(c.output).middleRows(first, count);
      multiply_transposed<Real>(output, map(c.active).middleRows(first, count), matrix_of(down_.value, e));
      if (adds_bias()) output.rowwise() += map(down_bias_.value).row(e);
    });
    others_.send_back(c.route, c.output, c.answers);
    c.sum.resize(c.all.rows(), hidden_);
    map(c.sum).setZero();
    for_each_answer(c,
                    [&](std::size_t i, std::size_t r, std::size_t e) { row(c.sum, r) += c.chances(r, e) * row(c.answers, i); });
    return slices_.sum(c.sum, sequence_, c.slice);
  }

  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    const auto& wanted = slices_.gather(gradient, sequence_, c.gradient);
    c.chances_gradient.resize(c.chances.rows(), experts_);
    map(c.chances_gradient).setZero();
    for_each_answer(c, [&](std::size_t i, std::size_t r, std::size_t e) {
      c.chances_gradient(r, e) = row(c.answers, i).dot(row(wanted, r));
      row(c.asked, i) = c.chances(r, e) * row(wanted, r);
    });
    others_.send(c.route, c.asked, c.output_gradient);
    c.active_gradient.resize(c.active.rows(), c.active.columns());
    for_each_expert(c, [&](Eigen::Index e, Eigen::Index first, Eigen::Index count) {
      multiply<Real>(map(c.active_gradient).middleRows(first, count), map(c.output_gradient).middleRows(first, count),
                     matrix_of(down_.value, e));
    });
    function_.backward(map(c.active_gradient), c.inside, c.sigmoid, c.inside_gradient);
    for_each_expert(c, [&](Eigen::Index e, Eigen::Index first, Eigen::Index count) {
      multiply_transposed<Real>(map(c.output).middleRows(first, count), map(c.inside_gradient).middleRows(first, count),
                                matrix_of(up_.value, e));
    });
    others_.send_back(c.route, c.output, c.asked);
    // Through the softmax, whose chances of experts that were not taken count for nothing.
    const auto p = map(std::as_const(c.chances)).array();
    auto scores = map(c.chances_gradient).array();
    for (Eigen::Index r = 0; r < scores.rows(); ++r)
      scores.row(r) = p.row(r) * (scores.row(r) - (p.row(r) * scores.row(r)).sum());
    c.all_gradient.resize(c.all.rows(), hidden_);
    multiply_transposed<Real>(map(c.all_gradient), map(c.chances_gradient), map(router_.value));
    for (std::size_t i = 0; i < c.route.rows.size(); ++i) row(c.all_gradient, c.route.rows[i]) += row(c.asked, i);
    return slices_.sum(c.all_gradient, sequence_, c.input_gradient);
  }
  void backward_weight(const tensor<Real>&, context& c) {
    add_product<Real>(map(router_.gradient), map(c.all), map(c.chances_gradient));
    for_each_expert(c, [&](Eigen::Index e, Eigen::Index first, Eigen::Index count) {
      const auto inside = map(c.inside_gradient).middleRows(first, count),
                 output = map(c.output_gradient).middleRows(first, count);
      add_product<Real>(matrix_of(up_.gradient, e), map(c.input).middleRows(first, count), inside);
      add_product<Real>(matrix_of(down_.gradient, e), output, map(c.active).middleRows(first, count));
      if (has_bias()) map(up_bias_.gradient).row(e) += inside.colwise().sum();
      if (adds_bias()) map(down_bias_.gradient).row(e) += output.colwise().sum();
    });
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }
  /// What backward_input has returned.
  [[nodiscard]] const tensor<Real>& input_gradient(const context& c) const {
    return slices_.parts() == 1 ? c.all_gradient : c.input_gradient;
  }

  [[nodiscard]] tensor_list<Real> parameters() { return listed(&parameter<Real>::value); }
  [[nodiscard]] tensor_list<Real> gradients() { return listed(&parameter<Real>::gradient); }
  [[nodiscard]] cut_list parameter_cuts() const {
    hetsched::parameter_cut columns{.dimension = 1, .pieces = {}, .over_experts = true};
    auto gate = columns;
    if (function_.gated) gate.pieces.assign(2, static_cast<std::size_t>(function_.width));
    if (!has_bias()) return {on_slices(), gate, columns};
    return {on_slices(), gate, gate, columns, {.dimension = -1, .partial_over_tensor = true, .pieces = {}, .over_experts = true}};
  }

 private:
  [[nodiscard]] bool has_bias() const { return up_bias_.value.size() > 0; }
  /// One rank of a tensor axis adds what stands behind the sum over them.
  [[nodiscard]] bool adds_bias() const { return has_bias() && slices_.part() == 0; }
  [[nodiscard]] std::size_t here() const { return experts_ / others_.parts(); }
  template <class Tensor>
  [[nodiscard]] static auto row(Tensor& t, std::size_t i) {
    return map(t).row(static_cast<Eigen::Index>(i));
  }
  template <class Tensor>
  [[nodiscard]] auto matrix_of(Tensor& all, Eigen::Index expert) const {
    const auto rows = static_cast<Eigen::Index>(hidden_);
    return map(all).middleRows(expert * rows, rows);
  }
  [[nodiscard]] tensor_list<Real> listed(tensor<Real> parameter<Real>::*which) {
    if (!has_bias()) return {router_.*which, up_.*which, down_.*which};
    return {router_.*which, up_.*which, up_bias_.*which, down_.*which, down_bias_.*which};
  }

  /// The softmax of the scores, and of each row the experts with the largest; of equal ones the first.
  void choose(context& c) {
    c.chances.resize(c.all.rows(), experts_);
    multiply<Real>(map(c.chances), map(c.all), map(router_.value));
    std::vector<std::vector<std::size_t>> takers(experts_);
    for (std::size_t r = 0; r < c.all.rows(); ++r) {
      Real* const p = c.chances.data() + r * experts_;
      const Real most = *std::max_element(p, p + experts_);
      Real sum = 0;
      for (std::size_t e = 0; e < experts_; ++e) sum += p[e] = std::exp(p[e] - most);
      for (std::size_t e = 0; e < experts_; ++e) p[e] /= sum;
      order_.resize(experts_);
      for (std::size_t e = 0; e < experts_; ++e) order_[e] = e;
      std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(chosen_), order_.end(),
                        [&](std::size_t a, std::size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
      for (std::size_t k = 0; k < chosen_; ++k) takers[order_[k]].push_back(r);
    }
    c.route.rows.clear();
    c.route.first_row.assign(1, 0);
    for (const auto& of : takers) {
      c.route.rows.insert(c.route.rows.end(), of.begin(), of.end());
      c.route.first_row.push_back(c.route.rows.size());
    }
    others_.agree(c.route);
  }

  /// Calls body(expert of this rank, its first row, their number).
  template <class Body>
  void for_each_expert(const context& c, Body body) const {
    for (std::size_t e = 0; e < here(); ++e)
      if (const auto first = c.route.first_here[e], last = c.route.first_here[e + 1]; first < last)
        body(static_cast<Eigen::Index>(e), static_cast<Eigen::Index>(first), static_cast<Eigen::Index>(last - first));
  }
  /// Calls body(place in the route, row, expert).
  template <class Body>
  void for_each_answer(const context& c, Body body) const {
    for (std::size_t e = 0; e < experts_; ++e)
      for (std::size_t i = c.route.first_row[e]; i < c.route.first_row[e + 1]; ++i) body(i, c.route.rows[i], e);
  }

  activation<Real> function_;
  std::size_t hidden_, sequence_, experts_, chosen_;
  sequence_slices<Real> slices_;
  expert_axis<Real> others_;
  parameter<Real> router_, up_, up_bias_, down_, down_bias_;
  std::vector<std::size_t> order_;  ///< of no use between calls
};

}  // namespace gpt
