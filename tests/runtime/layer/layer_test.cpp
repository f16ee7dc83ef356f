// SPDX-License-Identifier: Apache-2.0
#include <hetsched/runtime/layer/layer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/runtime/layer/packed_layer.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>

#include "../dense.hpp"
#include "../small_layer.hpp"

namespace {

using namespace hetsched;
using test::matrix;
using test::small_layer;
using test::small_tensor;

// The least a tensor needs: its traits.
struct archetype {
  archetype() = default;
  archetype(archetype&&) = default;
  archetype& operator=(archetype&&) = default;
};
struct copied_only_by_traits {};

}  // namespace

// Compiled by itself, since it specialises.
template <>
struct hetsched::tensor_traits<archetype> {
  using element = float;
  static constexpr memory_space space = memory_space::device;
  static std::array<int, 2> shape(const archetype&) { return {2, 3}; }
  static float* data(archetype&) { return nullptr; }
  static const float* data(const archetype&) { return nullptr; }
  static archetype make(const tensor_shape&) { return {}; }
};

namespace {

static_assert(pipeline_tensor<archetype>);
static_assert(pipeline_tensor<small_tensor>);
static_assert(pipeline_tensor<matrix<float>>);
static_assert(!pipeline_tensor<copied_only_by_traits>);
static_assert(!pipeline_tensor<int>);
static_assert(!pipeline_tensor<std::vector<double>>);  // has no shape

struct without_constructor : small_tensor {};
static_assert(!pipeline_tensor<without_constructor>);
struct immovable : small_tensor {
  using small_tensor::small_tensor;
  immovable(immovable&&) = delete;
};
static_assert(!pipeline_tensor<immovable>);
struct of_strings {
  using value_type = std::string;
  of_strings() = default;
  explicit of_strings(const tensor_shape&) {}
  std::array<int, 1> shape() const;
  std::string* data();
  const std::string* data() const;
};
static_assert(!pipeline_tensor<of_strings>);
struct of_const_data : small_tensor {
  of_const_data() = default;
  explicit of_const_data(const tensor_shape&) {}
  const double* data() const;
};
static_assert(!pipeline_tensor<of_const_data>);

// The least a layer needs.
struct least {
  struct context {};
  archetype forward(const archetype&, context&) { return {}; }
  archetype backward(const archetype&, context&) { return {}; }
  std::list<archetype>& parameters();
  std::list<archetype>& gradients();
};
static_assert(pipeline_layer<least, archetype>);
static_assert(!split_layer<least, archetype>);
static_assert(!pipeline_layer<least, small_tensor>);
static_assert(pipeline_layer<small_layer, small_tensor>);
static_assert(split_layer<test::linear<double>, matrix<double>>);
static_assert(!split_layer<test::linear<double>, matrix<float>>);
static_assert(pipeline_layer<test::activation<double>, matrix<double>>);
static_assert(!split_layer<test::activation<double>, matrix<double>>);

struct no_context {
  archetype forward(const archetype&, int&);
  archetype backward(const archetype&, int&);
  std::list<archetype>& parameters();
  std::list<archetype>& gradients();
};
static_assert(!pipeline_layer<no_context, archetype>);
struct needy_context : least {
  struct context {
    explicit context(int);
  };
};
static_assert(!pipeline_layer<needy_context, archetype>);
struct no_backward : least {
  void backward() {}
};
static_assert(!pipeline_layer<no_backward, archetype>);
struct forward_changes_its_input : least {
  archetype forward(archetype&, context&);
};
static_assert(!pipeline_layer<forward_changes_its_input, archetype>);
struct forward_returns_nothing : least {
  void forward(const archetype&, context&);
};
static_assert(!pipeline_layer<forward_returns_nothing, archetype>);
struct const_gradients : least {
  const std::list<archetype>& gradients();
};
static_assert(!pipeline_layer<const_gradients, archetype>);
struct one_parameter : least {
  archetype& parameters();
};
static_assert(!pipeline_layer<one_parameter, archetype>);

// References to tensors are kept: ranges that end with what they hold are refused, those that view it are not.
template <class Range>
struct with_parameters : least {
  Range parameters();
};
template <class Range>
struct with_gradients : least {
  Range gradients();
};
struct parameter_of_many {
  archetype value;
};
using many = std::vector<parameter_of_many>;
using values_of_many = decltype(std::declval<many&>() | std::views::transform(&parameter_of_many::value));
using values_of_lost = decltype(std::declval<many>() | std::views::transform(&parameter_of_many::value));
template <class Range>
inline constexpr bool is_kept =
    pipeline_layer<with_parameters<Range>, archetype>&& pipeline_layer<with_gradients<Range>, archetype>;
static_assert(is_kept<std::vector<archetype>&> && is_kept<std::array<archetype, 2>&> && is_kept<std::span<archetype>>);
static_assert(is_kept<std::vector<std::reference_wrapper<archetype>>>);
static_assert(is_kept<std::array<std::reference_wrapper<archetype>, 1>>);
static_assert(is_kept<values_of_many>);
static_assert(is_kept<std::ranges::ref_view<std::list<archetype>>>);
template <class Range>
inline constexpr bool is_lost =
    !pipeline_layer<with_parameters<Range>, archetype> && !pipeline_layer<with_gradients<Range>, archetype>;
static_assert(is_lost<std::vector<archetype>> && is_lost<std::array<archetype, 2>> && is_lost<std::list<archetype>>);
static_assert(is_lost<std::ranges::owning_view<std::vector<archetype>>> && is_lost<values_of_lost>);

// Stages are layers, and may be nested.
static_assert(split_layer<any_layer<archetype>, archetype>);
static_assert(split_layer<layer_tuple<archetype, least, least>, archetype>);
static_assert(split_layer<layer_list<archetype, least>, archetype>);
static_assert(split_layer<layer_list<archetype, any_layer<archetype>>, archetype>);
static_assert(split_layer<layer_tuple<archetype, layer_list<archetype, least>, any_layer<archetype>>, archetype>);
static_assert(std::movable<any_layer<archetype>> && !std::copyable<any_layer<archetype>>);

static_assert(communicator<thread_communicator<small_tensor>, small_tensor>);
static_assert(communicator<thread_communicator<archetype>, archetype>);
static_assert(!communicator<thread_communicator<archetype>, small_tensor>);
static_assert(!communicator<int, small_tensor>);

}  // namespace

