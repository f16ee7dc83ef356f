// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/layer/layer_error.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "dense.hpp"

namespace hetsched::test {

/// Rows x columns of doubles, of which transposed() is a view: as in many libraries, its elements are not contiguous.
class view_tensor {
 public:
  using value_type = double;
  view_tensor() = default;
  view_tensor(std::size_t rows, std::size_t columns) : view_tensor(tensor_shape{rows, columns}) {}
  explicit view_tensor(const tensor_shape& s)
      : shape_(s), strides_{s.at(1), 1}, values_(std::make_shared<std::vector<double>>(s[0] * s[1])) {}
  [[nodiscard]] const tensor_shape& shape() const { return shape_; }
  [[nodiscard]] double* data() { return values_ ? values_->data() : nullptr; }
  [[nodiscard]] const double* data() const { return values_ ? values_->data() : nullptr; }
  [[nodiscard]] bool is_contiguous() const { return shape_.empty() || (strides_[1] == 1 && strides_[0] == shape_[1]); }
  [[nodiscard]] double& operator()(std::size_t i, std::size_t j) { return (*values_)[i * strides_[0] + j * strides_[1]]; }
  [[nodiscard]] double operator()(std::size_t i, std::size_t j) const { return (*values_)[i * strides_[0] + j * strides_[1]]; }
  [[nodiscard]] view_tensor transposed() const {
    view_tensor t = *this;
    std::swap(t.shape_[0], t.shape_[1]);
    std::swap(t.strides_[0], t.strides_[1]);
    return t;
  }
  /// With elements of its own.
  [[nodiscard]] view_tensor copy() const {
    view_tensor t(shape_);
    for (std::size_t i = 0; i < shape_[0]; ++i)
      for (std::size_t j = 0; j < shape_[1]; ++j) t(i, j) = (*this)(i, j);
    return t;
  }

 private:
  tensor_shape shape_;
  std::vector<std::size_t> strides_;
  std::shared_ptr<std::vector<double>> values_;
};

enum class breach {
  none,
  strided_output,
  strided_input_gradient,
  strided_gradient,
  strided_gradient_at_start,
  strided_parameter,
  other_output_shape,
  other_input_gradient_shape,
  throws_forward,
  throws_backward
};

/// y = x w, element by element; breaks a contract in the second microbatch that it sees.
class breaching_layer {
 public:
  using tensor = view_tensor;
  struct context {
    const tensor* input = nullptr;
  };
  explicit breaching_layer(breach how, std::size_t extent) : how_(how), weight_(1, tensor(extent, extent)), gradient_(weight_) {
    gradient_[0] = tensor(extent, extent);
    for (std::size_t k = 0; k < extent * extent; ++k) weight_[0].data()[k] = 1 + 0.1 * static_cast<double>(k);
    if (how == breach::strided_parameter) weight_[0] = weight_[0].transposed();
    if (how == breach::strided_gradient_at_start) gradient_[0] = gradient_[0].transposed();
  }
  tensor forward(const tensor& x, context& c) {
    c.input = &x;
    const bool now = ++forwards_ == 2;
    if (now && how_ == breach::throws_forward) throw std::out_of_range("no more");
    if (now && how_ == breach::other_output_shape) return tensor(x.shape()[0], x.shape()[1] + 1);
    tensor y = times_weight(x);
    return now && how_ == breach::strided_output ? y.transposed() : y;
  }
  tensor backward(const tensor& dy, context& c) {
    const bool now = ++backwards_ == 2;
    if (now && how_ == breach::throws_backward) throw std::out_of_range("no more");
    if (now && how_ == breach::other_input_gradient_shape) return tensor(dy.shape()[0] + 1, dy.shape()[1]);
    for (std::size_t k = 0; k < extent() * extent(); ++k) gradient_[0].data()[k] += dy.data()[k] * c.input->data()[k];
    if (now && how_ == breach::strided_gradient) gradient_[0] = gradient_[0].transposed();
    tensor dx = times_weight(dy);
    return now && how_ == breach::strided_input_gradient ? dx.transposed() : dx;
  }
  std::vector<tensor>& parameters() { return weight_; }
  std::vector<tensor>& gradients() { return gradient_; }

