// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/spmd/detail/host_experts.hpp>
#include <hetsched/runtime/spmd/detail/host_images.hpp>
#include <hetsched/runtime/spmd/detail/host_loops.hpp>
#include <hetsched/runtime/spmd/spmd_run.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// The operators of a graph in plain loops, for tensors of numbers in host memory: to start with, and to test others against.
/// eigen_kernels (component eigen) are the same with fast products.
/// Knows those of detail::unary_operators and binary_operators with their gradients, but dropout; matmul, softmax, layernorm,
/// embedding, reshape, transpose, sum, expand, conv2d, max_pool2d, avg_pool2d, dispatch, combine and their gradients; route.
/// scale multiplies by `scale`. Throws: input_error for operators it does not know. Complexity: O(products) for matmul and
/// conv2d, else O(elements).
struct host_kernels {
  double scale = 1;
  double epsilon = 1e-5;  ///< of layernorm

  template <pipeline_tensor Tensor>
  void operator()(const spmd_call& call, std::span<const Tensor* const> in, Tensor& result) const {
    using traits = tensor_traits<Tensor>;
    using element = typename traits::element;
    const auto& n = call.node;
    const auto shape = detail::shape_of(result);
    auto* const out = traits::data(result);
    const auto data = [&](std::size_t i) { return traits::data(*in[i]); };
    const std::size_t size = detail::elements(result);
    if (n.op == "ones") {
      std::fill(out, out + size, element{1});
    } else if (n.op == "identity" || n.op == "cast" || n.op == "reshape") {
      std::copy(data(0), data(0) + size, out);
    } else if (n.op == "matmul") {
      std::fill(out, out + size, element{0});
      contract(n, *in[0], *in[1], result);
    } else if (n.op == "sum" || n.op == "sum_to") {
      std::fill(out, out + size, element{0});
      const auto from = detail::shape_of(*in[0]);
      detail::walk(from, {strides_in(shape, from)}, [&](std::size_t i, const std::size_t* at) { out[at[0]] += data(0)[i]; });
    } else if (n.op == "transpose") {
      const auto from = detail::row_major(detail::shape_of(*in[0]));
      std::vector<std::size_t> strides;
      for (const int d : n.result_loops) strides.push_back(at(from, d));
      detail::walk(shape, {strides}, [&](std::size_t i, const std::size_t* at) { out[i] = data(0)[at[0]]; });
    } else if (n.op == "embedding" || n.op == "embedding_grad") {
      look_up(call, in, result);
    } else if (n.op.starts_with("conv2d") || n.op.find("_pool2d") != std::string::npos) {
      detail::compute_images(n, in, result);
    } else if (n.op == "route") {
      detail::compute_routes(n, *in[0], result);
    } else if (n.op == "dispatch" || n.op == "combine" || n.op == "gate_grad") {
      detail::compute_experts(n, in, result);
    } else if (n.op.starts_with("softmax") || n.op.starts_with("layernorm")) {
      rowwise(n.op, in, result);
    } else {
      elementwise(n.op, in, result);
    }
  }

 private:
  using strides_type = std::vector<std::size_t>;

