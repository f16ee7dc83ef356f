// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/reshard/gradient_chunks.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/reshard/transfer_plan.hpp>
#include <hetsched/runtime/executor/boundary_transfer.hpp>
#include <hetsched/runtime/group/stage_place.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/trainer/detail/exchange_plan.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/action_kind.hpp>
#include <hetsched/schedule/check/device_order.hpp>
#include <hetsched/schedule/detail/transfer_ends.hpp>

namespace hetsched {

/// How often a layer calls a collective over an axis of its group that has more than one rank.
struct layer_calls {
  int forward = 0;         ///< and recompute
  int backward_input = 0;  ///< a whole backward does this and the next
  int backward_weight = 0;
};

struct device_program_options {
  layer_calls tensor{.forward = 2, .backward_input = 2};   ///< attention and MLP, as in Megatron-LM
  layer_calls context{.forward = 1, .backward_input = 1};  ///< keys and values, and their gradients
  std::int64_t bucket_elements = 1 << 20;                  ///< most of gradients that are summed at once
};

namespace detail {

/// Builds a device_program, pipeline by pipeline.
class program_builder {
  using enum action_kind;
  using enum device_step_kind;

 public:
  program_builder(const training_layout& layout, const device_program_options& options) : layout_(layout), options_(options) {
    program_.devices = layout.ranks();
    last_.assign(at(program_.devices), -1);
  }

  void add_pipeline(int p, const pipeline_groups& groups) {
    const auto& line = layout_.pipelines[at(p)];
    const auto& order = line.order;
    if (groups.devices.size() != at(order.ranks) || groups.boundaries.size() != at(order.directions * (order.stages - 1)))
      throw input_error("pipeline " + std::to_string(p) + ": groups or boundaries of another schedule");
    pipeline_ = p;
    events_.clear();
    by_host_.clear();
    for (const auto& l : order.lanes)
      for (const auto& a : l.actions)
        if (is_network(a.kind)) by_host_.insert({moves_gradient(a.kind), a.direction, a.stage, a.microbatch});
    for (const auto& l : order.lanes)
      if (l.stream == stream::compute) add_computations(line, l);
    for (int c = 0; c < order.directions; ++c)
      for (int s = 0; s + 1 < order.stages; ++s)
        for (int m = 0; m < order.microbatches && order.rank(c, s) != order.rank(c, s + 1); ++m) {
          const auto& b = groups.boundaries[at(c * (order.stages - 1) + s)];
          const auto send = [&](action_kind kind, int stage) {
            return action{.kind = kind, .direction = static_cast<std::int16_t>(c), .stage = stage, .microbatch = m};
          };
          add_transfer(line, b.activation, send(send_activation, s));
          add_transfer(line, b.gradient, send(send_gradient, s + 1));
        }
  }

  /// Sums over the two directions of a schedule alone.
  void add_directions(int p) {
    const auto& line = layout_.pipelines[at(p)];
    for (int s = 0; line.order.directions == 2 && s < line.order.stages; ++s) {
      const int a = line.order.rank(0, s), b = line.order.rank(1, s);
      for (int i = 0; a != b && i < line.degrees_of(a).device_count(); ++i) {
        const std::vector<int> members{line.first_of_group(a) + i, line.first_of_group(b) + i};
        const action what{.kind = reduce_gradients, .stage = s, .microbatch = no_microbatch};
        (void)add({collective, members, {ends_of(p, 0, s, members[0]), ends_of(p, 1, s, members[1])}, p, what, 0});
      }
    }
  }

  /// Sums over all holders of a parameter, in buckets as gradient_exchange has them: scattered over the holders, and gathered, at
  /// once or, where owners update, behind all that a device updates.
  void add_sums(std::span<const model_parameter> parameters) {
    std::vector<std::pair<std::size_t, bool>> sums;  // and whether owners update
    int number = 0;
    for (const auto& [wave, members] : chunks_by_wave(parameters, exchange_waves(layout_))) {
      std::vector<const gradient_chunk*> chunks;
      for (const auto& [m, c] : members) chunks.push_back(&parameters[m].chunks[c]);
      for (const auto& bucket : gradient_buckets(chunks, options_.bucket_elements)) {
        const auto& first = parameters[members[bucket.pieces.front().chunk].first];
        device_step sum{collective, {}, {}, 0, {.kind = reduce_scatter, .stage = 0, .microbatch = no_microbatch}, number++};
        for (const auto& d : chunks[bucket.pieces.front().chunk]->devices) sum.members.push_back(d.device);
        for (const auto& piece : bucket.pieces)
          for (const auto& h : parameters[members[piece.chunk].first].holders)
            for (const int d : sum.members)
              if (h.has(d)) sum.needs.push_back(ends_of(h.pipeline, h.direction, stage_of(h), d));
        std::sort(sum.needs.begin(), sum.needs.end());
        sum.needs.erase(std::unique(sum.needs.begin(), sum.needs.end()), sum.needs.end());
        sum.pipeline = first.holders.front().pipeline;
        sum.what.stage = stage_of(first.holders.front());
        sums.emplace_back(at(add(std::move(sum))), first.sharded);
      }
    }
    const auto gather = [&](std::size_t k) {
      auto gathered = program_.steps[k];
      gathered.what.kind = all_gather;
      gathered.needs = {static_cast<int>(k)};
      return gathered;
    };
    std::vector<std::vector<int>> updated_behind(last_.size());
    for (const auto& [k, late] : sums) {
      const int end = late ? static_cast<int>(k) : add(gather(k));
      for (const int d : program_.steps[k].members) updated_behind[at(d)].push_back(end);
    }
    for (int d = 0; d < program_.devices; ++d) {
      auto& needs = updated_behind[at(d)];
      if (last_[at(d)] >= 0) needs.push_back(last_[at(d)]);
      last_[at(d)] = add({computation, {d}, std::move(needs), 0, {.kind = optimizer, .microbatch = no_microbatch}, 0});
    }
    for (const auto& [k, late] : sums) {
      if (!late) continue;
      auto gathered = gather(k);
      for (const int d : gathered.members) gathered.needs.push_back(last_[at(d)]);
      (void)add(std::move(gathered));
    }
  }

