// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/trace/kineto_operators.hpp>

namespace hetsched::detail {

/// An operator of torch that a table of operators can have: which inputs are the operands of a product, or the rows.
struct kineto_operator {
  std::string_view torch, name;
  int first = 0, second = -1;  ///< of its inputs; -1: it has rows of the first
};
inline constexpr kineto_operator kineto_operators[] = {
    {"aten::mm", "gemm", 0, 1},     {"aten::addmm", "gemm", 1, 2},    {"aten::bmm", "bmm", 0, 1},
    {"aten::baddbmm", "bmm", 1, 2}, {"aten::_softmax", "softmax", 0}, {"aten::native_layer_norm", "layernorm", 0},
};

/// Its row up to the times, as in gemm,1,128,512,768,bf16; none for other operators and for sizes that were not recorded.
[[nodiscard]] inline std::optional<std::string> kineto_operator_row(const json_value& event) {
  const auto torch = event.at("name").text();
  const auto* const known =
      std::find_if(std::begin(kineto_operators), std::end(kineto_operators), [&](const auto& k) { return k.torch == torch; });
  const auto args = event.find("args");
  if (known == std::end(kineto_operators) || !args) return std::nullopt;
  const auto all = args->find("Input Dims"), types = args->find("Input type");
  if (!all || !types || all->kind() != json_kind::list || types->kind() != json_kind::list) return std::nullopt;
  const auto sizes = [&](int input) {
    if (static_cast<std::size_t>(input) >= all->size() || (*all)[static_cast<std::size_t>(input)].kind() != json_kind::list)
      return std::vector<std::int64_t>();
    return (*all)[static_cast<std::size_t>(input)].list([](const json_value& size) { return size.integer(0, 1LL << 40); });
  };
  const auto a = sizes(known->first);
  if (static_cast<std::size_t>(known->first) >= types->size()) return std::nullopt;
  const auto type = (*types)[static_cast<std::size_t>(known->first)].text();
  const std::string_view format = type == "c10::BFloat16" ? "bf16" : type == "c10::Half" ? "fp16" : type == "float" ? "fp32" : "";
  if (format.empty() || a.size() < 2 || *std::min_element(a.begin(), a.end()) < 1) return std::nullopt;
  const auto row = [&](std::int64_t batch, std::int64_t m, std::int64_t n, const std::string& k) {
    return std::string(known->name) + ',' + std::to_string(batch) + ',' + std::to_string(m) + ',' + std::to_string(n) + ',' + k +
           ',' + std::string(format);
  };
  if (known->second < 0) {
    std::int64_t rows = 1;
    constexpr std::int64_t most_rows = std::int64_t{1} << 40;  // more than any device holds
    for (std::size_t i = 0; i + 1 < a.size(); ++i) {
      if (a[i] < 0 || (a[i] > 0 && rows > most_rows / a[i])) return std::nullopt;
      rows *= a[i];
    }
    return row(1, rows, a.back(), "");
  }
  const auto b = sizes(known->second);
  const auto rank = a.size();
  if (b.size() != rank || rank > 3 || b[rank - 2] != a[rank - 1] || b.back() < 1) return std::nullopt;
  return row(rank == 3 ? a[0] : 1, a[rank - 2], b[rank - 1], std::to_string(a[rank - 1]));
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string kineto_operators_csv(std::string_view text, std::string_view file_name) {
  const detail::json_document document(text, file_name);
  const auto events = document.value().object().at("traceEvents");
  std::map<std::int64_t, std::string> rows;  // by "External id"
  std::map<std::int64_t, double> gpu_us;     // of all kernels that an operator launched
  std::vector<std::pair<std::int64_t, std::string>> order;
  constexpr std::int64_t most = std::int64_t{1} << 53;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto event = events[i].object();
    const auto category = event.find("cat"), args = event.find("args"), name = event.find("name");
    if (!category || !category->is_text() || !args || !name || !name->is_text()) continue;
    const auto id = args->object().find("External id");
    if (!id || id->kind() != detail::json_kind::number) continue;
    if (category->text() == "kernel")
      gpu_us[id->integer(0, most)] += event.at("dur").number(0, 1e12);
    else if (category->text() == "cpu_op")
      if (auto row = detail::kineto_operator_row(event)) {
        const auto number = id->integer(0, most);
        if (rows.emplace(number, *row).second) order.emplace_back(number, std::move(*row));
      }
  }
  std::map<std::string, std::vector<double>> times;
  std::vector<std::string> met;
  for (const auto& [id, row] : order) {
    const auto found = gpu_us.find(id);
    if (found == gpu_us.end() || !(found->second > 0)) continue;
    auto& all = times[row];
    if (all.empty()) met.push_back(row);
    all.push_back(found->second);
  }
  if (met.empty())
    events.fail("no product, softmax or layer norm has sizes and kernels: expected torch.profiler's trace of a GPU with " +
                std::string("record_shapes=True"));
  std::string csv = "op,batch,m,n,k,dtype,measured_ms\n";
  for (const auto& row : met) {
    auto& all = times[row];
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    csv += row + detail::print(",%.6f\n", *middle / 1e3);
  }
  return csv;
}

HETSCHED_INLINE std::string read_operators_text(const std::string& path) {
  auto text = read_text(path);
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos || (text[first] != '{' && text[first] != '[')) return text;
  if (text.find("\"traceEvents\"") == text.npos)
    throw file_error(path, {}, "is JSON, expected CSV with the columns op,batch,m,n,k,dtype, or a trace of torch.profiler");
  return kineto_operators_csv(text, path);
}

}  // namespace hetsched
