// SPDX-License-Identifier: Apache-2.0
// The GPT trained by stages that are groups of devices, against one device.
#include <gpt/model.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include <gpt/batch.hpp>

#include "../runtime/set_groups.hpp"
#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = gpt::tensor<double>;
using channel = thread_communicator<tensor>;
constexpr int samples = 4;

training_layout grouped(const gpt::config& m, schedule order, const std::vector<degrees>& groups) {
  auto layout = even_layout(gpt::layer_count(m), std::move(order), samples);
  test::set_groups(layout.pipelines[0], &group_layout::degrees, groups);
  return layout;
}

/// The losses of some steps, as every rank has them; norms between them. `held`: of each rank, in the end.
std::vector<double> train(const gpt::config& m, const training_layout& layout, int steps = 4,
                          std::vector<training_bytes>* held = nullptr) {
  validate(layout);
  std::vector<std::vector<double>> told(static_cast<std::size_t>(layout.ranks()));
  if (held) held->resize(told.size());
  run_on_threads(channel::connect(layout.ranks()), [&](channel& comm) {
    const auto there = layout.place_of(comm.rank());
    const auto& line = layout.pipelines[0];
    const auto d = line.degrees_of(there.group);
    const auto recompute = line.group(there.group).recompute;
    auto trainer = make_trainer<tensor>(
        layout,
        [&](int layer, const stage_group<tensor, channel>& group) { return gpt::make_layer<double>(m, layer, group, recompute); },
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
                                       {.data = there.data, .context = there.context, .tensor = there.tensor},
                                       trainer.samples()));
      const auto report = trainer.step(std::span<const tensor>(inputs), targets, [&](const tensor& logits, const tensor& wanted) {
        return gpt::cross_entropy_part(logits, wanted, static_cast<std::size_t>(samples * m.sequence));
      });
      told[static_cast<std::size_t>(comm.rank())].insert(told[static_cast<std::size_t>(comm.rank())].end(),
                                                         {report.loss, report.gradient_norm});
    }
    if (held) (*held)[static_cast<std::size_t>(comm.rank())] = trainer.held();
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
    const auto alone = train(m, grouped(m, gpipe(1, 3), {}));
    CHECK(alone[0] > 1);
    const std::vector<std::vector<degrees>> pairs{{{1, 1, 2}, {1, 1, 2}}, {{1, 1, 4}, {1, 1, 1}}, {{2, 1, 1}, {1, 1, 2}},
                                                  {{1, 1, 2}, {4, 1, 1}}, {{2, 1, 2}, {2, 1, 2}}, {{1, 2, 1}, {1, 1, 1}},
                                                  {{1, 2, 2}, {2, 2, 1}}, {{2, 1, 1}, {1, 4, 1}}};
    for (const auto& groups : pairs) {
      CAPTURE(groups[0].data);
      CAPTURE(groups[0].context);
      CAPTURE(groups[0].tensor);
      CAPTURE(groups[1].data);
      CAPTURE(groups[1].context);
      CAPTURE(groups[1].tensor);
      CHECK(difference(train(m, grouped(m, zb_h1(2, 3), groups)), alone) < 1e-9);
    }
    CHECK(difference(train(m, grouped(m, gpipe(1, 3), {{2, 1, 4}})), alone) < 1e-9);
  }
}

