// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cluster/cluster.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/cost/questions/any_cost_model.hpp>
#include <hetsched/cost/questions/stage_part.hpp>
#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/spmd/costs.hpp>
#include <hetsched/spmd/stage_program.hpp>
#include <hetsched/spmd/synthesize.hpp>

namespace hetsched::spmd {

/// Some layers of a model as a graph of operators, for one microbatch.
struct program_graph {
  tensor_graph graph{};
  int input = 0;       ///< a placeholder
  int output = 0;      ///< a node
  bool first = false;  ///< its input is data, and nobody asks for its gradient
};

struct program_cost_options {
  int slices = 64;                ///< into how many parts planners may cut what a stage shares out, 1 to 10^6
  synthesis_options search = {};  ///< of each program
};

/// A cost model whose stages of unlike devices are computed by programs: all that `base` says, but that tensor ranks with unlike
/// devices, or uneven shares, take what the cheapest program takes that was found for the stage's graph on these devices. So
/// with_mixed_stages plans such stages, evaluate prices them, and a plan tells the program by its devices and shares: program()
/// finds it again, for an spmd_layer.
/// A program is searched for with shares of its own; at other shares it stays what it is, so another may be cheaper there.
/// Seconds are those of whole rows, as they run; forward and backward are told apart by what does not need the output's gradient.
/// base: a cost model of training, for one microbatch size, of which this keeps a copy. graph_of: (layer_range) -> program_graph,
/// for microbatches of that size; the same for the same layers. timer: an operator_timer; predict_operator by default.
/// Copies share what they have found, and may be asked from several threads.
/// Source: Zhang et al., HAP (EuroSys 2024), secs. 4 and 5.
class program_costs {
 public:
  /// Requires: the cluster outlives this. Not checked.
  template <stage_cost_model Base, class ProgramGraph>
  requires(std::is_invocable_r_v<program_graph, const ProgramGraph&, layer_range>)
      program_costs(const cluster& hardware, Base base, ProgramGraph graph_of, program_cost_options options = {})
      : program_costs(hardware, any_cost_model::owner_of(std::move(base)), std::move(options)) {
    graph_of_ = kept<graph_maker>(std::move(graph_of));
  }
  template <stage_cost_model Base, class ProgramGraph, class Timer>
  requires(std::is_invocable_r_v<double, const Timer&, const tile_device&, const operator_shape&>)
      program_costs(const cluster& hardware, Base base, ProgramGraph graph_of, program_cost_options options, Timer timer)
      : program_costs(hardware, std::move(base), std::move(graph_of), std::move(options)) {
    timer_ = kept<operator_seconds>(std::move(timer));
  }

  [[nodiscard]] int layer_count() const { return base_.layer_count(); }
  [[nodiscard]] std::vector<placement> placements(const submesh& mesh) const { return base_.placements(mesh); }
  [[nodiscard]] stage_cost layer(int index, const placement& where) const { return base_.layer(index, where); }
  [[nodiscard]] stage_cost stage(layer_range layers, const placement& where) const { return base_.stage(layers, where); }
  [[nodiscard]] transfer_cost transfer(int boundary, const placement& from, const placement& to,
                                       proximity near = proximity::other_node) const {
    return base_.transfer(boundary, from, to, near);
  }
  [[nodiscard]] double update(layer_range layers, const placement& where) const { return base_.update(layers, where); }
  [[nodiscard]] reduction_cost gradient_sync(layer_range layers, std::span<const placement> holders) const {
    return base_.gradient_sync(layers, holders);
  }
  [[nodiscard]] memory_overheads overheads(const placement& where) const { return base_.overheads(where); }
  [[nodiscard]] std::vector<parameter_copy> copies(const placement& where) const { return base_.copies(where); }
  [[nodiscard]] std::int64_t boundary_class(int boundary) const { return base_.boundary_class(boundary); }

  /// Whether base is an additive_cost_model.
  [[nodiscard]] bool additive() const { return base_.additive(); }

  [[nodiscard]] int slices() const { return options_.slices; }
  /// Of the cheapest program at these slices. Infinite seconds where no link joins the devices, for parts of one subcluster, and
  /// for recomputation of a part of a stage, which programs do not know.
  /// Throws: input_error for layers that base lacks, no parts or parts without slices, a graph in segments, or one without the
  /// input and output that it names; as graph_of, add_stage_backward and make_problem. Complexity: a synthesis for layers on
  /// devices that are asked for the first time, then O(instructions * parts).
  [[nodiscard]] parts_cost sliced_stage(layer_range layers, std::span<const stage_part> parts) const;

  /// The program of a stage with these parts, as parts_of tells them, for an spmd_layer on its ranks: what sliced_stage prices.
  /// Throws: as sliced_stage; input_error where there is none: no link joins the devices, or two parts are of one subcluster.
  [[nodiscard]] spmd::stage_program program(layer_range layers, std::span<const stage_part> parts) const;

 private:
  using graph_maker = function_ref<program_graph(layer_range)>;
  struct found_program;
  struct found_programs;

  program_costs(const cluster& hardware, any_cost_model base, program_cost_options options);
  // A reference to what is kept from now on, by all copies.
  template <class Reference, class F>
  [[nodiscard]] Reference kept(F f) {
    const auto own = std::make_shared<const F>(std::move(f));
    kept_.push_back(own);
    return Reference(*own);
  }
  void expect_stage(layer_range layers, std::span<const stage_part> parts) const;
  [[nodiscard]] const found_program& find(layer_range layers, std::span<const stage_part> parts) const;
  [[nodiscard]] found_program made(layer_range layers, std::size_t parts, const std::vector<device_id>& devices) const;

  const cluster* hardware_;
  any_cost_model base_;
  program_cost_options options_;
  graph_maker graph_of_{};
  operator_seconds timer_{};  // nothing: predict_operator
  std::vector<std::shared_ptr<const void>> kept_{};
  std::shared_ptr<found_programs> found_;
};

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/program_costs.ipp>
#endif
