// SPDX-License-Identifier: Apache-2.0
// Arithmetic on the small tensors from which exported models compute shapes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <onnx/defs/tensor_proto_util.h>
#include <onnx/onnx_pb.h>

namespace onnx_import {

using sizes = std::vector<std::int64_t>;

[[nodiscard]] inline const onnx::AttributeProto* attribute(const onnx::NodeProto& node, std::string_view name) {
  for (const auto& a : node.attribute())
    if (a.name() == name) return &a;
  return nullptr;
}

[[nodiscard]] inline std::int64_t integer(const onnx::NodeProto& node, std::string_view name, std::int64_t otherwise) {
  const auto* a = attribute(node, name);
  return a != nullptr ? a->i() : otherwise;
}

/// Known numbers. Whole ones are exact up to 2^53.
struct numbers {
  sizes shape{};
  std::vector<double> data{};
};

inline constexpr std::int64_t most_known = 4096;  // elements; shapes are far smaller

[[nodiscard]] inline std::optional<numbers> known_numbers(const onnx::TensorProto& tensor) {
  numbers result{.shape = {tensor.dims().begin(), tensor.dims().end()}, .data = {}};
  std::int64_t count = 1;
  for (const auto size : result.shape) {
    if (size < 0 || size > most_known) return std::nullopt;
    count = std::min(count * size, most_known + 1);
  }
  if (count > most_known || tensor.data_location() == onnx::TensorProto::EXTERNAL) return std::nullopt;
  const auto take = [&](const auto& values) { result.data.assign(values.begin(), values.end()); };
  const std::size_t width = tensor.data_type() == onnx::TensorProto::BOOL ? 1
                            : tensor.data_type() == onnx::TensorProto::INT32 || tensor.data_type() == onnx::TensorProto::FLOAT
                                ? 4
                                : 8;
  if (tensor.has_raw_data() && tensor.raw_data().size() != width * static_cast<std::size_t>(count)) return std::nullopt;
  switch (tensor.data_type()) {
    case onnx::TensorProto::INT64:
      take(onnx::ParseData<std::int64_t>(&tensor));
      break;
    case onnx::TensorProto::INT32:
      take(onnx::ParseData<std::int32_t>(&tensor));
      break;
    case onnx::TensorProto::FLOAT:
      take(onnx::ParseData<float>(&tensor));
      break;
    case onnx::TensorProto::DOUBLE:
      take(onnx::ParseData<double>(&tensor));
      break;
    case onnx::TensorProto::BOOL:
      if (tensor.has_raw_data())
        take(tensor.raw_data());
      else
        take(tensor.int32_data());
      break;
    default:
      return std::nullopt;
  }
  if (static_cast<std::int64_t>(result.data.size()) != count) return std::nullopt;
  return result;
}

[[nodiscard]] inline std::int64_t whole(double x) {
  constexpr double limit = 9.2e18;  // what stands for "to the end" is beyond
  if (!(x < limit)) return std::numeric_limits<std::int64_t>::max();
  return x > -limit ? static_cast<std::int64_t>(x) : std::numeric_limits<std::int64_t>::min();
}

[[nodiscard]] inline onnx::TensorProto to_tensor(const numbers& values, int element) {
  onnx::TensorProto tensor;
  tensor.set_data_type(element);
  for (const auto size : values.shape) tensor.add_dims(size);
  for (const double x : values.data) switch (element) {
      case onnx::TensorProto::INT64:
        tensor.add_int64_data(whole(x));
        break;
      case onnx::TensorProto::FLOAT:
        tensor.add_float_data(static_cast<float>(x));
        break;
      case onnx::TensorProto::DOUBLE:
        tensor.add_double_data(x);
        break;
      default:
        tensor.add_int32_data(static_cast<std::int32_t>(std::clamp(x, -2147483648.0, 2147483647.0)));
    }
  return tensor;
}

namespace detail {

// Elements; more than most_known may be fewer than there are.
[[nodiscard]] inline std::size_t count_of(const sizes& shape) {
  std::size_t count = 1;
  for (const auto size : shape) {
    if (size == 0) return 0;
    count = static_cast<std::size_t>(std::min(size, most_known + 1)) * std::min<std::size_t>(count, most_known + 1);
  }
  return count;
}

// Where an element of a broadcast result comes from.
[[nodiscard]] inline std::size_t broadcast_index(std::size_t at, const sizes& result, const sizes& from) {
  std::size_t index = 0, stride = 1;
  for (std::size_t axis = 0; axis < from.size(); ++axis) {
    const auto size = static_cast<std::size_t>(from[from.size() - 1 - axis]);
    const auto whole_size = static_cast<std::size_t>(result[result.size() - 1 - axis]);
    index += size == 1 ? 0 : at % whole_size * stride;
    at /= whole_size, stride *= size;
  }
  return index;
}

using binary = double (*)(double, double);
using unary = double (*)(double);

inline const std::map<std::string_view, binary> binaries{
    {"Add", [](double a, double b) { return a + b; }},
    {"Sub", [](double a, double b) { return a - b; }},
    {"Mul", [](double a, double b) { return a * b; }},
    {"Div", [](double a, double b) { return a / b; }},
    {"Mod", [](double a, double b) { return a - std::floor(a / b) * b; }},
    {"Pow", [](double a, double b) { return std::pow(a, b); }},
    {"Min", [](double a, double b) { return std::min(a, b); }},
    {"Max", [](double a, double b) { return std::max(a, b); }},
    {"Equal", [](double a, double b) { return static_cast<double>(a == b); }},
    {"Less", [](double a, double b) { return static_cast<double>(a < b); }},
    {"Greater", [](double a, double b) { return static_cast<double>(a > b); }},
    {"LessOrEqual", [](double a, double b) { return static_cast<double>(a <= b); }},
    {"GreaterOrEqual", [](double a, double b) { return static_cast<double>(a >= b); }},
    {"And", [](double a, double b) { return static_cast<double>(a != 0 && b != 0); }},
    {"Or", [](double a, double b) { return static_cast<double>(a != 0 || b != 0); }}};

inline const std::map<std::string_view, unary> unaries{{"Neg", [](double a) { return -a; }},
                                                       {"Abs", [](double a) { return std::abs(a); }},
                                                       {"Floor", [](double a) { return std::floor(a); }},
                                                       {"Ceil", [](double a) { return std::ceil(a); }},
                                                       {"Round", [](double a) { return std::nearbyint(a); }},
                                                       {"Sqrt", [](double a) { return std::sqrt(a); }},
                                                       {"Not", [](double a) { return static_cast<double>(a == 0); }}};

inline const std::map<std::string_view, binary> reductions{{"ReduceProd", binaries.at("Mul")},
                                                           {"ReduceSum", binaries.at("Add")},
                                                           {"ReduceMin", binaries.at("Min")},
                                                           {"ReduceMax", binaries.at("Max")}};

// Along one axis.
[[nodiscard]] inline std::optional<std::vector<double>> slice(const std::vector<const numbers*>& in) {
  if (in.size() < 3 || in[1]->data.size() != 1 || in[2]->data.size() != 1) return std::nullopt;
  const auto& from = in[0]->shape;
  const auto rank = static_cast<double>(from.size());
  double axis = in.size() > 3 && !in[3]->data.empty() ? in[3]->data[0] : 0;
  const double step = in.size() > 4 && !in[4]->data.empty() ? in[4]->data[0] : 1;
  if (axis < 0) axis += rank;
  if (step == 0 || !(axis >= 0 && axis < rank)) return std::nullopt;
  std::vector<double> out;
  if (in[0]->data.empty()) return out;
  const auto along = from.begin() + static_cast<std::ptrdiff_t>(axis);
  const auto n = static_cast<double>(*along);
  const auto inner = count_of({along + 1, from.end()}), block = inner * static_cast<std::size_t>(*along);
  const auto bound = [&](double x, double low, double high) { return std::clamp(x < 0 ? x + n : x, low, high); };
  const double first = bound(in[1]->data[0], 0, step > 0 ? n : n - 1);
  const double end = bound(in[2]->data[0], step > 0 ? 0 : -1, step > 0 ? n : n - 1);
  for (std::size_t start = 0; start < in[0]->data.size(); start += block)
    for (double at = first; step > 0 ? at < end : at > end; at += step) {
      const auto part = in[0]->data.begin() + static_cast<std::ptrdiff_t>(start + static_cast<std::size_t>(at) * inner);
      out.insert(out.end(), part, part + static_cast<std::ptrdiff_t>(inner));
    }
  return out;
}

// Of a matrix.
[[nodiscard]] inline std::vector<double> transposed(const numbers& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.shape[0]), columns = static_cast<std::size_t>(matrix.shape[1]);
  std::vector<double> out;
  for (std::size_t c = 0; c < columns; ++c)
    for (std::size_t r = 0; r < rows; ++r) out.push_back(matrix.data[r * columns + c]);
  return out;
}

}  // namespace detail

