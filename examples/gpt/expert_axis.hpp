// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/runtime/group/axis_group.hpp>

#include <gpt/tensor.hpp>

namespace gpt {

/// Where rows go: to which expert, and from which rows of the others' come those of this rank's experts.
struct expert_route {
  std::vector<std::size_t> rows;         ///< of this rank's rows, those that go to expert 0, then to expert 1 ...
  std::vector<std::size_t> first_row;    ///< of each expert among them, and their number
  std::vector<std::size_t> first_here;   ///< of each of this rank's experts among the rows that come, and their number
  std::vector<std::size_t> place;        ///< of each row as it comes, rank by rank: its place expert by expert
  std::vector<std::size_t> sent, taken;  ///< rows, by rank
};

/// The ranks of an expert axis, which have equally many experts each, in their order. Rows go to the ranks of their experts, and
/// come back (Lepikhin et al. 2021: an all-to-all each way). With one rank nothing is sent.
template <class Real>
class expert_axis {
 public:
  explicit expert_axis(hetsched::device_axis<Real> axis = {}) : axis_(std::move(axis)) {}

  [[nodiscard]] std::size_t parts() const { return static_cast<std::size_t>(axis_.size()); }
  [[nodiscard]] std::size_t part() const { return static_cast<std::size_t>(axis_.rank()); }

  /// Fills in who gets how many; `rows` and `first_row` are there, of as many experts as all ranks have.
  void agree(expert_route& r) {
    const std::size_t experts = r.first_row.size() - 1, here = experts / parts();
    counts_.resize(1, experts);
    told_.resize(1, experts);
    for (std::size_t e = 0; e < experts; ++e) counts_(0, e) = static_cast<Real>(r.first_row[e + 1] - r.first_row[e]);
    const std::vector<std::size_t> each(parts(), here);
    axis_.all_to_all({counts_.data(), experts}, each, {told_.data(), experts}, each);
    r.sent.resize(parts());
    r.taken.assign(parts(), 0);
    r.first_here.assign(here + 1, 0);
    for (std::size_t k = 0; k < parts(); ++k) {
      r.sent[k] = r.first_row[(k + 1) * here] - r.first_row[k * here];
      for (std::size_t e = 0; e < here; ++e) {
        r.taken[k] += told(k, e, here);
        r.first_here[e + 1] += told(k, e, here);
      }
    }
    for (std::size_t e = 0; e < here; ++e) r.first_here[e + 1] += r.first_here[e];
    r.place.clear();
    auto next = r.first_here;
    for (std::size_t k = 0; k < parts(); ++k)
      for (std::size_t e = 0; e < here; ++e)
        for (std::size_t i = told(k, e, here); i > 0; --i) r.place.push_back(next[e]++);
  }

  /// Rows in the order of r.rows, to those of this rank's experts, expert by expert.
  void send(const expert_route& r, const tensor<Real>& rows, tensor<Real>& by_expert) {
    passing_.resize(r.place.size(), rows.columns());
    exchange(rows, r.sent, passing_, r.taken);
    by_expert.resize(passing_.rows(), passing_.columns());
    for (std::size_t i = 0; i < r.place.size(); ++i) copy_row(by_expert, r.place[i], passing_, i);
  }
  /// And back.
  void send_back(const expert_route& r, const tensor<Real>& by_expert, tensor<Real>& rows) {
    passing_.resize(by_expert.rows(), by_expert.columns());
    for (std::size_t i = 0; i < r.place.size(); ++i) copy_row(passing_, i, by_expert, r.place[i]);
    rows.resize(r.rows.size(), by_expert.columns());
    exchange(passing_, r.taken, rows, r.sent);
  }

 private:
  [[nodiscard]] std::size_t told(std::size_t rank, std::size_t expert, std::size_t here) const {
    return static_cast<std::size_t>(told_(0, rank * here + expert));
  }
  static void copy_row(tensor<Real>& to, std::size_t i, const tensor<Real>& from, std::size_t k) {
    std::copy_n(from.data() + k * from.columns(), from.columns(), to.data() + i * to.columns());
  }
  void exchange(const tensor<Real>& send, std::vector<std::size_t> sent, tensor<Real>& receive, std::vector<std::size_t> taken) {
    for (auto& n : sent) n *= send.columns();
    for (auto& n : taken) n *= send.columns();
    axis_.all_to_all({send.data(), send.size()}, sent, {receive.data(), receive.size()}, taken);
  }

  hetsched::device_axis<Real> axis_;
  tensor<Real> counts_, told_, passing_;  ///< of no use between calls
};

}  // namespace gpt
