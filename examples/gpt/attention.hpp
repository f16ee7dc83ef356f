// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include <gpt/cache.hpp>
#include <gpt/config.hpp>
#include <gpt/parallel_linear.hpp>
#include <gpt/product.hpp>
#include <gpt/rotary.hpp>

namespace gpt {

/// Causal self-attention; neighbouring query heads share a head of keys and values (Ainslie et al. 2023). A row sees itself
/// and the rows before it in its sample. Ranks of a tensor axis have some heads each.
template <class Real>
class attention {
 public:
  struct context {
    typename column_linear<Real>::context qkv;
    typename row_linear<Real>::context out;
    tensor<Real> weights;  ///< softmax of the scores, per sample and head: sequence x sequence; none if they are recomputed
    tensor<Real> mixed;    ///< values mixed by them: rows x (heads * head_size)
    tensor<Real> qkv_gradient;
  };

  /// `recomputes`: the softmax of the scores is not kept, but made again, of the same bits, in the backward (Korthikanti et al.
  /// 2022: selective recomputation).
  attention(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices = sequence_slices<Real>(),
            bool recomputes = false)
      : sequence_(m.sequence),
        heads_(m.heads / static_cast<int>(slices.parts())),
        kv_heads_(m.key_heads() / static_cast<int>(slices.parts())),
        size_(m.hidden / m.heads),
        qkv_(static_cast<std::size_t>(m.hidden), widths(m), m.bias, static_cast<std::size_t>(m.sequence), slices, random),
        out_(static_cast<std::size_t>(m.hidden), static_cast<std::size_t>(m.hidden), m.bias, m.residual_gain(),
             static_cast<std::size_t>(m.sequence), slices, random),
        scores_(static_cast<std::size_t>(sequence_), static_cast<std::size_t>(sequence_)),
        recomputes_(recomputes) {
    if (recomputes) weights_ = scores_;
    if (m.positions == position_kind::rotary)
      rotary_.emplace(static_cast<std::size_t>(sequence_), static_cast<std::size_t>(size_));
  }

  /// x: (samples * sequence / ranks of the axis) x hidden.
  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    (void)qkv_.forward(x, c.qkv);
    auto& projected = c.qkv.product.output;
    if (rotary_) rotary_->turn(projected, static_cast<std::size_t>(heads_ + kv_heads_), 1);
    if (!recomputes_) c.weights.resize(projected.rows() * static_cast<std::size_t>(heads_), static_cast<std::size_t>(sequence_));
    c.mixed.resize(projected.rows(), static_cast<std::size_t>(heads_ * size_));
    const auto qkv = map(projected);
    auto mixed = map(c.mixed);
    for_each_head(projected.rows(), [&](Eigen::Index row, Eigen::Index head) {
      const auto p = weights(c, row, head);
      find_weights(p, qkv, row, head);
      multiply<Real>(query(mixed, row, head), p, value(qkv, row, head));
    });
    return out_.forward(c.mixed, c.out);
  }

  /// Of the positions after those in the cache, which then has their keys and values, too. x: positions x hidden; on one device.
  const tensor<Real>& infer(const tensor<Real>& x, context& c, cache<Real>& past) {
    (void)qkv_.forward(x, c.qkv);
    auto& projected = c.qkv.product.output;
    if (rotary_) rotary_->turn(projected, static_cast<std::size_t>(heads_ + kv_heads_), 1, past.length);
    const auto before = static_cast<Eigen::Index>(past.length), rows = static_cast<Eigen::Index>(x.rows()), all = before + rows;
    const Eigen::Index width = kv_heads_ * size_;
    if (past.rows.size() == 0) past.rows.resize(static_cast<std::size_t>(sequence_), static_cast<std::size_t>(2 * width));
    auto kept = map(past.rows);
    const auto qkv = map(projected);
    kept.middleRows(before, rows) = qkv.rightCols(2 * width);
    c.weights.resize(x.rows(), static_cast<std::size_t>(all));
    c.mixed.resize(x.rows(), static_cast<std::size_t>(heads_ * size_));
    auto p = map(c.weights);
    auto mixed = map(c.mixed);
    for (Eigen::Index head = 0; head < heads_; ++head) {
      const Eigen::Index key = head * kv_heads_ / heads_ * size_;
      multiply_transposed<Real>(p, qkv.middleCols(head * size_, size_), kept.block(0, key, all, size_));
      for (Eigen::Index i = 0; i < rows; ++i) normalise(p.row(i), before + i + 1);
      multiply<Real>(mixed.middleCols(head * size_, size_), p, kept.block(0, width + key, all, size_));
    }
    return out_.forward(c.mixed, c.out);
  }

