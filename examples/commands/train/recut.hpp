// SPDX-License-Identifier: Apache-2.0
// Where layers should be for what they, stages and links take now.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/planners/partition.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/measure/layer_time_table.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/trainer/trainer_options.hpp>

#include <train/place.hpp>
#include <train/reschedule.hpp>

namespace train {

/// What layers take on each rank.
class layer_watch {
 public:
  /// `expected_s`: this rank's times of all forwards, then of all backwards.
  layer_watch(control comm, const std::vector<double>& expected_s, double deadline_s) : deadline_s_(deadline_s) {
    std::vector<std::vector<double>> forward, backward;
    for (const auto& told : gather(comm, expected_s, deadline_s, "timing layers")) {
      const auto middle = told.begin() + std::ssize(told) / 2;
      forward.emplace_back(told.begin(), middle);
      backward.emplace_back(middle, told.end());
    }
    table_.emplace(hetsched::number_table(forward), hetsched::number_table(backward));
  }

  /// What this rank's layers took in a step.
  void add(const std::vector<hetsched::layer_time>& step) { steps_.push_back(step); }
  /// Forgets steps until now.
  void clear() { steps_.clear(); }

  /// All ranks tell the medians of the steps since the last call.
  const hetsched::layer_time_table& tell(control comm) {
    std::map<int, std::pair<std::vector<double>, std::vector<double>>> took;
    for (const auto& step : std::exchange(steps_, {}))
      for (const auto& l : step) {
        took[l.layer].first.push_back(l.forward_s);
        took[l.layer].second.push_back(l.backward_s);
      }
    std::vector<double> mine;
    for (auto& [layer, times] : took)
      mine.insert(mine.end(), {static_cast<double>(layer), hetsched::median_and_spread(std::move(times.first)).median_s,
                               hetsched::median_and_spread(std::move(times.second)).median_s});
    const auto all = gather(comm, mine, deadline_s_, "times of layers");
    for (int r = 0; r < comm.ranks(); ++r) {
      const auto& numbers = all[static_cast<std::size_t>(r)];
      std::vector<hetsched::layer_time> told;
      for (std::size_t i = 0; i < numbers.size(); i += 3)
        told.push_back({static_cast<int>(numbers[i]), numbers[i + 1], numbers[i + 2]});
      table_->measured(r, told);
    }
    return *table_;
  }

 private:
  double deadline_s_;
  std::optional<hetsched::layer_time_table> table_;
  std::vector<std::vector<hetsched::layer_time>> steps_;
};

/// What layers of a pipeline take of its stages' memory, as a plan has it: stages' weights by their layers' parameters,
/// activations in equal parts. Empty where the plan does not tell.
struct layer_bytes {
  std::vector<double> weight, activation;
};

[[nodiscard]] inline layer_bytes bytes_of_layers(const hetsched::pipeline_plan& line,
                                                 const std::vector<hetsched::model_parameter>& parameters) {
  layer_bytes found;
  if (hetsched::activation_rooms(line).empty()) return found;
  std::vector<double> elements(static_cast<std::size_t>(line.stages.back().layers.last), 0);
  for (const auto& p : parameters) {
    double count = 1;
    for (const auto extent : p.shape) count *= static_cast<double>(extent);
    elements[static_cast<std::size_t>(p.id.layer)] += count;
  }
  for (const auto& s : line.stages) {
    double all = 0;
    for (int l = s.layers.first; l < s.layers.last; ++l) all += elements[static_cast<std::size_t>(l)];
    for (int l = s.layers.first; l < s.layers.last; ++l) {
      const double share = all > 0 ? elements[static_cast<std::size_t>(l)] / all : 1.0 / s.layers.size();
      found.weight.push_back(share * static_cast<double>(s.cost.weight_bytes));
      found.activation.push_back(static_cast<double>(s.cost.activation_bytes) / s.layers.size());
    }
  }
  return found;
}

/// A pipeline with its layers cut so, and what they take then. `ranks`: of each stage. `numbers`: as measured_stages has them.
[[nodiscard]] inline hetsched::pipeline_plan with_cuts(const hetsched::pipeline_plan& planned, const std::vector<int>& cuts,
                                                       const layer_bytes& bytes, const std::vector<std::vector<int>>& ranks,
                                                       const hetsched::layer_time_table& table, const double* numbers) {
  auto line = with_measured(planned, numbers);
  for (std::size_t s = 0; s < line.stages.size(); ++s) {
    auto& stage = line.stages[s];
    const double weight_share = stage.cost.backward_s > 0 ? stage.cost.weight_backward_s / stage.cost.backward_s : 0.5;
    stage.layers = {cuts[s], cuts[s + 1]};
    stage.cost.forward_s = stage.cost.backward_s = 0;
    double weight = 0, activation = 0;
    for (int l = stage.layers.first; l < stage.layers.last; ++l) {
      hetsched::layer_time slowest;
      for (const int r : ranks[s]) {
        const auto took = table.of(r, l);
        slowest.forward_s = std::max(slowest.forward_s, took.forward_s);
        slowest.backward_s = std::max(slowest.backward_s, took.backward_s);
      }
      stage.cost.forward_s += slowest.forward_s;
      stage.cost.backward_s += slowest.backward_s;
      if (bytes.weight.empty()) continue;
      weight += bytes.weight[static_cast<std::size_t>(l)];
      activation += bytes.activation[static_cast<std::size_t>(l)];
    }
    stage.cost.weight_backward_s = weight_share * stage.cost.backward_s;
    if (bytes.weight.empty()) continue;
    stage.cost.weight_bytes = static_cast<hetsched::bytes_t>(weight);
    stage.cost.activation_bytes = static_cast<hetsched::bytes_t>(activation);
    stage.memory_bytes = 0;  // up to the order
  }
  line.copy_sync.clear();  // of layers that are elsewhere now
  return line;
}

/// What partition finds for a pipeline on the ranks that it has; none: it refuses.
[[nodiscard]] inline std::optional<std::vector<int>> best_cuts(const hetsched::pipeline_plan& line, const layer_bytes& bytes,
                                                               const std::vector<std::vector<int>>& ranks,
                                                               const hetsched::layer_time_table& table, const double* numbers) {
  using namespace hetsched;
  const auto stages = line.stages.size();
  const auto layers = static_cast<std::size_t>(table.layers());
  std::vector<std::vector<double>> seconds(stages, std::vector<double>(layers, 0)),
      transfers(stages * stages, std::vector<double>(layers - 1, 0));
  double forward_s = 0, all_s = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t l = 0; l < layers; ++l)
      for (const int r : ranks[s]) {
        const auto took = table.of(r, static_cast<int>(l));
        seconds[s][l] = std::max(seconds[s][l], took.forward_s + took.backward_s);
        forward_s += took.forward_s;
        all_s += took.forward_s + took.backward_s;
      }
    // All boundaries between the GPT's layers are of one size.
    const double* const n = numbers + s * numbers_per_stage;
    if (s + 1 < stages) transfers[s * stages + s + 1].assign(layers - 1, (n[3] + n[4]) / 2);
  }
  partition_problem asked{.seconds = number_table(seconds),
                          .devices = std::vector<int>(stages, 1),
                          .microbatches = line.microbatches,
                          .transfer_s = number_table(transfers),
                          .forward_share = all_s > 0 ? forward_s / all_s : 1. / 3,
                          .in_order = true};
  if (!bytes.weight.empty()) {
    const auto rooms = activation_rooms(line);
    std::vector<double> memory;
    for (std::size_t s = 0; s < stages; ++s)
      memory.push_back(std::max(1.0, static_cast<double>(line.stages[s].cost.weight_bytes) + rooms[s]));
    asked.weight_bytes = number_table(bytes.weight);
    asked.activation_bytes = number_table(bytes.activation);
    asked.memory_bytes = number_table(memory);
  }
  const auto found = partition(asked);
  if (!found) return std::nullopt;
  return found->cuts;
}

