// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/runtime/group/stage_place.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

HETSCHED_INLINE std::vector<double> room_of_ranks(const training_layout& t) {
  std::vector<double> room(as_size(t.ranks()), 1.0);
  bool any = false;
  for (const auto& p : t.pipelines)
    for (std::size_t g = 0; g < p.groups.size(); ++g) {
      const auto& d = p.groups[g].degrees;
      const auto& shares = p.groups[g].state_shares;
      const int first = p.first_of_group(static_cast<int>(g)), each = d.context * d.tensor;
      for (std::size_t r = 0; r < shares.size(); ++r)
        for (int k = 0; k < each; ++k) at(room, first + static_cast<int>(r) * each + k) = shares[r] * d.data;
      any = any || !shares.empty();
    }
  if (!any) room.clear();
  return room;
}

namespace detail {

// `here`: the pipeline, for messages. Its schedule, and that its stages have all layers in order.
inline void validate_stages(const std::string& here, const pipeline_layout& one, int layers) {
  const auto stages = as_size(std::max(one.order.stages, 0));
  if (one.order.ranks < 1 || one.order.directions < 1 || one.order.microbatches < 1 || one.stages.empty() ||
      one.order.rank_of.size() != stages * as_size(one.order.directions))
    throw input_error(here + "its schedule is empty");
  if (is_forward_only(one.order)) throw input_error(here + "its schedule has no backwards: it is one of inference");
  if (one.stages.size() != stages)
    throw input_error(here + "layers for " + std::to_string(one.stages.size()) + " stages, but the schedule has " +
                      std::to_string(stages));
  for (const int r : one.order.rank_of)
    if (r < 0 || r >= one.order.ranks) throw input_error(here + "a stage of the schedule lies on no rank");
  int next = 0;
  for (const auto& [range, reshard] : one.stages) {
    if (range.first != next)
      throw input_error(here + "a stage begins with layer " + std::to_string(range.first) + ", expected " + std::to_string(next));
    if (range.size() < 1) throw input_error(here + "the stage at layer " + std::to_string(next) + " has no layer");
    next = range.last;
  }
  if (next != layers)
    throw input_error(here + "its stages end at layer " + std::to_string(next) + ", the model at " + std::to_string(layers));
  if (one.microbatch_size < 1) throw input_error(here + "microbatches of " + std::to_string(one.microbatch_size) + " samples");
  if (!one.groups.empty() && one.groups.size() != as_size(one.order.ranks))
    throw input_error(here + "groups for " + std::to_string(one.groups.size()) + " ranks of a schedule of " +
                      std::to_string(one.order.ranks));
}

// How a stage is shared among its ranks.
inline void validate_group(const std::string& here, const std::string& stage, const group_layout& group, int microbatch_size) {
  const auto& d = group.degrees;
  const auto& points = group.sample_points;
  if (d.data < 1 || d.context < 1 || d.tensor < 1 || (points.empty() && microbatch_size % d.data != 0))
    throw input_error(here + "microbatches of " + std::to_string(microbatch_size) + " samples on " + std::to_string(d.data) +
                      " data ranks");
  if (d.expert < 1 || d.data % d.expert != 0)
    throw input_error(here + stage + "shares out experts among " + std::to_string(d.expert) + " of " + std::to_string(d.data) +
                      " data ranks");
  const bool rising = std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) == points.end();
  if (!points.empty() &&
      (points.size() != as_size(d.data) + 1 || points.front() != 0 || points.back() != microbatch_size || !rising))
    throw input_error(here + stage + "shares microbatches of " + std::to_string(microbatch_size) + " samples among " +
                      std::to_string(d.data) + " data ranks so that not every one has some");
  const auto add_up = [&](const std::vector<double>& shares, int among, const char* what, const char* axis) {
    if (shares.empty()) return;
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    if (shares.size() != as_size(among) || !(std::abs(all - 1) <= 1e-6) || *std::min_element(shares.begin(), shares.end()) < 0)
      throw input_error(here + stage + "shares its " + what + " among " + std::to_string(among) + " " + axis +
                        " ranks by numbers that do not add up to 1 for these");
  };
  const auto& state = group.state_shares;
  add_up(state, d.data, "state", "data");
  add_up(group.tensor_shares, d.tensor, "heads", "tensor");
  // An expert's state stays with the ranks that have it, whatever the others have room for.
  if (d.expert > 1 && std::adjacent_find(state.begin(), state.end(), std::not_equal_to<>()) != state.end())
    throw input_error(here + stage + "has uneven shares of the state of data ranks that share out experts");
  if (group.zero < 0 || group.zero > 3)
    throw input_error(here + stage + "asks for ZeRO stage " + std::to_string(group.zero) + ", expected 0 to 3");
}

}  // namespace detail

