// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <gpt/host_operator.hpp>

using namespace hetsched;

namespace {

using doubles = std::vector<double>;

gpt::host_operator ran(std::string_view name, const operator_sizes& sizes) {
  auto made = gpt::make_host_operator({name, sizes, number_format::fp32});
  made.run();
  return made;
}

doubles wide(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Each of `batch` heads of m queries, n keys and width k.
doubles attention(const operator_sizes& s, const doubles& q, const doubles& key, const doubles& value, bool causal) {
  const auto batch = s.batch, m = s.m, n = s.n, k = s.k;
  doubles out(static_cast<std::size_t>(batch * m * k), 0.0);
  const auto at = [&](std::int64_t row, std::int64_t column) { return static_cast<std::size_t>(row * s.k + column); };
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < m; ++i) {
      doubles share;
      double all = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        double score = 0;
        for (std::int64_t c = 0; c < k; ++c) score += q[at(b * m + i, c)] * key[at(b * n + j, c)];
        const bool seen = !causal || j <= n - m + i;
        share.push_back(seen ? std::exp(score / std::sqrt(static_cast<double>(k))) : 0);
        all += share.back();
      }
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t c = 0; c < k; ++c)
          out[at(b * m + i, c)] += share[static_cast<std::size_t>(j)] / all * value[at(b * n + j, c)];
    }
  return out;
}

void check_close(const doubles& found, const doubles& expected, double within = 2e-5) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(found[i] - expected[i]) <= within * (1 + std::abs(expected[i])));
  }
}

}  // namespace

