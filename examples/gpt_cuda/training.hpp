// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/cluster/degrees.hpp>
#include <hetsched/cuda/graphs.hpp>
#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/reshard/layout.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>

#include <gpt_cuda/description.hpp>
#include <gpt_cuda/operations.hpp>

namespace gpt_cuda {

/// Rows x columns of a layer's output for so many samples, counted in floats; with half_boundaries a float holds two numbers.
[[nodiscard]] inline hetsched::tensor_shape shape_after(const shape& m, int layer, int samples) {
  const int last = m.layer_count() - 1, hidden = m.half_boundaries ? m.hidden / 2 : m.hidden;
  return {static_cast<std::size_t>(samples) * static_cast<std::size_t>(m.sequence),
          static_cast<std::size_t>(layer == last ? m.vocab : hidden)};
}
/// The table of embedding and head, if it is one.
[[nodiscard]] inline std::vector<hetsched::parameter_tie> ties(const shape& m) {
  if (!m.tied) return {};
  return {{{0, 0}, {m.layer_count() - 1, 0}}};
}
/// A slice, of equal ones, of the tokens of these samples.
[[nodiscard]] inline numbers rows_of(const numbers& all, int sequence, const hetsched::interval& samples, int slice = 0,
                                     int slices = 1) {
  const int length = sequence / slices;
  numbers part{static_cast<std::size_t>(samples.size()) * static_cast<std::size_t>(length), 1, {}};
  for (auto s = samples.first; s < samples.last; ++s) {
    const auto first = all.values.begin() + static_cast<std::ptrdiff_t>(s * sequence + slice * length);
    part.values.insert(part.values.end(), first, first + length);
  }
  return part;
}

/// Trains on a thread per rank; stages may be groups of data and context ranks.
/// Throws: as pipeline_trainer; cuda_error; input_error for a device that is not there.
template <hetsched::cuda_graph_api Api>
[[nodiscard]] trained train(hetsched::cuda_devices<Api>& devices, const training& t) {
  using own_tensor = tensor<Api>;
  using channels = hetsched::cuda_local_communicator<own_tensor, Api>;
  std::vector<trained> told(t.places.size());
  hetsched::run_on_threads(channels::connect(devices, t.places), [&](channels& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const hetsched::cuda_graph_backend<Api> own(devices, t.places[r], "rank " + std::to_string(r), t.graphs);
    const auto bound = own.bind();
    const auto q = own.compute_queue();
    auto trainer = hetsched::make_trainer<own_tensor>(
        t.layout,
        [&](int l, const hetsched::stage_group<own_tensor, channels>& group) {
          return operations<Api>::make_layer(t.model, l,
                                             {.first = t.first_weights(l), .context = group_axis_of<Api>(group.context())}, q);
        },
        [&](int l, int samples) { return shape_after(t.model, l, samples); }, comm, optimizer<Api>{t.optimizer},
        {.deadline_s = t.deadline_s,
         .clip_norm = t.clip,
         .ties = ties(t.model),
         .on_nonfinite = hetsched::nonfinite::fail,
         .loss_in_parts = true,
         .boundary_layout =
             [&](const hetsched::tensor_shape& whole, const hetsched::degrees& d) {
               return hetsched::boundary_layout(d, static_cast<std::int64_t>(whole[0]) / t.model.sequence, t.model.sequence,
                                                static_cast<std::int64_t>(whole[1]));
             }},
        own);
    const int size = trainer.pipeline().microbatch_size;
    const auto rows = static_cast<std::size_t>(size * t.model.sequence);
    int first = 0;
    for (int p = 0; p < trainer.place().pipeline; ++p) {
      const auto& before = t.layout.pipelines[static_cast<std::size_t>(p)];
      first += before.order.microbatches * before.microbatch_size;
    }
    const auto place = trainer.place();
    const int slices = t.layout.pipelines[static_cast<std::size_t>(place.pipeline)].degrees_of(place.group).context;
    const auto mine = [&](const numbers& all) {
      return upload(q, rows_of(all, t.model.sequence, trainer.samples(), place.context, slices));
    };
    const auto loss = [&](own_tensor logits, const own_tensor& targets, const hetsched::cuda_queue<Api>& on, double& value) {
      return operations<Api>::cross_entropy_part(std::move(logits), targets, rows, on, value);
    };
    while (trainer.committed_step() < t.steps) {
      std::vector<own_tensor> inputs, targets;
      for (int m = 0; m < trainer.pipeline().order.microbatches; ++m) {
        const auto b = t.draw(trainer.committed_step(), first + m * size, size);
        inputs.push_back(mine(b.inputs));
        targets.push_back(mine(b.targets));
      }
      const auto done = trainer.step(std::span<const own_tensor>(inputs), std::span<const own_tensor>(targets), loss);
      told[r].losses.push_back(done.loss);
      told[r].norms.push_back(done.gradient_norm);
    }
    told[r].measured.push_back(trainer.measured());
    q.finish();
  });
  auto result = told.front();
  for (std::size_t r = 1; r < told.size(); ++r) result.measured.push_back(told[r].measured.front());
  return result;
}

}  // namespace gpt_cuda
