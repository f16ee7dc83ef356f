// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layer/check_layer.hpp>
#include <hetsched/runtime/layer/detail/layer_probe.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

namespace detail {

HETSCHED_INLINE std::string_view sentence_of(layer_mistake what) {
  switch (what) {
    case layer_mistake::throws:
      return "throws";
    case layer_mistake::parameters_move:
      return "is not the tensor that it was: references to it are kept";
    case layer_mistake::gradient_shape:
      return "does not fit the parameters, of which each needs a gradient of its shape";
    case layer_mistake::not_contiguous:
      return "has elements that are not contiguous";
    case layer_mistake::output_shape:
      return "has another shape than was told";
    case layer_mistake::input_gradient_shape:
      return "has another shape than the input";
    case layer_mistake::given_changed:
      return "is changed, but it is only lent";
    case layer_mistake::parameter_changed:
      return "is changed by forward or backward";
    case layer_mistake::not_finite:
      return "is not finite";
    case layer_mistake::forward_differs:
      return "is another one when forward runs again";
    case layer_mistake::output_kept:
      return "is wrong once the output has been sent away: backward reads it, or what it shares with it";
    case layer_mistake::gradient_overwritten:
      return "is not added to what was there: backward overwrites it";
    case layer_mistake::contexts_share:
      return "is wrong when two microbatches are under way: their contexts share something";
    case layer_mistake::context_used_once:
      return "is wrong when a context is used again for another microbatch";
    case layer_mistake::halves_differ:
      return "of backward_input and backward_weight is not that of backward";
    case layer_mistake::wrong_input_gradient:
      return "does not agree with finite differences";
    case layer_mistake::wrong_parameter_gradient:
      return "does not agree with finite differences";
  }
  return "";
}

/// What the checks of one layer share.
class layer_checker {
 public:
  layer_checker(layer_probe& layer, const check_layer_options& options, double epsilon)
      : layer_(layer),
        options_(options),
        rounding_(1000 * epsilon),
        step_(options.step > 0 ? options.step : std::cbrt(epsilon)),
        tolerance_(options.tolerance > 0 ? options.tolerance : 2000 * std::pow(epsilon, 2.0 / 3)),
        random_(options.seed) {}

  layer_report check(const tensor_shape& shape) {
    try {
      check_places() && make_microbatches(shape) && check_backward() && check_order_of_use() && check_differences();
    } catch (const std::exception& e) {
      add(layer_mistake::throws, doing_, "no exception", e.what());
    } catch (...) {
      add(layer_mistake::throws, doing_, "no exception", "one of unknown type");
    }
    return std::move(report_);
  }

 private:
  /// A microbatch's gradients.
  struct gradients {
    std::vector<double> input;
    std::vector<std::vector<double>> parameters;
  };