TEST_CASE("a tuple, a list and a list of any layers are the same stage") {
  using tensor = matrix<double>;
  using test::activation;
  using test::linear;
  random_source random(1);
  const linear<double> first(3, 4, random), second(4, 2, random);
  const activation<double> between;
  const auto input = test::random_matrix<double>(random, 2, 3), gradient = test::random_matrix<double>(random, 2, 2);

  // By hand.
  auto a = first;
  auto b = between;
  auto c = second;
  linear<double>::context ca, cc;
  activation<double>::context cb;
  const auto x = a.forward(input, ca);
  const auto y = b.forward(x, cb);
  const auto z = c.forward(y, cc);
  const auto dy = c.backward(gradient, cc);
  const auto dx = b.backward(dy, cb);
  const auto back = a.backward(dx, ca);
  const std::vector<tensor> sums{a.sums[0], b.sum[0], c.sums[0]};

  const auto same = [&](auto stage) {
    for (const bool split : {false, true}) {
      for (tensor& t : stage.gradients()) detail::zero(t);
      auto context = detail::make_context(stage);
      CHECK(stage.forward(input, context) == z);
      CHECK((split ? stage.backward_input(gradient, context) : stage.backward(gradient, context)) == back);
      if (split) {
        CHECK(stage.gradients()[0].get() != sums[0]);
        CHECK(stage.gradients()[1].get() == sums[1]);  // cannot put it off
        CHECK(stage.gradients()[2].get() != sums[2]);
        stage.backward_weight(gradient, context);
      }
      CHECK(test::copies_of<double>(stage.gradients()) == sums);
    }
    REQUIRE(stage.parameters().size() == 3);
    CHECK(stage.parameters()[2].get() == second.weights[0]);
  };
  same(layer_tuple<tensor, linear<double>, activation<double>, linear<double>>(first, between, second));
  const auto list = [&] {
    std::vector<any_layer<tensor>> layers;
    layers.emplace_back(first);
    layers.emplace_back(between);
    layers.emplace_back(second);
    return layers;
  };
  same(layer_list<tensor, any_layer<tensor>>(list()));
  same(any_layer<tensor>(layer_list<tensor, any_layer<tensor>>(list())));

  auto any = list();
  CHECK(any[0].get<activation<double>>() == nullptr);
  REQUIRE(any[1].get<activation<double>>() != nullptr);
  CHECK(any[1].get<activation<double>>()->gain[0] == between.gain[0]);
}

TEST_CASE("arithmetic of tensors") {
  random_source random(2);
  const auto a = test::random_matrix<float>(random, 2, 3), b = test::random_matrix<float>(random, 2, 3);
  matrix<float> sum(2, 3);
  detail::assign(sum, a);
  CHECK(sum == a);
  detail::add(sum, b);
  for (std::size_t k = 0; k < 6; ++k) CHECK(sum.data()[k] == a.data()[k] + b.data()[k]);
  detail::scale(sum, 0.5);
  for (std::size_t k = 0; k < 6; ++k) CHECK(sum.data()[k] == 0.5f * (a.data()[k] + b.data()[k]));
  detail::zero(sum);
  CHECK(sum == matrix<float>(2, 3));
  CHECK(detail::same_shape(a, b));
  CHECK_FALSE(detail::same_shape(a, matrix<float>(3, 2)));
  CHECK(detail::shape_of(a) == tensor_shape{2, 3});
}

