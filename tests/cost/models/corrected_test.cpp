// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cost/models/analytic.hpp>
#include <hetsched/cost/models/corrected.hpp>
#include <hetsched/model/families.hpp>

using namespace hetsched;

namespace {

const transformer model = gpt({.layers = 4, .hidden = 1024, .heads = 16});

cluster hardware() {
  return {{{"old", catalogue_device("V100-SXM2-16GB"), 1, 8, {5e-6, 100e9}, {}},
           {"new", catalogue_device("A100-SXM4-80GB"), 1, 8, {5e-6, 200e9}, {}}},
          {}};
}

analytic_cost_model base(int samples) { return {hardware(), make_chain(model), {.microbatch_size = samples}}; }

// What really happens: tensor parallelism costs more than the model says, large microbatches less, backward more than forward.
double law(const degrees& d, int samples, bool backward) {
  return (backward ? 1.5 : 0.8) * (d.tensor > 1 ? 1.3 : 1) * (samples / d.data >= 4 ? 0.7 : 1);
}

profile measured(int samples, const std::vector<degrees>& shapes, const std::string& device) {
  const auto model_of_it = base(samples);
  const int subcluster = device == "V100-SXM2-16GB" ? 0 : 1;
  profile p;
  p.layers.resize(static_cast<std::size_t>(model_of_it.layer_count()));
  for (const auto& d : shapes) {
    const int devices = d.data * d.tensor;
    profile_entry e{.device = device, .devices = devices, .degrees = d};
    for (int l = 0; l < model_of_it.layer_count(); ++l) {
      const auto cost = model_of_it.layer(l, {{subcluster, 1, devices}, d});
      e.forward_s.push_back(cost.forward_s * law(d, samples, false));
      e.backward_s.push_back(cost.backward_s * law(d, samples, true));
      e.weight_bytes.push_back(1);
      e.activation_bytes.push_back(1);
    }
    p.entries.push_back(e);
  }
  return p;
}

const std::vector<degrees> few{{1, 1, 1}, {1, 1, 2}, {2, 1, 1}};

layer_correction learned() {
  std::vector<layer_sample> samples;
  for (const int size : {2, 4, 8, 16}) {
    const auto some = layer_samples(base(size), hardware(), {model, size}, measured(size, few, "V100-SXM2-16GB"));
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return layer_correction::train(samples, {.trees = 50, .features_per_split = 8, .least_leaf_rows = 1});
}

static_assert(additive_cost_model<corrected_cost_model<analytic_cost_model>>);

}  // namespace

TEST_CASE("layers of a profile stand beside what the model says of them") {
  const auto p = measured(4, few, "V100-SXM2-16GB");
  const auto samples = layer_samples(base(4), hardware(), {model, 4}, p);
  REQUIRE(samples.size() == few.size() * 6);
  for (const auto& s : samples) {
    CHECK(s.forward_s > 0);
    const double forward = s.forward_s / s.base_forward_s;
    CHECK(s.backward_s / s.base_backward_s == doctest::Approx(forward * 1.5 / 0.8));
  }
  CHECK(samples[0].features != samples[1].features);  // embedding and block
  CHECK(samples[1].features == samples[2].features);  // block and block
  CHECK(samples[4].features != samples[5].features);  // block and head
  CHECK_THROWS_AS((void)layer_samples(base(4), hardware(), {model, 4}, profile{.layers = {{}, {}}}), input_error);
}

TEST_CASE("a part of a profile corrects degrees, sizes and devices that it lacks") {
  const auto correction = learned();
  for (const int size : {2, 16}) {
    const corrected_cost_model corrected(base(size), hardware(), {model, size}, correction);
    const auto plain = base(size);
    for (const int subcluster : {0, 1})
      for (const auto& d : {degrees{1, 1, 4}, degrees{1, 1, 8}, degrees{2, 1, 2}}) {
        const placement where{{subcluster, 1, d.data * d.tensor}, d};
        for (const int l : {1, 3}) {
          CAPTURE(size);
          CAPTURE(subcluster);
          CAPTURE(d.tensor);
          const auto cost = corrected.layer(l, where), before = plain.layer(l, where);
          CHECK(std::abs(cost.forward_s / before.forward_s / law(d, size, false) - 1) < 0.1);
          CHECK(std::abs(cost.backward_s / before.backward_s / law(d, size, true) - 1) < 0.1);
          CHECK(cost.weight_backward_s / cost.backward_s == doctest::Approx(before.weight_backward_s / before.backward_s));
          CHECK(cost.weight_bytes == before.weight_bytes);
          CHECK(cost.activation_bytes == before.activation_bytes);
        }
        const auto stage = corrected.stage({1, 4}, where);
        CHECK(stage.forward_s == doctest::Approx(3 * corrected.layer(2, where).forward_s).scale(0));
        CHECK(corrected.update({0, 6}, where) == plain.update({0, 6}, where));
        CHECK(corrected.transfer(1, where, where) == plain.transfer(1, where, where));
        CHECK(corrected.placements(where.mesh) == plain.placements(where.mesh));
      }
  }
}

TEST_CASE("what was measured is taken as it is, and nothing else") {
  auto p = measured(4, few, "A100-SXM4-80GB");
  for (auto& e : p.entries) e.forward_s[2] = 123, e.backward_s[2] = 456;
  const corrected_cost_model exact(base(4), hardware(), {model, 4}, learned(), p);
  const corrected_cost_model rough(base(4), hardware(), {model, 4}, learned());
  const placement known{{1, 1, 2}, {1, 1, 2}}, other{{1, 1, 4}, {1, 1, 4}}, elsewhere{{0, 1, 2}, {1, 1, 2}};
  CHECK(exact.layer(2, known).forward_s == 123);
  CHECK(exact.layer(2, known).backward_s == 456);
  CHECK(exact.layer(2, known).weight_bytes == base(4).layer(2, known).weight_bytes);
  for (const auto& where : {other, elsewhere}) CHECK(exact.layer(2, where) == rough.layer(2, where));
  CHECK_THROWS_AS((void)layer_samples(base(4), hardware(), {}, p), input_error);
  CHECK_THROWS_AS((void)layer_samples(base(4), hardware(), {model, 0}, p), input_error);
  p.layers.pop_back();
  CHECK_THROWS_AS(corrected_cost_model(base(4), hardware(), {model, 4}, learned(), p), input_error);
}

TEST_CASE("a layer correction as text, without samples, and with senseless ones") {
  const auto correction = learned();
  CHECK(layer_correction::read(correction.text()) == correction);
  CHECK(layer_correction::read(layer_correction().text()) == layer_correction());
  const auto text = correction.text();
  for (const std::size_t length : {std::size_t{0}, std::size_t{10}, std::size_t{30}, text.size() / 2, text.size() - 3})
    CHECK_THROWS_AS((void)layer_correction::read(text.substr(0, length)), input_error);

  const placement where{{0, 1, 2}, {1, 1, 2}};
  CHECK(corrected_cost_model(base(4), hardware(), {model, 4}, {}).layer(1, where) == base(4).layer(1, where));
  using list = std::vector<layer_sample>;
  CHECK_THROWS_AS((void)layer_correction::train(list{}), input_error);
  CHECK_THROWS_AS((void)layer_correction::train(list{{{}, 1, -1, 1, 1}}), input_error);
  CHECK_THROWS_AS((void)layer_correction::train(list{{{}, 1, 0, 1, 0}}), input_error);
  // One direction alone is learned, the other stays.
  const auto half = layer_correction::train(list{{{}, 1, 2, 1, 0}});
  CHECK(half.forward({}) == doctest::Approx(2));
  CHECK(half.backward({}) == 1);
}