TEST_CASE("operators that are timed on the host compute what their names say") {
  SUBCASE("products, each of its own operands") {
    const operator_sizes s{3, 4, 5, 6};
    const auto made = ran("bmm", s);
    doubles expected;
    for (std::size_t b = 0; b < 3; ++b)
      for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t j = 0; j < 5; ++j) {
          double sum = 0;
          for (std::size_t c = 0; c < 6; ++c)
            sum += double{made.inputs[0][(b * 4 + i) * 6 + c]} * made.inputs[1][(b * 6 + c) * 5 + j];
          expected.push_back(sum);
        }
    check_close(wide(made.output), expected);
  }
  SUBCASE("attention and its gradient, by finite differences") {
    for (const bool causal : {false, true}) {
      CAPTURE(causal);
      const operator_sizes s{2, 3, 5, 4};
      const std::string name = causal ? "flash_attention_causal" : "flash_attention";
      const auto forward = ran(name, s);
      check_close(wide(forward.output),
                  attention(s, wide(forward.inputs[0]), wide(forward.inputs[1]), wide(forward.inputs[2]), causal));
      const auto backward = ran(name + "_backward", s);
      auto q = wide(backward.inputs[0]);
      const auto loss = [&] {
        const auto out = attention(s, q, wide(backward.inputs[1]), wide(backward.inputs[2]), causal);
        double sum = 0;
        for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * backward.inputs[3][i];
        return sum;
      };
      doubles expected;
      for (auto& x : q) {
        const double was = x, step = 1e-5;
        x = was + step;
        const double above = loss();
        x = was - step;
        expected.push_back((above - loss()) / (2 * step));
        x = was;
      }
      check_close(wide(backward.output), expected);
    }
  }
  SUBCASE("rows by themselves") {
    const operator_sizes s{2, 3, 8, 1};
    for (const std::string name : {"softmax", "layernorm", "rmsnorm"}) {
      CAPTURE(name);
      const auto made = ran(name, s);
      doubles expected;
      for (std::size_t r = 0; r < 6; ++r) {
        const auto row = made.inputs[0].subspan(8 * r, 8);
        double all = 0, mean = 0, square = 0;
        for (const double x : row) all += std::exp(x), mean += x / 8;
        for (const double x : row) square += (name == "layernorm" ? (x - mean) * (x - mean) : x * x) / 8;
        for (const double x : row)
          expected.push_back(name == "softmax" ? std::exp(x) / all
                                               : (name == "layernorm" ? x - mean : x) / std::sqrt(square + 1e-5));
      }
      check_close(wide(made.output), expected);
    }
    double sum = 0;  // of cross-entropy's gradient: shares less one for the target
    for (const float x : ran("cross_entropy", s).output) sum += double{x};
    CHECK(sum == doctest::Approx(0).epsilon(1e-5));
  }
  SUBCASE("elements by themselves") {
    const operator_sizes s{2, 3, 4, 1};
    struct function {
      const char* name;
      double (*of)(double, double);
    };
    const function functions[] = {
        {"elementwise_add", [](double a, double b) { return a + b; }},
        {"elementwise_sub", [](double a, double b) { return a - b; }},
        {"elementwise_mul", [](double a, double b) { return a * b; }},
        {"elementwise_div", [](double a, double b) { return a / b; }},
        {"elementwise_pow", [](double a, double b) { return std::pow(a, b); }},
        {"swiglu", [](double a, double b) { return a / (1 + std::exp(-a)) * b; }},
        {"silu", [](double a, double) { return a / (1 + std::exp(-a)); }},
        {"gelu", [](double a, double) { return a / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a))); }},
        {"relu", [](double a, double) { return std::max(a, 0.0); }},
        {"tanh", [](double a, double) { return std::tanh(a); }},
        {"sigmoid", [](double a, double) { return 1 / (1 + std::exp(-a)); }},
        {"scale", [](double a, double) { return a / 2; }},
        {"copy", [](double a, double) { return a; }}};
    for (const auto& f : functions) {
      CAPTURE(f.name);
      const auto made = ran(f.name, s);
      doubles expected;
      for (std::size_t i = 0; i < made.inputs[0].size(); ++i)
        expected.push_back(f.of(double{made.inputs.front()[i]}, double{made.inputs.back()[i]}));
      check_close(wide(made.output), expected);
    }
  }
  SUBCASE("updates move against the gradient") {
    for (const char* name : {"sgd", "sgd_momentum", "adam"}) {
      CAPTURE(name);
      auto made = gpt::make_host_operator({name, {1, 2, 3, 1}, number_format::fp32});
      const auto before = wide(made.output);
      made.run();
      doubles expected;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const double g = double{made.inputs[0][i]};
        const double step = std::string_view(name) == "adam" ? 0.1 * g / (std::sqrt(0.001 * g * g) + 1e-8) : g;
        expected.push_back(before[i] - 1e-3 * step);
      }
      check_close(wide(made.output), expected);
    }
  }
  SUBCASE("rotary keeps the length of each pair, embedding copies rows") {
    auto turned = gpt::make_host_operator({"rotary", {2, 5, 6, 1}, number_format::fp32});
    const auto before = wide(turned.output);
    turned.run();
    for (std::size_t r = 0; r < 10; ++r)
      for (std::size_t i = 0; i < 3; ++i) {
        const auto x = r * 6 + i, y = x + 3;
        CHECK(std::hypot(turned.output[x], turned.output[y]) == doctest::Approx(std::hypot(before[x], before[y])).epsilon(1e-5));
        if (r % 5 == 4) CHECK(std::abs(turned.output[x] - before[x]) > 1e-5);
      }
    const auto looked_up = ran("embedding", {1, 4, 3, 1});
    const auto table = looked_up.inputs[0];
    for (std::size_t r = 0; r < 4; ++r) {
      bool known = false;
      for (std::size_t t = 0; t < table.size() && !known; t += 3)
        known = std::equal(table.begin() + static_cast<std::ptrdiff_t>(t), table.begin() + static_cast<std::ptrdiff_t>(t) + 3,
                           looked_up.output.begin() + static_cast<std::ptrdiff_t>(3 * r));
      CHECK(known);
    }
  }
  SUBCASE("what the host cannot time is told") {
    CHECK_THROWS_WITH_AS(ran("dropout", {}), "hosts have no kernel for dropout here", input_error);
    CHECK_THROWS_WITH_AS(ran("rotary", {1, 2, 3, 1}), "rotary turns pairs: its width is even", input_error);
    CHECK_THROWS_WITH_AS(ran("copy", {1, 1 << 30, 1 << 30, 1}), "its tensors take more than half of the memory here",
                         input_error);
    CHECK_THROWS_AS((void)gpt::make_host_operator({"copy", {}, number_format::bf16}), input_error);
  }
}