TEST_CASE("[threads] a training whose experts lie on several devices is the training by one device") {
  gpt::config m{.layers = 2, .hidden = 16, .heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11, .experts = 4};
  m.moe_every = 2;
  const auto alone = train(m, grouped(m, gpipe(1, 3), {}));
  const std::vector<std::vector<degrees>> pairs{{{1, 1, 1}, {2, 1, 1, 2}},
                                                {{2, 1, 1, 2}, {4, 1, 1, 2}},
                                                {{1, 1, 2}, {4, 1, 1, 4}},
                                                {{2, 1, 1}, {2, 1, 2, 2}},
                                                {{1, 2, 1}, {2, 2, 1, 2}}};
  for (const auto& groups : pairs) {
    CAPTURE(groups[1].data);
    CAPTURE(groups[1].tensor);
    CAPTURE(groups[1].expert);
    const int zero = groups[1].data == 4 ? 2 : groups[1].tensor == 2 ? 1 : 0;
    CAPTURE(zero);
    auto layout = grouped(m, zb_h1(2, 3), groups);
    test::set_groups(layout.pipelines[0], &group_layout::zero, {0, zero});
    CHECK(difference(train(m, layout), alone) < 1e-9);
  }
  // Uneven shares of the samples, and the forward once more before each backward.
  auto layout = grouped(m, zb_h1(2, 3), {{2, 1, 1}, {2, 1, 1, 2}});
  test::set_groups(layout.pipelines[0], &group_layout::sample_points, {{0, 3, 4}, {0, 1, 4}});
  layout.pipelines[0].groups[1].recompute = recomputation::full;
  std::vector<training_bytes> shared, whole;
  CHECK(difference(train(m, layout, 4, &shared), alone) < 1e-9);
  layout.pipelines[0].groups[1].degrees.expert = 1;
  CHECK(difference(train(m, layout, 4, &whole), alone) < 1e-9);
  // Up and down of two of four experts, 16 x 12 each, with biases.
  CHECK(whole[2].parameters - shared[2].parameters == 2 * (2 * 16 * 12 + 12 + 16) * sizeof(double));
  layout.pipelines[0].groups[1].degrees.expert = 3;
  CHECK_THROWS_AS(validate(layout), input_error);
}

