// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/contract.hpp>
#include <hetsched/io/format.hpp>
#include <hetsched/io/operators_csv.hpp>

namespace hetsched {

HETSCHED_INLINE std::string measured_csv(std::span<const operator_row> rows, std::span<const double> measured_ms) {
  HETSCHED_EXPECTS(measured_ms.size() == rows.size());
  std::string text = "op,batch,m,n,k,dtype,measured_ms\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, sizes, format] = rows[i];
    text += name;
    for (const auto size : {sizes.batch, sizes.m, sizes.n, sizes.k}) text += ',' + std::to_string(size);
    text += ',';
    text += detail::format_names[static_cast<std::size_t>(format)];
    text += detail::print(",%.6f\n", measured_ms[i]);
  }
  return text;
}

HETSCHED_INLINE std::string to_csv(const operators_file& file, const std::vector<double>& predicted_ms) {
  HETSCHED_EXPECTS(predicted_ms.size() == file.lines.size());
  const bool measured = !file.measured_ms.empty();
  std::string text = file.heading + (measured ? ",predicted_ms,error_percent\n" : ",predicted_ms\n");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    text += file.lines[i] + detail::print(",%.6f", predicted_ms[i]);
    if (measured) text += detail::print(",%.2f", (predicted_ms[i] / file.measured_ms[i] - 1) * 100);
    text += '\n';
  }
  return text;
}

}  // namespace hetsched
