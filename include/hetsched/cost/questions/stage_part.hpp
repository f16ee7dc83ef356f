// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/plan/stage_parts_test.cpp.

#include <span>
#include <vector>

#include <hetsched/cluster/device_group.hpp>
#include <hetsched/cluster/placement.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/cost/questions/concepts.hpp>
#include <hetsched/cost/questions/memory_use.hpp>
#include <hetsched/cost/questions/stage_cost.hpp>

namespace hetsched {

/// Equal devices of one subcluster that do alike in a stage whose devices are unlike, or that shares its axes unevenly; such a
/// stage has several parts. Either a part is data replicas with equally many samples each, and is priced as a stage that gets
/// microbatches of `samples`; or all parts together are one replica, and a part is tensor ranks with equally many slices of
/// every layer's heads and inner width each.
struct stage_part {
  placement where{};                    ///< where.degrees.data of the stage's replicas, or .tensor of the tensor ranks of one
  std::vector<device_group> devices{};  ///< where.mesh.device_count() of them
  int samples = 1;                      ///< of a microbatch, of all these replicas together
  int slices = 0;                       ///< of the cost model's slices, those of each tensor rank; 0: replicas
  friend bool operator==(const stage_part&, const stage_part&) = default;
};

/// Whether the parts of a stage are tensor ranks of one replica. Requires: at least one part.
[[nodiscard]] inline bool are_sliced(std::span<const stage_part> parts) { return parts[0].slices > 0; }

/// What a stage costs whose parts compute side by side.
struct parts_cost {
  stage_cost slowest{};  ///< seconds: forward and backward each of the slowest part; bytes: the most that any part holds
  std::vector<stage_cost> parts{};
  std::vector<memory_overheads> overheads{};
};

namespace detail::cost_model {

void slices() = delete;
void sliced_stage() = delete;

struct slices_fn {
  template <class M>
  [[nodiscard]] constexpr int operator()(const M& model) const {
    if constexpr (requires { model.slices(); })
      return model.slices();
    else if constexpr (requires { slices(model); })
      return slices(model);
    else
      return 0;
  }
};

struct sliced_stage_fn {
  template <class M>
  [[nodiscard]] parts_cost operator()(const M& model, layer_range layers, std::span<const stage_part> parts) const {
    if constexpr (requires { model.sliced_stage(layers, parts); })
      return model.sliced_stage(layers, parts);
    else if constexpr (requires { sliced_stage(model, layers, parts); })
      return sliced_stage(model, layers, parts);
    else
      throw input_error("the cost model has no prices for uneven shares of the tensor axis");
  }
};

}  // namespace detail::cost_model

namespace cost_of {

/// Equal slices of a layer's heads and inner width that tensor ranks may have unevenly many of. Default: 0, they may not.
inline constexpr detail::cost_model::slices_fn slices{};
/// Cost of a range of layers on one replica whose parts have such slices: seconds of the stage, and bytes of each part. Asked
/// only of models that have slices.
inline constexpr detail::cost_model::sliced_stage_fn sliced_stage{};

}  // namespace cost_of

}  // namespace hetsched
