// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/network/transfer_curve.hpp>
#include <hetsched/cost/network/transfer_model.hpp>

namespace hetsched::detail {

// Least squares of the relative error of latency + slope * bytes, neither negative, over samples that come one by one.
struct relative_line {
  double count = 0, w = 0, x = 0, xx = 0, t = 0, xt = 0;  // sums over samples (b, s): 1/s^2, b/s^2, b^2/s^2, 1/s, b/s

  void add(const transfer_sample& sample) {
    const double inverse = 1 / sample.seconds, scaled = sample.bytes * inverse;
    count += 1;
    w += inverse * inverse;
    x += scaled * inverse;
    xx += scaled * scaled;
    t += inverse;
    xt += scaled;
  }

  [[nodiscard]] transfer_piece line() const {
    const double det = w * xx - x * x;
    double latency = t / w, slope = 0;
    if (det > 1e-12 * w * xx) {
      latency = (t * xx - x * xt) / det;
      slope = (w * xt - x * t) / det;
      if (slope < 0) latency = t / w, slope = 0;
      if (latency < 0) latency = 0, slope = xt / xx;
    }
    return {.latency_s = latency, .s_per_byte = slope};
  }

  [[nodiscard]] double squared_error() const {
    const auto [end, latency, slope] = line();
    return std::max(
        0.0, count - 2 * (latency * t + slope * xt) + latency * latency * w + 2 * latency * slope * x + slope * slope * xx);
  }
};

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE transfer_curve fit_transfer_curve(std::span<const transfer_sample> samples, const transfer_fit_options& options) {
  if (samples.empty()) throw input_error("a transfer curve needs at least one measurement");
  if (options.max_pieces < 1) throw input_error("a transfer curve needs at least one piece");
  if (!(options.noise > 0)) throw input_error("the noise of measurements must be positive");
  for (const auto& s : samples)
    if (!(s.bytes > 0 && s.seconds > 0 && std::isfinite(s.bytes) && std::isfinite(s.seconds)))
      throw input_error("a measurement's bytes and seconds must be finite and positive");
  std::vector<transfer_sample> rows(samples.begin(), samples.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds; });

  const std::size_t n = rows.size();
  const auto most = std::min<std::size_t>(as_size(options.max_pieces), std::max<std::size_t>(1, n / 3));
  // least[k * (n + 1) + j]: least squared error of k + 1 pieces over the first j rows; from: where the last of them begins
  std::vector<double> least(most * (n + 1), infinity);
  std::vector<std::size_t> from(most * (n + 1), 0);
  for (std::size_t i = 0; i < n; ++i) {
    // Rows of one size stay together.
    if (i > 0 && rows[i].bytes == rows[i - 1].bytes) continue;
    detail::relative_line piece;
    for (std::size_t j = i + 1; j <= n; ++j) {
      piece.add(rows[j - 1]);
      if ((j < n && rows[j].bytes == rows[j - 1].bytes) || (j - i < 3 && n > 2)) continue;
      const double error = piece.squared_error();
      for (std::size_t k = i == 0 ? 0 : 1; k < (i == 0 ? 1 : most); ++k) {
        const double total = error + (k == 0 ? 0 : least[(k - 1) * (n + 1) + i]);
        if (total < least[k * (n + 1) + j]) {
          least[k * (n + 1) + j] = total;
          from[k * (n + 1) + j] = i;
        }
      }
    }
  }

  const double count = static_cast<double>(n);
  std::size_t best = 0;
  double best_score = infinity;
  for (std::size_t k = 0; k < most; ++k) {
    const double variance = least[k * (n + 1) + n] / count + options.noise * options.noise;
    const double score = count * std::log(variance) + 3 * static_cast<double>(k + 1) * std::log(count);
    if (score < best_score) {
      best_score = score;
      best = k;
    }
  }

  transfer_curve curve;
  curve.pieces.resize(best + 1);
  std::size_t last = n;
  for (std::size_t k = best + 1; k-- > 0;) {
    const std::size_t first = k == 0 ? 0 : from[k * (n + 1) + last];
    detail::relative_line piece;
    for (std::size_t i = first; i < last; ++i) piece.add(rows[i]);
    curve.pieces[k] = piece.line();
    // Between two pieces the nearer one holds, by ratio.
    if (last < n) curve.pieces[k].up_to_bytes = std::sqrt(rows[last - 1].bytes * rows[last].bytes);
    last = first;
  }
  return curve;
}

}  // namespace hetsched