  const tensor<Real>& backward_input(const tensor<Real>& gradient, context& c) {
    const auto mixed_gradient = map(out_.backward_input(gradient, c.out));
    const auto& projected = c.qkv.product.output;
    c.qkv_gradient.resize(projected.rows(), projected.columns());
    const auto qkv = map(projected);
    auto dqkv = map(c.qkv_gradient);
    dqkv.rightCols(2 * kv_heads_ * size_).setZero();
    auto ds = map(scores_);
    for_each_head(projected.rows(), [&](Eigen::Index row, Eigen::Index head) {
      const auto p = weights(c, row, head);
      if (recomputes_) find_weights(p, qkv, row, head);
      const auto dmixed = query(mixed_gradient, row, head);
      add_product<Real>(value(dqkv, row, head), p, dmixed);
      multiply_transposed<Real>(ds, dmixed, value(qkv, row, head));
      for (Eigen::Index i = 0; i < sequence_; ++i) {
        const auto seen = p.row(i).array();
        auto d = ds.row(i).array();
        d = seen * (d - (seen * d).sum()) * scale();
      }
      multiply<Real>(query(dqkv, row, head), ds, key(qkv, row, head));
      add_product<Real>(key(dqkv, row, head), ds, query(qkv, row, head));
    });
    if (rotary_) rotary_->turn(c.qkv_gradient, static_cast<std::size_t>(heads_ + kv_heads_), -1);
    return qkv_.backward_input(c.qkv_gradient, c.qkv);
  }
  void backward_weight(const tensor<Real>& gradient, context& c) {
    out_.backward_weight(gradient, c.out);
    qkv_.backward_weight(c.qkv_gradient, c.qkv);
  }
  const tensor<Real>& backward(const tensor<Real>& gradient, context& c) {
    const auto& found = backward_input(gradient, c);
    backward_weight(gradient, c);
    return found;
  }
  /// What backward_input has returned.
  [[nodiscard]] const tensor<Real>& input_gradient(const context& c) const { return qkv_.input_gradient(c.qkv); }

  [[nodiscard]] tensor_list<Real> parameters() { return join<Real>(qkv_.parameters(), out_.parameters()); }
  [[nodiscard]] tensor_list<Real> gradients() { return join<Real>(qkv_.gradients(), out_.gradients()); }
  [[nodiscard]] cut_list parameter_cuts() const { return join(qkv_.parameter_cuts(), out_.parameter_cuts()); }

 private:
  /// Of all queries, keys and values.
  static std::vector<std::size_t> widths(const config& m) {
    const auto size = static_cast<std::size_t>(m.hidden / m.heads);
    const std::size_t keys = static_cast<std::size_t>(m.key_heads()) * size;
    return {static_cast<std::size_t>(m.heads) * size, keys, keys};
  }
  [[nodiscard]] Real scale() const { return 1 / std::sqrt(static_cast<Real>(size_)); }

  /// Calls it with a sample's first row and a head, for all.
  template <class Body>
  void for_each_head(std::size_t rows, Body body) const {
    for (Eigen::Index row = 0; row < static_cast<Eigen::Index>(rows); row += sequence_)
      for (Eigen::Index head = 0; head < heads_; ++head) body(row, head);
  }
  // A sample's part of one head: columns of the rows' queries, then keys, then values.
  template <class Matrix>
  [[nodiscard]] auto query(Matrix& m, Eigen::Index row, Eigen::Index head) const {
    return m.block(row, head * size_, sequence_, size_);
  }
  template <class Matrix>
  [[nodiscard]] auto key(Matrix& m, Eigen::Index row, Eigen::Index head) const {
    return m.block(row, (heads_ + head * kv_heads_ / heads_) * size_, sequence_, size_);
  }
  template <class Matrix>
  [[nodiscard]] auto value(Matrix& m, Eigen::Index row, Eigen::Index head) const {
    return m.block(row, (heads_ + kv_heads_ + head * kv_heads_ / heads_) * size_, sequence_, size_);
  }
  template <class Matrix>
  void find_weights(Eigen::Map<matrix<Real>> p, const Matrix& qkv, Eigen::Index row, Eigen::Index head) const {
    multiply_transposed<Real>(p, query(qkv, row, head), key(qkv, row, head));
    for (Eigen::Index i = 0; i < sequence_; ++i) normalise(p.row(i), i + 1);
  }
  /// Softmax of the scores of the positions that a row sees, the first `count`.
  template <class Row>
  void normalise(Row row, Eigen::Index count) const {
    auto seen = row.head(count).array();
    seen = ((seen - seen.maxCoeff()) * scale()).exp();
    seen /= seen.sum();
    row.tail(row.size() - count).setZero();
  }
  /// Where they are kept, or made.
  [[nodiscard]] Eigen::Map<matrix<Real>> weights(context& c, Eigen::Index row, Eigen::Index head) {
    if (recomputes_) return map(weights_);
    return {c.weights.data() + (row * heads_ + head * sequence_) * sequence_, sequence_, sequence_};
  }

  Eigen::Index sequence_, heads_, kv_heads_, size_;
  column_linear<Real> qkv_;
  row_linear<Real> out_;
  std::optional<rotary<Real>> rotary_;
  tensor<Real> scores_;   ///< gradient of one head's; of no use between calls
  tensor<Real> weights_;  ///< of one head, if they are recomputed; of no use between calls
  bool recomputes_;
};

}  // namespace gpt