TEST_CASE("layers are told a step's number, also in tuples, in lists and behind any_layer and packed_layer") {
  struct told_layer : small_layer {
    void begin_step(std::int64_t step) { *told += step; }
    std::int64_t* told = nullptr;
  };
  std::int64_t told = 0;
  told_layer one;
  one.told = &told;
  using tuple = layer_tuple<small_tensor, small_layer, told_layer, told_layer>;
  any_layer<small_tensor> any(tuple(small_layer{}, one, one));
  any.begin_step(10);
  CHECK(told == 20);
  std::vector<any_layer<small_tensor>> layers;
  layers.emplace_back(packed_layer<small_tensor, small_tensor, small_tensor, told_layer>(one));
  layers.emplace_back(small_layer{});
  layers.push_back(std::move(any));
  layer_list<small_tensor, any_layer<small_tensor>>(std::move(layers)).begin_step(100);
  CHECK(told == 320);
}

TEST_CASE("layers say how their parameters are cut and what they call them, and lists of them hand it on") {
  struct cut_layer : small_layer {
    std::array<parameter_cut, 1> parameter_cuts() { return {{{.dimension = 1, .partial_over_tensor = false, .pieces = {2, 1}}}}; }
    std::array<tensor_name, 2> parameter_names() { return {{{"w", 0}, {"again", 0}}}; }
  };
  const parameter_cut whole, cut{.dimension = 1, .partial_over_tensor = false, .pieces = {2, 1}};
  small_layer plain;
  cut_layer one;
  CHECK(detail::parameter_cuts(plain) == std::vector{whole});
  CHECK(detail::parameter_cuts(one) == std::vector{cut});
  layer_tuple<small_tensor, small_layer, cut_layer> two{plain, one};
  CHECK(detail::parameter_cuts(two) == std::vector{whole, cut});
  any_layer<small_tensor> any(two);
  layer_list<small_tensor, any_layer<small_tensor>> list([&] {
    std::vector<any_layer<small_tensor>> layers;
    layers.emplace_back(one);
    layers.emplace_back(plain);
    return layers;
  }());
  CHECK(detail::parameter_cuts(any) == std::vector{whole, cut});
  CHECK(detail::parameter_cuts(list) == std::vector{cut, whole});
  using names = std::vector<tensor_name>;
  CHECK(detail::parameter_names(plain).empty());
  CHECK(detail::parameter_names(any) == names{{"0.0", 0}, {"1.w", 1}, {"1.again", 1}});
  CHECK(detail::parameter_names(list) == names{{"0.w", 0}, {"0.again", 0}, {"1.0", 1}});
  CHECK(detail::buffer_names(any).empty());
  CHECK(layer_tuple<small_tensor, small_layer, small_layer>(plain, plain).parameter_names().empty());
  // A number of the next layer's tensors is none of this one's.
  struct misnumbered_layer : small_layer {
    int number = 0;
    std::vector<tensor_name> parameter_names() { return {{"w", 0}, {"next", number}}; }
  };
  misnumbered_layer wrong;
  using before = layer_tuple<small_tensor, misnumbered_layer, small_layer>;
  using behind = layer_tuple<small_tensor, small_layer, misnumbered_layer>;
  CHECK(before(wrong, plain).parameter_names() == names{{"0.w", 0}, {"0.next", 0}, {"1.0", 1}});
  for (const int number : {-1, 1}) {
    wrong.number = number;
    const auto text = "found \"next\" of tensor " + std::to_string(number) + ", expected one of 1";
    CHECK_THROWS_WITH_AS((void)before(wrong, plain).parameter_names(), ("layer 0 of a list or tuple: " + text).c_str(),
                         input_error);
    CHECK_THROWS_WITH_AS((void)behind(plain, wrong).parameter_names(), ("layer 1 of a list or tuple: " + text).c_str(),
                         input_error);
    layer_list<small_tensor, misnumbered_layer> both(std::vector{wrong, wrong});
    CHECK_THROWS_AS((void)both.parameter_names(), input_error);
  }
}

