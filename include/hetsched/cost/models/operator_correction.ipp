// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/models/operator_correction.hpp>

namespace hetsched {

HETSCHED_INLINE operator_features features_of(const tile_device& d, const operator_shape& op, const operator_time& t) {
  const double l2 = d.l2_bytes > 0 ? d.l2_bytes : 1;
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n), k = static_cast<double>(op.k);
  if (op.kind != operator_kind::gemm)
    return {{op.traffic_bytes / l2, op.traffic_bytes / (m * n * element_bytes(op.format)), detail::balance(t)},
            vector_feature_count};
  operator_features f{{t.waves, t.waves > 0 ? t.waves / std::ceil(t.waves) : 0, (m + n) * k * element_bytes(op.format) / l2},
                      product_feature_count};
  constexpr std::pair<int, int> tiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {32, 128}};
  for (std::size_t i = 0; i < std::size(tiles); ++i) {
    const auto [rows, columns] = tiles[i];
    const double count = static_cast<double>(op.batch) * std::ceil(m / rows) * std::ceil(n / columns);
    f.values[3 + i] =
        static_cast<double>(op.batch) * m * n / (std::ceil(count / d.multiprocessors) * d.multiprocessors * rows * columns);
  }
  return f;
}

HETSCHED_INLINE double operator_correction::factor(const tile_device& d, const operator_shape& op,
                                                   const operator_time& time) const {
  const int family = detail::kernel_family(d, op);
  for (const auto& k : kinds_) {
    if (k.family != family) continue;
    const double b = detail::balance(time), outside = std::max({1.0, k.low / b, b / k.high});
    if (outside >= 2) return 1;
    const auto f = features_of(d, op, time);
    return std::exp((2 - outside) * k.forest.predict(std::span(f.values).first(as_size(f.count))));
  }
  return 1;
}

HETSCHED_INLINE std::string operator_correction::text() const {
  std::string out = "hetsched-operator-correction 1\n";
  for (const auto& k : kinds_) {
    const std::string forest = k.forest.text();
    std::array<char, 128> line;
    char* at = line.data();
    const auto number = [&](auto x, char after) {
      at = std::to_chars(at, line.data() + line.size() - 1, x).ptr;
      *at++ = after;
    };
    number(k.family, ' ');
    number(k.low, ' ');
    number(k.high, ' ');
    number(forest.size(), '\n');
    out.append(line.data(), at);
    out += forest;
  }
  return out;
}

HETSCHED_INLINE operator_correction operator_correction::read(std::string_view text) {
  const auto fail = [](const char* what) { throw input_error(std::string("operator correction: ") + what); };
  constexpr std::string_view title = "hetsched-operator-correction 1\n";
  if (!text.starts_with(title)) fail("not an operator correction");
  text.remove_prefix(title.size());
  const auto number = [&](auto x, char after) {
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (problem != std::errc{} || stop == text.data() + text.size() || *stop != after) fail("not a number that can be here");
    text.remove_prefix(as_size(stop - text.data()) + 1);
    return x;
  };
  operator_correction c;
  while (!text.empty()) {
    kind k;
    k.family = number(0, ' ');
    k.low = number(0.0, ' ');
    k.high = number(0.0, ' ');
    const auto size = number(std::size_t{0}, '\n');
    if (!(k.low > 0 && k.high >= k.low && k.high < infinity)) fail("low and high are no range of balances");
    if (size > text.size()) fail("the text ends early");
    k.forest = random_forest::read(text.substr(0, size));
    if (k.forest.feature_count() !=
        (k.family / 8 == static_cast<int>(operator_kind::gemm) ? product_feature_count : vector_feature_count))
      fail("the forest is of other features");
    text.remove_prefix(size);
    c.kinds_.push_back(std::move(k));
  }
  return c;
}

}  // namespace hetsched
