// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace hetsched {

/// Elements of one tensor of a layer, as part of a training's state: a run of them, or rows that are equally long and equally far
/// apart. It is known by what it is, not by who holds it.
struct state_slice {
  int layer = 0;
  std::string name;                ///< of the tensor in its layer: "parameter.0", "adamw.first_moment.0", ...
  std::string element;             ///< "f32", "f64", ...
  std::vector<std::size_t> shape;  ///< of the whole tensor
  std::size_t first = 0;           ///< element of the whole tensor, the last extent running fastest, that the slice begins with
  std::span<std::byte> bytes;      ///< whole elements, from the first row to the end of the last
  std::size_t rows = 1;
  std::size_t apart = 0;       ///< elements of the whole tensor from the begin of a row to that of the next; more than a row has
  std::size_t held_apart = 0;  ///< the same within bytes; 0: one row follows the other
  /// What the layer calls the parameter or buffer that this is, or is of: "attn.weight". Empty: nothing, it is known by its
  /// number.
  std::string own_name = {};
  std::vector<std::string> other_names = {};  ///< that the layer has for it, too: a checkpoint may have it under one of these
};

}  // namespace hetsched