namespace {

/// Counts the contexts that there are, and forwards.
struct counted_layer {
  struct context {
    context() { most = std::max(most, ++alive); }
    context(const context&) : context() {}
    context(context&&) noexcept : context() {}
    context& operator=(const context&) = default;
    ~context() { --alive; }
    double input = 0;
  };
  static inline int alive = 0, most = 0, forwards = 0;
  static small_tensor of(double value) {
    small_tensor t;
    t.value = value;
    return t;
  }
  static void forget() { most = forwards = 0; }

  small_tensor forward(const small_tensor& x, context& c) {
    ++forwards;
    c.input = x.value;
    return of(3 * x.value * x.value);
  }
  small_tensor backward(const small_tensor& dy, context& c) {
    gradient.value += dy.value * c.input;
    return of(dy.value * 6 * c.input);
  }
  small_tensor backward_input(const small_tensor& dy, context& c) { return of(dy.value * 6 * c.input); }
  void backward_weight(const small_tensor& dy, context& c) { gradient.value += dy.value * c.input; }
  std::span<small_tensor> parameters() { return {&gradient, 1}; }
  std::span<small_tensor> gradients() { return {&gradient, 1}; }
  small_tensor gradient;
};

}  // namespace

TEST_CASE("a list that recomputes keeps no contexts between forward and backward, and gives the same") {
  constexpr int layers = 4, microbatches = 3;
  std::vector<double> found[2];
  for (const bool split : {false, true})
    for (const bool recomputes : {false, true}) {
      CAPTURE(split);
      CAPTURE(recomputes);
      counted_layer::forget();
      layer_list<small_tensor, counted_layer> list(std::vector<counted_layer>(layers), {.recomputes = recomputes});
      using context = layer_list<small_tensor, counted_layer>::context;
      std::vector<context> contexts;
      for (int m = 0; m < microbatches; ++m) contexts.push_back(list.make_context());
      std::vector<small_tensor> inputs(microbatches);
      auto& values = found[recomputes ? 1 : 0];
      for (int round = 0; round < 2; ++round) {
        for (int m = 0; m < microbatches; ++m) {
          inputs[static_cast<std::size_t>(m)].value = 0.3 + 0.1 * m + round;
          values.push_back(list.forward(inputs[static_cast<std::size_t>(m)], contexts[static_cast<std::size_t>(m)]).value);
        }
        CHECK(counted_layer::alive == (recomputes ? 0 : layers * microbatches));
        for (auto& c : contexts) {
          const auto gradient = counted_layer::of(0.7);
          values.push_back(split ? list.backward_input(gradient, c).value : list.backward(gradient, c).value);
          if (recomputes) CHECK(counted_layer::alive == (split ? layers : 0));
          if (split) list.backward_weight(gradient, c);
          if (recomputes) CHECK(counted_layer::alive == 0);
        }
        for (auto& l : list.layers()) values.push_back(l.gradient.value);
      }
      CHECK(counted_layer::forwards == 2 * layers * microbatches * (recomputes ? 2 : 1));
      // One more while it is moved into its place.
      if (recomputes) CHECK(counted_layer::most <= (split ? layers : 1) + 1);
    }
  CHECK(found[0] == found[1]);
}

namespace {

/// Its contexts are made by the layer alone.
struct scaling_layer {
  class context {
   public:
    explicit context(double scale) : scale_(scale) {}
    [[nodiscard]] double scale() const { return scale_; }

   private:
    double scale_;
  };
  [[nodiscard]] context make_context() const { return context(scale); }
  small_tensor forward(const small_tensor& x, context& c) { return counted_layer::of(x.value * c.scale()); }
  small_tensor backward(const small_tensor& dy, context& c) { return counted_layer::of(dy.value * c.scale()); }
  std::span<small_tensor> parameters() { return {}; }
  std::span<small_tensor> gradients() { return {}; }
  double scale = 2;
};
static_assert(pipeline_layer<scaling_layer, small_tensor>);

}  // namespace

TEST_CASE("contexts that only make_context() makes do for layers alone, in tuples, in lists and behind any_layer") {
  const auto run = [](auto stage) {
    auto context = detail::make_context(stage);
    const auto input = counted_layer::of(3), gradient = counted_layer::of(1);
    CHECK(stage.forward(input, context).value == 30);
    CHECK(stage.backward(gradient, context).value == 10);
  };
  const scaling_layer two{2}, five{5};
  run(scaling_layer{10});
  run(layer_tuple<small_tensor, scaling_layer, scaling_layer>(two, five));
  for (const bool recomputes : {false, true})
    run(layer_list<small_tensor, scaling_layer>(std::vector<scaling_layer>{two, five}, {.recomputes = recomputes}));
  std::vector<any_layer<small_tensor>> behind;
  behind.emplace_back(two);
  behind.emplace_back(five);
  run(layer_list<small_tensor, any_layer<small_tensor>>(std::move(behind)));
}
