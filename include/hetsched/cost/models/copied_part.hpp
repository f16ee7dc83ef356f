// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/cost/models/replica_profile_test.cpp.

#include <cstddef>
#include <optional>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// Of a measured layer's parameters, those that are a copy of another layer's, as of a tied embedding.
struct copied_part {
  int layer = 0;        ///< that owns them
  double fraction = 0;  ///< of the bytes of the layer with the copy; in (0, 1]

  [[nodiscard]] bytes_t of(bytes_t bytes) const { return static_cast<bytes_t>(static_cast<double>(bytes) * fraction); }
  /// Whether a stage of these layers, the one with the copy among them, has them anyway.
  [[nodiscard]] constexpr bool is_owned_by(layer_range layers) const { return layer >= layers.first && layer < layers.last; }
  friend bool operator==(const copied_part&, const copied_part&) = default;
};

/// Throws: input_error, naming the place as in the file, unless the copies of a profile's layers are of other layers of it.
template <class Layers>
void validate_copies(const Layers& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& c = layers[i].copy_of;
    if (!c) continue;
    const auto place = "/layers/" + std::to_string(i) + "/copy_of";
    if (c->layer < 0 || as_size(c->layer) >= layers.size() || as_size(c->layer) == i)
      throw input_error(place + "/layer: must be another layer of the profile");
    if (!(c->fraction > 0 && c->fraction <= 1)) throw input_error(place + "/fraction: must be above 0, and at most 1");
  }
}

}  // namespace hetsched
