// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>

namespace validation {

/// Cells of one line; commas between double quotes do not separate.
[[nodiscard]] inline std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  bool quoted = false;
  for (const char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.push_back(std::exchange(cell, {}));
    else if (c != '\r' && !(c == ' ' && cell.empty()))
      cell += c;
  }
  cells.push_back(cell);
  return cells;
}

/// Lines of a file without a heading. Throws input_error where it cannot be read.
[[nodiscard]] inline std::vector<std::vector<std::string>> csv_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw hetsched::input_error("cannot read " + path);
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(csv_cells(line));
  return lines;
}

/// Lines of a file as cells by the names of its heading; cells that a line lacks are empty.
[[nodiscard]] inline std::vector<std::map<std::string, std::string>> csv_rows(const std::string& path) {
  const auto lines = csv_lines(path);
  std::vector<std::map<std::string, std::string>> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    auto& row = rows.emplace_back();
    for (std::size_t c = 0; c < lines[0].size(); ++c) row[lines[0][c]] = c < lines[i].size() ? lines[i][c] : "";
  }
  return rows;
}

}  // namespace validation
