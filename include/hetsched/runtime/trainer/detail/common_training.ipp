// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/rank_failure.hpp>
#include <hetsched/runtime/communicator/shared_values.hpp>
#include <hetsched/runtime/layer/boundary_shape.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
#include <hetsched/runtime/layout/layer_shapes.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/detail/agreement.hpp>
#include <hetsched/runtime/trainer/detail/common_training.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::shared_ptr<const common_layout> find_common(shared_values* values, const training_layout& layout) {
  return find_or_make<common_layout>(
      values, [&](const common_layout& one) { return one.layout == layout; },
      [&] {
        validate(layout);
        return std::make_shared<common_layout>(
            common_layout{.layout = layout,
                          .digests = {digest_of_ranks(layout).number(), digest_of_stages(layout).number(),
                                      digest_of_schedules(layout).number()}});
      });
}

HETSCHED_INLINE std::shared_ptr<const common_boundaries> find_common(shared_values* values,
                                                                     const std::shared_ptr<const common_layout>& of,
                                                                     std::size_t pipeline, const layer_shapes& shape_after,
                                                                     const layout_rule& rule) {
  const auto& line = of->layout.pipelines[pipeline];
  // The user's functions are called here, by each rank: what they do is not to hold up others.
  std::vector<boundary_shape> shapes;
  if (shape_after.same()) shapes.emplace_back(*shape_after.same());
  for (std::size_t s = 0; s + 1 < line.stages.size() && !shape_after.same(); ++s)
    shapes.push_back(shape_after(line.stages[s].layers.last - 1, line.microbatch_size));
  const auto shape_behind = [&](int layer) {
    if (shape_after.same()) return shapes.front();
    const auto stage = std::lower_bound(line.stages.begin(), line.stages.end(), layer + 1,
                                        [](const stage_layout& s, int last) { return s.layers.last < last; });
    return shapes[as_size(stage - line.stages.begin())];
  };
  const auto make = [&] {
    auto made = std::make_shared<common_boundaries>();
    made->of = of;
    made->pipeline = pipeline;
    made->by_rule = static_cast<bool>(rule);
    made->groups = make_pipeline_groups(line, shape_behind, rule);
    made->shapes = shapes;
    made->digest = digest_of(made->groups).number();
    return made;
  };
  const auto of_this = [&](const common_boundaries& one) {
    return one.of == of && one.pipeline == pipeline && one.by_rule == static_cast<bool>(rule) && one.shapes == shapes;
  };
  if (!rule) return find_or_make<common_boundaries>(values, of_this, make);
  const auto own = make();
  return find_or_make<common_boundaries>(
      values, [&](const common_boundaries& one) { return of_this(one) && one.groups == own->groups; }, [&] { return own; });
}

HETSCHED_INLINE std::shared_ptr<const common_model> find_common(shared_values* values,
                                                                const std::shared_ptr<const common_layout>& of,
                                                                const told_numbers& told, const std::vector<parameter_tie>& ties,
                                                                bool shard_optimizer) {
  const auto make = [&] {
    const auto& layout = of->layout;
    const auto& all = told.all();
    for (const auto& line : layout.pipelines)
      for (int r = line.first_rank, end = line.first_rank + line.ranks(); r < end; ++r)
        if (at(all, r).front() != at(all, line.first_rank).front())
          throw agreed_error("ranks " + std::to_string(line.first_rank) + " and " + std::to_string(r) +
                             " expect tensors of other shapes between their pipeline's stages");
    try {
      auto directory = learn_directory(layout, all, 1, ties);
      auto made = std::make_shared<common_model>();
      made->of = of;
      made->round = told.round();
      made->buffers = std::move(directory.buffers);
      made->names = std::move(directory.names);
      made->parameters = model_parameters(layout, directory.shapes, ties, directory.cuts);
      for (auto& m : made->parameters) m.sharded = m.sharded || shard_optimizer;
      return made;
    } catch (const input_error& e) {
      throw agreed_error(e.what());
    }
  };
  return find_or_make<common_model>(
      values, [&](const common_model& one) { return one.of == of && one.round == told.round(); }, make);
}

}  // namespace hetsched::detail