  void add(layer_mistake what, std::string where, std::string expected, std::string got) {
    report_.findings.push_back({what, std::move(where), std::move(expected), std::move(got)});
  }
  [[nodiscard]] bool found(layer_mistake what) const {
    return std::any_of(report_.findings.begin(), report_.findings.end(), [&](const auto& f) { return f.what == what; });
  }
  static std::string number(double x) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, x).ptr};
  }
  static std::string name(std::string_view what, std::size_t n) { return std::string(what) + " " + std::to_string(n); }
  [[nodiscard]] std::vector<double> random_numbers(std::size_t n) {
    std::vector<double> values(n);
    for (auto& v : values) v = random_.uniform(-1, 1);
    return values;
  }
  static std::size_t count(const tensor_shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, [](std::size_t a, std::size_t b) { return a * b; });
  }

  /// The first element that is another one; of the `allowed` difference, as a part of the largest element and 1.
  [[nodiscard]] static std::optional<std::size_t> difference(const std::vector<double>& a, const std::vector<double>& b,
                                                             double allowed) {
    if (a.size() != b.size()) return std::min(a.size(), b.size());
    double largest = 0;
    for (const double x : a) largest = std::max(largest, std::abs(x));
    for (std::size_t k = 0; k < a.size(); ++k)
      if (!(std::abs(a[k] - b[k]) <= allowed * (1 + largest))) return k;
    return std::nullopt;
  }
  bool same(layer_mistake what, const std::string& where, const std::vector<double>& expected, const std::vector<double>& got,
            double allowed) {
    const auto k = difference(expected, got, allowed);
    if (!k) return true;
    if (expected.size() != got.size())
      add(what, where, std::to_string(expected.size()) + " elements", std::to_string(got.size()));
    else
      add(what, where, number(expected[*k]), number(got[*k]) + " at element " + std::to_string(*k));
    return false;
  }
  bool is_fine(const seen_tensor& t, const std::string& where) {
    if (!t.contiguous) {
      add(layer_mistake::not_contiguous, where, "contiguous elements", "a view of " + extents_text(t.shape));
      return false;
    }
    for (std::size_t k = 0; k < t.values.size(); ++k)
      if (!std::isfinite(t.values[k])) {
        add(layer_mistake::not_finite, where, "a finite number", number(t.values[k]) + " at element " + std::to_string(k));
        return false;
      }
    return true;
  }

  /// Parameters and gradients are where they were, and have their shapes.
  bool check_places() {
    doing_ = "parameters()";
    if (layer_.stayed_behind()) {
      add(layer_mistake::parameters_move, "parameters() and gradients()", "tensors of the layer, wherever it is moved",
          "tensors where it was before");
      return false;
    }
    const auto values = layer_.parameters();
    doing_ = "gradients()";
    const auto sums = layer_.gradients();
    if (values.size() != sums.size()) {
      add(layer_mistake::gradient_shape, "gradients()", std::to_string(values.size()) + " tensors", std::to_string(sums.size()));
      return false;
    }
    bool fine = true;
    std::vector<const void*> places;
    for (std::size_t n = 0; n < values.size(); ++n) {
      places.push_back(values[n].address), places.push_back(sums[n].address);
      if (values[n].shape != sums[n].shape) {
        add(layer_mistake::gradient_shape, name("gradient", n), extents_text(values[n].shape), extents_text(sums[n].shape));
        fine = false;
      } else {
        fine = is_fine(values[n], name("parameter", n)) && is_fine(sums[n], name("gradient", n)) && fine;
      }
    }
    if (places_.empty()) places_ = places;
    for (std::size_t i = 0; i < std::max(places.size(), places_.size()) && fine; ++i)
      if (i >= places.size() || i >= places_.size() || places[i] != places_[i]) {
        add(layer_mistake::parameters_move, name(i % 2 ? "gradient" : "parameter", i / 2), "the same tensor in every call",
            "another one");
        fine = false;
      }
    return fine;
  }

  bool make_microbatches(const tensor_shape& shape) {
    for (const auto& p : layer_.parameters()) parameters_.push_back(p.values);
    for (std::size_t m = 0; m < 2; ++m) {
      auto& x = inputs_.emplace_back(count(shape));
      for (auto& v : x) v = options_.input_element ? options_.input_element(random_) : random_.uniform(-1, 1);
      layer_.make_input(m, shape, x);
      inputs_[m] = layer_.input(m).values;
    }
    const auto y = forward(layer_.make_context(), 0);
    if (!options_.output.empty() && y.shape != options_.output) {
      add(layer_mistake::output_shape, "the output", extents_text(options_.output), extents_text(y.shape));
      return false;
    }
    if (!is_fine(y, "the output")) return false;
    for (std::size_t m = 0; m < 2; ++m) {
      layer_.make_output_gradient(m, y.shape, random_numbers(y.values.size()));
      output_gradients_.push_back(layer_.output_gradient(m).values);
    }
    const auto again = forward(layer_.make_context(), 0);
    return is_fine(again, "the output") && same(layer_mistake::forward_differs, "the output", y.values, again.values, 0) &&
           keeps_what_is_given();
  }

  bool keeps_what_is_given() {
    bool fine = true;
    for (std::size_t m = 0; m < 2; ++m) {
      fine = fine && same(layer_mistake::given_changed, "the input", inputs_[m], layer_.input(m).values, 0);
      fine = fine && same(layer_mistake::given_changed, "the output's gradient", output_gradients_[m],
                          layer_.output_gradient(m).values, 0);
    }
    const auto now = layer_.parameters();
    for (std::size_t n = 0; n < parameters_.size(); ++n)
      fine = same(layer_mistake::parameter_changed, name("parameter", n), parameters_[n], now[n].values, 0) && fine;
    return fine;
  }

  seen_tensor forward(std::size_t context, std::size_t m) {
    doing_ = "forward";
    return layer_.forward(context, m);
  }
  void zero_gradients() {
    for (std::size_t n = 0; n < parameters_.size(); ++n) layer_.set_gradient(n, std::vector<double>(parameters_[n].size(), 0));
  }
  [[nodiscard]] std::vector<std::vector<double>> sums() {
    doing_ = "gradients()";
    std::vector<std::vector<double>> all;
    for (auto& g : layer_.gradients()) all.push_back(std::move(g.values));
    return all;
  }
  seen_tensor backward(std::size_t context, std::size_t m, backward_part part = backward_part::whole) {
    doing_ = part == backward_part::whole ? "backward" : part == backward_part::input ? "backward_input" : "backward_weight";
    return layer_.backward(context, m, part);
  }
  gradients backward_alone(std::size_t context, std::size_t m) {
    zero_gradients();
    auto dx = backward(context, m);
    return {std::move(dx.values), sums()};
  }
  bool same_gradients(layer_mistake what, const gradients& expected, const gradients& got) {
    bool fine = true;
    if (options_.input_gradient) fine = same(what, "the input's gradient", expected.input, got.input, rounding_);
    for (std::size_t n = 0; n < expected.parameters.size(); ++n)
      fine = same(what, name("gradient", n), expected.parameters[n], got.parameters[n], rounding_) && fine;
    return fine;
  }

  /// One microbatch after the other.
  bool check_backward() {
    for (std::size_t m = 0; m < 2; ++m) {
      const auto context = layer_.make_context();
      (void)forward(context, m);
      zero_gradients();
      const auto dx = backward(context, m);
      if (options_.input_gradient) {
        const auto x = layer_.input(m);
        if (dx.shape != x.shape) {
          add(layer_mistake::input_gradient_shape, "the input's gradient", extents_text(x.shape), extents_text(dx.shape));
          return false;
        }
        if (!is_fine(dx, "the input's gradient")) return false;
      }
      if (!check_places() || !keeps_what_is_given()) return false;
      alone_.push_back({dx.values, sums()});
    }
    // With the output gone, and with something in the gradients.
    const auto context = layer_.make_context();
    (void)forward(context, 0);
    layer_.spoil_output();
    if (!same(layer_mistake::output_kept, "the input", inputs_[0], layer_.input(0).values, 0) ||
        !same_gradients(layer_mistake::output_kept, alone_[0], backward_alone(context, 0)))
      return false;
    const auto filled = layer_.make_context();
    (void)forward(filled, 0);
    std::vector<std::vector<double>> expected;
    for (std::size_t n = 0; n < parameters_.size(); ++n) {
      layer_.set_gradient(n, random_numbers(parameters_[n].size()));
      expected.push_back(layer_.gradients()[n].values);
      for (std::size_t k = 0; k < expected[n].size(); ++k) expected[n][k] += alone_[0].parameters[n][k];
    }
    (void)backward(filled, 0);
    const auto got = sums();
    for (std::size_t n = 0; n < expected.size(); ++n)
      (void)same(layer_mistake::gradient_overwritten, name("gradient", n), expected[n], got[n], rounding_);
    return true;
  }

  /// Two microbatches under way, contexts that are used again, and backwards in halves.
  bool check_order_of_use() {
    const std::size_t a = layer_.make_context(), b = layer_.make_context();
    (void)forward(a, 0);
    (void)forward(b, 1);
    bool fine = same_gradients(layer_mistake::contexts_share, alone_[0], backward_alone(a, 0));
    fine = fine && same_gradients(layer_mistake::contexts_share, alone_[1], backward_alone(b, 1));
    if (fine) {
      (void)forward(a, 1);
      fine = same_gradients(layer_mistake::context_used_once, alone_[1], backward_alone(a, 1));
    }
    if (fine && layer_.has_halves()) check_halves();
    return true;
  }

  void check_halves() {
    const std::size_t a = layer_.make_context(), b = layer_.make_context();
    (void)forward(a, 0);
    zero_gradients();
    auto dx = backward(a, 0, backward_part::input);
    (void)backward(a, 0, backward_part::weight);
    if (!same_gradients(layer_mistake::halves_differ, alone_[0], {dx.values, sums()})) return;
    if (found(layer_mistake::gradient_overwritten)) return;
    (void)forward(a, 0);
    (void)forward(b, 1);
    zero_gradients();
    dx = backward(a, 0, backward_part::input);
    (void)backward(b, 1, backward_part::input);
    (void)backward(a, 0, backward_part::weight);
    (void)backward(b, 1, backward_part::weight);
    auto both = alone_[0];
    for (std::size_t n = 0; n < both.parameters.size(); ++n)
      for (std::size_t k = 0; k < both.parameters[n].size(); ++k) both.parameters[n][k] += alone_[1].parameters[n][k];
    (void)same_gradients(layer_mistake::halves_differ, both, {dx.values, sums()});
  }

  /// What a loss would be whose gradient is that of the first microbatch.
  [[nodiscard]] double value() {
    const auto y = forward(layer_.make_context(), 0);
    layer_.drop_context();
    return std::inner_product(y.values.begin(), y.values.end(), output_gradients_[0].begin(), 0.0);
  }
  /// `set`: (element, number) -> the number that is there then. At a kink any slope between those on its sides is right.
  template <class Set>
  void check_slopes(layer_mistake what, const std::string& where, const std::vector<double>& x, const std::vector<double>& slopes,
                    Set set) {
    double largest = 0;
    for (const double s : slopes) largest = std::max(largest, std::abs(s));
    const double allowed = tolerance_ * (1 + largest), here = value();
    const std::size_t taken = std::min(options_.elements, x.size());
    for (std::size_t i = 0; i < taken; ++i) {
      const auto k = taken == x.size() ? i : as_size(random_.integer(0, static_cast<int>(x.size()) - 1));
      const double h = step_ * std::max(1.0, std::abs(x[k]));
      const double above = set(k, x[k] + h), high = value();
      const double below = set(k, x[k] - h), low = value();
      (void)set(k, x[k]);
      const double right = (high - here) / (above - x[k]), left = (here - low) / (x[k] - below),
                   slope = (high - low) / (above - below);
      const bool fits = std::abs(slopes[k] - slope) <= allowed ||
                        (slopes[k] >= std::min(left, right) - allowed && slopes[k] <= std::max(left, right) + allowed);
      if (fits) continue;
      add(what, where, number(slope), number(slopes[k]) + " at element " + std::to_string(k));
      return;
    }
  }
  bool check_differences() {
    if (options_.input_gradient)
      check_slopes(layer_mistake::wrong_input_gradient, "the input's gradient", inputs_[0], alone_[0].input,
                   [&](std::size_t k, double v) { return layer_.set_input(0, k, v); });
    for (std::size_t n = 0; n < parameters_.size(); ++n)
      check_slopes(layer_mistake::wrong_parameter_gradient, name("gradient", n), parameters_[n], alone_[0].parameters[n],
                   [&](std::size_t k, double v) { return layer_.set_parameter(n, k, v); });
    return true;
  }

  layer_probe& layer_;
  const check_layer_options& options_;
  double rounding_, step_, tolerance_;
  random_source random_;
  layer_report report_;
  std::string doing_;
  std::vector<const void*> places_;
  std::vector<std::vector<double>> parameters_, inputs_, output_gradients_;  ///< as they are to stay
  std::vector<gradients> alone_;                                             ///< by microbatch
};

HETSCHED_INLINE layer_report check_layer(layer_probe& layer, const tensor_shape& input, const check_layer_options& options,
                                         double epsilon) {
  return layer_checker(layer, options, epsilon).check(input);
}

}  // namespace detail

HETSCHED_INLINE std::string layer_finding::text() const {
  return where + " " + std::string(detail::sentence_of(what)) + ": expected " + expected + ", got " + got;
}

HETSCHED_INLINE std::string layer_report::text() const {
  std::string text;
  for (const auto& f : findings) text += f.text() + "\n";
  return text;
}

}  // namespace hetsched
