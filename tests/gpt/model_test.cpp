// SPDX-License-Identifier: Apache-2.0
#include <gpt/model.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

template <class Real>
std::vector<gpt::tensor<Real>> copies(const gpt::tensor_list<Real>& list) {
  return {list.begin(), list.end()};
}

}  // namespace

TEST_CASE("layers are as many and as large as planners are told") {
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    const auto chain = make_chain(gpt::to_transformer(m, 8));
    REQUIRE(chain.layers.size() == static_cast<std::size_t>(gpt::layer_count(m)));
    std::int64_t all = 0;
    random_source random(1);
    gpt::tensor<double> x = random_tokens<double>(random, 2 * m.sequence, m.vocab);
    for (int l = 0; l < gpt::layer_count(m); ++l) {
      CAPTURE(l);
      auto layer = gpt::make_layer<double>(m, l);
      std::int64_t count = 0;
      for (const gpt::tensor<double>& p : layer.parameters()) count += static_cast<std::int64_t>(p.size());
      const auto& planned = chain.layers[static_cast<std::size_t>(l)];
      CHECK(count == planned.parameters + planned.shared_parameters);
      all += count;
      for (const gpt::tensor<double>& g : layer.gradients()) CHECK(g == gpt::tensor<double>(g.rows(), g.columns()));
      auto context = layer.make_context();
      gpt::tensor<double> y = layer.forward(x, context);
      x = std::move(y);
      CHECK(tensor_shape{x.rows(), x.columns()} == gpt::shape_after(m, l, 2));
    }
    if (m.tied) all -= m.vocab * m.hidden;
    CHECK(all == gpt::parameter_count(m));
  }
  CHECK(gpt::parameter_count({}) == 256 * 64 + 64 * 64 + 4 * (12 * 64 * 64 + 13 * 64) + 2 * 64);
}

TEST_CASE("a layer begins with the same numbers wherever it is made, others with others") {
  for (const auto& m : small_configs()) {
    CAPTURE(m);
    for (int l = 0; l < gpt::layer_count(m); ++l) {
      CAPTURE(l);
      auto one = gpt::make_layer<double>(m, l), again = gpt::make_layer<double>(m, l);
      auto rounded = gpt::make_layer<float>(m, l);
      const auto a = one.parameters(), b = again.parameters();
      const auto c = rounded.parameters();
      for (std::size_t n = 0; n < a.size(); ++n) {
        CHECK(a[n].get() == b[n].get());
        for (std::size_t i = 0; i < c[n].get().size(); ++i)
          CHECK(c[n].get().data()[i] == static_cast<float>(a[n].get().data()[i]));
      }
    }
    auto embedding = gpt::make_layer<float>(m, 0), head = gpt::make_layer<float>(m, m.layers + 1);
    const gpt::tensor<float>&table = embedding.parameters()[0], &scores = head.parameters()[0];
    const auto ties = gpt::ties(m);
    CHECK(ties.size() == (m.tied ? 1 : 0));
    CHECK((table == scores) == m.tied);
    if (m.tied) {
      CHECK(ties[0].first == parameter_id{.layer = 0, .number = 0});
      CHECK(ties[0].second == parameter_id{.layer = m.layers + 1, .number = 0});
    }
    auto other = m;
    other.seed += 1;
    CHECK(copies<float>(gpt::make_layer<float>(other, 0).parameters()) != copies<float>(embedding.parameters()));
    CHECK(copies<float>(gpt::make_layer<float>(m, 1).parameters()) != copies<float>(gpt::make_layer<float>(m, 2).parameters()));
  }
}

TEST_CASE("configs that make no sense are refused by name") {
  const auto message = [](auto change) {
    gpt::config m;
    change(m);
    try {
      (void)gpt::make_layer<float>(m, 1);
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  using gpt::config;
  CHECK(message([](config&) {}) == "accepted");
  CHECK(message([](config& m) { m.layers = 0; }) == "gpt: layers must be between 1 and 10000");
  CHECK(message([](config& m) { m.hidden = 0; }) == "gpt: hidden must be between 1 and 1048576");
  CHECK(message([](config& m) { m.hidden = 66; }) == "gpt: hidden must be divisible by heads");
  CHECK(message([](config& m) { m.heads = 0; }) == "gpt: heads must be between 1 and hidden");
  CHECK(message([](config& m) { m.heads = -4; }) == "gpt: heads must be between 1 and hidden");
  CHECK(message([](config& m) { m.kv_heads = 3; }) == "gpt: heads must be divisible by kv_heads");
  CHECK(message([](config& m) { m.kv_heads = 8; }) == "gpt: kv_heads must be between 0 and heads");
  CHECK(message([](config& m) { m.ffn_hidden = -1; }) == "gpt: ffn_hidden must be between 0 and 4194304");
  CHECK(message([](config& m) { m.sequence = 0; }) == "gpt: sequence must be between 1 and 1048576");
  CHECK(message([](config& m) { m.vocab = 0; }) == "gpt: vocab must be between 1 and 16777216, which floats count exactly");
  CHECK(message([](config& m) {
          m.heads = 64;
          m.positions = gpt::position_kind::rotary;
        }) == "gpt: rotary positions need an even hidden / heads");
  CHECK_THROWS_WITH_AS((void)gpt::make_layer<float>({}, 6), "gpt: layer 6 of 6 does not exist", input_error);
  CHECK_THROWS_AS((void)gpt::make_layer<float>({}, -1), input_error);
  CHECK_THROWS_AS((void)gpt::shape_after({}, 6), input_error);
  CHECK_THROWS_AS((void)gpt::shape_after({}, 0, 0), input_error);
}