TEST_CASE("[threads] uneven shares of the samples are the training by one device") {
  const gpt::config m{.layers = 2, .hidden = 16, .heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  const auto alone = train(m, grouped(m, gpipe(1, 3), {}));
  using points = std::vector<std::vector<std::int64_t>>;
  const std::vector<std::pair<std::vector<degrees>, points>> shapes{
      {{{2, 1, 1}, {2, 1, 1}}, {{0, 3, 4}, {0, 1, 4}}}, {{{3, 1, 1}, {2, 1, 2}}, {{0, 1, 3, 4}, {0, 3, 4}}},
      {{{2, 1, 2}, {1, 1, 2}}, {{0, 1, 4}, {}}},        {{{1, 1, 1}, {3, 1, 1}}, {{}, {0, 2, 3, 4}}},
      {{{2, 1, 1}, {2, 1, 1}}, {{0, 3, 4}, {0, 3, 4}}},
  };
  for (const auto& [groups, cuts] : shapes)
    for (const auto how : all_reshard_strategies) {
      auto layout = grouped(m, zb_h1(2, 3), groups);
      test::set_groups(layout.pipelines[0], &group_layout::sample_points, cuts);
      test::set_reshard(layout.pipelines[0], how);
      CAPTURE(cuts);
      CAPTURE(name_of(how));
      CHECK(difference(train(m, layout), alone) < 1e-9);
    }
}

TEST_CASE("[threads] uneven shares of heads are the training by one device") {
  const gpt::config m{.layers = 2, .hidden = 16, .heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  const auto alone = train(m, grouped(m, gpipe(1, 3), {}));
  const std::vector<std::pair<std::vector<degrees>, std::vector<std::vector<double>>>> shapes{
      {{{1, 1, 2}, {1, 1, 1}}, {{0.75, 0.25}, {}}},
      {{{1, 1, 2}, {2, 1, 2}}, {{0.25, 0.75}, {0.75, 0.25}}},
      {{{2, 1, 1}, {1, 1, 2}}, {{}, {0.25, 0.75}}},
  };
  for (const auto& [groups, shares] : shapes) {
    auto layout = grouped(m, zb_h1(2, 3), groups);
    test::set_groups(layout.pipelines[0], &group_layout::tensor_shares, shares);
    CAPTURE(shares);
    CHECK(difference(train(m, layout), alone) < 1e-9);
  }
  auto layout = grouped(m, zb_h1(2, 3), {{1, 1, 2}, {1, 1, 1}});
  layout.pipelines[0].groups[0].tensor_shares = {0.75, 0.35};
  CHECK_THROWS_WITH_AS(validate(layout),
                       "pipeline 0: stage 0 shares its heads among 2 tensor ranks by numbers that do not add up to 1 for these",
                       input_error);
}

TEST_CASE("[threads] what stages recompute and share out changes no bit of a training, and they hold less") {
  const gpt::config m{.layers = 4, .hidden = 8, .heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  using enum recomputation;
  const std::vector<std::vector<degrees>> shapes{{{2, 1, 2}, {4, 1, 1}}, {{2, 1, 1}, {2, 1, 1}}, {{1, 1, 1}, {1, 1, 2}}};
  for (const auto& groups : shapes)
    for (const auto* name : {"interleaved_1f1b", "zb_h1", "dualpipe"}) {
      CAPTURE(name);
      CAPTURE(groups[0].data);
      CAPTURE(groups[1].data);
      if (std::string_view(name) == "dualpipe" && groups[0] != groups[1]) continue;
      auto layout = grouped(m, build_schedule(name, {.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0}}, 4), groups);
      std::vector<training_bytes> plain, with;
      const auto wanted = train(m, layout, 2, &plain);
      for (const auto& recompute : {std::vector{full, full}, {selective, full}, {none, selective}}) {
        test::set_groups(layout.pipelines[0], &group_layout::recompute, recompute);
        CHECK(train(m, layout, 2) == wanted);
      }
      test::set_groups(layout.pipelines[0], &group_layout::recompute, {full, none});
      for (const auto& zero : {std::vector{1, 0}, {1, 1}, {1, 2}, {2, 2}}) {
        CAPTURE(zero);
        test::set_groups(layout.pipelines[0], &group_layout::zero, zero);
        CHECK(train(m, layout, 2, &with) == wanted);
        for (int r = 0; r < layout.ranks(); ++r) {
          CAPTURE(r);
          const auto g = layout.place_of(r).group;
          const auto& a = plain[static_cast<std::size_t>(r)];
          const auto& b = with[static_cast<std::size_t>(r)];
          CHECK(a.parameters == b.parameters);
          CHECK(a.pipeline == b.pipeline);
          const auto data = static_cast<std::size_t>(groups[static_cast<std::size_t>(g)].data);
          // Of what other stages hold, too, there may be less than this stage asks for.
          if (zero[static_cast<std::size_t>(g)] > 0 && data > 1) CHECK(b.optimizer < a.optimizer);
          CHECK((b.gradients < a.gradients) == (zero[static_cast<std::size_t>(g)] == 2 && (data > 1 || layout.ranks() > 2)));
          if (zero[static_cast<std::size_t>(g)] == 2 && data > 1) CHECK(b.gradients == 0);
          if (zero[static_cast<std::size_t>(g)] == 2 && data > 1) CHECK(b.exchange < a.exchange);
        }
        // All of the state once, if every stage asks for it and has data ranks.
        std::size_t state = 0;
        for (const auto& b : with) state += b.optimizer;
        if (zero[0] > 0 && zero[1] > 0 && groups[0].data > 1)
          CHECK(state == 2 * sizeof(double) * static_cast<std::size_t>(gpt::parameter_count(m)));
      }
    }
}

TEST_CASE("[threads] fifty steps by data 2 x tensor 2, one device and tensor 2 are those of one device") {
  const gpt::config m{.layers = 2, .hidden = 16, .heads = 4, .ffn_hidden = 12, .sequence = 8, .vocab = 11};
  constexpr int steps = 50;
  const auto alone = train(m, grouped(m, gpipe(1, 2), {}), steps);
  CHECK(alone[2 * (steps - 1)] < alone[0]);
  const auto stages = train(m, grouped(m, one_f_one_b({3, 2, 1}, 2), {{2, 1, 2}, {1, 1, 1}, {1, 1, 2}}), steps);
  CHECK(difference(stages, alone) < 1e-12);
}