  // Of a tensor that broadcasts to `to`.
  [[nodiscard]] static strides_type strides_in(const tensor_shape& shape, const tensor_shape& to) {
    const auto own = detail::row_major(shape);
    strides_type strides(to.size(), 0);
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] > 1) strides[to.size() - shape.size() + d] = own[d];
    return strides;
  }

  template <class Tensor>
  static void contract(const tensor_node& n, const Tensor& a, const Tensor& b, Tensor& result) {
    using traits = tensor_traits<Tensor>;
    const auto [loops, strides] = detail::loops_of(n, a, b, result);
    auto* const out = traits::data(result);
    const auto *x = traits::data(a), *y = traits::data(b);
    detail::walk(loops, strides, [&](std::size_t, const std::size_t* at) { out[at[2]] += x[at[0]] * y[at[1]]; });
  }

  template <class Tensor>
  static void look_up(const spmd_call& call, std::span<const Tensor* const> in, Tensor& result) {
    using traits = tensor_traits<Tensor>;
    const bool forward = call.node.op == "embedding";
    const auto& table = forward ? *in[1] : result;
    const auto shape = detail::shape_of(table);
    const auto rows = static_cast<std::int64_t>(shape[0]);
    const std::size_t width = shape[1];
    const auto& ids = forward ? *in[0] : *in[1];
    auto* const out = traits::data(result);
    const std::size_t all = detail::elements(result);
    std::fill(out, out + all, typename traits::element{0});
    for (std::size_t i = 0; i < detail::elements(ids); ++i) {
      const auto row = static_cast<std::int64_t>(traits::data(ids)[i]) - call.first_row;
      if (row < 0 || row >= rows) continue;  // another device has it
      const auto at = as_size(row) * width;
      for (std::size_t c = 0; c < width; ++c)
        if (forward)
          out[i * width + c] = traits::data(*in[1])[at + c];
        else
          out[at + c] += traits::data(*in[0])[i * width + c];
    }
  }

  template <class Tensor>
  void rowwise(std::string_view op, std::span<const Tensor* const> in, Tensor& result) const {
    using traits = tensor_traits<Tensor>;
    const auto shape = detail::shape_of(result);
    const std::size_t width = shape.back(), rows = detail::elements(result) / width;
    const bool gradient = op.ends_with("_grad");
    for (std::size_t r = 0; r < rows; ++r) {
      const auto* const x = traits::data(*in[gradient ? 1 : 0]) + r * width;  // of softmax_grad: its result
      const auto* const dy = traits::data(*in[0]) + r * width;
      auto* const y = traits::data(result) + r * width;
      using element = typename traits::element;
      const auto put = [&](auto value) {
        for (std::size_t i = 0; i < width; ++i) y[i] = static_cast<element>(value(i));
      };
      if (op == "softmax") {
        const double most = static_cast<double>(*std::max_element(x, x + width));
        double sum = 0;
        for (std::size_t i = 0; i < width; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
        put([&](std::size_t i) { return std::exp(static_cast<double>(x[i]) - most) / sum; });
        continue;
      }
      double dot = 0;
      if (op == "softmax_grad") {
        for (std::size_t i = 0; i < width; ++i) dot += static_cast<double>(dy[i]) * static_cast<double>(x[i]);
        put([&](std::size_t i) { return (static_cast<double>(dy[i]) - dot) * static_cast<double>(x[i]); });
        continue;
      }
      const double mean = std::accumulate(x, x + width, 0.0) / static_cast<double>(width);
      double square = 0;
      for (std::size_t i = 0; i < width; ++i) square += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
      const double scaled = 1 / std::sqrt(square / static_cast<double>(width) + epsilon);
      const auto normal = [&](std::size_t i) { return (static_cast<double>(x[i]) - mean) * scaled; };
      const auto of = [&](std::size_t input, std::size_t i, double otherwise) {
        return in.size() > input ? static_cast<double>(traits::data(*in[input])[i]) : otherwise;
      };
      if (op == "layernorm") {
        put([&](std::size_t i) { return normal(i) * of(1, i, 1) + of(2, i, 0); });
      } else if (op == "layernorm_weight_grad") {
        put([&](std::size_t i) { return static_cast<double>(dy[i]) * normal(i); });
      } else if (op == "layernorm_grad") {
        double sum = 0;
        for (std::size_t i = 0; i < width; ++i) {
          const double g = static_cast<double>(dy[i]) * of(2, i, 1);
          sum += g / static_cast<double>(width);
          dot += g * normal(i) / static_cast<double>(width);
        }
        put([&](std::size_t i) { return (static_cast<double>(dy[i]) * of(2, i, 1) - sum - normal(i) * dot) * scaled; });
      } else {
        throw input_error("no host kernel for operator " + std::string(op));
      }
    }
  }

  // Calls then(value, slope), functions of a number: what an operator of one input makes of it, and the derivative.
  template <class Then>
  void with_unary(std::string_view name, std::string_view op, Then then) const {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    const auto gauss = [](double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2.0))); };
    if (name == "relu")
      then([](double x) { return x > 0 ? x : 0.0; }, [](double x) { return x > 0 ? 1.0 : 0.0; });
    else if (name == "gelu")
      then([&](double x) { return x * gauss(x); },
           [&](double x) { return gauss(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); });
    else if (name == "silu")
      then([&](double x) { return x * sigmoid(x); }, [&](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); });
    else if (name == "sigmoid")
      then(sigmoid, [&](double x) { return sigmoid(x) * (1 - sigmoid(x)); });
    else if (name == "tanh")
      then([](double x) { return std::tanh(x); }, [](double x) { return 1 - std::tanh(x) * std::tanh(x); });
    else if (name == "exp")
      then([](double x) { return std::exp(x); }, [](double x) { return std::exp(x); });
    else if (name == "log")
      then([](double x) { return std::log(x); }, [](double x) { return 1 / x; });
    else if (name == "sqrt")
      then([](double x) { return std::sqrt(x); }, [](double x) { return 0.5 / std::sqrt(x); });
    else if (name == "abs")
      then([](double x) { return std::abs(x); }, [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; });
    else if (name == "square")
      then([](double x) { return x * x; }, [](double x) { return 2 * x; });
    else if (name == "neg")
      then([](double x) { return -x; }, [](double) { return -1.0; });
    else if (name == "scale")
      then([&](double x) { return scale * x; }, [&](double) { return scale; });
    else
      throw input_error("no host kernel for operator " + std::string(op));
  }

  // What reaches an operator's first or second input a or b of a gradient g; those of add, sub and mul are sums and products.
  [[nodiscard]] static double binary_gradient(std::string_view op, double g, double a, double b) {
    const auto name = op.substr(0, op.size() - 7);
    const bool first = op.back() == '0';
    if (name == "div") return first ? g / b : -g * a / (b * b);
    if (name == "maximum") return first == (a > b) ? g : 0.0;
    if (name == "minimum") return first == (a < b) ? g : 0.0;
    if (name == "pow") return first ? g * b * std::pow(a, b - 1) : g * std::pow(a, b) * std::log(a);
    throw input_error("no host kernel for operator " + std::string(op));
  }

  template <class Tensor>
  void elementwise(std::string_view op, std::span<const Tensor* const> in, Tensor& result) const {
    using traits = tensor_traits<Tensor>;
    using element = typename traits::element;
    const auto shape = detail::shape_of(result);
    auto* const out = traits::data(result);
    std::vector<strides_type> strides;
    for (const auto* t : in) strides.push_back(strides_in(detail::shape_of(*t), shape));
    const auto each = [&](auto f) {
      detail::walk(shape, strides, [&](std::size_t i, const std::size_t* at) {
        const auto value = [&](std::size_t k) { return static_cast<double>(traits::data(*in[k])[at[k]]); };
        out[i] = static_cast<element>(f(value));
      });
    };
    if (op.ends_with("_grad_0") || op.ends_with("_grad_1")) {
      each([&](const auto& v) { return binary_gradient(op, v(0), v(1), v(2)); });
    } else if (op.ends_with("_grad")) {
      with_unary(op.substr(0, op.size() - 5), op,
                 [&](auto, auto slope) { each([&](const auto& v) { return v(0) * slope(v(1)); }); });
    } else if (op == "expand") {
      each([](const auto& v) { return v(0); });
    } else if (in.size() == 1) {
      with_unary(op, op, [&](auto f, auto) { each([&](const auto& v) { return f(v(0)); }); });
    } else if (op == "add") {
      each([](const auto& v) { return v(0) + v(1); });
    } else if (op == "sub") {
      each([](const auto& v) { return v(0) - v(1); });
    } else if (op == "mul") {
      each([](const auto& v) { return v(0) * v(1); });
    } else {
      each([&](const auto& v) {
        const double a = v(0), b = v(1);
        if (op == "div") return a / b;
        if (op == "maximum") return std::max(a, b);
        if (op == "minimum") return std::min(a, b);
        if (op == "pow") return std::pow(a, b);
        throw input_error("no host kernel for operator " + std::string(op));
      });
    }
  }
};

}  // namespace hetsched
