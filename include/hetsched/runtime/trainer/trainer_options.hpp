// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/trainer/trainer_test.cpp.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <hetsched/runtime/layer/parameter_id.hpp>
#include <hetsched/runtime/layout/pipeline_boundaries.hpp>

namespace hetsched {

/// What becomes of a step whose loss or gradients are not finite, on all ranks alike. skip: it counts, but parameters and the
/// optimizer's state stay as they are. fail: it ends with an error.
enum class nonfinite : std::uint8_t { skip, fail };

/// The factor on the loss's gradient, which keeps small gradients from vanishing in 16 bits; sums are divided by it before norms,
/// clipping and the update. It falls when a step is skipped, and rises after `interval` steps that were not.
/// Source: Micikevicius et al. 2018, sec. 3.2.
struct loss_scaling {
  double scale = 1;
  double growth = 1;  ///< 1: it stays
  double backoff = 1;
  std::int64_t interval = 2000;
  std::int64_t good_steps = 0;  ///< since it changed or a step was skipped

  void follow(bool updated);
  /// As usually chosen for fp16.
  [[nodiscard]] static loss_scaling dynamic() { return {.scale = 65536, .growth = 2, .backoff = 0.5}; }
};

/// Throws: input_error for numbers that make no sense.
void validate(const loss_scaling& s);

struct trainer_options {
  /// How long a rank waits without progress, in seconds: in the schedule, in the exchange of gradients, in the agreement to
  /// commit. Ranks of pipelines that end their schedules first wait for the others in the exchange; this has to be enough for
  /// it.
  double deadline_s = 30;
  double clip_norm = 0;                  ///< gradients are scaled down to this norm over all parameters; 0: they are not
  std::vector<parameter_tie> ties = {};  ///< they must begin with the same values
  std::int64_t first_step = 0;           ///< how many steps were committed before
  nonfinite on_nonfinite = nonfinite::skip;
  loss_scaling scaling = {};
  std::int64_t configuration_digest = 0;  ///< of whatever else has to be the same on all ranks, which is all it is used for
  /// Of parameters that several ranks hold, each rank keeps the optimizer's state of a part only, updates this part, and sends it
  /// to the others: less memory (ZeRO-1), and the same bits (over NCCL with sums_in_order). Requires an optimizer that takes
  /// every element for itself; it sees tensors of the shape {1, elements}. A rank that is lost while parameters travel leaves
  /// others with the state after the update and the parameters before: go on from a checkpoint then. Without it, that is so for
  /// what stages of ZeRO stage 1 to 3 hold (group_layout::zero). From stage 2 on the gradients of such parameters are empty
  /// tensors, too, once they are summed and until the next step begins, and the exchange has buffers only while it runs: layers
  /// hold their tensors, not their elements, and steps allocate. At stage 3 parameters are empty as well but while their layer is
  /// at work, and new values go to nobody before they are gathered.
  bool shard_optimizer = false;
  std::size_t bucket_bytes = std::size_t{4} << 20;  ///< most of gradients that travels at once
  /// Where gradients can be summed by collectives, as over NCCL, they are: so many bytes at once, in an order of addition that is
  /// NCCL's own. Sums that stay with owners are scattered, and new values gathered, where owners own equally much
  /// (group_layout::state_shares). Or (sums_in_order) they have the bits of hosts there, too, by sends of bucket_bytes,
  /// which are many more calls and launches: for 4 GB over 8 ranks some 13,000 sends and receives of each in place of 60 calls.
  std::size_t joint_bytes = std::size_t{64} << 20;
  bool sums_in_order = false;
  /// What the loss of a device of the last stage is: a mean over its own samples, the same on all its context and tensor ranks;
  /// or (parts) its part of the mean over the microbatch, so that those of all devices of the stage add up to it.
  bool loss_in_parts = false;
  layout_rule boundary_layout = {};  ///< empty: batch_layout
};

/// What a step has done; the same on every rank.
struct step_report {
  std::int64_t step = 0;     ///< its number, from 0
  double loss = 0;           ///< mean over all microbatches of all pipelines, weighted by their sizes
  double gradient_norm = 0;  ///< over all parameters, of the mean loss, before clipping
  bool updated = true;       ///< false: loss or gradients were not finite, and the step was skipped
  double loss_scale = 1;     ///< of this step
};

/// What a layer took, per microbatch.
struct layer_time {
  int layer = 0;
  double forward_s = 0;   ///< the last layer's with the loss
  double backward_s = 0;  ///< both halves, and recomputing
  friend bool operator==(const layer_time&, const layer_time&) = default;
};

/// Bytes of the tensors that a rank holds between two steps. What layers keep in their contexts does not count.
struct training_bytes {
  std::size_t parameters = 0;  ///< whole ones; at ZeRO stage 3 none of parameters that are sharded
  std::size_t gradients = 0;   ///< whole ones; from ZeRO stage 2 on none of parameters that are sharded
  std::size_t optimizer = 0;
  std::size_t exchange = 0;  ///< buffers, and the parts of sharded parameters and gradients that are this rank's
  std::size_t pipeline = 0;  ///< arena_bytes of its executor
  [[nodiscard]] std::size_t total() const { return parameters + gradients + optimizer + exchange + pipeline; }
  friend bool operator==(const training_bytes&, const training_bytes&) = default;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/trainer/trainer_options.ipp>
#endif
