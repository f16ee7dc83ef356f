// SPDX-License-Identifier: Apache-2.0
// The CSV of losses.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/io/write_file.hpp>

#include <train/side_output.hpp>

namespace train {

inline const std::string losses_head = "step,loss\n";

[[nodiscard]] inline std::string losses_row(std::int64_t step, double loss) {
  return std::to_string(step) + ',' + nlohmann::json(loss).dump() + '\n';
}

/// The rows of a CSV of losses up to a step, which a training that goes on from there keeps; none if the file is no such CSV.
[[nodiscard]] inline std::string losses_before(const std::string& path, std::int64_t step) {
  if (path.empty()) return {};
  const auto target = hetsched::detail::find_write_target(path);
  if (!target.exists || !target.is_regular()) return {};
  std::ifstream file(path);
  std::string rows, row;
  if (!std::getline(file, row) || row + '\n' != losses_head) return {};
  while (std::getline(file, row) && !file.eof()) {  // a last one without an end is not whole
    std::int64_t number = -1;
    const auto [end, problem] = std::from_chars(row.data(), row.data() + row.size(), number);
    if (problem != std::errc() || end == row.data() + row.size() || *end != ',' || number < 0 || number >= step) break;
    rows += row + '\n';
  }
  return rows;
}

/// The file while the training goes on, so that it can be watched, and stays however that ends. Nothing is written before the
/// first step, nor to a device or pipe. `earlier`: rows that the file has, as losses_before found them, and keeps.
class losses_so_far {
 public:
  losses_so_far(const std::string& path, const std::string& earlier) : path_(path), kept_(earlier.size()) {
    if (!path.empty() && hetsched::detail::find_write_target(path).is_regular())
      file_.emplace(path, kept_ > 0 ? side_output::how::behind : side_output::how::anew);
  }
  void add(std::int64_t step, double loss) {
    if (!file_) return;
    const bool first = !std::exchange(begun_, true);
    std::error_code why;
    if (first && kept_ > 0) std::filesystem::resize_file(path_, losses_head.size() + kept_, why);
    file_->add((first && kept_ == 0 ? losses_head : "") + losses_row(step, loss));
  }

 private:
  std::string path_;
  std::size_t kept_;  ///< bytes
  std::optional<side_output> file_;
  bool begun_ = false;
};

}  // namespace train
