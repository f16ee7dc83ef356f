// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gpt/cache.hpp>
#include <gpt/config.hpp>
#include <gpt/parallel_linear.hpp>
#include <gpt/product.hpp>
#include <gpt/ring.hpp>
#include <gpt/rotary.hpp>

namespace gpt {

/// Causal self-attention; neighbouring query heads share a head of keys and values (Ainslie et al. 2023). A row sees itself
/// and the rows before it in its sample. Ranks of a tensor axis have some heads each. Ranks of a context axis have a slice of
/// every sequence each, whose keys and values go round; a softmax is then put together slice by slice, and made again in the
/// backward.
template <class Real>
class attention {
 public:
  struct context {
    typename column_linear<Real>::context qkv;
    typename row_linear<Real>::context out;
    tensor<Real> weights;  ///< softmax of the scores, per sample and head: sequence x sequence; none if they are recomputed
    tensor<Real> mixed;    ///< values mixed by them: rows x (heads * head_size)
    tensor<Real> logs;     ///< rows x heads: log of a softmax's denominator, where slices go round
    tensor<Real> qkv_gradient;
  };

  /// `recomputes`: the softmax of the scores is not kept, but made again, of the same bits, in the backward (Korthikanti et al.
  /// 2022: selective recomputation). m.sequence: of a context axis, that of a rank's slice.
  attention(const config& m, hetsched::random_source& random, const sequence_slices<Real>& slices = sequence_slices<Real>(),
            bool recomputes = false, ring<Real> others = ring<Real>())
      : sequence_(m.sequence),
        heads_(slices.own(m.heads)),
        kv_heads_(slices.own(m.key_heads())),
        size_(m.hidden / m.heads),
        qkv_(static_cast<std::size_t>(m.hidden), widths(m), m.bias, static_cast<std::size_t>(m.sequence), slices, random),
        out_(static_cast<std::size_t>(m.hidden), static_cast<std::size_t>(m.hidden), m.bias, m.residual_gain(),
             static_cast<std::size_t>(m.sequence), slices, random),
        scores_(static_cast<std::size_t>(sequence_), static_cast<std::size_t>(sequence_)),
        ring_(std::move(others)),
        recomputes_(recomputes || ring_.size() > 1) {
    if (recomputes_) weights_ = scores_;
    if (m.positions == position_kind::rotary)
      rotary_.emplace(static_cast<std::size_t>(sequence_ * ring_.size()), static_cast<std::size_t>(size_));
  }

