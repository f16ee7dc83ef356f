// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>
#include <hetsched/runtime/trainer/optimizer.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/timeline.hpp>

// What to train, in the host's memory: without CUDA's headers.
namespace gpt_cuda {

/// The sizes and kinds of gpt::config.
struct shape {
  int layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, sequence = 0, vocab = 0;
  bool rms = false, gated = false, rotary = false, bias = true, tied = true;
  bool half = true;  ///< products of bf16 numbers

  [[nodiscard]] int layer_count() const { return layers + 2; }
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

/// A parameter, and what its optimizer keeps of it.
struct saved_parameter {
  numbers value;
  std::vector<numbers> state;
};
/// Parameters by layer.
using saved_model = std::vector<std::vector<saved_parameter>>;

/// A pipeline of stages on GPUs and hosts of this process.
struct training {
  shape model;
  hetsched::schedule order;                   ///< of one direction
  std::vector<hetsched::layer_range> stages;  ///< of the schedule's stages
  int microbatch_size = 1;                    ///< samples
  std::vector<int> places;                    ///< of each rank: a device, or -1, the host
  std::function<std::vector<numbers>(int layer)> first_weights;
  std::optional<saved_model> resumed = {};  ///< goes on with these, in place of the first weights ...
  std::int64_t first_step = 0;              ///< ... from here
  std::function<batch(std::int64_t step, int microbatch)> draw;
  std::variant<hetsched::adamw, hetsched::sgd> optimizer = {};
  std::function<double(std::int64_t step)> learning_rate;
  bool graphs = false;  ///< what stages enqueue is captured
  double clip = 0;      ///< longest gradient; 0: none
  std::int64_t steps = 1;
  double deadline_s = 30;
  int timelines = 0;  ///< how many last steps to keep
  /// Told by one rank what there is behind so many steps, every so many (0: never) and behind the last.
  std::function<void(std::int64_t steps, saved_model& all)> save = {};
  std::int64_t save_every = 0;
  /// Told by one rank behind each step; returns whether to go on.
  std::function<bool(std::int64_t step, double loss)> told = [](std::int64_t, double) { return true; };
};
struct trained {
  std::vector<double> losses;                             ///< of the steps
  std::vector<std::vector<hetsched::timeline>> measured;  ///< of the last steps, of all ranks
  saved_model state;                                      ///< in the end
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
