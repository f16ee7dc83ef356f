// SPDX-License-Identifier: Apache-2.0
// The GPT trained by stages that are groups of devices, against one device.
#include <gpt/model.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include <gpt/batch.hpp>

#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = gpt::tensor<double>;
using channel = thread_communicator<tensor>;
constexpr int samples = 4, steps = 4;

/// The losses of some steps, as every rank has them; norms between them.
std::vector<double> train(const gpt::config& m, schedule order, std::vector<degrees> groups) {
  auto layout = even_layout(gpt::layer_count(m), std::move(order), samples);
  layout.pipelines[0].groups = std::move(groups);
  validate(layout);
  std::vector<std::vector<double>> told(static_cast<std::size_t>(layout.ranks()));
  run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
    const auto there = layout.place_of(comm.rank());
    const auto d = layout.pipelines[0].group(there.group);
    auto trainer = make_trainer<tensor>(
        layout, [&](int layer, const stage_group<tensor, channel>& group) { return gpt::make_layer<double>(m, layer, group); },
        [&](int layer, int size) { return gpt::shape_after(m, layer, size); }, comm, adamw{.learning_rate = 0.01},
        {.clip_norm = 0.5,
         .ties = gpt::ties(m),
         .loss_in_parts = true,
         .boundary_layout = [&](const tensor_shape& whole, const degrees& of) { return gpt::boundary_layout(m, whole, of); }});
    random_source random(m.seed + 5);  // the same on all ranks
    for (int s = 0; s < steps; ++s) {
      std::vector<tensor> inputs, targets;
      for (int b = 0; b < layout.pipelines[0].order.microbatches; ++b)
        for (auto* list : {&inputs, &targets})
          list->push_back(gpt::rows_of(random_tokens<double>(random, samples * m.sequence, m.vocab), m.sequence, d,
                                       {.data = there.data, .context = 0, .tensor = there.tensor}));
      const auto report = trainer.step(std::span<const tensor>(inputs), targets, [&](const tensor& logits, const tensor& wanted) {
        return gpt::cross_entropy_part(logits, wanted, static_cast<std::size_t>(samples * m.sequence));
      });
      told[static_cast<std::size_t>(comm.rank())].insert(told[static_cast<std::size_t>(comm.rank())].end(),
                                                         {report.loss, report.gradient_norm});
    }
  });
  for (const auto& r : told) CHECK(r == told[0]);
  return told[0];
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = a.size() == b.size() && !a.empty() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (!(std::abs(a[i] - b[i]) <= apart * std::abs(b[i]))) apart = std::abs(a[i] - b[i]) / std::abs(b[i]);
  return apart;
}

}  // namespace

TEST_CASE("[threads] a training by stages of any degrees is the training by one device") {
  const gpt::config plain{.layers = 2, .hidden = 16, .heads = 8, .kv_heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  auto modern = plain;
  modern.norm = gpt::norm_kind::rms;
  modern.activation = gpt::activation_kind::swiglu;
  modern.positions = gpt::position_kind::rotary;
  modern.tied = false;
  for (const auto& m : {plain, modern}) {
    CAPTURE(m);
    const auto alone = train(m, gpipe(1, 3), {});
    CHECK(alone[0] > 1);
    const std::vector<std::vector<degrees>> pairs{
        {{1, 1, 2}, {1, 1, 2}}, {{1, 1, 4}, {1, 1, 1}}, {{2, 1, 1}, {1, 1, 2}}, {{1, 1, 2}, {4, 1, 1}}, {{2, 1, 2}, {2, 1, 2}}};
    for (const auto& groups : pairs) {
      CAPTURE(groups[0].data);
      CAPTURE(groups[0].tensor);
      CAPTURE(groups[1].data);
      CAPTURE(groups[1].tensor);
      CHECK(difference(train(m, zb_h1(2, 3), groups), alone) < 1e-9);
    }
    CHECK(difference(train(m, gpipe(1, 3), {{2, 1, 4}}), alone) < 1e-9);
  }
}
