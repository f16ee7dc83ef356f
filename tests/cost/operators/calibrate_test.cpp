// SPDX-License-Identifier: Apache-2.0
#include <hetsched/cost/operators/calibrate.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

namespace {

using enum number_format;

struct measurements {
  std::vector<operator_shape> operators;
  std::vector<double> seconds;
};

double mean_error(const device& d, const measurements& m) {
  const auto hardware = make_tile_device(d);
  double sum = 0;
  for (std::size_t i = 0; i < m.operators.size(); ++i)
    sum += std::abs(predict_operator(hardware, m.operators[i]).seconds / m.seconds[i] - 1);
  return sum / static_cast<double>(m.operators.size());
}

// Kernels of the framework's launch time apart, by device.
std::map<std::string, measurements> measured() {
  std::map<std::string, measurements> all;
  std::ifstream in(HETSCHED_SOURCE_DIR "/tests/data/measured_operators.csv");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::vector<std::string> r;
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) r.push_back(cell);
    const auto size = [&](std::size_t column) { return std::stoll(r[column]); };
    const auto f = r[3] == "fp16" ? fp16 : fp32;
    const double seconds = 1e-6 * (std::stod(r[10]) - std::stod(r[9]));
    if (seconds <= 0) continue;
    auto& m = all[r[0] + " " + r[1]];
    m.operators.push_back(r[2] == "gemm"      ? gemm(size(5), size(6), size(7), f)
                          : r[2] == "bmm"     ? batched_gemm(size(4), size(5), size(6), size(7), f)
                          : r[2] == "softmax" ? softmax(size(5), size(6), f)
                          : r[2] == "norm"    ? norm(size(5), size(6), f, r[0] == "Vidur")
                          : r[2] == "rowwise" ? rowwise(size(5), size(6), static_cast<int>(size(8)), f)
                          : r[2] == "gather"  ? embedding(size(5), 1, f)
                                              : elementwise(size(5), static_cast<int>(size(8)), 1, f));
    m.seconds.push_back(seconds);
  }
  return all;
}

}  // namespace

TEST_CASE("calibrate: constants that made the times are found") {
  auto d = catalogue_device("A100-SXM4-80GB");
  d.calibration = {.lane_rate = 0.8, .matrix_rate = 1.2, .memory_bandwidth = 0.9, .l2_bandwidth = 1.1, .launch_s = 4e-6};
  const auto truth = make_tile_device(d);
  measurements m;
  for (const auto& op : {gemm(4096, 4096, 4096, fp32), gemm(8192, 2048, 4096, fp32), batched_gemm(64, 512, 512, 128, fp32),
                         gemm(8192, 8192, 8192, fp16), gemm(4096, 4096, 8192, fp16), elementwise(1 << 28, 2, 1, fp32),
                         elementwise(1 << 26, 1, 1, fp16), elementwise(1 << 20, 1, 1, fp16), elementwise(3 << 20, 1, 1, fp16),
                         elementwise(1 << 10, 1, 1, fp16)}) {
    m.operators.push_back(op);
    m.seconds.push_back(predict_operator(truth, op).seconds);
  }
  const auto found = calibrate_device(d, m.operators, m.seconds, {.prior = 0});
  CHECK(found.error_after < 0.005);
  CHECK(found.error_before > 0.1);
  CHECK(found.error_after == doctest::Approx(mean_error(found.device, m)));
  const auto& c = found.device.calibration;
  CHECK(c.lane_rate == doctest::Approx(0.8).epsilon(0.01));
  CHECK(c.matrix_rate == doctest::Approx(1.2).epsilon(0.01));
  CHECK(c.memory_bandwidth == doctest::Approx(0.9).epsilon(0.01));
  CHECK(c.l2_bandwidth == doctest::Approx(1.1).epsilon(0.02));
  CHECK(c.launch_s == doctest::Approx(4e-6).epsilon(0.02));
}

