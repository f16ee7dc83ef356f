// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/model/tensor_segments.hpp>
#include <hetsched/spmd/problem.hpp>

namespace hetsched::spmd {

/// How a tensor changes its form: a part of a sum becomes whole, or cut; a cut one whole, in one of two ways, or cut elsewhere.
enum class collective { all_reduce, reduce_scatter, padded_gather, broadcast_gather, all_to_all };

[[nodiscard]] constexpr const char* name_of(spmd::collective c) {
  return c == spmd::collective::all_reduce         ? "all_reduce"
         : c == spmd::collective::reduce_scatter   ? "reduce_scatter"
         : c == spmd::collective::padded_gather    ? "all_gather"
         : c == spmd::collective::broadcast_gather ? "grouped_broadcast"
                                                   : "all_to_all";
}

/// One step that all devices take: they compute a node by a rule, read a leaf in the rule's form, or change a tensor's form
/// together.
struct instruction {
  int node = 0;
  bool collective = false;
  spmd::rule rule{};  ///< of a computation
  spmd::collective how = spmd::collective::all_reduce;
  tensor_form from = tensor_form::whole(), to = tensor_form::whole();  ///< of a collective

  friend bool operator==(const instruction&, const instruction&) = default;
};

/// What every device of the stage does, in order. Where a rule needs a cut input of which the device has all, it takes its part.
using program = std::vector<spmd::instruction>;

/// What happens between two meetings of the devices: the collective that begins it, if any, and each kind's computation.
struct stage {
  share_cost collective{};
  std::vector<share_cost> compute{};  ///< per segment, in each per kind of device
  int segment = 0, other = 0;         ///< of the collective: two at a border

  friend bool operator==(const stage&, const stage&) = default;
};

[[nodiscard]] inline const share_cost& price_of(const collective_costs& costs, spmd::collective how) {
  switch (how) {
    case spmd::collective::all_reduce:
      return costs.all_reduce;
    case spmd::collective::reduce_scatter:
      return costs.reduce_scatter;
    case spmd::collective::padded_gather:
      return costs.padded_gather;
    case spmd::collective::broadcast_gather:
      return costs.broadcast_gather;
    case spmd::collective::all_to_all:
      break;
  }
  return costs.all_to_all;
}

/// Checks that devices can run a program of a valid problem, in whatever part of the problem it computes.
/// Throws: input_error, with the number of the instruction, unless nodes are of the graph and computed by one of their rules from
/// forms that are there, leaves are read whole or cut, and collectives change a form that is there into one that they can.
/// Complexity: O(instructions * rules).
void validate(const spmd::problem& problem, const spmd::program& steps);

/// Whether a step exchanges a tensor between two segments. Where all data is parallel their shares are equal, and it does not.
/// Throws: input_error for a node that the graph lacks.
[[nodiscard]] bool is_exchange(const spmd::problem& problem, const spmd::instruction& step);

/// The stages of a program.
/// Source: Zhang et al., HAP (EuroSys 2024), sec. 3.2 and, for segments, 5.2.
/// Throws: as validate, of both. Complexity: O(instructions * kinds).
[[nodiscard]] std::vector<spmd::stage> stages_of(const spmd::problem& problem, const spmd::program& steps);

/// Seconds of stages when a device of each kind has that share of every cut tensor of a segment: in each the collective, then the
/// slowest device. `shares`: per segment, in each per kind.
/// Throws: input_error unless all stages have a cost for each share, and costs and shares are finite and not negative.
/// Complexity: O(stages * shares).
[[nodiscard]] double seconds_of(const std::vector<spmd::stage>& stages, const std::vector<double>& shares, int segments = 1);

[[nodiscard]] std::string text_of(tensor_form form);

/// One line for an instruction, as in `h = matmul(x: cut 0, w: whole): cut 0`.
/// Throws: input_error for a node that the graph lacks, or a rule of another one.
[[nodiscard]] std::string text_of(const tensor_graph& graph, const spmd::instruction& step);

namespace detail {
void expect_stage(const spmd::stage& stage, std::size_t shares, int segments);
}

namespace detail::unchecked {

// The same for what is valid.
[[nodiscard]] inline bool is_exchange(const spmd::problem& problem, const spmd::instruction& step) {
  return !step.collective && step.rule.shared && is_border(problem.graph.at(step.node)) && !problem.data_parallel_only;
}
[[nodiscard]] std::vector<spmd::stage> stages_of(const spmd::problem& problem, const spmd::program& steps);
[[nodiscard]] double seconds_of(const std::vector<spmd::stage>& stages, const std::vector<double>& shares, int segments = 1);

}  // namespace detail::unchecked

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/program.ipp>
#endif
