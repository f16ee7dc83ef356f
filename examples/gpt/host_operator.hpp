// SPDX-License-Identifier: Apache-2.0
// Single operators as one thread of the host computes them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/operators_csv.hpp>

#include <gpt/norm.hpp>
#include <gpt/product.hpp>
#include <gpt/rotary.hpp>
#include <gpt/tensor.hpp>

namespace gpt {

/// An operator with tensors of its own, filled with numbers of an ordinary size.
struct host_operator {
  std::function<void()> run;
  std::span<const float> output;               ///< of the last run; flash attention's backward: the gradient of the queries
  std::vector<std::span<const float>> inputs;  ///< in the order in which the operator takes them
  std::shared_ptr<const void> tensors;         ///< what the spans are of
};

namespace detail {

using hetsched::operator_row;
using hetsched::operator_sizes;
using floats = tensor<float>;

inline std::size_t at(std::int64_t size) { return static_cast<std::size_t>(size); }

/// Tensors that stay where they are.
class operands {
 public:
  explicit operands(std::int64_t most_bytes) : room_(most_bytes / static_cast<std::int64_t>(sizeof(float))) {}

  floats& zeros(std::int64_t rows, std::int64_t columns) {
    const auto elements = hetsched::checked_mul(rows, columns);
    if (elements > room_) throw hetsched::input_error("its tensors take more than half of the memory here");
    room_ -= elements;
    return all_.emplace_back(at(rows), at(columns));
  }
  floats& numbers(std::int64_t rows, std::int64_t columns) {
    auto& made = zeros(rows, columns);
    for (std::size_t i = 0; i < made.size(); ++i) made.data()[i] = static_cast<float>(random_.uniform(0.1, 1.1));
    return made;
  }
  /// Different ones for each of `rows`, below `below`.
  std::vector<std::size_t> indices(std::int64_t rows, std::int64_t below) {
    std::vector<std::size_t> found(at(rows));
    for (auto& i : found) i = at(random_.integer(0, static_cast<int>(below) - 1));
    return found;
  }

 private:
  std::deque<floats> all_;
  std::int64_t room_;
  hetsched::random_source random_{1};
};

inline part<float> rows_of(floats& t, std::int64_t which, std::int64_t rows) { return map(t).middleRows(which * rows, rows); }
inline const_part<float> rows_of(const floats& t, std::int64_t which, std::int64_t rows) {
  return map(t).middleRows(which * rows, rows);
}

inline void softmax_rows(part<float> rows) {
  for (Eigen::Index r = 0; r < rows.rows(); ++r) {
    auto row = rows.row(r).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  }
}

/// One head after the other, whose scores stay in the cache where they fit.
class attention {
 public:
  attention(operands& own, const operator_sizes& s, bool causal, bool backward)
      : s_(s),
        causal_(causal),
        queries_(own.numbers(s.batch * s.m, s.k)),
        keys_(own.numbers(s.batch * s.n, s.k)),
        values_(own.numbers(s.batch * s.n, s.k)),
        scores_(own.zeros(s.m, s.n)),
        output_(own.zeros(s.batch * s.m, s.k)) {
    if (!backward) return;
    slopes_ = &own.zeros(s.m, s.n);
    gradient_ = &own.numbers(s.batch * s.m, s.k);
    of_queries_ = &own.zeros(s.batch * s.m, s.k);
    of_keys_ = &own.zeros(s.batch * s.n, s.k);
    of_values_ = &own.zeros(s.batch * s.n, s.k);
  }

  [[nodiscard]] std::vector<const floats*> inputs() const {
    std::vector<const floats*> all{&queries_, &keys_, &values_};
    if (gradient_) all.push_back(gradient_);
    return all;
  }
  [[nodiscard]] const floats& output() const { return gradient_ ? *of_queries_ : output_; }

  void run() {
    for (std::int64_t head = 0; head < s_.batch; ++head) {
      auto scores = map(scores_);
      multiply_transposed<float>(scores, rows_of(std::as_const(queries_), head, s_.m), rows_of(std::as_const(keys_), head, s_.n));
      scores *= 1 / std::sqrt(static_cast<float>(s_.k));
      if (causal_)
        for (std::int64_t i = 0; i < s_.m; ++i) {
          const auto seen = std::clamp<std::int64_t>(s_.n - s_.m + i + 1, 1, s_.n);  // the last query sees all
          scores.row(i).tail(s_.n - seen).setConstant(-1e30F);
        }
      softmax_rows(scores);
      if (!gradient_)
        multiply<float>(rows_of(output_, head, s_.m), scores, rows_of(std::as_const(values_), head, s_.n));
      else
        backward(head);
    }
  }

