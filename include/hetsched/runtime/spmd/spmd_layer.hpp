// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/spmd/spmd_layer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/tensor_backward.hpp>
#include <hetsched/runtime/group/axis_group.hpp>
#include <hetsched/runtime/layer/parameter_cut.hpp>
#include <hetsched/runtime/spmd/rank_steps.hpp>
#include <hetsched/runtime/spmd/spmd_run.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/spmd/stage_program.hpp>

namespace hetsched {

/// A layer of a pipeline, for a stage of several devices that a program shares out: pipeline_layer. Input and output are whole on
/// each of them, parameters and what is computed are cut as the program says, unevenly if its shares are.
/// Kernels: spmd_kernels, host_kernels for instance.
template <pipeline_tensor Tensor, spmd_kernels<Tensor> Kernels>
class spmd_layer {
  using traits = tensor_traits<Tensor>;
  using element = typename traits::element;

 public:
  using context = detail::spmd_values<Tensor>;

  /// `axis`: rank k is device k of the problem, counted kind by kind. initial(node, shape) -> Tensor: all of a parameter of the
  /// graph, the same on every rank, of which this rank keeps its part. Throws: input_error for an axis of another number of
  /// devices, a program that is none of the problem's, and initial values of another shape.
  template <class Initial>
  spmd_layer(const spmd::stage_program& given, device_axis<element> axis, Kernels kernels, Initial initial)
      : stage_(given.stage), graph_(given.problem), run_(made_run(given, std::move(axis), std::move(kernels))) {
    const auto& steps = run_.steps();
    for (int node = 0; node < graph_->graph.size(); ++node) {
      const int leaf = steps.leaf_of(node);
      if (leaf < 0 || !is_parameter(graph_->graph.at(node))) continue;
      const auto& held = at(steps.held(), leaf);
      Tensor all = initial(node, shape_at(node));
      expect_shape(all, node, "its initial values");
      leaves_.push_back(leaf);
      cuts_.push_back({.dimension = held.form.is_cut() ? held.form.dimension() : -1});
      parameters_.push_back(part_of(all, node, held));
      gradients_.push_back(traits::make(held.shape));
      detail::zero(gradients_.back());
      gradient_of_.push_back(-1);
      for (const auto& [parameter, gradient] : graph_->goal.gradients)
        if (parameter == node) gradient_of_.back() = found(gradient, held.form);
    }
    output_ = found(stage_.output, spmd::tensor_form::whole());
    if (stage_.input_gradient >= 0) input_gradient_ = found(stage_.input_gradient, spmd::tensor_form::whole());
  }

  [[nodiscard]] context make_context() const { return run_.make_values(); }

  /// Throws: input_error for an input of another shape than the graph's, communication_error where a rank is missing.
  Tensor forward(const Tensor& input, context& c) {
    expect_shape(input, stage_.input, "the input");
    for (std::size_t p = 0; p < leaves_.size(); ++p) at(c.at, leaves_[p]) = &parameters_[p];
    give(c, stage_.input, input);
    run_.run(c, false);
    return copy_of(*at(c.at, output_));
  }

  Tensor backward(const Tensor& gradient, context& c) {
    expect_shape(gradient, stage_.output_gradient, "the output's gradient");
    give(c, stage_.output_gradient, gradient);
    run_.run(c, true);
    for (std::size_t p = 0; p < gradients_.size(); ++p)
      if (gradient_of_[p] >= 0) detail::add(gradients_[p], *at(c.at, gradient_of_[p]));
    if (input_gradient_ >= 0) return copy_of(*at(c.at, input_gradient_));
    Tensor none = traits::make(shape_at(stage_.input));
    detail::zero(none);
    return none;
  }

  [[nodiscard]] std::vector<Tensor>& parameters() { return parameters_; }
  [[nodiscard]] std::vector<Tensor>& gradients() { return gradients_; }
  [[nodiscard]] const std::vector<parameter_cut>& parameter_cuts() const { return cuts_; }

 private:
  using run_type = detail::spmd_run<Tensor, Kernels>;

  static run_type made_run(const spmd::stage_program& given, device_axis<element> axis, Kernels kernels) {
    if (axis.size() != given.problem->device_count())
      throw input_error("the program is for " + std::to_string(given.problem->device_count()) + " devices, the axis has " +
                        std::to_string(axis.size()));
    spmd_parts parts(*given.problem, given.program, given.shares);
    detail::rank_steps steps(*given.problem, given.program, parts, axis.rank(), given.stage.output_gradient);
    return {given.problem, std::move(parts), std::move(steps), std::move(axis), std::move(kernels)};
  }

  [[nodiscard]] tensor_shape shape_at(int node) const {
    const auto& shape = graph_->graph.at(node).shape;
    return {shape.begin(), shape.end()};
  }
  void expect_shape(const Tensor& t, int node, const std::string& what) const {
    const auto expected = shape_at(node), found = detail::shape_of(t);
    if (expected == found) return;
    const auto text = [](const tensor_shape& shape) {
      return detail::shape_text(std::vector<std::int64_t>(shape.begin(), shape.end()));
    };
    throw input_error(graph_->graph.at(node).name + ": expected the shape " + text(expected) + ", " + what + " has " +
                      text(found));
  }
  [[nodiscard]] int found(int node, spmd::tensor_form form) const {
    const int tensor = run_.steps().find(node, form);
    if (tensor < 0)
      throw input_error("the program does not end with " + graph_->graph.at(node).name + " as " + spmd::text_of(form));
    return tensor;
  }
  void give(context& c, int node, const Tensor& t) const {
    if (const int leaf = run_.steps().leaf_of(node); leaf >= 0) at(c.at, leaf) = &t;
  }
  [[nodiscard]] Tensor part_of(const Tensor& all, int node, const detail::held_tensor& held) const {
    if (held.form.is_whole()) return copy_of(all);
    Tensor part = traits::make(held.shape);
    const int d = held.form.dimension(), device = run_.axis().rank();
    detail::pack(traits::data(part), traits::data(all), detail::view_of(shape_at(node), d), run_.parts().first(node, d, device),
                 run_.parts().size(node, d, device));
    return part;
  }
  [[nodiscard]] static Tensor copy_of(const Tensor& t) {
    Tensor copy = traits::make(detail::shape_of(t));
    detail::assign(copy, t);
    return copy;
  }

  stage_goal stage_;
  std::shared_ptr<const spmd::problem> graph_;
  run_type run_;
  std::vector<Tensor> parameters_, gradients_;
  std::vector<parameter_cut> cuts_;
  std::vector<int> leaves_, gradient_of_;  // tensors of the run, by parameter
  int output_ = -1, input_gradient_ = -1;
};

}  // namespace hetsched
