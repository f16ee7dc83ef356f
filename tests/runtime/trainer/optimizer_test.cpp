// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/trainer/optimizer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/trainer/detail/gradient_norm.hpp>

#include "../dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

static_assert(optimizer<sgd, matrix<float>>);
static_assert(optimizer<adamw, matrix<double>>);
static_assert(!optimizer<int, matrix<double>>);

namespace {

/// The least that an optimizer needs.
struct own_optimizer {
  static std::string_view name() { return "own"; }
  static std::array<std::string_view, 0> state_names() { return {}; }
  void update(matrix<double>&, const matrix<double>&, std::span<matrix<double>>, const parameter_id&, std::int64_t) {}
};
static_assert(optimizer<own_optimizer, matrix<double>>);
static_assert(!optimizer<own_optimizer, matrix<float>>);
struct without_update {
  static std::string_view name() { return "own"; }
  static std::array<std::string_view, 0> state_names() { return {}; }
};
static_assert(!optimizer<without_update, matrix<double>>);

/// One element under gradients of the caller's; the values after each update.
template <class Real, class Optimizer, class Gradient>
std::vector<double> path(const Optimizer& o, double start, int updates, Gradient gradient) {
  matrix<Real> p(1, 1), g(1, 1);
  p(0, 0) = static_cast<Real>(start);
  std::vector<matrix<Real>> state(o.state_names().size(), matrix<Real>(1, 1));
  std::vector<double> values;
  for (int n = 1; n <= updates; ++n) {
    g(0, 0) = static_cast<Real>(gradient(n, static_cast<double>(p(0, 0))));
    o.update(p, g, std::span<matrix<Real>>(state), {}, n);
    values.push_back(static_cast<double>(p(0, 0)));
  }
  return values;
}

}  // namespace

TEST_CASE("SGD in closed form") {
  const auto constant = [](int, double) { return 2.0; };
  // No momentum: a line. Decay alone: a geometric sequence.
  const auto line = path<double>(sgd{.learning_rate = 0.1}, 1, 20, constant);
  const auto decay = path<double>(sgd{.learning_rate = 0.1, .weight_decay = 0.5}, 3, 20, [](int, double) { return 0.0; });
  // Momentum and a constant gradient: v_n = g (1 - mu^n) / (1 - mu), so p moves by lr g / (1 - mu) (n - mu (1 - mu^n) / (1 -
  // mu)).
  const double mu = 0.9;
  const auto heavy = path<double>(sgd{.learning_rate = 0.1, .momentum = mu}, 1, 20, constant);
  // Nesterov looks one step ahead: every step is that of the velocity after the next.
  const auto nesterov = path<double>(sgd{.learning_rate = 0.1, .momentum = mu, .nesterov = true}, 1, 20, constant);
  const auto travelled = [&](int n) { return 0.2 / (1 - mu) * (n - mu * (1 - std::pow(mu, n)) / (1 - mu)); };
  for (int n = 1; n <= 20; ++n) {
    CAPTURE(n);
    const auto k = static_cast<std::size_t>(n) - 1;
    CHECK(line[k] == doctest::Approx(1 - 0.2 * n));
    CHECK(decay[k] == doctest::Approx(3 * std::pow(0.95, n)));
    CHECK(heavy[k] == doctest::Approx(1 - travelled(n)));
    CHECK(nesterov[k] == doctest::Approx(1 - (travelled(n + 1) - travelled(1))));
  }
}

TEST_CASE("SGD with momentum and decay on a quadratic follows its recurrence") {
  // p' = h p as gradient: p and v obey a linear recurrence of two terms, p_{n+1} = (1 + mu - lr (h + decay)) p_n - mu p_{n-1}.
  const double h = 0.7, rate = 0.05, mu = 0.8, decay = 0.1;
  const auto got = path<double>(sgd{.learning_rate = rate, .momentum = mu, .weight_decay = decay}, 2, 50,
                                [&](int, double p) { return h * p; });
  double before = 2, now = 2 - rate * (h + decay) * 2;
  for (std::size_t k = 0; k < got.size(); ++k) {
    CHECK(got[k] == doctest::Approx(now).epsilon(1e-12));
    const double next = (1 + mu - rate * (h + decay)) * now - mu * before;
    before = now;
    now = next;
  }
}

