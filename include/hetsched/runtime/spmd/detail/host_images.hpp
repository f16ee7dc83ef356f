// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include <hetsched/model/tensor_images.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

// Images, weights or pixels of a result by their four sizes, in row-major order.
template <class Element>
struct image_view {
  Element* data;
  std::array<std::int64_t, 4> size;

  [[nodiscard]] Element& at(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return data[((a * size[1] + b) * size[2] + c) * size[3] + d];
  }
};

template <class Tensor>
[[nodiscard]] auto image_of(Tensor& t) {
  using element = std::remove_pointer_t<decltype(tensor_traits<std::remove_const_t<Tensor>>::data(t))>;
  image_view<element> view{tensor_traits<std::remove_const_t<Tensor>>::data(t), {}};
  std::ranges::copy(shape_of(t), view.size.begin());
  return view;
}

// Calls visit(image, channel, row, column) for all pixels.
template <class Element, class Visit>
void each_pixel(const image_view<Element>& pixels, Visit visit) {
  for (std::int64_t n = 0; n < pixels.size[0]; ++n)
    for (std::int64_t c = 0; c < pixels.size[1]; ++c)
      for (std::int64_t row = 0; row < pixels.size[2]; ++row)
        for (std::int64_t column = 0; column < pixels.size[3]; ++column) visit(n, c, row, column);
}

// Calls visit(row, column, row in the window, column in the window) for the part of an image that the window of a pixel covers.
template <class Element, class Visit>
void under_window(const image_window& w, const image_view<Element>& images, std::int64_t row, std::int64_t column, Visit visit) {
  const auto top = row * w.stride - w.padding, left = column * w.stride - w.padding;
  for (auto y = std::max<std::int64_t>(top, 0); y < std::min(top + w.height, images.size[2]); ++y)
    for (auto x = std::max<std::int64_t>(left, 0); x < std::min(left + w.width, images.size[3]); ++x)
      visit(y, x, y - top, x - left);
}

// conv2d and its gradients: add(image, weight, pixel) for all that belong together.
template <class Image, class Weight, class Pixel, class Add>
void convolve(const image_window& w, const image_view<Image>& images, const image_view<Weight>& weights,
              const image_view<Pixel>& pixels, Add add) {
  each_pixel(pixels, [&](auto n, auto o, auto row, auto column) {
    for (std::int64_t i = 0; i < weights.size[1]; ++i)
      under_window(w, images, row, column, [&](auto y, auto x, auto a, auto b) {
        add(images.at(n, i, y, x), weights.at(o, i, a, b), pixels.at(n, o, row, column));
      });
  });
}

// Where the first of the largest elements under a pixel's window is.
template <class Element>
[[nodiscard]] Element* largest_under(const image_window& w, const image_view<Element>& images, std::int64_t n, std::int64_t c,
                                     std::int64_t row, std::int64_t column) {
  Element* most = nullptr;
  under_window(w, images, row, column, [&](auto y, auto x, auto, auto) {
    if (most == nullptr || images.at(n, c, y, x) > *most) most = &images.at(n, c, y, x);
  });
  return most;
}

// Convolutions, poolings and their gradients. The result is written; it is not empty.
template <class Tensor>
void compute_images(const tensor_node& node, std::span<const Tensor* const> in, Tensor& result) {
  using element = typename tensor_traits<Tensor>::element;
  const auto w = window_of(node);
  const auto first = image_of(*in[0]), second = image_of(*in.back());
  const auto out = image_of(result);
  std::fill(out.data, out.data + elements(result), element{0});
  const auto area = static_cast<element>(w.height * w.width);
  if (node.op == "conv2d") {
    convolve(w, first, second, out, [](auto& x, auto& k, auto& y) { y += x * k; });
  } else if (node.op == "conv2d_input_grad") {
    convolve(w, out, second, first, [](auto& dx, auto& k, auto& dy) { dx += dy * k; });
  } else if (node.op == "conv2d_weight_grad") {
    convolve(w, first, out, second, [](auto& x, auto& dk, auto& dy) { dk += x * dy; });
  } else if (node.op == "max_pool2d") {
    each_pixel(out, [&](auto... at) { out.at(at...) = *largest_under(w, first, at...); });
  } else if (node.op == "max_pool2d_grad") {
    each_pixel(first, [&](auto... at) { out.data[largest_under(w, second, at...) - second.data] += first.at(at...); });
  } else if (node.op == "avg_pool2d") {
    each_pixel(out, [&](auto n, auto c, auto row, auto column) {
      under_window(w, first, row, column,
                   [&](auto y, auto x, auto, auto) { out.at(n, c, row, column) += first.at(n, c, y, x) / area; });
    });
  } else {
    each_pixel(first, [&](auto n, auto c, auto row, auto column) {
      under_window(w, out, row, column,
                   [&](auto y, auto x, auto, auto) { out.at(n, c, y, x) += first.at(n, c, row, column) / area; });
    });
  }
}

}  // namespace hetsched::detail
