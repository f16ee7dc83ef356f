// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/check/check_test.cpp.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/schedule/action.hpp>

namespace hetsched::detail {

[[nodiscard]] inline std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

/// A list of sentences that ends in a remark once it is full.
class finding_list {
 public:
  explicit finding_list(std::size_t most) : most_(most) {}
  void add(std::string finding) {
    if (findings_.size() < most_)
      findings_.push_back(std::move(finding));
    else if (findings_.size() == most_)
      findings_.emplace_back("there is more, not listed");
  }
  [[nodiscard]] bool empty() const { return findings_.empty(); }
  [[nodiscard]] const std::string& first() const { return findings_.front(); }
  [[nodiscard]] bool full() const { return findings_.size() > most_; }
  [[nodiscard]] std::vector<std::string> take() { return std::move(findings_); }

 private:
  std::size_t most_;
  std::vector<std::string> findings_;
};

/// Sizes, stage map and lanes that do not make a schedule.
void shape_findings(const schedule& order, finding_list& findings);

/// Checks the sizes, the stage map and the lanes.
/// Throws: input_error with the first of shape_findings.
void validate_shape(const schedule& order);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/detail/shape.ipp>
#endif