TEST_CASE("AdamW: a constant gradient gives equal steps, and decay is apart from them") {
  // Unbiased moments of a constant gradient are g and g^2, whatever the betas.
  for (const double g : {1e-3, 1.0, -40.0})
    for (const double beta1 : {0.0, 0.9})
      for (const double beta2 : {0.5, 0.999}) {
        const adamw o{.learning_rate = 0.01, .beta1 = beta1, .beta2 = beta2, .epsilon = 1e-4, .weight_decay = 0};
        const auto got = path<double>(o, 1, 30, [&](int, double) { return g; });
        for (int n = 1; n <= 30; ++n)
          CHECK(got[static_cast<std::size_t>(n) - 1] == doctest::Approx(1 - n * 0.01 * g / (std::abs(g) + 1e-4)).epsilon(1e-11));
      }
  const auto decayed = path<double>(adamw{.learning_rate = 0.1, .weight_decay = 0.2}, 5, 30, [](int, double) { return 0.0; });
  for (int n = 1; n <= 30; ++n) CHECK(decayed[static_cast<std::size_t>(n) - 1] == doctest::Approx(5 * std::pow(0.98, n)));
}

TEST_CASE("parameter groups: some parameters have other settings") {
  const adamw plain{.learning_rate = 0.1, .weight_decay = 0.2}, without{.learning_rate = 0.1, .weight_decay = 0};
  const auto gradient = [](int n, double p) { return p + n; };
  const auto rule = [](adamw& own, const parameter_id& which) {
    if (which.number == 0) own.weight_decay = 0;
  };
  static_assert(optimizer<parameter_groups<adamw>, matrix<double>>);
  CHECK((path<double>(parameter_groups<adamw>{plain, rule}, 3, 20, gradient) == path<double>(without, 3, 20, gradient)));
  const auto for_others = [](adamw& own, const parameter_id& which) {
    if (which.number == 1) own.weight_decay = 0;
  };
  CHECK((path<double>(parameter_groups<adamw>{plain, for_others}, 3, 20, gradient) == path<double>(plain, 3, 20, gradient)));
  CHECK((parameter_groups<adamw>{plain, rule}.settings() == plain.settings()));
}

TEST_CASE("AdamW against moments written out as sums") {
  random_source random(1);
  for (int run = 0; run < 50; ++run) {
    CAPTURE(run);
    const adamw o{.learning_rate = random.uniform(1e-3, 0.1),
                  .beta1 = random.uniform(0, 0.95),
                  .beta2 = random.uniform(0.5, 0.999),
                  .epsilon = 1e-8,
                  .weight_decay = random.uniform(0, 0.5)};
    constexpr int updates = 12;
    std::vector<double> g;
    for (int n = 0; n < updates; ++n) g.push_back(random.uniform(-2, 2));
    std::vector<double> expected;
    double p = 1.5;
    for (int n = 1; n <= updates; ++n) {
      double first = 0, second = 0, weight1 = 0, weight2 = 0;  // weighted means of what was seen
      for (int i = 1; i <= n; ++i) {
        const double w1 = std::pow(o.beta1, n - i), w2 = std::pow(o.beta2, n - i), x = g[static_cast<std::size_t>(i) - 1];
        first += w1 * x;
        second += w2 * x * x;
        weight1 += w1;
        weight2 += w2;
      }
      p = p - o.learning_rate * o.weight_decay * p -
          o.learning_rate * (first / weight1) / (std::sqrt(second / weight2) + o.epsilon);
      expected.push_back(p);
    }
    const auto gradient = [&](int n, double) { return g[static_cast<std::size_t>(n) - 1]; };
    const auto got = path<double>(o, 1.5, updates, gradient), narrow = path<float>(o, 1.5, updates, gradient);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CHECK(got[k] == doctest::Approx(expected[k]).epsilon(1e-11));
      CHECK(narrow[k] == doctest::Approx(expected[k]).epsilon(1e-4));
    }
  }
}

