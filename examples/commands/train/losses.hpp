// SPDX-License-Identifier: Apache-2.0
// The CSV of losses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include <hetsched/io/write_file.hpp>

#include <train/side_output.hpp>

namespace train {

inline const std::string losses_head = "step,loss\n";

[[nodiscard]] inline std::string losses_row(std::int64_t step, double loss) {
  return std::to_string(step) + ',' + nlohmann::json(loss).dump() + '\n';
}

/// The file while the training goes on, so that it can be watched, and stays however that ends. Nothing is written before the
/// first step, nor to a device or pipe.
class losses_so_far {
 public:
  explicit losses_so_far(const std::string& path) {
    if (!path.empty() && hetsched::detail::find_write_target(path).is_regular()) file_.emplace(path, side_output::how::anew);
  }
  void add(std::int64_t step, double loss) {
    if (file_) file_->add((begun_ ? "" : losses_head) + losses_row(step, loss));
    begun_ = true;
  }

 private:
  std::optional<side_output> file_;
  bool begun_ = false;
};

}  // namespace train