  [[nodiscard]] device_program take() { return std::move(program_); }

 private:
  /// The first and last steps of an action, by device of its group. Actions that are joined begin and end together.
  struct event {
    std::vector<int> first, last;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  int add(device_step s) {
    program_.steps.push_back(std::move(s));
    return static_cast<int>(program_.steps.size()) - 1;
  }
  void compute(int device, const action& what, int part, int behind = -1) {
    device_step s{computation, {device}, {}, pipeline_, what, part};
    for (const int n : {last_[at(device)], behind})
      if (n >= 0) s.needs.push_back(n);
    last_[at(device)] = add(std::move(s));
  }

  void add_computations(const pipeline_layout& line, const lane& l) {
    const int first = line.first_of_group(l.rank), count = line.degrees_of(l.rank).device_count();
    std::vector<action> computations;
    bool apart = true;  // from the computation before it, by an action that is none
    for (action a : l.actions) {
      apart = apart || !a.joined;
      if (!is_compute(a.kind)) continue;
      a.joined = !std::exchange(apart, false);
      computations.push_back(a);
    }
    for (std::size_t k = 0; k < computations.size();) {
      event e;
      std::size_t next = k;
      do {
        action a = computations[next];
        a.joined = false;
        for (int d = first; d < first + count; ++d) compute(d, a, 0);
        if (next == k)
          for (int d = first; d < first + count; ++d) e.first.push_back(last_[at(d)]);
        add_calls(line, l.rank, first, a);
      } while (++next < computations.size() && computations[next].joined);
      for (int d = first; d < first + count; ++d) e.last.push_back(last_[at(d)]);
      for (; k < next; ++k) {
        const auto& a = computations[k];
        events_[{a.kind, a.direction, a.stage, a.microbatch}] = e;
        if (a.kind != backward && a.kind != backward_weight) continue;
        for (int i = 0; i < count; ++i) ends_[{pipeline_, a.direction, a.stage, first + i}] = e.last[at(i)];
      }
    }
  }

  /// What the layers of a stage call inside a computation: each call between two pieces of it, on all ranks of an axis.
  void add_calls(const pipeline_layout& line, int group, int first, const action& a) {
    const auto& d = line.degrees_of(group);
    if (d.expert > 1)
      throw input_error("a device program has no collectives of an expert axis, as stage " + std::to_string(a.stage) +
                        " has one");
    const int layers = line.stages[at(a.stage)].layers.size();
    const auto times = [&](const layer_calls& c) {
      if (a.kind == forward || a.kind == recompute) return c.forward;
      return (a.kind != backward_weight ? c.backward_input : 0) + (a.kind != backward_input ? c.backward_weight : 0);
    };
    int part = 0;
    for (int layer = 0; layer < layers; ++layer) {
      for (int k = 0; k < times(options_.context) && d.context > 1; ++k) add_call(first, d, &stage_place::context, a, ++part);
      for (int k = 0; k < times(options_.tensor) && d.tensor > 1; ++k) add_call(first, d, &stage_place::tensor, a, ++part);
    }
  }
  void add_call(int first, const degrees& d, int stage_place::*axis, const action& a, int part) {
    for (int i = 0; i < d.device_count(); ++i) {
      auto p = place_of(d, i);
      if (p.*axis != 0) continue;
      device_step call{collective, {}, {}, pipeline_, a, part};
      const int size = axis == &stage_place::tensor ? d.tensor : d.context;
      for (; p.*axis < size; ++(p.*axis)) {
        call.members.push_back(first + index_of(d, p));
        call.needs.push_back(last_[at(call.members.back())]);
      }
      const auto members = call.members;
      const int number = add(std::move(call));
      for (const int device : members) compute(device, a, part, number);
    }
  }

