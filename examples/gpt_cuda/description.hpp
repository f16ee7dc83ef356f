// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <hetsched/core/units.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/schedule/timeline.hpp>

#include <gpt/optimizer.hpp>

// What to train, in the host's memory: without CUDA's headers.
namespace gpt_cuda {

/// The sizes and kinds of gpt::config.
struct shape {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, sequence = 0, vocab = 0;
  int experts = 0, experts_per_token = 2, moe_every = 1;
  bool rms = false, gated = false, rotary = false, bias = true, tied = true;
  bool half = true;              ///< products of bf16 numbers
  bool half_boundaries = false;  ///< what lies between layers is of bf16 numbers; hidden is even
  bool epilogues = true;         ///< biases and GELU by products, where there are such

  [[nodiscard]] int layer_count() const { return layers + 2; }
  [[nodiscard]] bool has_experts(int block) const { return experts > 0 && (block + 1) % moe_every == 0; }
};

/// Numbers in the host's memory.
struct numbers {
  std::size_t rows = 0, columns = 0;
  std::vector<float> values;
};

/// Tokens, and those that follow them.
struct batch {
  numbers inputs, targets;
};

/// A training on GPUs and hosts of this process.
struct training {
  shape model;
  hetsched::training_layout layout;
  std::vector<int> places;  ///< of each rank: a device, or -1, the host
  std::function<std::vector<numbers>(int layer)> first_weights;
  /// Samples of a step, numbered through all pipelines.
  std::function<batch(std::int64_t step, int first_sample, int samples)> draw;
  gpt::chosen_optimizer optimizer = {hetsched::adamw{}};
  bool graphs = false;  ///< what stages enqueue is captured
  double clip = 0;      ///< longest gradient; 0: none
  std::int64_t steps = 1;
  double deadline_s = 30;
};
struct trained {
  std::vector<double> losses, norms;         ///< of the steps
  std::vector<hetsched::timeline> measured;  ///< of the last step, by rank
};

/// What to time a model's layers with.
struct timing {
  shape model;
  int samples = 1;
  std::function<std::vector<numbers>(int layer)> first_weights;
  batch data;
  int warmup = 3, repeats = 15;
  std::function<void(int layer)> before = [](int) {};
};
/// Of a layer, by the clock of its device.
struct layer_costs {
  hetsched::layer_profile took;
  hetsched::bytes_t activation_bytes =
      0;                             ///< what a microbatch takes from its forward to its backward, output included; 0: not known
  hetsched::bytes_t half_bytes = 0;  ///< of what products take of its parameters
};

}  // namespace gpt_cuda
