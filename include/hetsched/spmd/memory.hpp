// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <hetsched/model/tensor_graph.hpp>
#include <hetsched/spmd/synthesize.hpp>

namespace hetsched::spmd {

/// Bytes that a device holds while it runs a program, by its share of cut tensors: at each step a line, and the highest counts.
struct program_memory {
  share_cost state{};               ///< of parameters, whatever the step: here and below bytes, not seconds
  std::vector<share_cost> steps{};  ///< of other tensors, by instruction

  /// Bytes at the peak. Throws: input_error unless the share is finite and not negative. O(steps).
  [[nodiscard]] double at(double share) const;
  /// The largest share with no more than `bytes` at the peak; below 0 where none is. Throws: input_error for no number. O(steps).
  [[nodiscard]] double largest_share(double bytes) const;
};

/// Bytes for each number of a parameter besides the number itself: none to compute, a copy in fp32 and two moments (12 bytes; in
/// fp32 8) to train. Gradients are tensors of the program.
[[nodiscard]] constexpr double state_bytes_of(number_format format, bool training) {
  return element_bytes(format) + (!training ? 0 : element_bytes(format) == 4 ? 8 : 12);
}

/// What a device holds while it runs a program: its parts of parameters with their state, and every other tensor in each form
/// from the step that makes it to the last that reads it so; what the goal asks for to the end. Complexity: O(instructions *
/// inputs). `scale`: what a share is multiplied by in each segment, 1 by default; with a device's shares there, at(1) is what it
/// holds. A tensor that is whole on both sides of a border counts twice.
/// Throws: as validate, of both; input_error unless parameter_bytes is 0 to 1e9, and there is a factor for each segment, or none,
/// that is finite and not negative.
[[nodiscard]] program_memory memory_of(const spmd::problem& p, const spmd::program& steps, double parameter_bytes,
                                       const std::vector<double>& scale = {});

/// Bytes at the peak of a device of each kind, by the shares of all segments.
/// Throws: as memory_of; input_error unless the shares of a segment times counts add up to 1. Complexity: O(instructions * inputs
/// * kinds).
[[nodiscard]] std::vector<double> peak_bytes(const spmd::problem& p, const spmd::program& steps,
                                             const std::vector<double>& shares, double parameter_bytes);

/// A program within the memory of devices, or what is short.
struct fit {
  std::optional<spmd::solution> solution{};  ///< none: no program that was found fits
  /// At the peak of a device of each kind; without a solution of the program that comes nearest, with shares by memory.
  std::vector<double> bytes{};
  double bound = 0;        ///< no program, with any shares and whatever it holds, takes less
  bool none_fits = false;  ///< proved: what least_bytes() says is more than all devices have
};

/// Bytes that the devices hold together whatever the program: parameters with their state, and gradients, each at least once.
/// Throws: as validate of the problem; input_error unless parameter_bytes is 0 to 1e9. Complexity: O(nodes).
[[nodiscard]] double least_bytes(const spmd::problem& p, double parameter_bytes);

/// synthesize within the memory of a device of each kind, in bytes. Where its program does not fit, holding tensors has a price,
/// and that is raised until a program fits, and then lowered as far as one does: of the programs that fit, the fastest. Shares
/// are those of the program, less what memory does not leave to a device. With several segments the program of synthesize is all
/// that is tried. `parameter_bytes`: held for each number of a parameter.
/// Returns: as synthesize, whose bound holds here, too; without a solution where none of the programs fits.
/// Throws: as synthesize; input_error unless there is a capacity for each kind, not negative, or infinite, and parameter_bytes is
/// 0 to 1e9. Complexity: that of synthesize, and of some 60 programs more where its own does not fit.
[[nodiscard]] spmd::fit synthesize_within(const spmd::problem& problem, const std::vector<double>& capacity,
                                          double parameter_bytes, const synthesis_options& options = {});

namespace detail::unchecked {

// The same for what is valid.
[[nodiscard]] program_memory memory_of(const spmd::problem& p, const spmd::program& steps, double parameter_bytes,
                                       const std::vector<double>& scale = {});
[[nodiscard]] std::vector<double> peak_bytes(const spmd::problem& p, const spmd::program& steps,
                                             const std::vector<double>& shares, double parameter_bytes);
[[nodiscard]] double least_bytes(const spmd::problem& p, double parameter_bytes);

}  // namespace detail::unchecked

}  // namespace hetsched::spmd

#ifndef HETSCHED_COMPILED
#include <hetsched/spmd/memory.ipp>
#endif