 private:
  [[nodiscard]] std::size_t extent() const { return weight_[0].shape()[0]; }
  [[nodiscard]] tensor times_weight(const tensor& x) const {
    tensor y(x.shape());
    for (std::size_t k = 0; k < extent() * extent(); ++k) y.data()[k] = x.data()[k] * weight_[0].data()[k];
    return y;
  }
  breach how_;
  int forwards_ = 0, backwards_ = 0;
  std::vector<tensor> weight_, gradient_;
};

struct breach_outcome {
  std::string text;    ///< "" if a step ended well
  std::string nested;  ///< the text of what is nested in a layer_error
  bool by_peer = false;
  int rank = -1, layer = -1;
  action doing;
};

/// What each of two ranks is told where one of four layers, two a rank, breaks a contract.
template <class Communicator>
std::vector<breach_outcome> outcomes_of_breach(std::vector<Communicator>& ends, breach how, int bad_layer) {
  constexpr std::size_t extent = 2;
  constexpr int microbatches = 4;
  const auto layout = even_layout(4, gpipe(2, microbatches));
  const std::vector<view_tensor> batch(microbatches, view_tensor(extent, extent));
  const auto failures = on_ranks(2, [&](int r) {
    auto trainer = make_trainer<view_tensor>(
        layout, [&](int l) { return breaching_layer(l == bad_layer ? how : breach::none, extent); },
        [](int) {
          return tensor_shape{2, 2};
        },
        ends[static_cast<std::size_t>(r)], sgd{.learning_rate = 0.1}, {.deadline_s = 20});
    (void)trainer.step(std::span(batch), std::span(batch), [](const view_tensor& y, const view_tensor&) {
      return loss_value<view_tensor>{1, y.copy()};
    });
  });
  std::vector<breach_outcome> found(2);
  for (std::size_t r = 0; r < 2; ++r) {
    auto& o = found[r];
    try {
      if (failures[r]) std::rethrow_exception(failures[r]);
    } catch (const layer_error& e) {
      o = {e.what(), {}, false, e.rank, e.layer, e.doing};
      try {
        std::rethrow_if_nested(e);
      } catch (const std::exception& cause) {
        o.nested = cause.what();
      }
    } catch (const communication_error& e) {
      o = {e.what(), {}, true, -1, -1, {}};
    } catch (const std::exception& e) {
      o.text = e.what();
    }
  }
  return found;
}

/// What is found of each breach, at each layer. `connect`: () -> the ends of two ranks.
template <class Connect>
void check_breaches(Connect connect) {
  const std::string strided = " is a view of 2 x 2 whose elements are not contiguous";
  const auto check = [&](breach how, int layer, const std::string& cause) {
    CAPTURE(static_cast<int>(how));
    CAPTURE(layer);
    auto ends = connect();
    const auto all = outcomes_of_breach(ends, how, layer);
    const auto &own = all[static_cast<std::size_t>(layer / 2)], &other = all[static_cast<std::size_t>(1 - layer / 2)];
    CAPTURE(own.text);
    CAPTURE(other.text);
    CHECK(own.text.find(cause) != std::string::npos);
    CHECK(other.by_peer);
    CHECK(other.text.find(cause) != std::string::npos);
    return own;
  };
  const auto check_in_action = [&](breach how, int layer, bool back, const std::string& cause) {
    const auto own = check(how, layer, cause);
    const auto place = "rank " + std::to_string(layer / 2) + ", step 0: " + std::to_string(layer / 2) + (back ? "B1" : "F1") +
                       " (stage " + std::to_string(layer / 2) + ", layer " + std::to_string(layer) +
                       (back ? ", backward" : ", forward") + " of microbatch 1) failed: ";
    CHECK(own.text.find(place + own.nested) == 0);
    CHECK(own.nested.find(cause) == 0);
    CHECK(own.rank == layer / 2);
    CHECK(own.layer == layer);
    CHECK(own.doing.microbatch == 1);
  };
  for (int layer = 0; layer < 4; ++layer) {
    check_in_action(breach::strided_output, layer, false, "the output" + strided);
    check_in_action(breach::throws_forward, layer, false, "no more");
    check_in_action(breach::throws_backward, layer, true, "no more");
    if (layer < 3)  // what the last one makes is the loss's
      check_in_action(breach::other_output_shape, layer, false, "the output is of the shape 2 x 3, expected is 2 x 2");
    if (layer > 0) {  // what the first one makes nobody reads
      check_in_action(breach::strided_input_gradient, layer, true, "the input's gradient" + strided);
      check_in_action(breach::other_input_gradient_shape, layer, true,
                      "the input's gradient is of the shape 3 x 2, expected is 2 x 2");
    }
    const auto name = "layer " + std::to_string(layer);
    check(breach::strided_parameter, layer, name + ": parameter 0" + strided);
    check(breach::strided_gradient_at_start, layer, name + ": gradient 0" + strided);
    check(breach::strided_gradient, layer,
          "gradient " + std::to_string(layer % 2) + " of stage " + std::to_string(layer / 2) + " on rank " +
              std::to_string(layer / 2) + strided);
  }
  auto ends = connect();
  for (const auto& o : outcomes_of_breach(ends, breach::none, 0)) CHECK(o.text.empty());
}

}  // namespace hetsched::test