HETSCHED_INLINE void validate(const training_layout& t) {
  if (t.layers < 1) throw input_error("a training needs at least one layer");
  if (t.pipelines.empty()) throw input_error("a training needs at least one pipeline");
  const int ranks = t.ranks();
  std::vector<int> pipeline_of(as_size(std::max(ranks, 0)), -1);
  for (std::size_t p = 0; p < t.pipelines.size(); ++p) {
    const auto& one = t.pipelines[p];
    const auto here = "pipeline " + std::to_string(p) + ": ";
    detail::validate_stages(here, one, t.layers);
    for (int g = 0; g < one.order.ranks; ++g)
      detail::validate_group(here, "stage " + std::to_string(g) + " ", one.group(g), one.microbatch_size);
    for (int r = one.first_rank; r < one.first_rank + one.ranks(); ++r) {
      if (r < 0 || r >= ranks || at(pipeline_of, r) >= 0)
        throw input_error(here + "its ranks begin at " + std::to_string(one.first_rank) +
                          ": not every rank would be in one pipeline");
      at(pipeline_of, r) = static_cast<int>(p);
    }
  }
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE std::vector<stage_layout> cut_layers(int layers, const std::vector<double>& weights) {
  const int stages = static_cast<int>(weights.size());
  if (layers < stages)
    throw input_error(std::to_string(layers) + " layers cannot be cut into " + std::to_string(stages) + " stages");
  double all = 0, before = 0;
  for (const double w : weights) all += w;
  std::vector<stage_layout> found;
  for (int s = 0, first = 0; s < stages; ++s) {
    before += at(weights, s);
    const int wanted = static_cast<int>(before / all * layers + 0.5);
    const int last = s + 1 == stages ? layers : std::clamp(wanted, first + 1, layers - (stages - 1 - s));
    found.push_back({.layers = {first, last}});
    first = last;
  }
  return found;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE training_layout with_schedules(training_layout t, const std::vector<schedule>& orders) {
  if (orders.size() != t.pipelines.size()) throw input_error("expected a schedule for each pipeline");
  for (std::size_t p = 0; p < orders.size(); ++p) {
    auto& now = t.pipelines[p].order;
    const auto& next = orders[p];
    if (next.ranks != now.ranks || next.stages != now.stages || next.microbatches != now.microbatches ||
        next.stages != next.ranks || next.directions != 1 || now.directions != 1 || next.rank_of != now.rank_of)
      throw input_error("pipeline " + std::to_string(p) +
                        ": a schedule of other stages, ranks or microbatches than it runs, of " +
                        "several stages on a rank or of two directions");
    now = next;
  }
  validate(t);
  return t;
}

HETSCHED_INLINE training_layout even_layout(int layers, schedule order, int microbatch_size) {
  if (order.stages < 1) throw input_error("a schedule needs at least one stage");
  auto stages = detail::cut_layers(layers, std::vector<double>(as_size(order.stages), 1.0));
  training_layout t{.layers = layers, .pipelines = {}};
  t.pipelines.push_back(
      {.order = std::move(order), .stages = std::move(stages), .first_rank = 0, .microbatch_size = microbatch_size});
  validate(t);
  return t;
}

HETSCHED_INLINE const group_layout& pipeline_layout::group(int schedule_rank) const {
  static const group_layout one_device;
  return groups.empty() ? one_device : at(groups, schedule_rank);
}

HETSCHED_INLINE int pipeline_layout::first_of_group(int schedule_rank) const {
  if (groups.empty()) return first_rank + schedule_rank;
  int first = first_rank;
  for (int g = 0; g < schedule_rank; ++g) first += degrees_of(g).device_count();
  return first;
}

HETSCHED_INLINE interval pipeline_layout::samples_of(int schedule_rank, int data) const {
  const auto& own = group(schedule_rank);
  const auto d = as_size(data);
  if (!own.sample_points.empty()) return {own.sample_points[d], own.sample_points[d + 1]};
  const std::int64_t each = microbatch_size / own.degrees.data;
  return {data * each, (data + 1) * each};
}

HETSCHED_INLINE int training_layout::ranks() const {
  int all = 0;
  for (const auto& p : pipelines) all += p.ranks();
  return all;
}

HETSCHED_INLINE int training_layout::pipeline_of(int rank) const {
  int p = 0;
  for (const auto& one : pipelines) {
    if (rank >= one.first_rank && rank < one.first_rank + one.ranks()) break;
    ++p;
  }
  return p;
}

HETSCHED_INLINE rank_place training_layout::place_of(int rank) const {
  rank_place found{.pipeline = pipeline_of(rank)};
  const auto& line = at(pipelines, found.pipeline);
  int within = rank - line.first_rank;
  if (line.groups.empty()) std::swap(found.group, within);  // one device each
  for (; within >= line.degrees_of(found.group).device_count(); ++found.group)
    within -= line.degrees_of(found.group).device_count();
  const stage_place place = hetsched::place_of(line.degrees_of(found.group), within);
  found.data = place.data;
  found.context = place.context;
  found.tensor = place.tensor;
  return found;
}

}  // namespace hetsched
