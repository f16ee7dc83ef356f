// SPDX-License-Identifier: Apache-2.0
#include <gpt/model.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>
#include <hetsched/schedule/builders/one_f_one_b.hpp>
#include <hetsched/schedule/builders/zero_bubble.hpp>

#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

using tensor = gpt::tensor<float>;
using stage = layer_list<tensor, any_layer<tensor>>;

/// Layers [first, last).
stage make_stage(const gpt::config& m, int first, int last) {
  std::vector<any_layer<tensor>> layers;
  for (int l = first; l < last; ++l) layers.push_back(gpt::make_layer<float>(m, l));
  return stage(std::move(layers));
}

struct result_of_step {
  std::vector<double> losses;
  std::vector<tensor> gradients;  ///< of all layers, in order
  friend bool operator==(const result_of_step&, const result_of_step&) = default;
};

/// Steps on threads, `cut` being the stages' first layers but for the first.
result_of_step run_pipeline(const gpt::config& m, const schedule& order, const std::vector<int>& cut, int samples) {
  random_source random(77);
  std::vector<tensor> inputs, targets;
  for (int b = 0; b < order.microbatches; ++b) {
    inputs.push_back(random_tokens<float>(random, samples * m.sequence, m.vocab));
    targets.push_back(random_tokens<float>(random, samples * m.sequence, m.vocab));
  }
  std::vector<int> first{0};
  first.insert(first.end(), cut.begin(), cut.end());
  first.push_back(gpt::layer_count(m));
  std::vector<tensor_shape> boundaries;
  for (const int l : cut) boundaries.push_back(gpt::shape_after(m, l - 1, samples));
  std::vector<result_of_step> parts(static_cast<std::size_t>(order.ranks));
  run_on_threads(thread_communicator<tensor>::connect(order.ranks), [&](thread_communicator<tensor>& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<stage> stages;
    stages.push_back(make_stage(m, first[r], first[r + 1]));
    pipeline_executor<tensor, stage, thread_communicator<tensor>> executor(order, stages, boundaries, comm);
    for (int i = 0; i < 2; ++i)
      executor.step(std::span<const tensor>(inputs), std::span<const tensor>(targets), gpt::cross_entropy<float>);
    parts[r].losses.assign(executor.losses().begin(), executor.losses().end());
    for (const tensor& g : stages[0].gradients()) parts[r].gradients.push_back(g);
  });
  result_of_step all{.losses = parts.back().losses, .gradients = {}};
  for (auto& part : parts)
    for (auto& g : part.gradients) all.gradients.push_back(std::move(g));
  return all;
}

void check_cuts(const gpt::config& m) {
  const auto whole = run_pipeline(m, gpipe(1, 4), {}, 2);
  CHECK(whole.losses.at(3) > 1);
  CHECK(whole == run_pipeline(m, gpipe(1, 4), {}, 2));
  for (const auto& cut : std::vector<std::vector<int>>{{1}, {2}, {3}, {1, 2}, {2, 3}, {1, 2, 3}}) {
    const int ranks = static_cast<int>(cut.size()) + 1;
    CAPTURE(ranks);
    CAPTURE(cut[0]);
    CHECK(whole == run_pipeline(m, gpipe(ranks, 4), cut, 2));
    CHECK(whole == run_pipeline(m, zb_h1(ranks, 4), cut, 2));
  }
}

}  // namespace

TEST_CASE("[threads] any cut into stages gives the same bits, and split backward does") {
  check_cuts({.layers = 2, .hidden = 12, .heads = 4, .kv_heads = 2, .sequence = 7, .vocab = 13});
  check_cuts({.layers = 2,
              .hidden = 12,
              .heads = 2,
              .sequence = 7,
              .vocab = 13,
              .norm = gpt::norm_kind::rms,
              .activation = gpt::activation_kind::swiglu,
              .positions = gpt::position_kind::rotary,
              .bias = false,
              .tied = false});
}