/// The layers of all stages: "0-3 | 4-5".
[[nodiscard]] inline std::string cuts_text(const std::vector<hetsched::pipeline_plan>& lines) {
  std::string text;
  for (const auto& line : lines) {
    if (!text.empty()) text += "; ";
    for (const auto& s : line.stages)
      text += (&s == &line.stages.front() ? "layers " : " | ") + std::to_string(s.layers.first) + "-" +
              std::to_string(s.layers.last - 1);
  }
  return text;
}

/// Where layers are, and the orders of work.
struct new_cuts {
  std::vector<hetsched::pipeline_plan> lines;  ///< with what layers take; of a plan
  new_orders orders;
  bool moved = false;
};

/// The cuts and orders of the shortest iteration for what is measured, as `auto` orders them, if that is shorter by a share
/// `gain` than with the cuts as they are; else these, and the orders that `auto` finds for them. The same on all ranks for the
/// same numbers.
[[nodiscard]] inline new_cuts cut_again(const hetsched::plan& p, const hetsched::training_layout& layout,
                                        const std::vector<hetsched::schedule>& orders, const std::vector<layer_bytes>& bytes,
                                        const hetsched::layer_time_table& table, const std::vector<double>& numbers,
                                        double gain) {
  new_cuts stays, moves;
  std::size_t first = 0;
  for (std::size_t i = 0; i < p.pipelines.size(); ++i) {
    const auto& line = p.pipelines[i];
    std::vector<std::vector<int>> ranks;
    std::vector<int> cuts{0};
    for (int s = 0; s < static_cast<int>(line.stages.size()); ++s) {
      auto& of_stage = ranks.emplace_back();
      const auto& where = layout.pipelines[i];
      for (int d = 0; d < where.degrees_of(s).device_count(); ++d) of_stage.push_back(where.first_of_group(s) + d);
      cuts.push_back(line.stages[static_cast<std::size_t>(s)].layers.last);
    }
    const double* const own = numbers.data() + first;
    first += numbers_per_stage * line.stages.size();
    const auto add = [&](new_cuts& to, const std::vector<int>& by) {
      auto cut = with_cuts(line, by, bytes[i], ranks, table, own);
      to.moved = to.moved || by != cuts;
      add_order(to.orders, cut, by == cuts ? &orders[i] : nullptr);
      to.lines.push_back(std::move(cut));
    };
    add(stays, cuts);
    add(moves, best_cuts(line, bytes[i], ranks, table, own).value_or(cuts));
  }
  moves.orders.now_s = stays.orders.now_s;
  return moves.moved && moves.orders.then_s < (1 - gain) * stays.orders.then_s ? moves : stays;
}

}  // namespace train
