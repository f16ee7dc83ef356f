// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/schedule/action.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

/// What one virtual stage costs on its rank: seconds per microbatch, and bytes that stay on the rank meanwhile.
/// Any unit will do for bytes, as long as capacities are in the same.
struct stage_work {
  double forward_s = 0;
  double backward_s = 0;         ///< whole
  double weight_backward_s = 0;  ///< of backward_s, the part that backward_weight takes
  double recompute_s = 0;
  double activation_bytes = 1;       ///< from forward (or recompute) to backward
  double weight_backward_bytes = 1;  ///< of these, what a backward_input leaves for its backward_weight
  double checkpoint_bytes = 0;       ///< kept from forward to recompute where the schedule lists a recompute
  double all_gather_s = 0;           ///< this and what follows: once per iteration and listed action
  double reduce_scatter_s = 0;
  double reduce_gradients_s = 0;
  double optimizer_s = 0;
  friend bool operator==(const stage_work&, const stage_work&) = default;
};

/// One leg of a transfer. It starts when each of its wires has room, occupies them all for occupied_s, and arrives latency_s
/// later.
struct hop {
  std::array<int, 3> wires{-1, -1, -1};  ///< positions in workload::wires, -1: none (sender's port, wire, receiver's port, say)
  double occupied_s = 0;
  double latency_s = 0;
  friend bool operator==(const hop&, const hop&) = default;
};

/// How a tensor crosses a boundary between two virtual stages: in one leg, or by way of both hosts in three.
struct tensor_path {
  bool staged = false;
  hop d2h;      ///< only if staged
  hop network;  ///< the only leg unless staged
  hop h2d;      ///< only if staged
  friend bool operator==(const tensor_path&, const tensor_path&) = default;
};

/// Something that carries transfers: first come, first served, at most `capacity` at a time.
struct wire {
  std::string name;
  int capacity = 1;
  friend bool operator==(const wire&, const wire&) = default;
};

/// What the actions of a schedule cost. Transfers between stages of one rank cost nothing and need no path.
struct workload {
  int ranks = 0;
  int stages = 0;
  int directions = 1;
  std::vector<stage_work> work;          ///< directions x stages
  std::vector<tensor_path> activations;  ///< directions x (stages - 1): from stage s to s + 1
  std::vector<tensor_path> gradients;    ///< directions x (stages - 1): from stage s + 1 to s
  std::vector<wire> wires;
  std::vector<double> memory_capacity;  ///< per rank, or empty: no limits
  /// Time of a fused forward and backward over the sum of their times.
  double fused_factor = 1;

  /// Position in `work`.
  [[nodiscard]] std::size_t place(int direction, int stage) const {
    return as_size(direction) * as_size(stages) + as_size(stage);
  }
  [[nodiscard]] const stage_work& at(int direction, int stage) const { return work[place(direction, stage)]; }
  [[nodiscard]] const tensor_path& activation(int direction, int boundary) const {
    return activations[edge(direction, boundary)];
  }
  [[nodiscard]] const tensor_path& gradient(int direction, int boundary) const { return gradients[edge(direction, boundary)]; }
  friend bool operator==(const workload&, const workload&) = default;

 private:
  [[nodiscard]] std::size_t edge(int direction, int boundary) const {
    return as_size(direction) * (as_size(stages) - 1) + as_size(boundary);
  }
};

/// Checks a workload.
/// Throws: input_error unless the sizes agree, wires have room for one transfer at least, and every time is finite and not
/// negative.
/// Complexity: O(directions * stages + wires).
void validate(const workload& w);

namespace detail {

/// Seconds that a rank takes for an action by itself, not joined with others.
[[nodiscard]] double seconds_of(const stage_work& w, action_kind kind);

/// Checks what there is to know of a workload of which only what stages hold matters.
/// Throws: input_error unless it has work for every stage of every direction.
void expect_work(const workload& w);

/// Checks that both belong together.
/// Throws: input_error unless the workload is one of the schedule's ranks, stages and directions.
void validate_fit(const workload& w, const schedule& order);

}  // namespace detail

/// The workload of a schedule whose rank r does, per microbatch and direction, what stage r of the pipeline does, however many
/// virtual stages it is cut into: they share the stage's times and bytes equally. A microbatch of a bidirectional schedule
/// costs a rank the same in either direction. Neighbouring ranks use the pipeline's links, one wire per direction, which a
/// transfer leaves to the next one before it arrives where it occupies them for less than all its time; ranks that are no
/// neighbours (the way back to the first rank in interleaved schedules) one as slow as the pipeline's slowest, by either number.
/// Throws: input_error for an invalid pipeline, or one whose stages are not the schedule's ranks.
/// Complexity: O(directions * stages + ranks^2).
[[nodiscard]] workload make_workload(const pipeline& p, const schedule& order);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/schedule/workload.ipp>
#endif
