// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/optimizer_test.cpp.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/device/device_backend.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

/// A sum of squares that does not depend on how they are grouped: each is cut at multiples of powers of 2^48 that are the same
/// for all; the digit of the largest square and the one below are added up as integers, and the rest is left away. So it is right
/// to 2^-49 of the largest square, times their number, which may be up to 2^39. Determinism: the same elements give the same bits
/// in any order, on any number of ranks. Source: Demmel and Nguyen 2015, Parallel reproducible summation; hetsched: wide digits,
/// as integers.
class square_sum {
 public:
  /// Numbers that append() tells: of the upper digit its number, or infinity, and the upper and lower half of both digits.
  static constexpr std::size_t told = 5;

  /// Adds the squares of n neighbouring elements.
  /// Complexity: O(n), vectorised.
  template <class Element>
  void add(const Element* data, std::size_t n) {
    while (n >= block) {
      add_block(data);
      data += block;
      n -= block;
    }
    if (n == 0) return;
    std::array<double, block> rest{};
    for (std::size_t i = 0; i < n; ++i) rest[i] = as_double(data[i]);
    add_block(rest.data());
  }
  void add(const square_sum& other) {
    finite_ = finite_ && other.finite_;
    raise(other.top_);
    for (std::size_t k = 0; k < other.digits_.size(); ++k)
      if (const auto to = k + as_size(top_ - other.top_); to < digits_.size()) {
        digits_[to].high += other.digits_[k].high;
        digits_[to].low += other.digits_[k].low;
      }
  }

  /// The sum; not finite if an element is not, or if a square is above 2^863.
  [[nodiscard]] double value() const {
    if (!finite_) return infinity;
    // Halves of digits are made unique, so that equal sums round alike.
    std::array<std::int64_t, 4> d{digits_[0].high, digits_[0].low, digits_[1].high, digits_[1].low};
    for (std::size_t k = d.size() - 1; k > 0; --k) {
      const std::int64_t carry = d[k] >> (width / 2);
      d[k] -= carry * (std::int64_t{1} << (width / 2));
      d[k - 1] += carry;
    }
    double sum = 0;
    for (std::size_t k = d.size(); k-- > 0;)
      sum += std::ldexp(static_cast<double>(d[k]), width * top_ + width / 2 * (1 - static_cast<int>(k)));
    return sum;
  }

  /// Writes it into numbers that can be gathered.
  void append(std::vector<double>& numbers) const {
    numbers.push_back(finite_ ? top_ : infinity);
    for (const auto& d : digits_) {
      numbers.push_back(static_cast<double>(d.high));
      numbers.push_back(static_cast<double>(d.low));
    }
  }
  /// Reads what append() has written.
  [[nodiscard]] static square_sum read(std::span<const double, told> numbers) {
    square_sum s;
    s.finite_ = std::isfinite(numbers[0]);
    if (s.finite_) s.top_ = static_cast<int>(numbers[0]);
    for (std::size_t k = 0; k < s.digits_.size(); ++k)
      s.digits_[k] = {static_cast<std::int64_t>(numbers[1 + 2 * k]), static_cast<std::int64_t>(numbers[2 + 2 * k])};
    return s;
  }

 private:
  static constexpr std::size_t block = 256, lanes = 8;
  static constexpr int width = 48, highest = 17, lowest = -19;  ///< digit d counts multiples of 2^(width * d)
  struct digit {
    std::int64_t high = 0, low = 0;  ///< high * 2^(width / 2) + low
  };

  /// Makes room for a higher digit; those that fall out at the lower end are as good as never added.
  void raise(int top) {
    if (top <= top_) return;
    digits_[1] = top == top_ + 1 ? digits_[0] : digit{};
    digits_[0] = {};
    top_ = top;
  }
  void add_to(digit& d, double sum, int number) {
    const auto whole = static_cast<std::int64_t>(std::ldexp(sum, -width * number));
    const std::int64_t high = whole >> (width / 2);
    d.high += high;
    d.low += whole - high * (std::int64_t{1} << (width / 2));
  }

