// SPDX-License-Identifier: Apache-2.0
// The CSV of losses.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include <hetsched/io/write_file.hpp>

namespace train {

inline const std::string losses_head = "step,loss\n";

[[nodiscard]] inline std::string losses_row(std::int64_t step, double loss) {
  return std::to_string(step) + ',' + nlohmann::json(loss).dump() + '\n';
}

/// The file while the training goes on, so that it can be watched, and stays however that ends. Nothing is written before the
/// first step, nor to a stream.
class losses_so_far {
 public:
  explicit losses_so_far(const std::string& path) {
    if (!path.empty() && !hetsched::detail::find_write_target(path).is_stream()) path_ = path;
  }
  void add(std::int64_t step, double loss) {
    if (path_.empty()) return;
    if (!file_.is_open()) {
      file_.open(path_, std::ios::binary);
      file_ << losses_head;
    }
    file_ << losses_row(step, loss) << std::flush;
  }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace train