  /// x: (samples * sequence / ranks of the axis) x hidden.
  const tensor<Real>& forward(const tensor<Real>& x, context& c) {
    (void)qkv_.forward(x, c.qkv);
    auto& projected = c.qkv.product.output;
    turn(projected, 1);
    if (!recomputes_) c.weights.resize(projected.rows() * static_cast<std::size_t>(heads_), static_cast<std::size_t>(sequence_));
    c.mixed.resize(projected.rows(), static_cast<std::size_t>(heads_ * size_));
    if (ring_.size() > 1) {
      mix_around(projected, c);
      return out_.forward(c.mixed, c.out);
    }
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
    if (ring_.size() > 1) {
      mix_back(projected, mixed_gradient, c);
      turn(c.qkv_gradient, -1);
      return qkv_.backward_input(c.qkv_gradient, c.qkv);
    }
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
    turn(c.qkv_gradient, -1);
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
  void turn(tensor<Real>& projected, Real direction) const {
    if (!rotary_) return;
    const auto length = static_cast<std::size_t>(sequence_);
    rotary_->turn(projected, static_cast<std::size_t>(heads_ + kv_heads_), direction,
                  length * static_cast<std::size_t>(ring_.rank()), length);
  }

  // A head's keys, or values, among the keys and values of a slice.
  template <class Matrix>
  [[nodiscard]] auto slice_key(Matrix& m, Eigen::Index row, Eigen::Index head) const {
    return m.block(row, head * kv_heads_ / heads_ * size_, sequence_, size_);
  }
  template <class Matrix>
  [[nodiscard]] auto slice_value(Matrix& m, Eigen::Index row, Eigen::Index head) const {
    return m.block(row, (kv_heads_ + head * kv_heads_ / heads_) * size_, sequence_, size_);
  }
  /// How many positions of the slice here a row sees, of one that this rank's rows see something of.
  [[nodiscard]] Eigen::Index seen_by(Eigen::Index row, int owner) const { return owner == ring_.rank() ? row + 1 : sequence_; }

  /// Own keys and values, which go round from here on.
  void start_round(const tensor<Real>& projected) {
    const Eigen::Index width = 2 * kv_heads_ * size_;
    here_.resize(projected.rows(), static_cast<std::size_t>(width));
    map(here_) = map(projected).rightCols(width);
  }

  /// c.mixed, of all slices before and with this rank's. Of every row the largest score so far and the sum of exponentials
  /// relative to it are kept, and what is mixed is scaled down where a larger one comes (Milakov and Gimelshein 2018).
  void mix_around(const tensor<Real>& projected, context& c) {
    const auto qkv = map(projected);
    auto mixed = map(c.mixed);
    mixed.setZero();
    c.logs.resize(projected.rows(), static_cast<std::size_t>(heads_));
    sums_.resize(projected.rows(), static_cast<std::size_t>(heads_));
    auto largest = map(c.logs), sums = map(sums_);
    largest.setConstant(-std::numeric_limits<Real>::infinity());
    sums.setZero();
    start_round(projected);
    for (int passes = 0; passes < ring_.size(); ++passes) {
      if (passes > 0) ring_.pass(here_);
      const int owner = ring_.owner(passes);
      if (owner > ring_.rank()) continue;
      const auto slice = map(std::as_const(here_));
      for_each_head(projected.rows(), [&](Eigen::Index row, Eigen::Index head) {
        auto p = map(weights_);
        multiply_transposed<Real>(p, query(qkv, row, head), slice_key(slice, row, head));
        auto own = query(mixed, row, head);
        for (Eigen::Index i = 0; i < sequence_; ++i) {
          const Eigen::Index count = seen_by(i, owner);
          auto seen = p.row(i).head(count).array();
          Real& before = largest(row + i, head);
          const Real most = std::max(before, seen.maxCoeff() * scale()), fade = std::exp(before - most);
          seen = (seen * scale() - most).exp();
          p.row(i).tail(sequence_ - count).setZero();
          sums(row + i, head) = sums(row + i, head) * fade + seen.sum();
          own.row(i) *= fade;
          before = most;
        }
        add_plain_product<Real>(own, p, slice_value(slice, row, head));
      });
    }
    for_each_head(projected.rows(), [&](Eigen::Index row, Eigen::Index head) {
      auto own = query(mixed, row, head);
      for (Eigen::Index i = 0; i < sequence_; ++i) {
        own.row(i) /= sums(row + i, head);
        largest(row + i, head) += std::log(sums(row + i, head));
      }
    });
  }

  /// c.qkv_gradient. Gradients of keys and values go round with them, and one pass further, home.
  template <class Matrix>
  void mix_back(const tensor<Real>& projected, const Matrix& mixed_gradient, context& c) {
    const auto qkv = map(projected), mixed = map(std::as_const(c.mixed)), logs = map(std::as_const(c.logs));
    auto dqkv = map(c.qkv_gradient);
    dqkv.setZero();
    start_round(projected);
    gradients_.resize(here_.rows(), here_.columns());
    map(gradients_).setZero();
    auto ds = map(scores_);
    for (int passes = 0; passes < ring_.size(); ++passes) {
      if (passes > 0) {
        ring_.pass(here_);
        ring_.pass(gradients_);
      }
      const int owner = ring_.owner(passes);
      if (owner > ring_.rank()) continue;
      const auto slice = map(std::as_const(here_));
      auto dslice = map(gradients_);
      for_each_head(projected.rows(), [&](Eigen::Index row, Eigen::Index head) {
        auto p = map(weights_);
        multiply_transposed<Real>(p, query(qkv, row, head), slice_key(slice, row, head));
        const auto dmixed = query(mixed_gradient, row, head), own = query(mixed, row, head);
        for (Eigen::Index i = 0; i < sequence_; ++i) {
          const Eigen::Index count = seen_by(i, owner);
          auto seen = p.row(i).head(count).array();
          seen = (seen * scale() - logs(row + i, head)).exp();
          p.row(i).tail(sequence_ - count).setZero();
        }
        add_product<Real>(slice_value(dslice, row, head), p, dmixed);
        multiply_transposed<Real>(ds, dmixed, slice_value(slice, row, head));
        for (Eigen::Index i = 0; i < sequence_; ++i) {
          const Real mean = dmixed.row(i).dot(own.row(i));
          ds.row(i).array() = p.row(i).array() * (ds.row(i).array() - mean) * scale();
        }
        add_plain_product<Real>(query(dqkv, row, head), ds, slice_key(slice, row, head));
        add_product<Real>(slice_key(dslice, row, head), ds, query(qkv, row, head));
      });
    }
    ring_.pass(gradients_);
    dqkv.rightCols(2 * kv_heads_ * size_) = map(gradients_);
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
  ring<Real> ring_;
  tensor<Real> here_, gradients_, sums_;  ///< a slice's keys and values, their gradients; sums of exponentials; of no use between
  bool recomputes_;
};

}  // namespace gpt
