// SPDX-License-Identifier: Apache-2.0
#include <hetsched/model/operator.hpp>

#include <cstdint>

#include <doctest/doctest.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

constexpr auto half = number_format::fp16;

struct work {
  double flops = 0, bytes = 0;
};

// A product by its loops.
work by_loops(int batch, int m, int n, int k) {
  work done;
  for (int b = 0; b < batch; ++b)
    for (int row = 0; row < m; ++row)
      for (int column = 0; column < n; ++column)
        for (int inner = 0; inner < k; ++inner) done.flops += 2;
  done.bytes = 2.0 * batch * (m * k + k * n + m * n);
  return done;
}

}  // namespace

TEST_CASE("products do two operations for each step of their loops, and move every matrix once") {
  random_source random(5);
  for (int round = 0; round < 20; ++round) {
    const int batch = random.integer(1, 4), m = random.integer(1, 9), n = random.integer(1, 9), k = random.integer(1, 9);
    const auto one = by_loops(1, m, n, k), all = by_loops(batch, m, n, k);
    CHECK(flops(gemm(m, n, k, half)) == one.flops);
    CHECK(gemm(m, n, k, half).traffic_bytes == one.bytes);
    CHECK(flops(batched_gemm(batch, m, n, k, half)) == all.flops);
    CHECK(batched_gemm(batch, m, n, k, half).traffic_bytes == all.bytes);
  }
}

TEST_CASE("attention in one kernel does the products of attention in four, and moves no scores") {
  const auto flash = flash_attention(6, 6, 10, 20, 8, false, half);
  double products = 0, bytes = 0;
  for (const auto& op : plain_attention(6, 10, 20, 8, half)) {
    products += flops(op);
    bytes += op.traffic_bytes;
  }
  CHECK(flops(flash) == products);
  const double scores = 6 * 10 * 20 * 2;  // bytes; written, then read and written twice, then read
  CHECK(flash.traffic_bytes == bytes - 6 * scores);
  CHECK(flops(flash_attention(6, 6, 10, 20, 8, true, half)) == products / 2);
  CHECK(flops(flash_attention(6, 6, 1, 20, 8, true, half)) == flops(flash_attention(6, 6, 1, 20, 8, false, half)));
  // Groups of three heads share keys and values: a third of those.
  CHECK(flash.traffic_bytes - flash_attention(6, 2, 10, 20, 8, false, half).traffic_bytes == 2 * (6 - 2) * 20 * 8 * 2);
}

TEST_CASE("a convolution is a product over its windows, one row for each place of the window") {
  const convolution_sizes c{.images = 2,
                            .height = 9,
                            .width = 7,
                            .in_channels = 3,
                            .out_channels = 5,
                            .kernel_height = 3,
                            .kernel_width = 2,
                            .stride = 2};
  std::int64_t places = 0;
  for (int image = 0; image < 2; ++image)
    for (int y = 0; y < 9; y += 2)
      for (int x = 0; x < 7; x += 2) ++places;
  const auto op = convolution(c, half);
  CHECK(op.m == places);
  CHECK(flops(op) == 2.0 * static_cast<double>(places) * 5 * (3 * 3 * 2));
}

TEST_CASE("kernels without products move what they read and write") {
  for (const auto f : {number_format::fp32, number_format::fp16, number_format::fp8}) {
    const double size = element_bytes(f);
    CHECK(softmax(10, 20, f).traffic_bytes == 2 * 200 * size);
    CHECK(norm(10, 20, f).traffic_bytes == 2 * 200 * size);
    CHECK(elementwise(200, 2, 1, f).traffic_bytes == 3 * 200 * size);
    CHECK(rowwise(10, 20, 2, f).traffic_bytes == 3 * 200 * size);
    CHECK(embedding(10, 20, f).traffic_bytes == 2 * 200 * size);
    for (const auto& op : {softmax(10, 20, f), norm(10, 20, f), elementwise(200, 2, 1, f), embedding(10, 20, f)})
      CHECK(flops(op) == 0);
  }
}

TEST_CASE("operators of no size are refused") {
  CHECK_THROWS_AS((void)gemm(0, 1, 1, half), input_error);
  CHECK_THROWS_AS((void)batched_gemm(0, 1, 1, 1, half), input_error);
  CHECK_THROWS_AS((void)flash_attention(1, 0, 1, 1, 1, false, half), input_error);
  CHECK_THROWS_AS((void)softmax(1, 0, half), input_error);
  CHECK_THROWS_AS((void)rowwise(1, 1, 0, half), input_error);
  CHECK_THROWS_AS((void)elementwise(1, -1, 1, half), input_error);
  CHECK_THROWS_AS((void)convolution({.stride = 0}, half), input_error);
}
