// SPDX-License-Identifier: Apache-2.0
// Rows of a table in which something is wrong.
#pragma once

#include <cstddef>
#include <iostream>
#include <string>
#include <string_view>

#include <hetsched/core/error.hpp>
#include <hetsched/io/json_reader.hpp>

namespace command {

/// Tells of the first rows that are left out, and counts all.
class skipped_rows {
 public:
  skipped_rows(std::string_view program, bool strict) : program_(program), strict_(strict) {}
  void operator()(const hetsched::file_error& wrong) {
    if (strict_) throw wrong;
    if (++count_ <= 10) say(wrong.what());
  }
  [[nodiscard]] int count() const { return count_; }
  /// Throws: input_error if no row is left.
  void sum_up(std::size_t left, const std::string& path) const {
    if (left == 0)
      throw hetsched::input_error(path + (count_ > 0 ? ": no row can be used" : ": has a heading alone, expected rows under it"));
    if (count_ == 0) return;
    say(std::to_string(count_) + " of " + std::to_string(left + static_cast<std::size_t>(count_)) +
        " rows left out; --strict makes that an error");
  }

 private:
  void say(const std::string& text) const { std::cerr << program_ << ": " << text << '\n'; }
  std::string_view program_;
  bool strict_;
  int count_ = 0;
};

}  // namespace command