TEST_CASE("every element is updated for itself") {
  random_source random(2);
  for (const bool heavy : {false, true}) {
    const sgd o{.learning_rate = 0.3, .momentum = heavy ? 0.5 : 0.0, .weight_decay = 0.1};
    auto p = random_matrix<double>(random, 3, 5), g = random_matrix<double>(random, 3, 5);
    std::vector<matrix<double>> state(o.state_names().size(), random_matrix<double>(random, 3, 5));
    const auto p0 = p, v0 = state.empty() ? matrix<double>(3, 5) : state[0];
    o.update(p, g, std::span<matrix<double>>(state), {}, 1);
    for (std::size_t k = 0; k < 15; ++k) {
      const double v = o.momentum * v0.data()[k] + g.data()[k] + 0.1 * p0.data()[k];
      CHECK(p.data()[k] == doctest::Approx(p0.data()[k] - 0.3 * v).epsilon(1e-14));
    }
  }
}

TEST_CASE("powers and norms") {
  for (const double base : {0.0, 0.9, 0.999, 1.0})
    for (const std::int64_t n : {0, 1, 2, 7, 1000, 123456})
      CHECK(detail::power(base, n) == doctest::Approx(std::pow(base, static_cast<double>(n))).epsilon(1e-12));
}

TEST_CASE("squares add up to the same bits in any groups and order") {
  const auto value_of = [](const std::vector<float>& all, random_source* cuts) {
    std::vector<detail::square_sum> sums(1);
    for (std::size_t i = 0; i < all.size();) {
      const auto n = std::min(all.size() - i, cuts ? static_cast<std::size_t>(cuts->integer(1, 400)) : all.size());
      if (cuts && cuts->integer(0, 1) == 0) sums.emplace_back();
      sums.back().add(all.data() + i, n);
      i += n;
    }
    detail::square_sum whole;
    for (const auto& s : sums) {
      std::vector<double> told;
      s.append(told);
      whole.add(detail::square_sum::read(std::span(std::as_const(told)).first<detail::square_sum::told>()));
    }
    return whole.value();
  };
  random_source random(3);
  for (int run = 0; run < 500; ++run) {
    CAPTURE(run);
    std::vector<float> all(static_cast<std::size_t>(random.integer(1, 1500)));
    for (auto& x : all)
      x = static_cast<float>(std::ldexp(random.uniform(-1, 1), random.integer(-60, 60) / (run % 3 == 0 ? 8 : 1)));
    long double sum = 0;
    for (const float x : all) sum += static_cast<long double>(x) * static_cast<long double>(x);
    const double found = value_of(all, nullptr);
    CHECK(found == doctest::Approx(static_cast<double>(sum)).epsilon(1e-14));
    CHECK(value_of(all, &random) == found);
    std::sort(all.begin(), all.end());
    CHECK(value_of(all, &random) == found);
  }
  for (const double size : {1e-130, 1e-30, 1.0, 1e30, 1e120}) {
    detail::square_sum sum;
    for (int k = 0; k < 5; ++k) sum.add(&size, 1);
    CHECK(sum.value() == doctest::Approx(5 * size * size).epsilon(1e-14));
  }
  for (const double wrong : {std::nan(""), static_cast<double>(INFINITY), 1e200}) {
    std::vector<double> all(600, 1.0);
    all[300] = wrong;
    detail::square_sum sum, whole;
    sum.add(all.data(), all.size());
    CHECK_FALSE(std::isfinite(sum.value()));
    whole.add(sum);
    CHECK_FALSE(std::isfinite(whole.value()));
  }
  CHECK(detail::square_sum().value() == 0);
}
