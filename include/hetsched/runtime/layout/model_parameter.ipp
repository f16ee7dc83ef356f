// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched::detail {

HETSCHED_INLINE slice whole_slice(const tensor_shape& shape) {
  slice whole;
  for (const auto extent : shape) whole.push_back({0, static_cast<std::int64_t>(extent)});
  return whole;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<held_piece> held_pieces(const parameter_holder& h, const tensor_shape& shape, int rank) {
  auto whole = detail::whole_slice(shape);
  if (h.cut.over_experts) {
    const std::int64_t each = whole[0].last / h.group.expert;
    const int expert = (rank - h.first_rank) / (h.group.context * h.group.tensor) % h.group.expert;
    whole[0] = {expert * each, (expert + 1) * each};
  }
  if (h.cut.dimension < 0) return {{whole, whole}};
  const auto d = as_size(h.cut.dimension);
  const auto t = as_size((rank - h.first_rank) % h.group.tensor);
  std::int64_t held = 0;
  for (const auto& p : h.cut.points) held += p[t + 1] - p[t];
  std::vector<held_piece> pieces;
  std::int64_t before = 0;
  for (const auto& p : h.cut.points) {
    auto& piece = pieces.emplace_back(held_piece{whole, whole});
    piece.part[d] = {p[t], p[t + 1]};
    piece.array[d] = {p[t] - before, p[t] - before + held};
    before += p[t + 1] - p[t];
  }
  return pieces;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE std::vector<gradient_chunk> chunks_of(const model_parameter& m) {
  const std::size_t dimensions = m.shape.size();
  std::vector<std::vector<std::int64_t>> borders(dimensions);
  for (std::size_t d = 0; d < dimensions; ++d) borders[d] = {0, static_cast<std::int64_t>(m.shape[d])};
  for (const auto& h : m.holders)
    if (h.cut.dimension >= 0)
      for (const auto& p : h.cut.points) at(borders, h.cut.dimension).push_back(p.front());
  for (auto& b : borders) {
    std::sort(b.begin(), b.end());
    b.erase(std::unique(b.begin(), b.end()), b.end());
  }
  std::vector<gradient_chunk> chunks;
  const auto visit = [&](auto& self, slice& box, std::size_t d) -> void {
    if (d < dimensions) {
      for (std::size_t i = 0; i + 1 < borders[d].size(); ++i) {
        box.push_back({borders[d][i], borders[d][i + 1]});
        self(self, box, d + 1);
        box.pop_back();
      }
      return;
    }
    std::vector<gradient_holder> holders;
    for (const auto& h : m.holders) {
      const bool over_tensor = h.cut.dimension < 0 && h.cut.partial_over_tensor;
      // Data ranks as those with the same experts, and those with different ones.
      const int shared = h.cut.over_experts ? h.group.expert : 1;
      constexpr int over_experts = 1, over_columns = 3;
      auto& one =
          holders.emplace_back(gradient_holder{.pipeline = h.pipeline,
                                               .held = {.mesh = {h.group.data / shared, shared, h.group.context, h.group.tensor}},
                                               .first_device = h.first_rank,
                                               .summed = {1, 0, 1, static_cast<char>(over_tensor)}});
      for (const auto& i : box) one.held.dimensions.push_back({.extent = i.size(), .axes = {}, .points = {}});
      if (h.cut.over_experts) one.held.dimensions[0].axes = {over_experts};
      if (h.cut.dimension < 0) continue;
      const auto cut = as_size(h.cut.dimension);
      auto& here = one.held.dimensions[cut];
      here.axes = {over_columns};
      for (const auto& p : h.cut.points)
        if (p.front() <= box[cut].first && box[cut].last <= p.back())
          for (const auto point : p) here.points.push_back(std::clamp(point, box[cut].first, box[cut].last) - box[cut].first);
    }
    for (auto& c : gradient_chunks(holders)) {
      for (std::size_t k = 0; k < dimensions; ++k) {
        c.part[k].first += box[k].first;
        c.part[k].last += box[k].first;
      }
      chunks.push_back(std::move(c));
    }
  };
  slice box;
  visit(visit, box, 0);
  return chunks;
}

HETSCHED_INLINE void add_holders(std::vector<parameter_holder>& holders, const training_layout& t, int pipeline,
                                 const parameter_id& id, const group_cuts& cuts) {
  const auto& line = at(t.pipelines, pipeline);
  const auto stage = static_cast<int>(
      std::find_if(line.stages.begin(), line.stages.end(), [&](const stage_layout& s) { return id.layer < s.layers.last; }) -
      line.stages.begin());
  for (int c = 0; c < line.order.directions; ++c) {
    const int group = line.order.rank(c, stage);
    const auto cut = cuts.find({id, pipeline, group});
    holders.push_back({.pipeline = pipeline,
                       .what = id,
                       .direction = c,
                       .first_rank = line.first_of_group(group),
                       .group = line.degrees_of(group),
                       .cut = cut == cuts.end() ? group_cut{} : cut->second});
  }
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::vector<model_parameter> model_parameters(const training_layout& layout,
                                                              const std::vector<std::vector<tensor_shape>>& shapes,
                                                              const std::vector<parameter_tie>& ties, const group_cuts& cuts) {
  std::vector<std::size_t> first_of(shapes.size() + 1, 0);
  for (std::size_t l = 0; l < shapes.size(); ++l) first_of[l + 1] = first_of[l] + shapes[l].size();
  std::vector<std::size_t> same(first_of.back());  // the first of those tied
  std::iota(same.begin(), same.end(), std::size_t{0});
  const auto index = [&](const parameter_id& p) {
    if (p.layer < 0 || as_size(p.layer) >= shapes.size() || p.number < 0 || as_size(p.number) >= at(shapes, p.layer).size())
      throw input_error("there is no " + to_text(p) + " to tie");
    return at(first_of, p.layer) + as_size(p.number);
  };
  for (const auto& [a, b] : ties) {
    const auto x = same[index(a)], y = same[index(b)];
    if (at(at(shapes, a.layer), a.number) != at(at(shapes, b.layer), b.number))
      throw input_error(to_text(a) + " and " + to_text(b) + " are tied, but differ in shape");
    std::replace(same.begin(), same.end(), std::max(x, y), std::min(x, y));
  }

  std::vector<std::vector<parameter_id>> members(same.size());
  for (std::size_t l = 0; l < shapes.size(); ++l)
    for (std::size_t n = 0; n < shapes[l].size(); ++n)
      members[same[first_of[l] + n]].push_back({static_cast<int>(l), static_cast<int>(n)});

  std::vector<model_parameter> all;
  std::vector<std::int64_t> load(as_size(layout.ranks()), 0);
  for (const auto& own : members) {
    if (own.empty()) continue;
    auto& one = all.emplace_back();
    one.id = own.front();
    one.shape = at(at(shapes, one.id.layer), one.id.number);
    for (std::size_t p = 0; p < layout.pipelines.size(); ++p)
      for (const auto& id : own) detail::add_holders(one.holders, layout, static_cast<int>(p), id, cuts);
    // One sum serves all that hold it: if one of their stages wants to keep a part only, all do.
    const auto any_from = [&](int zero) {
      return std::any_of(one.holders.begin(), one.holders.end(), [&](const parameter_holder& h) {
        return at(layout.pipelines, h.pipeline).group(layout.place_of(h.first_rank).group).zero >= zero;
      });
    };
    one.sharded = any_from(1);
    // Others that hold it do not compute when this stage does, and could not take part in its gathers. Of tied layers that is one
    // parameter of many; of pipelines and directions it is all.
    const auto& one_holder = one.holders.front();
    const bool elsewhere = std::any_of(one.holders.begin(), one.holders.end(), [&](const parameter_holder& h) {
      return h.pipeline != one_holder.pipeline || h.direction != one_holder.direction;
    });
    one.gathered = any_from(3) && one.holders.size() == 1;
    if (any_from(3) && elsewhere)
      throw input_error(to_text(one.id) + " is in a stage with ZeRO stage 3, and another direction or pipeline has it, too, " +
                        "which does not compute when that stage does: it gathers only what no others hold");
    one.chunks = detail::chunks_of(one);
    for (const auto& c : one.chunks) {
      const auto least = std::min_element(c.devices.begin(), c.devices.end(), [&](const chunk_device& a, const chunk_device& b) {
        return at(load, a.device) < at(load, b.device);
      });
      one.owners.push_back(least->device);
      at(load, least->device) += element_count(c.part);
    }
  }
  return all;
}

HETSCHED_INLINE bool parameter_holder::has(int rank) const {
  return rank >= first_rank && rank < first_rank + group.device_count();
}

}  // namespace hetsched
