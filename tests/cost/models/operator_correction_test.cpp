// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/cost/models/operator_correction.hpp>
#include <hetsched/cost/models/tile_cost.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

namespace {

tile_device gpu(const char* name) { return make_tile_device(catalogue_device(name)); }

// Products of all sizes, and elementwise operators on both sides of L2.
std::vector<operator_shape> shapes(int count, std::uint64_t seed) {
  random_source random(seed);
  std::vector<operator_shape> list;
  const auto size = [&] { return std::int64_t{16} << random.integer(2, 9); };
  for (int i = 0; i < count; ++i) {
    list.push_back(gemm(size() + random.integer(0, 63), size(), size(), number_format::fp16));
    list.push_back(elementwise(size() * size(), 2, 1, number_format::fp16));
  }
  return list;
}

// A law that a device-free feature explains: products lose where their 128 x 128 tiles leave multiprocessors idle, the others
// run faster where they fit in L2.
double law(const tile_device& d, const operator_shape& op) {
  if (op.kind != operator_kind::gemm) return op.traffic_bytes < d.l2_bytes ? 0.6 : 1.1;
  const double tiles = std::ceil(static_cast<double>(op.m) / 128) * std::ceil(static_cast<double>(op.n) / 128);
  const double used = static_cast<double>(op.m * op.n) / (std::ceil(tiles / d.multiprocessors) * d.multiprocessors * 128 * 128);
  return used < 0.5 ? 1.4 : 0.9;
}

std::vector<operator_sample> measured(const tile_device& d, const std::vector<operator_shape>& list, double added_s = 0) {
  std::vector<operator_sample> samples;
  for (const auto& op : list) {
    const double s = predict_operator(d, op).seconds;
    samples.push_back({d, op, (s + added_s) * law(d, op), added_s});
  }
  return samples;
}

}  // namespace

TEST_CASE("what was learned on one device holds on another") {
  const auto shown = gpu("A100-SXM4-80GB"), hidden = gpu("A40");
  for (const double added_s : {0.0, 30e-6}) {
    const auto correction = operator_correction::train(measured(shown, shapes(400, 1), added_s), {.trees = 30});
    double plain[2] = {}, corrected[2] = {};
    for (const auto& op : shapes(200, 2)) {
      const auto kind = op.kind == operator_kind::gemm ? 0u : 1u;
      plain[kind] += std::abs(1 / law(hidden, op) - 1) / 200;
      corrected[kind] += std::abs(correction.factor(hidden, op) / law(hidden, op) - 1) / 200;
    }
    CAPTURE(added_s);
    for (const auto kind : {0u, 1u}) {
      CAPTURE(kind);
      CAPTURE(plain[kind]);
      CHECK(corrected[kind] < 0.3 * plain[kind]);
    }
  }
}

TEST_CASE("the timer is the tile model times the factor, with the constants given") {
  const auto d = gpu("A100-SXM4-80GB");
  const tile_constants slow{.matrix_share = 0.5, .launch_s = 1e-3};
  std::vector<operator_sample> samples;
  for (const auto& op : shapes(50, 3)) samples.push_back({d, op, 2 * predict_operator(d, op, slow).seconds});
  const corrected_timer timer{slow, operator_correction::train(samples, {.trees = 5}, slow)};
  for (const auto& op : shapes(20, 3))  // among those measured: beyond their balances a factor fades
    CHECK(timer(d, op) == doctest::Approx(2 * predict_operator(d, op, slow).seconds).epsilon(1e-12));
}

TEST_CASE("sums of gradients are elementwise kernels, which measured ones correct") {
  const auto device = gpu("A100-SXM4-80GB");
  std::vector<operator_sample> samples;
  for (int i = 0; i < 40; ++i) {
    const auto op = elementwise((std::int64_t{1} << 27) + i * 4096, 2, 1, number_format::fp32);
    samples.push_back({device, op, 1.5 * predict_operator(device, op).seconds});
  }
  const corrected_timer timer{{}, operator_correction::train(samples, {.trees = 5, .least_leaf_rows = 5})};
  const cluster hardware{.subclusters = {{.name = "one", .device = catalogue_device("A100-SXM4-80GB")}}};
  tile_cost_options options{.microbatch_size = 1, .batch = 4};
  options.memory.accumulation_bytes = 12;
  const auto model = gpt({.layers = 2, .hidden = 1024, .heads = 16});
  const placement one{.mesh = {0, 1, 1}};
  const double plain_s = make_tile_cost(hardware, model, options).layer(1, one).sums_s;
  CHECK(plain_s > 0);
  CHECK(make_tile_cost(hardware, model, options, {}, granularity::block, timer).layer(1, one).sums_s ==
        doctest::Approx(1.5 * plain_s).epsilon(0.01));
}

