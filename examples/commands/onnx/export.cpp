// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <hetsched/io/operators_csv.hpp>

#include "import.hpp"

namespace onnx_import {

namespace {

struct row {
  std::string_view op;
  std::int64_t batch = 1, m = 1, n = 1;
  std::string k{};
};

[[nodiscard]] row row_of(const hetsched::graph_node& node) {
  using enum hetsched::operator_kind;
  const auto& op = node.op;
  switch (op.kind) {
    case gemm:
      return {op.batched ? "bmm" : "gemm", op.batch, op.m, op.n, std::to_string(op.k)};
    case flash_attention:
      return {"flash_attention", op.batch, op.m, op.n, std::to_string(op.k)};
    case softmax:
      return {"softmax", 1, op.m, op.n};
    case norm:
      return {"layernorm", 1, op.m, op.n};
    case gather:
      return {"embedding", 1, op.m, 1};
    default:
      break;
  }
  static const std::map<std::string_view, std::string_view> names{
      {"Add", "elementwise_add"}, {"Sub", "elementwise_sub"}, {"Mul", "elementwise_mul"},
      {"Div", "elementwise_div"}, {"Pow", "elementwise_pow"}, {"Relu", "relu"},
      {"Gelu", "gelu"},           {"Tanh", "tanh"},           {"Sigmoid", "sigmoid"}};
  const double tensor = static_cast<double>(op.m) * hetsched::element_bytes(op.format);
  const auto known = names.find(node.type);
  if (known != names.end() && op.traffic_bytes == (known->second.starts_with("elementwise") ? 3 : 2) * tensor)
    return {known->second, 1, op.m, 1};
  const double elements = std::ceil(op.traffic_bytes / (2.0 * hetsched::element_bytes(op.format)));
  return {"copy", 1, static_cast<std::int64_t>(std::clamp(elements, 1.0, 9e18)), 1};
}

}  // namespace

std::string operators_csv(const hetsched::operator_graph& graph) {
  std::string text = "op,batch,m,n,k,dtype,name\n";
  for (const auto& node : graph.nodes) {
    if (!node.launches) continue;
    const auto r = row_of(node);
    std::string name = node.name;  // cells are not quoted
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == ',' || c == '"'; }, ' ');
    const auto dtype = hetsched::detail::format_names[static_cast<std::size_t>(node.op.format)];
    text += std::string(r.op) + ',' + std::to_string(r.batch) + ',' + std::to_string(r.m) + ',' + std::to_string(r.n) + ',' +
            r.k + ',' + std::string(dtype) + ',' + name + '\n';
  }
  return text;
}

}  // namespace onnx_import
