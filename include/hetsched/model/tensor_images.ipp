// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/tensor_images.hpp>

namespace hetsched::detail {

// Pixels of the result along one side; 0 where the window does not fit.
[[nodiscard]] constexpr std::int64_t window_steps(std::int64_t size, std::int64_t window, const image_window& w) {
  const auto room = size + 2 * w.padding - window;
  return room < 0 ? 0 : room / w.stride + 1;
}

[[nodiscard]] inline std::vector<std::int64_t> settings_of(const image_window& w) {
  return {w.height, w.width, w.stride, w.padding};
}

inline void refuse_window(const tensor_graph& graph, const tensor_node& n, const image_window& w) {
  const auto& shape = graph.at(n.inputs[0]).shape;
  if (w.height < 1 || w.width < 1 || w.stride < 1 || w.padding < 0 || w.padding >= std::min(w.height, w.width))
    refuse_shapes(graph, n.name, n.op, n.inputs,
                  "a window and a stride of at least 1, and less padding than window, were expected");
  if (window_steps(shape[2], w.height, w) < 1 || window_steps(shape[3], w.width, w) < 1)
    refuse_shapes(graph, n.name, n.op, n.inputs, "the window is larger than the image");
}

// The product that a convolution is: pixels x output channels, over the window and the input channels. `of`: 0 the gradient in
// the images, 1 that in the weights, else the convolution.
[[nodiscard]] inline operator_shape convolution_kernel(const std::vector<std::int64_t>& image,
                                                       const std::vector<std::int64_t>& weights,
                                                       const std::vector<std::int64_t>& result, number_format format, int of) {
  const auto pixels = checked_mul(result[0], result[2], result[3]), window = checked_mul(weights[2], weights[3]);
  const auto out = weights[0], in = weights[1];
  auto op = of == 0   ? gemm(pixels, in, checked_mul(out, window), format)
            : of == 1 ? gemm(out, checked_mul(in, window), pixels, format)
                      : gemm(pixels, out, checked_mul(in, window), format);
  const auto elements = [](const std::vector<std::int64_t>& shape) { return static_cast<double>(elements_of(shape)); };
  op.traffic_bytes = (elements(image) + elements(weights) + elements(result)) * element_bytes(format);
  return op;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE int add_convolution(tensor_graph& graph, std::string name, int x, int weights, std::int64_t stride,
                                    std::int64_t padding) {
  tensor_node n{.name = std::move(name), .op = "conv2d", .inputs = {x, weights}, .linear = {{0}, {1}}};
  const auto &image = graph.at(x).shape, &w = graph.at(weights).shape;
  if (image.size() != 4 || w.size() != 4 || image[1] != w[1])
    detail::refuse_shapes(graph, n.name, n.op, n.inputs, "images and weights with as many channels were expected");
  const image_window window{w[2], w[3], stride, padding};
  detail::refuse_window(graph, n, window);
  n.settings = detail::settings_of(window);
  n.shape = {image[0], w[0], detail::window_steps(image[2], w[2], window), detail::window_steps(image[3], w[3], window)};
  n.loops = {{image[0]}, {w[0]}, {w[1]}};
  n.input_loops = {{0, 2, -1, -1}, {1, 2, -1, -1}};
  n.result_loops = {0, 1, -1, -1};
  n.kernel = detail::convolution_kernel(image, w, n.shape, graph.format, -1);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_convolution_gradient(tensor_graph& graph, std::string name, int convolution, int dy, int input) {
  const auto of = graph.at(convolution);  // a copy: a node is added
  const int other = at(of.inputs, 1 - input);
  tensor_node n{.name = std::move(name),
                .op = input == 0 ? "conv2d_input_grad" : "conv2d_weight_grad",
                .inputs = input == 0 ? std::vector<int>{dy, other} : std::vector<int>{other, dy},
                .shape = graph.at(at(of.inputs, input)).shape,
                .loops = of.loops,
                .linear = {{0}, {1}}};
  const auto& follows = at(of.input_loops, 1 - input);
  n.input_loops = input == 0 ? std::vector<std::vector<int>>{of.result_loops, follows}
                             : std::vector<std::vector<int>>{follows, of.result_loops};
  n.result_loops = at(of.input_loops, input);
  n.settings = of.settings;
  n.kernel =
      detail::convolution_kernel(graph.at(of.inputs[0]).shape, graph.at(of.inputs[1]).shape, of.shape, graph.format, input);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_pooling(tensor_graph& graph, std::string name, int x, bool largest, const image_window& window) {
  tensor_node n{.name = std::move(name), .op = largest ? "max_pool2d" : "avg_pool2d", .inputs = {x}};
  const auto& image = graph.at(x).shape;
  if (image.size() != 4) detail::refuse_shapes(graph, n.name, n.op, n.inputs, "images were expected");
  detail::refuse_window(graph, n, window);
  n.settings = detail::settings_of(window);
  n.shape = {image[0], image[1], detail::window_steps(image[2], window.height, window),
             detail::window_steps(image[3], window.width, window)};
  n.loops = {{image[0]}, {image[1]}};
  n.input_loops = {{0, 1, -1, -1}};
  n.result_loops = {0, 1, -1, -1};
  if (!largest) n.linear = {{0}};
  n.kernel = elementwise(elements_of(image), 1, 1, graph.format);
  return detail::put(graph, std::move(n));
}

HETSCHED_INLINE int add_pooling_gradient(tensor_graph& graph, std::string name, int pooling, int dy) {
  const auto of = graph.at(pooling);  // a copy: a node is added
  const bool largest = of.op == "max_pool2d";
  tensor_node n{.name = std::move(name),
                .op = of.op + "_grad",
                .inputs = largest ? std::vector<int>{dy, of.inputs[0]} : std::vector<int>{dy},
                .shape = graph.at(of.inputs[0]).shape,
                .loops = of.loops,
                .input_loops = {of.result_loops},
                .result_loops = of.input_loops[0],
                .linear = {{0}}};
  if (largest) n.input_loops.push_back(of.input_loops[0]);
  n.settings = of.settings;
  n.kernel = elementwise(elements_of(n.shape), largest ? 2 : 1, 1, graph.format);
  return detail::put(graph, std::move(n));
}

}  // namespace hetsched
