// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/page/timeline_svg_test.cpp.

#include <cstddef>
#include <iterator>
#include <string>

#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched::detail {

/// How a picture shows actions: a style class, names, and a colour (0xrrggbb) on a light and on a dark page. The colours
/// differ for the colour-blind too: orange, a whole backward, lies between vermilion and yellow, its two halves. Each has a
/// contrast of 3 at least to an idle lane and to the page.
struct timeline_look {
  char letter;
  const char* legend;
  const char* name;  ///< for "NAME of microbatch 3"
  unsigned light;
  unsigned dark;
};

inline constexpr timeline_look timeline_looks[] = {
    {'f', "forward", "forward", 0x0072b2, 0x3d9bdc},
    {'b', "backward", "backward", 0xb97300, 0xe69f00},
    {'x', "input gradient", "input gradient", 0xb23c00, 0xe0662a},
    {'w', "weight gradient", "weight gradient", 0x8f8000, 0xf0d842},
    {'r', "recomputation", "recomputation", 0x332288, 0x8f83e0},
    {'a', "activation sent", "activation", 0x00805d, 0x009e73},
    {'d', "host copy of it", "activation", 0x4f8f7d, 0x5fa08d},
    {'g', "gradient sent", "gradient", 0xb05a8a, 0xcc79a7},
    {'h', "host copy of it", "gradient", 0x946a82, 0xb0809b},
    {'p', "parameters gathered", "gathering of parameters", 0x6e7781, 0x8b949e},
    {'q', "gradients reduced", "reduction of gradients", 0x57606a, 0xa0aab4},
    {'o', "optimizer", "optimizer", 0x24292f, 0xd7dce2},
};
inline constexpr std::size_t timeline_look_count = std::size(timeline_looks);

/// An idle lane.
inline constexpr unsigned idle_light = 0xeef0f3, idle_dark = 0x262c34;

/// Of what a picture says over colours.
inline constexpr unsigned ink_light = 0xffffff, ink_dark = 0x1b1f24;

/// How bright a colour is, from 0 to 1. Source: WCAG 2.1, relative luminance.
[[nodiscard]] double luminance(unsigned color);

/// From 1, equal, to 21. Source: WCAG 2.1, contrast ratio.
[[nodiscard]] inline double contrast(unsigned a, unsigned b) {
  const double one = luminance(a) + 0.05, other = luminance(b) + 0.05;
  return one > other ? one / other : other / one;
}

/// The position of an action's look in the table. Receives look like their sends.
[[nodiscard]] constexpr std::size_t look_of(action_kind kind) {
  using enum action_kind;
  switch (kind) {
    case forward:
      return 0;
    case backward:
      return 1;
    case backward_input:
      return 2;
    case backward_weight:
      return 3;
    case recompute:
      return 4;
    case send_activation:
    case receive_activation:
    case network_activation:
      return 5;
    case d2h_activation:
    case h2d_activation:
      return 6;
    case send_gradient:
    case receive_gradient:
    case network_gradient:
      return 7;
    case d2h_gradient:
    case h2d_gradient:
      return 8;
    case all_gather:
    case release:
      return 9;
    case reduce_scatter:
    case reduce_gradients:
      return 10;
    case optimizer:
      return 11;
    default:  // marks take no time
      break;
  }
  return 0;
}

/// The phase of a transfer in three phases: 0 device to host, 1 network, 2 host to device; -1 for all else.
[[nodiscard]] constexpr int phase_of(action_kind kind) { return is_d2h(kind) ? 0 : is_network(kind) ? 1 : is_h2d(kind) ? 2 : -1; }

/// How many shades of a colour the virtual stages of one rank have, lighter and lighter; after the last it starts again.
inline constexpr std::size_t timeline_shades = 4;

[[nodiscard]] constexpr unsigned shade(unsigned color, std::size_t step) {
  constexpr unsigned white_percent[timeline_shades] = {0, 46, 66, 80};
  unsigned result = 0;
  for (const int shift : {16, 8, 0}) {
    const unsigned part = (color >> shift) & 0xffu;
    result |= (part + (255 - part) * white_percent[step % timeline_shades] / 100) << shift;
  }
  return result;
}

/// The ink that is easier to read on a colour.
[[nodiscard]] inline unsigned ink_on(unsigned color) {
  return contrast(ink_light, color) > contrast(ink_dark, color) ? ink_light : ink_dark;
}

/// Style class of a look and shade: a letter and a digit.
[[nodiscard]] inline std::string look_class(std::size_t look, std::size_t step) {
  return {timeline_looks[look].letter, static_cast<char>('0' + step % timeline_shades)};
}

/// The style rules of a look and shade, for boxes, their text and strokes, with the prefix that keeps them from the rest of a
/// page. Lighter shades are too close to an idle lane of a light page: an outline of the full colour sets these boxes off.
[[nodiscard]] std::string look_rule(std::size_t look, std::size_t step, bool dark);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/io/page/detail/timeline_look.ipp>
#endif
