// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/model/tensor_backward_test.cpp.

#include <cstdint>
#include <string>

#include <hetsched/model/operator.hpp>
#include <hetsched/model/tensor_graph.hpp>

namespace hetsched {

/// The window that a convolution or a pooling moves over images: result pixel i reads the input's from stride * i - padding on.
struct image_window {
  std::int64_t height = 1, width = 1, stride = 1, padding = 0;

  friend bool operator==(const image_window&, const image_window&) = default;
};

/// Requires: a node of conv2d, a pooling, or one of their gradients.
[[nodiscard]] inline image_window window_of(const tensor_node& n) {
  return {n.settings.at(0), n.settings.at(1), n.settings.at(2), n.settings.at(3)};
}

/// Adds a convolution of images [n, c, h, w] with weights [k, c, a, b], as the layers of that name have it: the result [n, k,
/// ...] is the sum of products under an a x b window. It can be cut by images and by channels of both sides, not across an image.
/// settings: the window's height and width, the stride, and the padding with zeros on each side.
/// Throws: input_error for shapes that do not fit.
int add_convolution(tensor_graph& graph, std::string name, int x, int weights, std::int64_t stride = 1, std::int64_t padding = 0);

/// Adds what a convolution's gradient adds to that of an input: 0 its images, of (dy, weights); 1 its weights, of (images, dy).
int add_convolution_gradient(tensor_graph& graph, std::string name, int convolution, int dy, int input);

/// Adds the largest (max_pool2d) or the mean (avg_pool2d, zeros of the padding count) of images [n, c, h, w] under a window. It
/// can be cut by images and by channels. settings: as add_convolution.
/// Throws: input_error for shapes that do not fit.
int add_pooling(tensor_graph& graph, std::string name, int x, bool largest, const image_window& window);

/// Adds what a pooling's gradient adds to that of its images: max_pool2d_grad of (dy, images), of which the first of the largest
/// gets all; avg_pool2d_grad of dy.
int add_pooling_gradient(tensor_graph& graph, std::string name, int pooling, int dy);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/model/tensor_images.ipp>
#endif
