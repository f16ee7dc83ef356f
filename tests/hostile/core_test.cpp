// SPDX-License-Identifier: Apache-2.0
#include "hostile.hpp"

#include <array>
#include <span>

#include <hetsched/core.hpp>
#include <hetsched/core/number_table.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/core/sha256.hpp>

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// A matrix whose sizes are whatever it is told.
struct sized_matrix {
  std::ptrdiff_t r, c;
  [[nodiscard]] std::ptrdiff_t rows() const { return r; }
  [[nodiscard]] std::ptrdiff_t cols() const { return c; }
  double operator()(int, int) const { return 1; }
};

std::string some_text(random_source& r) {
  std::string text;
  for (int i = r.integer(0, 80); i > 0; --i) text += static_cast<char>(r.integer(-128, 127));
  return text;
}

const std::vector<door> doors{
    {"checked_add", [](random_source& r) { (void)checked_add(some_int64(r), some_int64(r)); }},
    {"checked_mul", [](random_source& r) { (void)checked_mul(some_int64(r), some_int64(r), some_int64(r)); }},
    {"ceil_div",
     [](random_source& r) {
       const auto a = some_int64(r), b = some_int64(r), q = ceil_div(a, b);
       expect(q >= a / b && q - 1 <= a / b, "the result is no quotient");
     }},
    {"gbit_per_s", [](random_source& r) { (void)gbit_per_s(some_double(r)); }, false},
    {"random_source::integer",
     [](random_source& r) {
       const int low = some_int(r), high = some_int(r), n = r.integer(low, high);
       expect(low <= n && n <= high, "the result is not in range");
     }},
    {"random_source", [](random_source& r) { (void)random_source(r())(); }, false},
    {"number_table",
     [](random_source& r) {
       if (one_in(r, 2)) {
         const auto c = one_in(r, 4) ? some_int64(r) : std::int64_t{3};
         (void)number_table(sized_matrix{c == 3 ? std::int64_t{2} : c < 0 ? c : std::int64_t{0}, c});
         return;
       }
       const auto rows = static_cast<std::size_t>(r.integer(0, 3));
       std::vector<std::vector<double>> all;
       for (std::size_t i = 0; i < rows; ++i) all.push_back(some_times(r, 2));
       const number_table t(all);
       expect(t.rows() == static_cast<int>(rows), "the result has other rows");
     }},
    {"number_table::operator[]",
     [](random_source& r) {
       const number_table t{{1, 2}, {3, 4}};
       expect(t[mostly(r, r.integer(0, 1), 2)].size() == 2, "the result is no row");
     }},
    {"crc64",
     [](random_source& r) {
       const auto text = some_text(r);
       (void)crc64(std::as_bytes(std::span(text)), r());
     },
     false},
    {"keyed_digest",
     [](random_source& r) {
       const auto key = some_text(r), text = some_text(r);
       (void)keyed_digest(std::as_bytes(std::span(key)), std::as_bytes(std::span(text)));
     },
     false},
    {"same_digest",
     [](random_source& r) {
       sha256_digest a{}, b{};
       one_of(r, a) = static_cast<std::remove_reference_t<decltype(a[0])>>(1);
       expect(!same_digest(a, b) && same_digest(a, a), "digests");
     },
     false},
    {"printable", [](random_source& r) { (void)printable(some_text(r), one_in(r, 2)); }, false},
};

TEST_CASE("public functions of core refuse what they cannot take") { knock(doors, 20'000); }

}  // namespace
