// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>

#include "../dense.hpp"

using namespace hetsched;

namespace {

using tensor = test::matrix<float>;

void spin(double seconds) {
  for (const double end_s = steady_now_s() + seconds; steady_now_s() < end_s;) {
  }
}

struct calls {
  int made = 0, forward = 0, backward = 0;
  std::string order = {};
};

/// Takes at least so long; puts out a row of `width` numbers.
struct slow_layer {
  struct context {};
  tensor forward(const tensor& x, context&) {
    CHECK(x.columns() == in);
    ++count->forward;
    count->order += 'f' + std::to_string(number);
    spin(forward_s);
    return tensor(1, width);
  }
  tensor backward(const tensor& dy, context&) {
    CHECK(dy.columns() == width);
    ++count->backward;
    count->order += 'b' + std::to_string(number);
    spin(backward_s);
    return tensor(1, in);
  }
  std::vector<tensor>& parameters() { return weights; }
  std::vector<tensor>& gradients() { return sums; }
  std::size_t in, width;
  double forward_s, backward_s;
  calls* count;
  std::vector<tensor> weights, sums;
  int number = 0;
};

}  // namespace

TEST_CASE("quartiles are those of the sorted measurements") {
  CHECK(median_and_spread({}) == measured_time{0, 0});
  CHECK(median_and_spread({3}) == measured_time{3, 0});
  CHECK(median_and_spread({4, 1}) == measured_time{2.5, 1.5});
  CHECK(median_and_spread({5, 1, 4, 2, 3}) == measured_time{3, 2});
  CHECK(median_and_spread({1, 1, 1, 1, 1, 1, 1, 100}) == measured_time{1, 0});  // one that was disturbed does not count
}

TEST_CASE("layers take at least the time that they are known to take, and equal ones are timed together") {
  // a b b b c: the widths of what they put out tell who got whose output.
  const std::vector<std::string> kinds{"a", "b", "b", "b", "c"};
  const std::map<std::string, std::array<double, 2>> seconds{{"a", {1e-3, 2e-3}}, {"b", {2e-3, 4e-3}}, {"c", {0, 1e-3}}};
  std::map<std::string, calls> count;
  std::vector<int> announced;
  int losses = 0;
  const profile_options options{.warmup = 1, .repeats = 3, .before_layer = [&](int layer) { announced.push_back(layer); }};
  const auto found = profile_layers(
      {0, 5}, tensor(1, 2),
      [&](int layer) {
        const auto& kind = kinds[static_cast<std::size_t>(layer)];
        ++count[kind].made;
        const std::size_t in = layer == 0 ? 2 : 8, out = layer == 4 ? 5 : 8;
        return slow_layer{in, out, seconds.at(kind)[0], seconds.at(kind)[1], &count[kind], {tensor(in, out), tensor(1, out)}, {}};
      },
      [&](int layer) { return kinds[static_cast<std::size_t>(layer)]; },
      [&](const tensor& output) {
        ++losses;
        spin(3e-3);
        return loss_value<tensor>{0, output};
      },
      options);
  REQUIRE(found.size() == 5);
  for (std::size_t l = 0; l < 5; ++l) {
    CAPTURE(l);
    const auto& known = seconds.at(kinds[l]);
    CHECK(found[l].forward.median_s >= known[0] + (l == 4 ? 3e-3 : 0));
    CHECK(found[l].backward.median_s >= known[1]);
    CHECK(found[l].forward.spread_s >= 0);
    const bytes_t in = l == 0 ? 2 : 8, out = l == 4 ? 5 : 8;
    CHECK(found[l].output_bytes == 4 * out);
    CHECK(found[l].parameter_bytes == 4 * (in * out + out));
  }
  CHECK(found[1] == found[2]);
  CHECK(found[1] == found[3]);
  CHECK(announced == std::vector<int>{0, 1, 4});
  CHECK(losses == 4);
  for (const auto& [kind, c] : count) {
    CAPTURE(kind);
    CHECK(c.made == (kind == "b" ? 3 : 1));
    CHECK(c.forward == 4 * c.made);
    CHECK(c.backward == 4 * c.made);
  }
}

TEST_CASE("microbatches go through all layers and back, a few of each kind") {
  calls count;
  const auto found = profile_layers(
      {0, 8}, tensor(1, 3),
      [&](int layer) {
        ++count.made;
        return slow_layer{3, 3, 0, 0, &count, {}, {}, layer};
      },
      [](int layer) { return layer < 2; },
      [](const tensor& output) {
        return loss_value<tensor>{0, output};
      },
      {.warmup = 1, .repeats = 1, .copies = 3});
  CHECK(found.size() == 8);
  CHECK(count.made == 6);  // both of one kind, three of the five of the other, the last one with the loss
  const std::string there_and_back = "f0f1f2f3f4f7b7b4b3b2b1b0";
  CHECK(count.order == there_and_back + there_and_back);
}

TEST_CASE("a profile of part of a model, and of layers that are all different") {
  std::map<int, calls> count;
  const auto found = profile_layers(
      {2, 4}, tensor(1, 3), [&](int layer) { return slow_layer{3, 3, 0, 0, &count[layer], {}, {}}; },
      [](int layer) { return layer; },
      [](const tensor& output) {
        return loss_value<tensor>{0, output};
      },
      {.warmup = 0, .repeats = 2});
  CHECK(found.size() == 2);
  CHECK(count.size() == 2);
  CHECK(count[2].forward == 2);
  CHECK(count[3].backward == 2);
  const auto make = [&](int) { return slow_layer{3, 3, 0, 0, &count[0], {}, {}}; };
  const auto loss = [](const tensor& output) { return loss_value<tensor>{0, output}; };
  const auto kind = [](int) { return 0; };
  CHECK_THROWS_AS((void)profile_layers({2, 2}, tensor(1, 3), make, kind, loss), input_error);
  CHECK_THROWS_AS((void)profile_layers({2, 3}, tensor(1, 3), make, kind, loss, {.repeats = 0}), input_error);
  CHECK_THROWS_AS((void)profile_layers({2, 3}, tensor(1, 3), make, kind, loss, {.copies = 0}), input_error);
}
