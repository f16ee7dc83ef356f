// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>

namespace hetsched::test {

/// Another communicator, without what it may offer for groups: the least that a communicator has.
template <class Inner>
class plain_communicator {
 public:
  using operation = typename Inner::operation;
  explicit plain_communicator(Inner inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int ranks() const { return inner_.ranks(); }
  [[nodiscard]] int open(const edge& e) { return inner_.open(e); }
  template <class Tensor>
  void post_send(int channel, const stamp& s, Tensor& t, operation& op) {
    inner_.post_send(channel, s, t, op);
  }
  template <class Tensor>
  void post_receive(int channel, const stamp& s, Tensor& t, operation& op) {
    inner_.post_receive(channel, s, t, op);
  }
  [[nodiscard]] bool poll(operation& op) { return inner_.poll(op); }
  [[nodiscard]] wait_result wait(deadline_time until, bool sends) { return inner_.wait(until, sends); }
  void abort(const std::string& reason) { inner_.abort(reason); }
  [[nodiscard]] std::string failure() const { return inner_.failure(); }
  [[nodiscard]] wait_result gather(std::span<const double> mine, std::vector<std::vector<double>>& all, deadline_time until) {
    return inner_.gather(mine, all, until);
  }

 private:
  Inner inner_;
};

template <class Inner>
std::vector<plain_communicator<Inner>> plain(std::vector<Inner> ends) {
  std::vector<plain_communicator<Inner>> all;
  for (auto& e : ends) all.emplace_back(e);
  return all;
}

/// Numbers of such different sizes that the order of their addition shows.
template <class Real>
std::vector<Real> wild_numbers(random_source& random, std::size_t n) {
  std::vector<Real> numbers(n);
  for (auto& x : numbers) {
    x = static_cast<Real>(random.uniform(-1, 1));
    for (int k = random.integer(0, 3); k > 0; --k) x *= 1000;
    if (random.integer(0, 20) == 0) x = static_cast<Real>(-0.0);
  }
  return numbers;
}

/// One device adds, the first rank's first.
template <class Real>
std::vector<Real> serial_sum(const std::vector<std::vector<Real>>& of_ranks) {
  auto sum = of_ranks.at(0);
  for (std::size_t r = 1; r < of_ranks.size(); ++r)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + of_ranks[r][i];
  return sum;
}

/// Whether all bits are alike.
template <class Real>
bool same_bits(std::span<const Real> a, std::span<const Real> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace hetsched::test