TEST_CASE("calibrate: what no operator tells of stays, and one odd time decides nothing") {
  const auto d = catalogue_device("T4");
  std::vector<operator_shape> operators;
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    operators.push_back(gemm(1024 + 512 * i, 4096, 4096, fp16));
    seconds.push_back(predict_operator(make_tile_device(d), operators.back()).seconds * (i == 4 ? 20 : 1));
  }
  const auto c = calibrate_device(d, operators, seconds).device.calibration;
  CHECK(c.lane_rate == doctest::Approx(1).epsilon(1e-3));
  CHECK(c.l2_bandwidth == doctest::Approx(1).epsilon(1e-3));
  CHECK(c.matrix_rate == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("calibrate: twenty measured operators make up for a datasheet that is far off") {
  int devices = 0;
  for (const auto& [key, all] : measured()) {
    const auto name = key.substr(key.find(' ') + 1);
    if (!find_device(name) || all.operators.size() < 100) continue;
    measurements few, others;
    random_source random(7);
    for (std::size_t i = 0; i < all.operators.size(); ++i) {
      auto& to = few.operators.size() < 20 && random.integer(0, static_cast<int>(all.operators.size()) / 25) == 0 ? few : others;
      to.operators.push_back(all.operators[i]);
      to.seconds.push_back(all.seconds[i]);
    }
    const auto listed = *find_device(name);
    auto wrong = listed;
    for (auto& peak : wrong.peak_flops) peak *= 1.5;
    wrong.memory_bandwidth *= 0.6;
    wrong.board_watts *= 1.5;
    const auto found = calibrate_device(wrong, few.operators, few.seconds);
    const double as_listed = mean_error(listed, others), off = mean_error(wrong, others),
                 calibrated = mean_error(found.device, others);
    INFO(key, ": ", few.operators.size(), " operators, ", as_listed, " as listed, ", off, " before, ", calibrated, " after");
    CHECK(calibrated < 0.6 * off);
    CHECK(calibrated < as_listed + 0.05);
    ++devices;
  }
  CHECK(devices >= 6);
}

TEST_CASE("calibrate: one operator's residual is carried over as the closed form says, and to no other kernel") {
  const auto plain = make_tile_device(catalogue_device("V100-PCIe-32GB"));
  const auto op = gemm(4096, 1024, 1024, fp32);
  const double modelled = predict_operator(plain, op).seconds;
  auto d = plain;
  d.calibration.residuals = detail::fitted_residuals(plain, {{op}, {1.2 * modelled}});
  // A variance of 0.03 beside one of 0.003 of the measurement.
  CHECK(predict_operator(d, op).seconds / modelled == doctest::Approx(std::pow(1.2, 0.03 / 0.033)).epsilon(1e-4));
  // So far away that only what all products have in common is left.
  const auto far = gemm(1, 1 << 20, 1, fp32);
  CHECK(predict_operator(d, far).seconds / predict_operator(plain, far).seconds ==
        doctest::Approx(std::pow(1.2, 0.01 / 0.033)).epsilon(1e-2));
  for (const auto& other : {gemm(4096, 1024, 1024, fp16), softmax(4096, 1024, fp32)})
    CHECK(predict_operator(d, other).seconds == predict_operator(plain, other).seconds);
}

TEST_CASE("calibrate: what no factor can tell is learnt for like shapes, from more operators than residuals are kept") {
  const auto listed = catalogue_device("A100-SXM4-80GB");
  const auto plain = make_tile_device(listed);
  random_source random(3);
  const auto slow = [&](const operator_shape& op) {  // short reductions take half as long again
    return predict_operator(plain, op).seconds * (op.k <= 256 ? 1.5 : 1);
  };
  measurements shown, unseen;
  for (int i = 0; i < 200; ++i) {
    const auto size = [&](int low, int high) { return std::int64_t{1} << random.integer(low, high); };
    const auto op = gemm(size(8, 13), size(8, 13), i % 2 == 0 ? size(5, 8) : size(11, 13), fp16);
    auto& to = i < 120 ? shown : unseen;
    to.operators.push_back(op);
    to.seconds.push_back(slow(op));
  }
  const auto found = calibrate_device(listed, shown.operators, shown.seconds);
  CHECK(found.depth == calibration_depth::residuals);
  CHECK(found.device.calibration.residuals.size() == 64);
  INFO(found.error_unseen[0], " ", found.error_unseen[1], " ", found.error_unseen[2]);
  CHECK(found.error_unseen[2] < 0.6 * found.error_unseen[1]);
  const double error = mean_error(found.device, unseen);
  INFO(error, " of ", mean_error(listed, unseen));
  CHECK(error < 0.06);
  CHECK(std::abs(error - found.error_unseen[2]) < 0.03);
}

TEST_CASE("calibrate: what foretells nothing is not taken") {
  const auto listed = catalogue_device("T4");
  measurements m;
  random_source random(11);
  for (int i = 0; i < 20; ++i) {
    m.operators.push_back(gemm(random.integer(64, 4096), random.integer(64, 4096), random.integer(64, 4096), fp32));
    m.seconds.push_back(predict_operator(make_tile_device(listed), m.operators.back()).seconds * (i % 2 == 0 ? 1.3 : 1 / 1.3));
  }
  const auto found = calibrate_device(listed, m.operators, m.seconds);
  INFO(found.error_unseen[0], " ", found.error_unseen[1], " ", found.error_unseen[2]);
  CHECK(found.depth == calibration_depth::none);
  CHECK(found.device == listed);
}

TEST_CASE("calibrate: as much is taken as foretells unseen operators best, surely") {
  detail::unseen_errors errors;
  const auto add = [&](double as_listed, const std::array<double, 9>& of) {
    for (std::size_t c = 0; c < errors.size(); ++c) errors[c].push_back(c == 0 ? as_listed : of[c]);
  };
  // Half of the factors is best by far, though all of the residuals gains more by one operator.
  for (int i = 0; i < 10; ++i) add(0.5, {0, 0.4, 0.2, 0.3, 0.45, 0.5, 0.5, 0.5, i == 0 ? 0.0 : 0.5});
  auto taken = detail::best_taken(errors);
  CHECK(taken.depth == calibration_depth::factors);
  CHECK(taken.share == 0.5);
  errors = {};
  for (int i = 0; i < 10; ++i) {  // gains and losses that about even out
    const double x = i % 2 == 0 ? 0.0 : 0.97;
    add(0.5, {0, x, x, x, x, x, x, x, x});
  }
  CHECK(detail::best_taken(errors).depth == calibration_depth::none);

  device_calibration c{.lane_rate = 4, .matrix_rate = 0.25, .memory_bandwidth = 1, .l2_bandwidth = 9, .launch_s = 8e-6};
  c.residuals = {{.kernel = 0, .at = {}, .weight = 2}};
  const auto half = detail::share_of(c, 0.5);
  CHECK(half.lane_rate == doctest::Approx(2));
  CHECK(half.matrix_rate == doctest::Approx(0.5));
  CHECK(half.memory_bandwidth == 1);
  CHECK(half.l2_bandwidth == doctest::Approx(3));
  CHECK(half.launch_s == doctest::Approx(4e-6));
  CHECK(half.residuals[0].weight == 1);
}
