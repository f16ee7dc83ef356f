// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/layer/check_layer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

#include "../breaches.hpp"
#include "../dense.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

/// y = tanh(x w) + b, element by element, with whatever mistake it is told to make.
template <class Real = double>
class planted_layer {
 public:
  using tensor = matrix<Real>;
  struct context {
    const tensor* input = nullptr;
    tensor kept;  ///< tanh(x w)
    const Real* output = nullptr;
    bool used = false;
  };
  static constexpr layer_mistake none{255};

  explicit planted_layer(layer_mistake m = none) : mistake_(m) {
    random_source random(3);
    for (int n = 0; n < 2; ++n) {
      values_.push_back(random_matrix<Real>(random, 2, 3));
      sums_.emplace_back(2, 3);
    }
    other_sums_ = sums_;
    if (m == layer_mistake::gradient_shape) sums_[1] = tensor(3, 2);
  }

  tensor forward(const tensor& x, context& c) {
    c.input = &x;
    tensor y(2, 3), t(2, 3);
    for (std::size_t k = 0; k < 6; ++k) {
      t.data()[k] = std::tanh(x.data()[k] * values_[0].data()[k]);
      y.data()[k] = t.data()[k] + values_[1].data()[k];
    }
    if (has(layer_mistake::contexts_share)) shared_ = t;
    if (!has(layer_mistake::context_used_once) || !std::exchange(c.used, true)) c.kept = t;
    if (has(layer_mistake::forward_differs)) y(0, 1) += static_cast<Real>(0.01) * static_cast<Real>(++forwards_);
    if (has(layer_mistake::not_finite)) y(1, 2) = std::numeric_limits<Real>::infinity();
    if (has(layer_mistake::output_shape)) return tensor(2, 4);
    c.output = y.data();
    return y;
  }
  tensor backward_input(const tensor& dy, context& c) {
    if (has(layer_mistake::throws)) throw std::runtime_error("no more");
    if (has(layer_mistake::given_changed)) const_cast<tensor&> (*c.input)(1, 0) = 4;
    if (has(layer_mistake::parameter_changed)) values_[1](0, 2) += 1;
    if (has(layer_mistake::input_gradient_shape)) return tensor(3, 2);
    tensor dx(2, 3);
    for (std::size_t k = 0; k < 6; ++k)
      dx.data()[k] = slope(dy, c, k) * (has(layer_mistake::wrong_input_gradient) ? 1 : values_[0].data()[k]);
    return dx;
  }
  void backward_weight(const tensor& dy, context& c) {
    for (std::size_t k = 0; k < 6; ++k) {
      sums_[0].data()[k] += slope(dy, c, k) * c.input->data()[k];
      if (k == 0 && has(layer_mistake::halves_differ)) sums_[0](0, 0) += dy(0, 0);
      auto& sum = sums_[1].data()[k];
      if (has(layer_mistake::gradient_overwritten)) sum = 0;
      sum += dy.data()[k] * (has(layer_mistake::wrong_parameter_gradient) ? static_cast<Real>(1.5) : 1);
    }
  }
  tensor backward(const tensor& dy, context& c) {
    auto dx = backward_input(dy, c);
    backward_weight(dy, c);
    if (has(layer_mistake::halves_differ)) sums_[0](0, 0) -= dy(0, 0);  // what the half alone adds too much
    return dx;
  }
  std::vector<tensor>& parameters() { return values_; }
  std::vector<tensor>& gradients() { return has(layer_mistake::parameters_move) && ++calls_ % 2 == 0 ? other_sums_ : sums_; }

 private:
  [[nodiscard]] bool has(layer_mistake m) const { return mistake_ == m; }
  [[nodiscard]] Real slope(const tensor& dy, const context& c, std::size_t k) const {
    const Real t = has(layer_mistake::contexts_share) ? shared_.data()[k]
                   : has(layer_mistake::output_kept)  ? c.output[k] - values_[1].data()[k]
                                                      : c.kept.data()[k];
    return dy.data()[k] * (1 - t * t);
  }
  layer_mistake mistake_;
  int forwards_ = 0, calls_ = 0;
  std::vector<tensor> values_, sums_, other_sums_;
  tensor shared_;
};