/// What a node computes from known inputs, if its result has this shape and this is one of the operators with which shapes are
/// computed; `whole_numbers`: the result has no fractions.
[[nodiscard]] inline std::optional<numbers> fold(const onnx::NodeProto& node, const std::vector<const numbers*>& in,
                                                 const sizes& shape, bool whole_numbers) {
  const std::string_view type = node.op_type();
  const auto count = detail::count_of(shape);
  if (in.empty() || count > static_cast<std::size_t>(most_known)) return std::nullopt;
  numbers out{.shape = shape, .data = {}};
  const auto& first = *in[0];
  const auto fill = [&](auto value) {
    for (std::size_t i = 0; i < count; ++i) out.data.push_back(value(i));
  };
  const auto operand = [&](std::size_t which, std::size_t i) {
    return in[which]->data[detail::broadcast_index(i, shape, in[which]->shape)];
  };
  const bool empty = std::any_of(in.begin(), in.end(), [](const numbers* x) { return x->data.empty(); });
  if (type == "Identity" || type == "Cast" || type == "Reshape" || type == "Squeeze" || type == "Unsqueeze" ||
      type == "Flatten") {
    out.data = first.data;
  } else if (type == "Concat") {
    if (shape.size() != 1) return std::nullopt;
    for (const auto* part : in) out.data.insert(out.data.end(), part->data.begin(), part->data.end());
  } else if (type == "Slice") {
    auto part = detail::slice(in);
    if (!part) return std::nullopt;
    out.data = std::move(*part);
  } else if (empty) {
    return std::nullopt;
  } else if (type == "Transpose") {
    const auto* order = attribute(node, "perm");
    if (first.shape.size() != 2 || (order != nullptr && order->ints_size() == 2 && order->ints(0) == 0)) return std::nullopt;
    out.data = detail::transposed(first);
  } else if (const auto two = detail::binaries.find(type); two != detail::binaries.end()) {
    fill([&](std::size_t i) {
      double x = operand(0, i);
      for (std::size_t k = 1; k < in.size(); ++k) x = two->second(x, operand(k, i));
      return x;
    });
  } else if (const auto one = detail::unaries.find(type); one != detail::unaries.end()) {
    fill([&](std::size_t i) { return one->second(operand(0, i)); });
  } else if (const auto all = detail::reductions.find(type); all != detail::reductions.end()) {
    if (count != 1) return std::nullopt;
    out.data.assign(1, first.data[0]);
    for (std::size_t i = 1; i < first.data.size(); ++i) out.data[0] = all->second(out.data[0], first.data[i]);
  } else if (type == "Where") {
    fill([&](std::size_t i) { return operand(0, i) != 0 ? operand(1, i) : operand(2, i); });
  } else if (type == "Expand") {
    fill([&](std::size_t i) { return operand(0, i); });
  } else if (type == "Gather") {
    if (first.shape.size() != 1) return std::nullopt;
    const auto n = static_cast<double>(first.data.size());
    for (const double at : in[1]->data) {
      if (at < -n || at >= n) return std::nullopt;
      out.data.push_back(first.data[static_cast<std::size_t>(at < 0 ? at + n : at)]);
    }
  } else if (type == "ConstantOfShape") {
    const auto* value = attribute(node, "value");
    const auto given = value != nullptr ? known_numbers(value->t()) : numbers{{1}, {0}};
    if (!given || given->data.empty()) return std::nullopt;
    fill([&](std::size_t) { return given->data[0]; });
  } else if (type == "Range") {
    fill([&](std::size_t i) { return first.data[0] + static_cast<double>(i) * in[2]->data[0]; });
  } else {
    return std::nullopt;
  }
  if (out.data.size() != count) return std::nullopt;
  if (whole_numbers)
    for (auto& x : out.data) {
      if (std::isnan(x)) return std::nullopt;
      x = std::trunc(x);
    }
  return out;
}

}  // namespace onnx_import