TEST_CASE("kernels that nobody measured stay as they are") {
  const auto d = gpu("A100-SXM4-80GB");
  auto list = shapes(50, 5);
  std::vector<operator_sample> samples;
  for (const auto& op : list) samples.push_back({d, op, 3 * predict_operator(d, op).seconds});
  const auto correction = operator_correction::train(samples, {.trees = 5});
  CHECK(correction.factor(d, gemm(512, 512, 512, number_format::bf16)) == doctest::Approx(3));  // the same matrix units
  CHECK(correction.factor(d, elementwise(1 << 20, 1, 1, number_format::fp32)) == doctest::Approx(3));
  for (const auto& op : {gemm(512, 512, 512, number_format::fp32), batched_gemm(8, 512, 512, 512, number_format::fp16),
                         flash_attention(8, 8, 512, 512, 64, true, number_format::fp16), softmax(512, 512, number_format::fp16),
                         norm(512, 512, number_format::fp16), norm(512, 512, number_format::fp16, true)})
    CHECK(correction.factor(d, op) == 1);
  CHECK(operator_correction().factor(d, list.front()) == 1);
}

TEST_CASE("a correction fades where kernels wait for something else than those measured") {
  auto d = gpu("A100-SXM4-80GB");
  const auto op = gemm(4096, 4096, 4096, number_format::fp16);
  const auto correction = operator_correction::train(std::vector<operator_sample>{{d, op, 4 * predict_operator(d, op).seconds}});
  const auto time = predict_operator(d, op);
  const auto with = [&](double compute, double memory) {
    auto t = time;
    t.compute_s *= compute, t.memory_s *= memory;
    return correction.factor(d, op, t);
  };
  CHECK(with(1, 1) == doctest::Approx(4));
  CHECK(with(7, 7) == doctest::Approx(4));
  for (const auto& [compute, memory] : {std::pair{1.5, 1.0}, std::pair{1.0, 1.5}})
    CHECK(with(compute, memory) == doctest::Approx(2));  // halfway, in logarithms
  CHECK(with(2, 1) == 1);
  CHECK(with(1, 2.1) == 1);
}

TEST_CASE("text comes back as the same correction, and broken text is refused") {
  const auto d = gpu("A100-SXM4-80GB");
  const auto correction = operator_correction::train(measured(d, shapes(40, 6)), {.trees = 3});
  const auto text = correction.text();
  CHECK(operator_correction::read(text) == correction);
  CHECK(operator_correction::read(operator_correction().text()) == operator_correction());
  // Cut anywhere it is refused, but after a whole forest.
  int read = 0;
  for (std::size_t length = 0; length < text.size(); length += 1 + length / 50) {
    try {
      (void)operator_correction::read(text.substr(0, length));
      ++read;
    } catch (const input_error&) {
    }
  }
  CHECK(read <= 2);
  auto wrong = text;
  wrong.insert(wrong.find('\n') + 2, "0");  // the forest of products, 4, for elementwise operators, 40
  CHECK_THROWS_AS((void)operator_correction::read(wrong), input_error);
  CHECK_THROWS_AS((void)operator_correction::read("hetsched-operator-correction 1\n4 2 1 24\nhetsched-forest 1\n10 0\n"),
                  input_error);
}

TEST_CASE("senseless samples are refused") {
  const auto d = gpu("A100-SXM4-80GB");
  const auto op = gemm(64, 64, 64, number_format::fp16);
  using list = std::vector<operator_sample>;
  CHECK_THROWS_AS((void)operator_correction::train(list{}), input_error);
  for (const double s : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    CHECK_THROWS_AS((void)operator_correction::train(list{{d, op, s}}), input_error);
  CHECK_THROWS_AS((void)operator_correction::train(list{{d, op, 1, -1}}), input_error);
}