/// Hands out references to its own members that it made when it was made: they stay behind when it is moved.
struct layer_that_refers_to_itself {
  struct context {};
  layer_that_refers_to_itself() : parameter(2, 3), sum(2, 3), parameters_{parameter}, sums_{sum} {}
  matrix<double> forward(const matrix<double>& x, context&) { return x; }
  matrix<double> backward(const matrix<double>& dy, context&) { return dy; }
  std::vector<std::reference_wrapper<matrix<double>>>& parameters() { return parameters_; }
  std::vector<std::reference_wrapper<matrix<double>>>& gradients() { return sums_; }
  matrix<double> parameter, sum;
  std::vector<std::reference_wrapper<matrix<double>>> parameters_, sums_;
};

/// What was found: the mistake, once for each place.
void check_found(const layer_report& report, layer_mistake what, const std::string& where) {
  CAPTURE(report.text());
  REQUIRE_FALSE(report.ok());
  CHECK(report.findings[0].where == where);
  for (const auto& f : report.findings) CHECK(f.what == what);
}

}  // namespace

TEST_CASE("each mistake is found, and is told as the one that it is") {
  const std::vector<std::pair<layer_mistake, std::string>> planted{{layer_mistake::throws, "backward"},
                                                                   {layer_mistake::parameters_move, "gradient 0"},
                                                                   {layer_mistake::gradient_shape, "gradient 1"},
                                                                   {layer_mistake::output_shape, "the output"},
                                                                   {layer_mistake::input_gradient_shape, "the input's gradient"},
                                                                   {layer_mistake::given_changed, "the input"},
                                                                   {layer_mistake::parameter_changed, "parameter 1"},
                                                                   {layer_mistake::not_finite, "the output"},
                                                                   {layer_mistake::forward_differs, "the output"},
                                                                   {layer_mistake::output_kept, "the input's gradient"},
                                                                   {layer_mistake::gradient_overwritten, "gradient 1"},
                                                                   {layer_mistake::contexts_share, "the input's gradient"},
                                                                   {layer_mistake::context_used_once, "the input's gradient"},
                                                                   {layer_mistake::halves_differ, "gradient 0"},
                                                                   {layer_mistake::wrong_input_gradient, "the input's gradient"},
                                                                   {layer_mistake::wrong_parameter_gradient, "gradient 1"}};
  for (const auto& [what, where] : planted) {
    CAPTURE(static_cast<int>(what));
    check_found(check_layer<matrix<double>>(planted_layer<double>(what), {2, 3}, {.output = {2, 3}}), what, where);
    check_found(check_layer<matrix<float>>(planted_layer<float>(what), {2, 3}, {.output = {2, 3}}), what, where);
    // Inside of others, too.
    using stage = layer_list<matrix<double>, planted_layer<double>>;
    check_found(check_layer<matrix<double>>(any_layer<matrix<double>>(planted_layer<double>(what)), {2, 3}, {.output = {2, 3}}),
                what, where);
    CHECK_FALSE(check_layer<matrix<double>>(stage({planted_layer<double>(), planted_layer<double>(what)}), {2, 3}).ok());
  }
  check_found(check_layer<matrix<double>>(layer_that_refers_to_itself(), {2, 3}), layer_mistake::parameters_move,
              "parameters() and gradients()");
  check_found(check_layer<view_tensor>(breaching_layer(breach::strided_output, 2), {2, 2}), layer_mistake::not_contiguous,
              "the output");
  check_found(check_layer<view_tensor>(breaching_layer(breach::strided_input_gradient, 2), {2, 2}), layer_mistake::not_contiguous,
              "the input's gradient");
  check_found(check_layer<view_tensor>(breaching_layer(breach::strided_gradient, 2), {2, 2}), layer_mistake::not_contiguous,
              "gradient 0");
  check_found(check_layer<view_tensor>(breaching_layer(breach::strided_parameter, 2), {2, 2}), layer_mistake::not_contiguous,
              "parameter 0");
}

TEST_CASE("findings say what was expected, and what there was") {
  const auto text = [](layer_mistake what) {
    return check_layer<matrix<double>>(planted_layer<double>(what), {2, 3}, {.output = {2, 3}}).text();
  };
  CHECK(text(layer_mistake::throws) == "backward throws: expected no exception, got no more\n");
  CHECK(text(layer_mistake::output_shape) == "the output has another shape than was told: expected 2 x 3, got 2 x 4\n");
  CHECK(text(layer_mistake::gradient_shape) ==
        "gradient 1 does not fit the parameters, of which each needs a gradient of its shape: expected 2 x 3, got 3 x 2\n");
  const auto overwritten = check_layer<matrix<double>>(planted_layer<double>(layer_mistake::gradient_overwritten), {2, 3});
  REQUIRE(overwritten.findings.size() == 1);
  CHECK(overwritten.findings[0].got.ends_with(" at element 0"));
  CHECK(overwritten.text().starts_with("gradient 1 is not added to what was there: backward overwrites it: expected "));
}