  void add_transfer(const pipeline_layout& line, const transfer_plan& plan, const action& sent) {
    const bool gradient = moves_gradient(sent.kind);
    const int target = next_stage(sent);
    const auto* const maker = find_event(sent, sent.stage, gradient);
    const auto* const taker = find_event(sent, target, gradient);
    if (!maker && !taker) return;  // a microbatch of the other direction
    if (!maker || !taker)
      throw input_error("pipeline " + std::to_string(pipeline_) + ": no computation makes or takes " + to_text(sent));
    const int from = line.order.rank(sent.direction, sent.stage), to = line.order.rank(sent.direction, target);
    const auto device = [&](int d) {
      return d < plan.sources ? line.first_of_group(from) + d : line.first_of_group(to) + d - plan.sources;
    };
    if (maker->last.size() != at(plan.sources) || taker->first.size() != at(plan.destinations))
      throw input_error("pipeline " + std::to_string(pipeline_) + ": a transfer plan of other groups for " + to_text(sent));
    const auto kind = by_host_.contains({gradient, sent.direction, sent.stage, sent.microbatch}) ? host_transfer : transfer;
    std::vector<std::pair<const slice_message*, int>> before;  // messages of earlier phases
    for (std::size_t phase = 0; phase < plan.phase_count(); ++phase) {
      const auto earlier = before.size();
      for (const auto& m : plan.phase(phase)) {
        if (m.elements == 0) continue;
        const auto part = static_cast<int>(&m - plan.messages.data());
        device_step s{kind, {device(m.from), device(m.to)}, {}, pipeline_, sent, part};
        if (m.from < plan.sources) s.needs.push_back(maker->last[at(m.from)]);
        for (std::size_t k = 0; k < earlier; ++k)
          if (before[k].first->to == m.from && overlap(plan.slice_of(*before[k].first), plan.slice_of(m)))
            s.needs.push_back(before[k].second);
        const int number = add(std::move(s));
        if (m.to >= plan.sources) program_.steps[at(taker->first[at(m.to - plan.sources)])].needs.push_back(number);
        before.emplace_back(&m, number);
      }
    }
  }
  /// The event of the computation at a stage that makes or takes what is sent; null: there is none.
  [[nodiscard]] const event* find_event(const action& sent, int stage, bool gradient) const {
    for (const auto kind : {gradient ? backward : forward, gradient ? backward_input : forward})
      if (const auto found = events_.find({kind, sent.direction, stage, sent.microbatch}); found != events_.end())
        return &found->second;
    return nullptr;
  }
  /// The step behind which a device's gradients of a stage are whole.
  [[nodiscard]] int ends_of(int pipeline, int direction, int stage, int device) const {
    const auto found = ends_.find({pipeline, direction, stage, device});
    if (found == ends_.end())
      throw input_error("pipeline " + std::to_string(pipeline) + ": stage " + std::to_string(stage) + " has no backward");
    return found->second;
  }
  [[nodiscard]] int stage_of(const parameter_holder& h) const {
    const auto& stages = layout_.pipelines[at(h.pipeline)].stages;
    return static_cast<int>(
        std::find_if(stages.begin(), stages.end(), [&](const stage_layout& s) { return h.what.layer < s.layers.last; }) -
        stages.begin());
  }

  const training_layout& layout_;
  device_program_options options_;
  device_program program_;
  int pipeline_ = 0;
  std::vector<int> last_;                                           ///< per device: its last computation; -1: none
  std::map<std::tuple<action_kind, int, int, int>, event> events_;  ///< of the pipeline: kind, direction, stage, microbatch
  std::set<std::tuple<bool, int, int, int>> by_host_;   ///< of the pipeline: gradient, direction, sending stage, microbatch
  std::map<std::tuple<int, int, int, int>, int> ends_;  ///< pipeline, direction, stage, device
};

}  // namespace detail

/// All that the devices of a training do in an iteration: computations as the schedules list them, with the collectives of their
/// layers between pieces of them; transfers as boundaries are resharded, whatever the schedules say of their order, but by way of
/// the hosts where they say so; and sums of gradients. `groups`: of each pipeline, see make_pipeline_groups. `parameters`: see
/// model_parameters; without them gradients are summed over the directions of a schedule only, as an executor does.
/// Requires: schedules are sound, parameters are of this layout.
/// Throws: input_error for groups that are not the layout's, for expert degrees, and as validate(layout).
/// Complexity: O((actions * devices * calls + messages) * log actions + buckets * holders).
[[nodiscard]] inline device_program make_device_program(const training_layout& layout, std::span<const pipeline_groups> groups,
                                                        std::span<const model_parameter> parameters,
                                                        const device_program_options& options = {}) {
  validate(layout);
  if (groups.size() != layout.pipelines.size())
    throw input_error("groups of " + std::to_string(groups.size()) + " pipelines for a training of " +
                      std::to_string(layout.pipelines.size()));
  detail::program_builder builder(layout, options);
  for (std::size_t p = 0; p < groups.size(); ++p) builder.add_pipeline(static_cast<int>(p), groups[p]);
  if (!parameters.empty())
    builder.add_sums(parameters);
  else
    for (std::size_t p = 0; p < groups.size(); ++p) builder.add_directions(static_cast<int>(p));
  return builder.take();
}

}  // namespace hetsched