  template <class Element>
  void add_block(const Element* data) {
    while (true) {
      // Squares below 2^(width * (d + 1) - 1) have no digit above d: they would be rounded to 0 there.
      const double magic0 = std::ldexp(1.5, 52 + width * top_);
      const double magic1 = top_ > lowest ? std::ldexp(1.5, 52 + width * (top_ - 1)) : 0;
      double most[lanes] = {}, sums0[lanes] = {}, sums1[lanes] = {};  // side by side, as one would wait for every addition
      for (std::size_t i = 0; i < block; i += lanes)
        for (std::size_t k = 0; k < lanes; ++k) {
          const auto x = as_double(data[i + k]);
          const double square = x * x;
          const double whole = (square + magic0) - magic0;
          const double rest = square - whole;
          most[k] = square > most[k] ? square : most[k];
          sums0[k] += whole;
          sums1[k] += (rest + magic1) - magic1;
        }
      double largest = 0, sum0 = 0, sum1 = 0;
      for (std::size_t k = 0; k < lanes; ++k) {
        largest = std::max(largest, most[k]);
        sum0 += sums0[k];
        sum1 += sums1[k];
      }
      if (largest >= std::ldexp(1.0, width * (top_ + 1) - 1) && largest < std::ldexp(1.0, width * (highest + 1) - 1)) {
        int exponent = 0;
        (void)std::frexp(largest, &exponent);
        raise((exponent + 100 * width) / width - 100);
        continue;
      }
      if (!std::isfinite(sum0) || largest >= std::ldexp(1.0, width * (highest + 1) - 1)) {
        finite_ = false;
        return;
      }
      add_to(digits_[0], sum0, top_);
      if (top_ > lowest) add_to(digits_[1], sum1, top_ - 1);
      return;
    }
  }

  int top_ = lowest;
  std::array<digit, 2> digits_{};  ///< top_ and the one below
  bool finite_ = true;
};

/// Adds the squares of runs of a tensor's elements (their side a), which the host can read.
template <pipeline_tensor T>
void add_squares_here(square_sum& sum, const T& t, const strided_runs& runs) {
  using traits = tensor_traits<T>;
  static_assert(
      host_number<typename traits::element>,
      "tensor_traits<T>::add_squares(square_sum&, const T&, const strided_runs&) is missing for elements of a user's type");
  for (std::int64_t row = 0; row < runs.rows; ++row)
    sum.add(traits::data(t) + runs.first_a + row * runs.stride_a, as_size(runs.length));
}

/// Sums of squares of parts of tensors, the same ones each time: on the host, by what tensor_traits have
/// (add_squares(square_sum&, const T&, const strided_runs&), or squares(const T&, const strided_runs&, queue, double*) that
/// enqueues the writing of square_sum::told numbers, as append() tells them, to host memory), or, for other tensors in device
/// memory, of copies in host memory.
template <pipeline_tensor T, class Backend>
class squares_on_queue {
  using traits = tensor_traits<T>;
  using queue = typename Backend::queue;
  static constexpr bool tells = requires(const T& t, const strided_runs& r, const queue& q, double* numbers) {
    traits::squares(t, r, q, numbers);
  };

 public:
  void begin() {
    sum_ = {};
    next_ = 0;
  }
  void add(Backend& backend, const queue& q, const T& t, const strided_runs& runs) {
    if constexpr (tells) {
      if (next_ == told_.size()) told_.push_back(backend.make_numbers(square_sum::told));
      traits::squares(t, runs, q, told_[next_++].data());
    } else if constexpr (requires { traits::add_squares(sum_, t, runs); }) {
      q.finish();
      traits::add_squares(sum_, t, runs);
    } else if constexpr (traits::space == memory_space::device) {
      const T copy = copy_to_host(backend, q, t);
      q.finish();
      add_squares_here(sum_, copy, runs);
    } else {
      add_squares_here(sum_, t, runs);
    }
  }
  /// The sum of what has been added since begin(). Waits for the queue.
  [[nodiscard]] const square_sum& end([[maybe_unused]] const queue& q) {
    if constexpr (tells) {
      q.finish();
      for (std::size_t k = 0; k < next_; ++k)
        sum_.add(square_sum::read(std::span<const double, square_sum::told>(std::as_const(told_[k]).begin(), square_sum::told)));
    }
    return sum_;
  }

 private:
  square_sum sum_;
  std::size_t next_ = 0;
  std::vector<decltype(std::declval<Backend&>().make_numbers(1))> told_;
};

}  // namespace hetsched::detail
