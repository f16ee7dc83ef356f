// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>
#include <hetsched/cuda/tensor.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

#include <gpt_cuda/kernels.hpp>

namespace gpt_cuda {

template <hetsched::cuda_api Api>
struct rounded_copy;

/// Rows x columns, row after row, on a GPU or in pinned memory.
template <hetsched::cuda_api Api, class Real>
class matrix {
 public:
  matrix() = default;
  matrix(std::size_t rows, std::size_t columns, const hetsched::cuda_queue<Api>& q)
      : shape_{rows, columns}, memory_(q, rows * columns * sizeof(Real)) {
    // Kernels count numbers by int, and go some beyond.
    if (columns > 0 && rows > ((std::size_t{1} << 31) - (std::size_t{1} << 21)) / columns)
      throw hetsched::input_error("a tensor of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                  " numbers: expected fewer than 2^31");
  }
  matrix(const hetsched::tensor_shape& shape, const hetsched::cuda_queue<Api>& q) : matrix(shape.at(0), shape.at(1), q) {}
  /// In memory that is there.
  matrix(const hetsched::tensor_shape& shape, hetsched::cuda_buffer<Api> memory)
      : shape_{shape.at(0), shape.at(1)}, memory_(std::move(memory)) {}

  [[nodiscard]] const std::array<std::size_t, 2>& shape() const { return shape_; }
  [[nodiscard]] int rows() const { return static_cast<int>(shape_[0]); }
  [[nodiscard]] int columns() const { return static_cast<int>(shape_[1]); }
  [[nodiscard]] int size() const { return rows() * columns(); }
  [[nodiscard]] Real* data() { return static_cast<Real*>(memory_.data()); }
  [[nodiscard]] const Real* data() const { return static_cast<const Real*>(memory_.data()); }
  hetsched::cuda_buffer<Api>& buffer() { return memory_; }
  [[nodiscard]] const hetsched::cuda_buffer<Api>& buffer() const { return memory_; }

  std::shared_ptr<rounded_copy<Api>> rounded{};  ///< of a parameter: what an update writes with it; null: nothing

 private:
  std::array<std::size_t, 2> shape_{};
  hetsched::cuda_buffer<Api> memory_;
};
template <hetsched::cuda_api Api>
using tensor = matrix<Api, float>;
template <hetsched::cuda_api Api>
using halves = matrix<Api, bf16>;

/// What products take of a parameter.
template <hetsched::cuda_api Api>
struct rounded_copy {
  halves<Api> half;
  const float* of = nullptr;  ///< whose numbers an update has put there since layers were told of changes
  std::uint64_t writes = 0;   ///< of that buffer, with this one
};

/// Memory as a kernel's argument, which gets the pointer: const if it only reads.
template <class T>
struct argument {
  T* data = nullptr;
  std::size_t bytes = 0;
};
template <class Api, class Real>
[[nodiscard]] argument<const Real> in(const matrix<Api, Real>& m) {
  return {m.data(), static_cast<std::size_t>(m.size()) * sizeof(Real)};
}
template <class Api, class Real>
[[nodiscard]] argument<Real> out(matrix<Api, Real>& m) {
  return {m.data(), static_cast<std::size_t>(m.size()) * sizeof(Real)};
}

/// What a product does besides, in cuBLASLt's words: adds a bias to what comes out, of which it keeps a copy in `aux` and gives
/// GELU; multiplies it by GELU's slope at `aux`, and sums that along its rows; sums the first factor along its rows.
enum class epilogue { none, bias, gelu_aux, gelu_aux_bias, dgelu, dgelu_bgrad, bgrada };

/// c = op(a) op(b) + beta c as cublasGemmEx takes it: column after column, lda and so on from one to the next. a and b are of
/// bf16 or of floats, sums of floats; what comes out is of floats or of bf16.
struct product_call {
  bool transpose_a = false, transpose_b = false;
  int m = 0, n = 0, k = 0;
  bool half = false;
  argument<const void> a = {}, b = {};
  int lda = 0, ldb = 0;
  float beta = 0;
  argument<float> c = {};
  argument<bf16> half_c = {};  ///< instead of c
  int ldc = 0;
  // As cublasLtMatmul has them; all of c's type.
  epilogue after = epilogue::none;
  argument<const void> bias = {}, aux = {};        ///< m numbers; m x n, ldc apart
  argument<void> kept_aux = {}, summed_bias = {};  ///< where they are written