TEST_CASE("layers without mistakes pass, alone and in stages") {
  random_source random(5);
  const auto passes = [](const layer_report& report) {
    CAPTURE(report.text());
    CHECK(report.ok());
    CHECK(report.text().empty());
  };
  passes(check_layer<matrix<double>>(planted_layer<double>(), {2, 3}, {.output = {2, 3}}));
  passes(check_layer<matrix<float>>(planted_layer<float>(), {2, 3}, {.output = {2, 3}}));
  passes(check_layer<matrix<double>>(linear<double>(4, 3, random), {5, 4}, {.output = {5, 3}}));
  passes(check_layer<matrix<double>>(activation<double>(), {5, 4}));
  passes(check_layer<view_tensor>(breaching_layer(breach::none, 2), {2, 2}));
  for (const bool recomputes : {false, true}) {
    std::vector<any_layer<matrix<double>>> layers;
    layers.emplace_back(linear<double>(4, 3, random));
    layers.emplace_back(activation<double>());
    layers.emplace_back(linear<double>(3, 6, random));
    passes(check_layer<matrix<double>>(dense_stage<double>(std::move(layers), {.recomputes = recomputes}), {2, 4}));
  }
  passes(check_layer<matrix<double>>(
      layer_tuple<matrix<double>, linear<double>, activation<double>>(linear<double>(4, 3, random), activation<double>()),
      {2, 4}));
}

namespace {

/// y = max(x, 0), at inputs that a kink is among.
struct rectifier {
  using tensor = matrix<double>;
  struct context {
    const tensor* input = nullptr;
  };
  tensor forward(const tensor& x, context& c) {
    c.input = &x;
    tensor y = x;
    for (std::size_t k = 0; k < 6; ++k) y.data()[k] = std::max(x.data()[k], 0.0);
    return y;
  }
  tensor backward(const tensor& dy, context& c) {
    tensor dx = dy;
    for (std::size_t k = 0; k < 6; ++k) dx.data()[k] = c.input->data()[k] > 0 ? dy.data()[k] : 0;
    return dx;
  }
  std::vector<tensor>& parameters() { return none; }
  std::vector<tensor>& gradients() { return none; }
  std::vector<tensor> none;
};

/// Refuses what is no token, and has no gradient of its input.
struct embedding {
  using tensor = matrix<double>;
  struct context {
    std::vector<std::size_t> tokens;
  };
  tensor forward(const tensor& x, context& c) {
    c.tokens.clear();
    tensor y(x.rows(), 2);
    for (std::size_t i = 0; i < x.rows(); ++i) {
      c.tokens.push_back(static_cast<std::size_t>(x(i, 0)));
      if (c.tokens[i] >= 5 || static_cast<double>(c.tokens[i]) != x(i, 0)) throw input_error("no token");
      for (std::size_t j = 0; j < 2; ++j) y(i, j) = table[0](c.tokens[i], j);
    }
    return y;
  }
  tensor backward(const tensor& dy, context& c) {
    for (std::size_t i = 0; i < dy.rows(); ++i)
      for (std::size_t j = 0; j < 2; ++j) sum[0](c.tokens[i], j) += dy(i, j);
    return {};
  }
  std::vector<tensor>& parameters() { return table; }
  std::vector<tensor>& gradients() { return sum; }
  std::vector<tensor> table{tensor(5, 2)}, sum{tensor(5, 2)};
};

}  // namespace

TEST_CASE("kinks and tokens are no mistakes, if the inputs are told") {
  CHECK(check_layer<matrix<double>>(rectifier(), {2, 3}, {.input_element = [](random_source&) { return 0.0; }}).ok());
  const auto token = [](random_source& random) { return static_cast<double>(random.integer(0, 4)); };
  CHECK(
      check_layer<matrix<double>>(embedding(), {6, 1}, {.output = {6, 2}, .input_gradient = false, .input_element = token}).ok());
  check_found(check_layer<matrix<double>>(embedding(), {6, 1}), layer_mistake::throws, "forward");
  check_found(check_layer<matrix<double>>(embedding(), {6, 1}, {.input_element = token}), layer_mistake::input_gradient_shape,
              "the input's gradient");
}
