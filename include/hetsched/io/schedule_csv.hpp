// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/write_file.hpp>
#include <hetsched/schedule/text.hpp>

namespace hetsched {

/// Reads a schedule from CSV text, as parse_schedule_csv does.
/// Throws: file_error that names file, row and column.
[[nodiscard]] schedule parse_schedule(std::string_view text, const std::string& file_name);

/// Reads a schedule from a CSV of torch.distributed.pipelining or of to_csv.
/// Throws: file_error that names file, row and column.
[[nodiscard]] inline schedule read_schedule(const std::string& path) { return parse_schedule(read_text(path), path); }

/// Writes a schedule that read_schedule reads back as an equal one.
/// Throws: as to_csv; error if the file cannot be written.
inline void write_schedule(const std::string& path, const schedule& order) { write_file(path, to_csv(order)); }

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/schedule_csv.ipp>
#endif
