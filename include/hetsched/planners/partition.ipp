// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/detail/expect.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/planners/interop_dp.hpp>
#include <hetsched/planners/partition.hpp>
#include <hetsched/schedule/builders/period.hpp>
#include <hetsched/schedule/builders/warmup.hpp>
#include <hetsched/schedule/pipeline.hpp>
#include <hetsched/schedule/simulate/simulate.hpp>

namespace hetsched {

namespace detail {

// The arrays as a cost model.
struct chain_arrays {
  const partition_problem& given;

  [[nodiscard]] int layer_count() const { return given.seconds.columns(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const {
    if (mesh.device_count() > 1) return {};
    return {{.mesh = mesh}};
  }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const {
    const auto bytes = [&](const number_table& by_layer) {
      return by_layer.empty() ? bytes_t{0} : static_cast<bytes_t>(at(by_layer.values(), index));
    };
    const double seconds = at(given.seconds[where.mesh.subcluster], index), forward = given.forward_share * seconds;
    return {.forward_s = forward,
            .backward_s = seconds - forward,
            .weight_bytes = bytes(given.weight_bytes),
            .activation_bytes = bytes(given.activation_bytes)};
  }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const {
    stage_cost sum;
    for (int l = layers.first; l < layers.last; ++l) sum += layer(l, where);
    return sum;
  }
  [[nodiscard]] double transfer(int boundary, const placement& from, const placement& to) const {
    const auto& all = given.transfer_s;
    if (all.empty()) return 0;
    const auto kinds = static_cast<int>(given.devices.size());
    if (all.rows() == kinds * kinds && all.columns() + 1 == layer_count())
      return at(all[from.mesh.subcluster * kinds + to.mesh.subcluster], boundary);
    return at(all.values(), boundary);
  }
};

HETSCHED_INLINE void validate(const partition_problem& asked) {
  const auto size = [](const number_table& t) { return t.values().size(); };
  const auto kinds = asked.devices.size();
  const auto layers = as_size(asked.seconds.columns());
  if (kinds == 0 || layers == 0) throw input_error("partition: expected at least one kind of device and one layer");
  expect_size(as_size(asked.seconds.rows()), kinds, "partition: seconds", "a row per kind of device");
  constexpr std::int64_t most = 1 << 20;
  for (std::size_t k = 0; k < kinds; ++k)
    expect_count(asked.devices[k], "partition: devices[" + std::to_string(k) + "]", 1, most);
  expect_count(asked.microbatches, "partition: microbatches", 1, most_warmup);
  expect_naturals(asked.seconds.values(), "partition: seconds");
  if (!asked.transfer_s.empty() && size(asked.transfer_s) != kinds * kinds * (layers - 1))
    expect_size(size(asked.transfer_s), layers - 1, "partition: transfer_s",
                "one per boundary between layers (or as many for every pair of kinds)");
  expect_naturals(asked.transfer_s.values(), "partition: transfer_s");
  expect_natural(asked.forward_share, "partition: forward_share");
  if (asked.forward_share > 1)
    throw input_error("partition: forward_share is " + number_text(asked.forward_share) + ", expected at most 1");
  for (const auto& [values, name] : {std::pair{&asked.weight_bytes, "weight_bytes"},
                                     {&asked.activation_bytes, "activation_bytes"},
                                     {&asked.memory_bytes, "memory_bytes"}}) {
    const bool by_kind = values == &asked.memory_bytes;
    const auto what = std::string("partition: ") + name;
    if (!values->empty())
      expect_size(size(*values), by_kind ? kinds : layers, what, by_kind ? "one per kind of device" : "one per layer");
    expect_naturals(values->values(), what);
    constexpr double most_bytes = 1e15;
    for (const double bytes : values->values())
      if (bytes > most_bytes || (by_kind && bytes < 1))
        throw input_error(what + " has " + number_text(bytes) + ", expected " + (by_kind ? "1" : "0") + " to 1e15");
  }
  expect_natural(asked.epsilon, "partition: epsilon");
}

/// The search with the order given: a stage on each device.
class ordered_cuts {
 public:
  explicit ordered_cuts(const partition_problem& asked) : asked_(asked), costs_{asked}, layers_(costs_.layer_count()) {
    for (std::size_t k = 0; k < asked.devices.size(); ++k)
      for (int i = 0; i < asked.devices[k]; ++i) devices_.push_back({.mesh = {.subcluster = static_cast<int>(k)}});
    stages_ = static_cast<int>(devices_.size());
  }

  [[nodiscard]] outcome<chain_partition> best() {
    if (stages_ > layers_)
      return refusal{.reason = std::to_string(layers_) + " layers are too few for a stage on each of " + std::to_string(stages_) +
                               " devices"};
    double bound_s = never, longest = never;
    do {
      const auto [cuts, sum] = cuts_within(longest);
      if (cuts.empty()) break;
      take(cuts);
      const double period = best_period(pipeline_of(cuts));
      bound_s = std::min(bound_s, sum + (asked_.microbatches - 1) * period);
      longest = std::nextafter(period, 0.0);
    } while (longest > 0);
    if (!found_) return refusal{.reason = "no cuts leave each device the memory for its layers"};
    // What the sum does not see: a layer more or less, as long as that helps.
    for (bool better = true; better;) {
      better = false;
      for (int s = 1; s < stages_; ++s)
        for (const int layer : {-1, 1}) {
          auto cuts = found_->cuts;
          at(cuts, s) += layer;
          if (at(cuts, s - 1) < at(cuts, s) && at(cuts, s) < at(cuts, s + 1)) better = take(cuts) || better;
        }
    }
    for (const auto& d : devices_) found_->kinds.push_back(d.mesh.subcluster);
    found_->bound_s = std::min(bound_s, found_->iteration_s);
    found_->complete = true;
    return *std::move(found_);
  }

 private:
  static constexpr double never = infinity;

  [[nodiscard]] stage_cost stage_of(const std::vector<int>& cuts, int s) const {
    return costs_.stage({at(cuts, s), at(cuts, s + 1)}, at(devices_, s));
  }
  /// Behind a layer, from stage s to the next one.
  [[nodiscard]] double way(int layer, int s) const { return costs_.transfer(layer, at(devices_, s), at(devices_, s + 1)); }
  /// Microbatches that fit beside the weights of a stage.
  [[nodiscard]] int room_for(int s, const stage_cost& c) const {
    if (asked_.memory_bytes.empty()) return most_warmup;
    const double left =
        asked_.memory_bytes.values()[as_size(at(devices_, s).mesh.subcluster)] - static_cast<double>(c.weight_bytes);
    if (left < 0) return 0;
    return c.activation_bytes > 0
               ? static_cast<int>(std::min<double>(left / static_cast<double>(c.activation_bytes), most_warmup))
               : most_warmup;
  }
  [[nodiscard]] pipeline pipeline_of(const std::vector<int>& cuts) const {
    pipeline bare;
    for (int s = 0; s < stages_; ++s) {
      const auto here = stage_of(cuts, s);
      bare.forward_s.push_back(here.forward_s);
      bare.backward_s.push_back(here.backward_s);
      if (s + 1 < stages_) bare.transfer_s.push_back(way(at(cuts, s + 1) - 1, s));
    }
    return bare;
  }

  /// The cuts of the least sum of t_i + 2 c_i, none of them longer than `longest`, and that sum; no cuts: there are none.
  [[nodiscard]] std::pair<std::vector<int>, double> cuts_within(double longest) const {
    // Of the stages before a cut: the best sum, and where the last of them begins.
    std::vector<std::vector<double>> best(as_size(stages_) + 1, std::vector<double>(as_size(layers_) + 1, never));
    std::vector<std::vector<int>> from(best.size(), std::vector<int>(as_size(layers_) + 1, -1));
    best[0][0] = 0;
    for (int s = 0; s < stages_; ++s)
      for (int first = s; first <= layers_ - (stages_ - s); ++first) {
        if (at(at(best, s), first) == never) continue;
        stage_cost here;
        for (int last = first + 1; last <= layers_ - (stages_ - s - 1); ++last) {
          here += costs_.layer(last - 1, at(devices_, s));
          const double taken = here.forward_s + here.backward_s;
          if (taken > longest || room_for(s, here) < 1) break;
          const double transfer = s + 1 < stages_ ? way(last - 1, s) : 0;
          const double all = at(at(best, s), first) + taken + 2 * transfer;
          if (transfer > longest || all >= at(at(best, s + 1), last)) continue;
          at(at(best, s + 1), last) = all;
          at(at(from, s + 1), last) = first;
        }
      }
    if (best.back().back() == never) return {};
    std::vector<int> cuts(as_size(stages_) + 1, layers_);
    for (int s = stages_; s > 0; --s) at(cuts, s - 1) = at(at(from, s), at(cuts, s));
    return {std::move(cuts), best.back().back()};
  }

  /// Plays them; whether they are the best so far.
  bool take(const std::vector<int>& cuts) {
    std::vector<int> most;
    for (int s = 0; s < stages_; ++s)
      if (most.push_back(room_for(s, stage_of(cuts, s))); most.back() < 1) return false;
    const auto bare = pipeline_of(cuts);
    auto counts = asked_.warmup == warmup_rule::exact ? exact_warmups_within(bare, most)
                                                      : warmup_counts(asked_.warmup, bare, asked_.epsilon);
    for (std::size_t s = 0; s < counts.size(); ++s)
      counts[s] = std::min({counts[s], most[s], s > 0 ? counts[s - 1] : most_warmup});  // no more than the stage before starts
    const double iteration_s = simulate(bare, counts, asked_.microbatches).makespan_s;
    if (found_ && iteration_s >= found_->iteration_s) return false;
    found_ = {.cuts = cuts, .kinds = {}, .warmups = std::move(counts), .iteration_s = iteration_s};
    return true;
  }

  const partition_problem& asked_;
  chain_arrays costs_;
  int layers_, stages_ = 0;
  std::vector<placement> devices_;
  std::optional<chain_partition> found_;
};

}  // namespace detail

HETSCHED_INLINE outcome<chain_partition> partition(const partition_problem& asked) {
  detail::validate(asked);
  if (asked.in_order) return detail::ordered_cuts(asked).best();
  cluster hardware;
  for (int k = 0; k < asked.seconds.rows(); ++k) {
    device own{.name = "kind " + std::to_string(k),
               .memory_bytes =
                   asked.memory_bytes.empty() ? bytes_t{1} << 60 : static_cast<bytes_t>(asked.memory_bytes.values()[as_size(k)]),
               .memory_bandwidth = 1};
    own.peak_flops.fill(1);
    hardware.subclusters.push_back(
        {.name = own.name, .device = own, .nodes = 1, .devices_per_node = at(asked.devices, k), .intra_node = {0, 1}});
    for (int before = 0; before < k; ++before) hardware.links.push_back({.a = before, .b = k, .link = {0, 1}});
  }
  const detail::chain_arrays costs{asked};
  const auto found =
      interop_dp(hardware, costs, {.microbatches = asked.microbatches}, {.warmup = asked.warmup, .epsilon = asked.epsilon});
  if (!found) return found.why_not();
  const auto& stages = found->pipelines.front().stages;
  chain_partition result{.cuts = {0}, .warmups = warmups(found->pipelines.front()), .iteration_s = found->predicted.iteration_s};
  for (const auto& s : stages) {
    result.cuts.push_back(s.layers.last);
    result.kinds.push_back(s.where().mesh.subcluster);
  }
  if (found->evidence) {
    result.bound_s = std::min(found->evidence->objective_bound, result.iteration_s);
    result.complete = found->evidence->complete;
  }
  return result;
}

}  // namespace hetsched
