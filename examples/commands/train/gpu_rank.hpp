// SPDX-License-Identifier: Apache-2.0
// A rank that computes on a GPU or, beside those that do, on the host.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/stager.hpp>

#include <gpt/batch.hpp>
#include <gpt_cuda/operations.hpp>
#include <gpt_cuda/shape_of.hpp>
#include <train/cuda.hpp>
#include <train/layers.hpp>
#include <train/rank.hpp>

namespace train {

[[nodiscard]] inline gpt_cuda::numbers to_numbers(const gpt::tensor<float>& t) {
  return {t.rows(), t.columns(), std::vector<float>(t.data(), t.data() + t.size())};
}
/// Of a layer of the host.
[[nodiscard]] inline std::vector<gpt_cuda::numbers> parameters_of(hetsched::any_layer<gpt::tensor<float>>& layer) {
  std::vector<gpt_cuda::numbers> found;
  for (gpt::tensor<float>& p : layer.parameters()) found.push_back(to_numbers(p));
  return found;
}
/// A layer's first parameters, those of the host.
[[nodiscard]] inline std::vector<gpt_cuda::numbers> first_weights(const gpt::config& m, int layer) {
  auto made = train::make_layer<float>(m, layer, {}, hetsched::recomputation::none);
  return parameters_of(made);
}

[[nodiscard]] inline gpt_cuda::timing timing_of(const gpt::config& m, const std::string& corpus, const gpu_timing& how) {
  const auto b = gpt::draw<float>(corpus, m.sequence, {.seed = m.seed, .samples = how.samples});
  return {.model = gpt_cuda::shape_of(m, how.products == "bf16", how.half_boundaries),
          .samples = how.samples,
          .first_weights = [m](int layer) { return first_weights(m, layer); },
          .data = {to_numbers(b.inputs), to_numbers(b.targets)},
          .warmup = how.warmup,
          .repeats = how.repeats,
          .before = how.before};
}

/// See host_rank. Stager: how tensors come to the host for transports of the host; no_stager: they do not.
template <class Api, class Stager = hetsched::no_stager>
class gpu_rank {
 public:
  using real = float;
  using tensor = gpt_cuda::tensor<Api>;
  using layer = gpt_cuda::any_layer<Api>;
  using optimizer = gpt_cuda::optimizer<Api>;
  using backend = hetsched::cuda_graph_backend<Api>;
  using stager = Stager;
  static constexpr bool can_halve_boundaries = true;

  /// `place`: a device, or -1, the host.
  gpu_rank(hetsched::cuda_devices<Api>& devices, int place, int rank, const arguments& given)
      : devices_(&devices),
        place_(place),
        name_("rank " + std::to_string(rank)),
        device_(given.device),
        products_(given.products),
        graphs_(given.graphs),
        own_(devices, place, name_, given.graphs && place >= 0) {}

  [[nodiscard]] backend make_backend() const { return own_; }
  [[nodiscard]] stager make_stager() const {
    if constexpr (std::same_as<stager, hetsched::no_stager>)
      return {};
    else
      return stager(*devices_, place_, name_);
  }
  [[nodiscard]] bool on_gpu() const { return place_ >= 0; }
  void require_supported(const gpt::config& m, const hetsched::training_layout& layout, bool direct) const {
    const auto refuse = [&](bool asked, const char* what) {
      if (asked) throw hetsched::input_error("--device " + device_ + ": " + what + " on GPUs");
    };
    refuse(graphs_ && m.experts > 0,
           "layers with experts, whose rows find their experts on the host in each step, are not captured in graphs");
    for (const auto& line : layout.pipelines)
      for (int g = 0; g < line.order.ranks; ++g) {
        const auto& d = line.degrees_of(g);
        refuse(!direct && d.data * d.context * d.tensor > 1, "stages of several processes without NCCL are not trained");
        refuse(graphs_ && d.context * d.tensor > 1, "stages that are cut along context or tensors are not captured in graphs");
      }
  }
  template <class Group>
  [[nodiscard]] layer make_layer(const gpt::config& m, int l, const Group& group, hetsched::recomputation recompute,
                                 bool half_boundaries) const {
    // The part of a host's rank, whose collectives nobody calls.
    const auto like = [](const auto& axis) { return hetsched::device_axis<float>(axis.rank(), axis.size(), nullptr); };
    auto host = train::make_layer<float>(m, l, like(group.tensor()), recompute, like(group.context()), like(group.expert()),
                                         group.tensor_shares());
    return gpt_cuda::operations<Api>::make_layer(gpt_cuda::shape_of(m, products_ == "bf16", half_boundaries), l,
                                                 {.first = parameters_of(host),
                                                  .cuts = host.parameter_cuts(),
                                                  .axis = gpt_cuda::group_axis_of<Api>(group.tensor()),
                                                  .context = gpt_cuda::group_axis_of<Api>(group.context()),
                                                  .expert = gpt_cuda::group_axis_of<Api>(group.expert())},
                                                 own_.compute_queue());
  }
  [[nodiscard]] tensor put(const gpt::tensor<float>& t) const { return gpt_cuda::upload(own_.compute_queue(), to_numbers(t)); }
  [[nodiscard]] static auto loss(std::size_t rows) {
    return [rows](tensor logits, const tensor& targets, const hetsched::cuda_queue<Api>& q, double& value) {
      return gpt_cuda::operations<Api>::cross_entropy_part(std::move(logits), targets, rows, q, value);
    };
  }
  template <class Alive>
  [[nodiscard]] std::vector<double> time_layers(const job& j, int samples, bool half_boundaries, const Alive& alive) const {
    const auto found = gpt_cuda::operations<Api>::time_layers(
        *devices_, place_,
        timing_of(
            j.config, j.corpus,
            {.products = products_, .half_boundaries = half_boundaries, .samples = samples, .before = [&](int) { alive(); }}));
    std::vector<double> took;
    for (const auto& l : found) took.push_back(l.took.forward.median_s);
    for (const auto& l : found) took.push_back(l.took.backward.median_s);
    return took;
  }

 private:
  hetsched::cuda_devices<Api>* devices_;
  int place_;
  std::string name_, device_, products_;
  bool graphs_;
  backend own_;
};

}  // namespace train
