// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/schedule/check/device_order.hpp>

namespace hetsched {

HETSCHED_INLINE std::string to_text(const device_step& s) {
  const auto number = [](int n) { return std::to_string(n); };
  auto text = to_text(s.what);
  if (s.kind == device_step_kind::computation) return text + " on device " + number(s.members.front());
  if (s.kind == device_step_kind::collective) text = "collective " + number(s.part) + " of " + text;
  for (std::size_t k = 0; k < s.members.size(); ++k) {
    const bool transfer = s.kind != device_step_kind::collective;
    text += k == 0 ? (transfer ? " from device " : " on devices ") : transfer ? " to device " : ", ";
    text += number(s.members[k]);
  }
  return text;
}

}  // namespace hetsched

namespace hetsched::detail {

/// Does the steps of a program that can be done, in rounds: each does what has all that it needs by the round before. With an
/// order, what is issued also needs what its members issue before it: as every wait is for all of some steps, a program comes to
/// its end if and only if that has no cycle.
class device_run {
 public:
  explicit device_run(const device_program& program, const device_order* order = nullptr) : program_(program) {
    const auto count = program.steps.size();
    needs_.resize(count);
    for (std::size_t k = 0; k < count; ++k) needs_[k] = program.steps[k].needs;
    if (order)
      for (const auto& list : order->of_device)
        for (std::size_t k = 1; k < list.size(); ++k) at(needs_, list[k]).push_back(list[k - 1]);
    std::vector<std::vector<int>> then(count);
    std::vector<std::size_t> missing(count);
    for (std::size_t k = 0; k < count; ++k) {
      missing[k] = needs_[k].size();
      for (const int n : needs_[k]) at(then, n).push_back(static_cast<int>(k));
      if (missing[k] == 0) done_.push_back(static_cast<int>(k));
    }
    for (std::size_t next = 0; next < done_.size(); ++next)
      for (const int k : at(then, done_[next]))
        if (--at(missing, k) == 0) done_.push_back(k);
    is_done_.assign(count, 0);
    for (const int k : done_) at(is_done_, k) = 1;
  }

  [[nodiscard]] bool finished() const { return done_.size() == program_.steps.size(); }
  /// In the order in which they were done.
  [[nodiscard]] const std::vector<int>& done() const { return done_; }

  /// Every cycle that the first need not done of each step leads into, as a sentence; none if finished.
  [[nodiscard]] std::vector<std::string> cycles() const {
    std::vector<std::string> found;
    std::vector<int> visit(program_.steps.size(), 0);
    const auto next = [&](int k) {
      const auto& own = at(needs_, k);
      return *std::find_if(own.begin(), own.end(), [&](int n) { return at(is_done_, n) == 0; });
    };
    for (int start = 0; start < static_cast<int>(program_.steps.size()); ++start) {
      int k = start;
      if (at(is_done_, k) != 0) continue;
      while (at(visit, k) == 0) {
        at(visit, k) = start + 1;
        k = next(k);
      }
      if (at(visit, k) != start + 1) continue;
      auto text = to_text(at(program_.steps, k));
      int n = k;
      do {
        const auto& own = at(program_.steps, n).needs;
        const int after = next(n);
        const bool needed = std::find(own.begin(), own.end(), after) != own.end();
        text += (needed ? " waits for " : " is issued behind ") + to_text(at(program_.steps, after));
        n = after;
        if (n != k) text += ", which";
      } while (n != k);
      found.push_back(std::move(text));
    }
    return found;
  }

 private:
  const device_program& program_;
  std::vector<std::vector<int>> needs_;
  std::vector<int> done_;
  std::vector<char> is_done_;
};

HETSCHED_INLINE void validate(const device_program& program) {
  const auto count = static_cast<int>(program.steps.size());
  expect_count(program.devices, "the devices of a program", 0);
  for (const auto& s : program.steps) {
    auto members = s.members;
    std::sort(members.begin(), members.end());
    const bool alone = s.kind == device_step_kind::computation;
    const bool pair = s.kind == device_step_kind::transfer || s.kind == device_step_kind::host_transfer;
    const bool wrong = members.empty() || members.front() < 0 || members.back() >= program.devices ||
                       std::adjacent_find(members.begin(), members.end()) != members.end() || (alone && members.size() != 1) ||
                       (pair && members.size() != 2) ||
                       std::any_of(s.needs.begin(), s.needs.end(), [&](int n) { return n < 0 || n >= count; });
    if (wrong)
      throw input_error("step " + std::to_string(&s - program.steps.data()) +
                        " of a device program has members or needs that cannot be");
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<std::string> check_device_order(const device_program& program, const device_order& order) {
  detail::validate(program);
  if (order.of_device.size() != as_size(program.devices))
    return {"an order of " + std::to_string(order.of_device.size()) + " devices for a program of " +
            std::to_string(program.devices)};
  std::vector<std::string> wrong;
  std::vector<int> listed(program.steps.size(), 0);  // by members
  std::vector<int> last(program.steps.size(), -1);   // device that lists it
  for (int d = 0; d < program.devices; ++d)
    for (const int n : at(order.of_device, d)) {
      const auto name = "device " + std::to_string(d) + " issues ";
      if (n < 0 || as_size(n) >= program.steps.size()) {
        wrong.push_back(name + "step " + std::to_string(n) + ", which there is not");
        continue;
      }
      const auto k = as_size(n);
      const auto& s = program.steps[k];
      if (!is_issued(s.kind) || std::find(s.members.begin(), s.members.end(), d) == s.members.end())
        wrong.push_back(name + to_text(s) + ", which is not its to issue");
      else if (std::exchange(last[k], d) == d)
        wrong.push_back(name + to_text(s) + " twice");
      else
        ++listed[k];
    }
  for (std::size_t k = 0; k < program.steps.size(); ++k)
    if (const auto& s = program.steps[k]; is_issued(s.kind) && listed[k] < static_cast<int>(s.members.size()))
      wrong.push_back("not every device issues " + to_text(s));
  if (!wrong.empty()) return wrong;
  return detail::device_run(program, &order).cycles();
}

HETSCHED_INLINE found_device_order find_device_order(const device_program& program) {
  detail::validate(program);
  const detail::device_run run(program);
  found_device_order found{.order = {}, .cycles = run.cycles()};
  if (!run.finished()) return found;
  found.order.of_device.resize(as_size(program.devices));
  for (const int n : run.done())
    if (const auto& s = at(program.steps, n); is_issued(s.kind))
      for (const int d : s.members) at(found.order.of_device, d).push_back(n);
  return found;
}

}  // namespace hetsched