  [[nodiscard]] bool has_bias() const { return after == epilogue::bias || after == epilogue::gelu_aux_bias; }
  [[nodiscard]] bool keeps_aux() const { return after == epilogue::gelu_aux || after == epilogue::gelu_aux_bias; }
  [[nodiscard]] bool takes_aux() const { return after == epilogue::dgelu || after == epilogue::dgelu_bgrad; }
  [[nodiscard]] bool sums_bias() const { return after == epilogue::dgelu_bgrad || after == epilogue::bgrada; }
  /// visit(argument) for all memory.
  template <class Call, class Visit>
  static void visit(Call& p, const Visit& visit) {
    visit(p.a), visit(p.b), visit(p.c), visit(p.half_c), visit(p.bias), visit(p.aux), visit(p.kept_aux), visit(p.summed_bias);
  }
};

/// The same on the host.
template <class Real, class Sum>
void multiply_on_host(const product_call& p, const Real* a, const Real* b, Sum* c) {
  std::vector<float> sums(p.sums_bias() ? static_cast<std::size_t>(p.m) : 0);
  const auto finish = [&](float x, std::size_t i, std::size_t place) {
    if (p.has_bias()) x += to_float(static_cast<const Sum*>(p.bias.data)[i]);
    if (p.keeps_aux()) {
      put(x, static_cast<Sum*>(p.kept_aux.data)[place]);
      x = activate::gelu(x);
    }
    if (p.takes_aux()) x = activate::gelu_backward(to_float(static_cast<const Sum*>(p.aux.data)[place]), x);
    if (p.after == epilogue::dgelu_bgrad) sums[i] += x;
    return x;
  };
  const auto at = [](int row, int column, int ld) {
    return static_cast<std::size_t>(row) + static_cast<std::size_t>(column) * static_cast<std::size_t>(ld);
  };
  std::vector<float> column(static_cast<std::size_t>(p.m));
  for (int j = 0; j < p.n; ++j) {
    Sum* const to = c + at(0, j, p.ldc);
    for (int i = 0; i < p.m; ++i) column[at(i, 0, 0)] = p.beta == 0 ? 0 : p.beta * to_float(to[i]);
    const auto factor = [&](int l) { return to_float(p.transpose_b ? b[at(j, l, p.ldb)] : b[at(l, j, p.ldb)]); };
    if (p.transpose_a)
      for (int i = 0; i < p.m; ++i) {
        float sum = 0;
        for (int l = 0; l < p.k; ++l) sum += to_float(a[at(l, i, p.lda)]) * factor(l);
        column[at(i, 0, 0)] += sum;
      }
    else
      for (int l = 0; l < p.k; ++l) {
        const float by = factor(l);
        for (int i = 0; i < p.m; ++i) column[at(i, 0, 0)] += to_float(a[at(i, l, p.lda)]) * by;
      }
    for (int i = 0; i < p.m; ++i) put(finish(column[at(i, 0, 0)], at(i, 0, 0), at(i, j, p.ldc)), to[i]);
  }
  if (p.after == epilogue::bgrada)
    for (int l = 0; l < p.k; ++l)
      for (int i = 0; i < p.m; ++i) sums[at(i, 0, 0)] += to_float(p.transpose_a ? a[at(l, i, p.lda)] : a[at(i, l, p.lda)]);
  for (std::size_t i = 0; i < sums.size(); ++i) put(sums[i], static_cast<Sum*>(p.summed_bias.data)[i]);
}
inline void multiply_on_host(const product_call& p) {
  const auto to = [&](auto* c) {
    if (p.half)
      multiply_on_host(p, static_cast<const bf16*>(p.a.data), static_cast<const bf16*>(p.b.data), c);
    else
      multiply_on_host(p, static_cast<const float*>(p.a.data), static_cast<const float*>(p.b.data), c);
  };
  if (p.half_c.data)
    to(p.half_c.data);
  else
    to(p.c.data);
}

/// How kernels get onto a device of this Api, to be specialised:
///   each(queue, n, body, arguments...)    body(i, arguments...) for i from 0 to n - 1, an argument<T> as its pointer
///   teams(queue, n, body, arguments...)   body(team, i, arguments...)
///   multiply(queue, product_call)         without an epilogue
///   multiply_with(queue, product_call)    with one: returns whether it has been done
template <hetsched::cuda_api Api>
struct launcher;

template <class T>
[[nodiscard]] T* passed(const argument<T>& a) {
  return a.data;
}
template <class T>
[[nodiscard]] const T& passed(const T& a) {
  return a;
}

/// Says that the host itself uses an argument, to an Api that asks for that.
template <class Api, class T>
void touch(const hetsched::cuda_queue<Api>& q, const T& a) {
  if constexpr (requires(const Api& api) { api.host_access(a.data, a.bytes, true); })
    if (a.data) q.devices().api().host_access(a.data, a.bytes, !std::is_const_v<std::remove_pointer_t<decltype(a.data)>>);
}

/// Enqueues a kernel, or does it at once on the host's queue.
template <class Api, class Body, class... Arguments>
void each(const hetsched::cuda_queue<Api>& q, int n, const Body& body, const Arguments&... a) {
  if (n == 0) return;
  if (!q.on_host()) return launcher<Api>::each(q, n, body, a...);
  (touch(q, a), ...);
  for (int i = 0; i < n; ++i) body(i, passed(a)...);
}
/// The same for those that work on a row together.
template <class Api, class Body, class... Arguments>
void teams(const hetsched::cuda_queue<Api>& q, int n, const Body& body, const Arguments&... a) {
  if (n == 0) return;
  if (!q.on_host()) return launcher<Api>::teams(q, n, body, a...);
  (touch(q, a), ...);
  for (int i = 0; i < n; ++i) body(one_lane{}, i, passed(a)...);
}

/// A matrix as a factor.
struct factor {
  argument<const void> memory;
  int rows = 0, columns = 0;
  bool half = false;
};
template <class Api, class Real>
[[nodiscard]] factor factor_of(const matrix<Api, Real>& m) {
  const auto memory = in(m);
  return {{memory.data, memory.bytes}, m.rows(), m.columns(), std::is_same_v<Real, bf16>};
}
/// What to transpose of a product.
enum class transposed { none, first, second };

/// c = a b + beta c, with one of them transposed. Rows lie one after the other, so cuBLAS sees all matrices transposed:
/// c^T = b^T a^T.
template <class Api, class Sum>
[[nodiscard]] product_call call_of(matrix<Api, Sum>& c, float beta, const factor& a, const factor& b,
                                   transposed which = transposed::none) {
  const bool first = which == transposed::first, second = which == transposed::second;
  product_call p{.transpose_a = second,
                 .transpose_b = first,
                 .m = second ? b.rows : b.columns,
                 .n = first ? a.columns : a.rows,
                 .k = first ? a.rows : a.columns,
                 .half = a.half,
                 .a = b.memory,
                 .b = a.memory,
                 .lda = b.columns,
                 .ldb = a.columns,
                 .beta = beta,
                 .ldc = c.columns()};
  if constexpr (std::is_same_v<Sum, bf16>)
    p.half_c = out(c);
  else
    p.c = out(c);
  return p;
}
template <class Api>
void multiply(const hetsched::cuda_queue<Api>& q, const product_call& p) {
  if (p.m == 0 || p.n == 0) return;
  if (!q.on_host()) return launcher<Api>::multiply(q, p);
  product_call::visit(p, [&](const auto& a) { touch(q, a); });
  multiply_on_host(p);
}
template <class Api, class Sum>
void multiply(const hetsched::cuda_queue<Api>& q, matrix<Api, Sum>& c, float beta, const factor& a, const factor& b,
              transposed which = transposed::none) {
  multiply(q, call_of(c, beta, a, b, which));
}
/// With an epilogue, if there is such a product on the queue's device; returns whether it has been done.
template <class Api>
[[nodiscard]] bool multiply_with(const hetsched::cuda_queue<Api>& q, epilogue after, product_call p) {
  p.after = after;
  return !q.on_host() && p.m > 0 && p.n > 0 && p.k > 0 && launcher<Api>::multiply_with(q, p);
}
template <class Api, class Real>
[[nodiscard]] argument<const void> any_in(const matrix<Api, Real>& m) {
  const auto a = in(m);
  return {a.data, a.bytes};
}
template <class Api, class Real>
[[nodiscard]] argument<void> any_out(matrix<Api, Real>& m) {
  const auto a = out(m);
  return {a.data, a.bytes};
}

}  // namespace gpt_cuda
