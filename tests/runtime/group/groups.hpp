// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

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

 protected:
  Inner inner_;
};

/// The same, a byte_plane.
template <class Inner>
class plain_byte_plane : public plain_communicator<Inner> {
 public:
  using operation = typename Inner::operation;
  using plain_communicator<Inner>::plain_communicator;
  void post_send_bytes(int channel, const stamp& s, std::span<const std::byte> bytes, operation& op) {
    this->inner_.post_send_bytes(channel, s, bytes, op);
  }
  void post_receive_bytes(int channel, const stamp& s, std::span<std::byte> bytes, operation& op) {
    this->inner_.post_receive_bytes(channel, s, bytes, op);
  }
};

template <template <class> class Plain = plain_communicator, class Inner>
std::vector<Plain<Inner>> plain(std::vector<Inner> ends) {
  std::vector<Plain<Inner>> all;
  for (auto& e : ends) all.emplace_back(e);
  return all;
}

/// Three elements, a matrix or bytes at either end of a channel from rank 0 to rank 1; then as many as do not fit.
template <class Tensor, class Communicator>
void check_byte_plane(Communicator& a, Communicator& b) {
  static_assert(byte_plane<Communicator>);
  const edge where{.from = 0, .to = 1, .what = payload::activation, .direction = 0, .stage = 0};
  const int out = a.open(where), in = b.open(where);
  const auto ends_soon = [](Communicator& end, auto& op) {
    const auto until = deadline_in(20);
    while (!end.poll(op))
      if (end.wait(until, true) != wait_result::progress) return end.poll(op);
    return true;
  };
  typename Communicator::operation sends[5], receives[5];
  for (int way = 0; way < 5; ++way) {
    CAPTURE(way);
    const stamp s{.step = 1, .microbatch = way, .what = payload::activation, .direction = 0, .stage = 0};
    const bool fits = way < 4;
    Tensor from(1, 8), to(1, 8), three(1, 3), taken(1, 3);
    for (std::size_t k = 0; k < 8; ++k)
      from.data()[k] = static_cast<double>(10 * way) + static_cast<double>(k), to.data()[k] = -1;
    for (std::size_t k = 0; k < 3; ++k) three.data()[k] = from.data()[2 + k];
    const auto before = from;
    const bool sends_bytes = way % 2 == 1 || !fits, takes_bytes = way / 2 == 1;
    if (takes_bytes)
      b.post_receive_bytes(in, s, std::as_writable_bytes(std::span(to.data() + 4, 3)), receives[way]);
    else
      b.post_receive(in, s, taken, receives[way]);
    if (sends_bytes)
      a.post_send_bytes(out, s, std::as_bytes(std::span(from.data() + 2, fits ? 3 : 4)), sends[way]);
    else
      a.post_send(out, s, three, sends[way]);
    if (!fits) {
      CHECK_FALSE(ends_soon(b, receives[way]));
      for (auto* end : {&a, &b}) end->abort("");  // nothing of this is touched any more
      const std::string why = b.failure();        // small ones have left before anybody compares
      CAPTURE(why);
      CHECK(why.find("activation of stage 0 from rank 0 to rank 1, step 1, microbatch 4") != std::string::npos);
      continue;
    }
    REQUIRE(ends_soon(b, receives[way]));
    REQUIRE(ends_soon(a, sends[way]));
    CHECK(from == before);
    for (std::size_t k = 0; k < 3; ++k) CHECK((takes_bytes ? to.data() + 4 : taken.data())[k] == before.data()[2 + k]);
    for (const std::size_t k : {0u, 1u, 2u, 3u, 7u}) CHECK(to.data()[k] == -1);
  }
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
