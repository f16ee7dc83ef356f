// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/json/device_json_test.cpp.

#include <string>
#include <string_view>
#include <vector>

#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched {

/// What measured operators say about the tile model, and whose they were.
struct correction_file {
  struct measured_device {
    std::string name;
    int operators = 0;
    friend bool operator==(const measured_device&, const measured_device&) = default;
  };
  std::vector<measured_device> measured;
  operator_correction correction;
  friend bool operator==(const correction_file&, const correction_file&) = default;
};

/// Reads a correction.json, as hetsched-calibrate --forest writes it.
/// Throws: file_error.
[[nodiscard]] correction_file parse_correction(std::string_view text, std::string_view file_name);

/// Throws: as parse_correction.
[[nodiscard]] inline correction_file read_correction(const std::string& path) { return parse_correction(read_text(path), path); }

/// The text of a correction.json that parse_correction reads back as an equal one.
[[nodiscard]] std::string to_json(const correction_file& c);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json/correction_json.ipp>
#endif