 private:
  void backward(std::int64_t head) {
    auto shares = map(scores_), slopes = map(*slopes_);
    const const_part<float> gradient = rows_of(std::as_const(*gradient_), head, s_.m);
    auto of_values = rows_of(*of_values_, head, s_.n), of_keys = rows_of(*of_keys_, head, s_.n);
    of_values.setZero();
    add_product<float>(of_values, shares, gradient);
    multiply_transposed<float>(slopes, gradient, rows_of(std::as_const(values_), head, s_.n));
    for (Eigen::Index i = 0; i < slopes.rows(); ++i) {
      const auto share = shares.row(i).array();
      auto slope = slopes.row(i).array();
      const float mean = (share * slope).sum();
      slope = share * (slope - mean) / std::sqrt(static_cast<float>(s_.k));
    }
    multiply<float>(rows_of(*of_queries_, head, s_.m), slopes, rows_of(std::as_const(keys_), head, s_.n));
    of_keys.setZero();
    add_product<float>(of_keys, slopes, rows_of(std::as_const(queries_), head, s_.m));
  }

  operator_sizes s_;
  bool causal_;
  floats &queries_, &keys_, &values_, &scores_, &output_;
  floats *slopes_ = nullptr, *gradient_ = nullptr, *of_queries_ = nullptr, *of_keys_ = nullptr, *of_values_ = nullptr;
};

/// What runs, what it reads and what it writes.
struct made_operator {
  std::function<void()> run;
  std::vector<const floats*> inputs;
  const floats* output;
};

inline made_operator make_product(operands& own, const operator_sizes& s) {
  auto &a = own.numbers(s.batch * s.m, s.k), &b = own.numbers(s.batch * s.k, s.n), &c = own.zeros(s.batch * s.m, s.n);
  return {[&, s] {
            for (std::int64_t i = 0; i < s.batch; ++i)
              multiply<float>(rows_of(c, i, s.m), rows_of(std::as_const(a), i, s.m), rows_of(std::as_const(b), i, s.k));
          },
          {&a, &b},
          &c};
}

inline made_operator make_norm(operands& own, const operator_sizes& s, norm_kind kind) {
  const auto& x = own.numbers(s.rows(), s.n);
  const auto layer = std::make_shared<norm<float>>(kind, at(s.n));
  const auto context = std::make_shared<norm<float>::context>();
  const auto run = [&x, layer, context] { (void)layer->forward(x, *context); };
  run();  // its output has its size then
  return {run, {&x}, &context->output};
}

/// `reads` tensors of the same size as what is written.
template <class Function>
made_operator make_pointwise(operands& own, const operator_sizes& s, int reads, Function f) {
  std::vector<const floats*> in;
  for (int i = 0; i < reads; ++i) in.push_back(&own.numbers(s.rows(), s.n));
  auto& out = own.zeros(s.rows(), s.n);
  return {[in, &out, f] { f(map(out).array(), map(*in.front()).array(), map(*in.back()).array()); }, in, &out};
}

/// Updates its first tensor by the second, its gradient.
template <class Function>
made_operator make_update(operands& own, const operator_sizes& s, Function f) {
  auto &p = own.numbers(s.rows(), s.n), &m = own.zeros(s.rows(), s.n), &v = own.zeros(s.rows(), s.n);
  const auto& g = own.numbers(s.rows(), s.n);
  return {[&, f] { f(map(p).array(), map(g).array(), map(m).array(), map(v).array()); }, {&g}, &p};
}

inline made_operator make_operator(operands& own, const operator_row& row) {
  const auto& s = row.sizes;
  const auto is = [&](std::string_view name) { return row.name == name; };
  const auto pointwise = [&](int reads, auto f) { return make_pointwise(own, s, reads, f); };
  if (is("gemm") || is("bmm")) return make_product(own, s);
  if (row.name.starts_with("flash_attention")) {
    const auto made =
        std::make_shared<attention>(own, s, row.name.find("causal") != std::string_view::npos, row.name.ends_with("backward"));
    return {[made] { made->run(); }, made->inputs(), &made->output()};
  }
  if (is("softmax") || is("cross_entropy")) {
    const auto& x = own.numbers(s.rows(), s.n);
    auto& y = own.zeros(s.rows(), s.n);
    std::vector<std::size_t> targets;  // of cross-entropy, whose gradient is written
    if (is("cross_entropy")) targets = own.indices(s.rows(), s.n);
    return {[&x, &y, targets] {
              map(y) = map(x);
              softmax_rows(map(y));
              for (std::size_t r = 0; r < targets.size(); ++r) y.data()[r * y.columns() + targets[r]] -= 1;
            },
            {&x},
            &y};
  }
  if (is("rotary")) {
    if (s.n % 2 != 0) throw hetsched::input_error("rotary turns pairs: its width is even");
    auto& x = own.numbers(s.rows(), s.n);
    const auto turns = std::make_shared<rotary<float>>(at(s.m), at(s.n));
    return {[&x, turns] { turns->turn(x, 1, 1.0F); }, {}, &x};
  }
  if (is("layernorm")) return make_norm(own, s, norm_kind::layer);
  if (is("rmsnorm")) return make_norm(own, s, norm_kind::rms);
  if (is("embedding")) {
    constexpr std::int64_t words = 32768;
    const auto& table = own.numbers(words, s.n);
    auto& y = own.zeros(s.rows(), s.n);
    return {[&table, &y, which = own.indices(s.rows(), words)] {
              for (std::size_t r = 0; r < which.size(); ++r)
                std::copy_n(table.data() + which[r] * table.columns(), table.columns(), y.data() + r * y.columns());
            },
            {&table},
            &y};
  }
  if (is("sgd")) return make_update(own, s, [](auto p, auto g, auto, auto) { p -= 1e-3F * g; });
  if (is("sgd_momentum"))
    return make_update(own, s, [](auto p, auto g, auto m, auto) {
      m = 0.9F * m + g;
      p -= 1e-3F * m;
    });
  if (is("adam"))
    return make_update(own, s, [](auto p, auto g, auto m, auto v) {
      m = 0.9F * m + 0.1F * g;
      v = 0.999F * v + 0.001F * g.square();
      p -= 1e-3F * m / (v.sqrt() + 1e-8F);
    });
  if (is("elementwise_add")) return pointwise(2, [](auto y, auto a, auto b) { y = a + b; });
  if (is("elementwise_sub")) return pointwise(2, [](auto y, auto a, auto b) { y = a - b; });
  if (is("elementwise_mul")) return pointwise(2, [](auto y, auto a, auto b) { y = a * b; });
  if (is("elementwise_div")) return pointwise(2, [](auto y, auto a, auto b) { y = a / b; });
  if (is("elementwise_pow")) return pointwise(2, [](auto y, auto a, auto b) { y = a.pow(b); });
  if (is("swiglu")) return pointwise(2, [](auto y, auto a, auto b) { y = a / (1 + (-a).exp()) * b; });
  if (is("silu")) return pointwise(1, [](auto y, auto x, auto) { y = x / (1 + (-x).exp()); });
  if (is("gelu"))
    return pointwise(1, [](auto y, auto x, auto) { y = x / (1 + (x * (-1.5957691F - 0.0713548F * x.square())).exp()); });
  if (is("relu")) return pointwise(1, [](auto y, auto x, auto) { y = x.max(0.0F); });
  if (is("tanh")) return pointwise(1, [](auto y, auto x, auto) { y = x.tanh(); });
  if (is("sigmoid")) return pointwise(1, [](auto y, auto x, auto) { y = 1 / (1 + (-x).exp()); });
  if (is("scale")) return pointwise(1, [](auto y, auto x, auto) { y = 0.5F * x; });
  if (is("copy")) return pointwise(1, [](auto y, auto x, auto) { y = x; });
  throw hetsched::input_error("hosts have no kernel for " + std::string(row.name) + " here");
}

inline std::span<const float> values_of(const floats& t) { return {t.data(), t.size()}; }

}  // namespace detail

/// An operator, with the kernels of the GPT's layers where these have it.
/// Throws: input_error for other formats than fp32, operators that there are no kernels of here (dropout, moe_routing), an odd
/// width of rotary, and tensors that take more than half of the machine's memory.
[[nodiscard]] inline host_operator make_host_operator(const hetsched::operator_row& row) {
  if (row.format != hetsched::number_format::fp32) throw hetsched::input_error("hosts compute in fp32 here");
  const auto tensors = std::make_shared<detail::operands>(static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                                          static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE)) / 2);
  auto made = detail::make_operator(*tensors, row);
  host_operator found{std::move(made.run), detail::values_of(*made.output), {}, tensors};
  for (const auto* t : made.inputs) found.inputs.push_back(detail::values_of(*t));
  return found;
}

}  // namespace gpt
