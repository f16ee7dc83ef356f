// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <hetsched/core/contract.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/reshard/slice.hpp>
#include <hetsched/runtime/group/stage_group.hpp>

#include <gpt/tokenizer.hpp>

namespace gpt {

/// (samples * sequence) x 1 both: bytes of a text, and the byte after each.
template <class Real>
struct microbatch {
  tensor<Real> inputs, targets;
};

/// Which samples of a training: those with the numbers first_sample, first_sample + 1 ... of a step.
struct sample_range {
  std::uint64_t seed = 1;
  std::int64_t step = 0;
  int first_sample = 0;
  int samples = 1;
};

/// Where a sample begins depends on seed, step and its number only, so a step has the same samples however they are spread over
/// microbatches and pipelines. Throws input_error for a text with fewer than sequence + 1 bytes.
/// Preconditions: sequence and samples are positive, step and first_sample are not negative.
template <class Real>
[[nodiscard]] microbatch<Real> draw(std::string_view text, int sequence, const sample_range& which) {
  HETSCHED_EXPECTS(sequence > 0 && which.samples > 0 && which.step >= 0 && which.first_sample >= 0);
  const auto length = static_cast<std::size_t>(sequence);
  if (text.size() <= length)
    throw hetsched::input_error("a text of " + std::to_string(text.size()) + " bytes is too short for samples of " +
                                std::to_string(sequence) + " bytes and the one after");
  std::string inputs, targets;
  for (int i = 0; i < which.samples; ++i) {
    const auto number = static_cast<std::uint64_t>(which.first_sample) + static_cast<std::uint64_t>(i);
    hetsched::random_source by_step(hetsched::random_source(which.seed)() ^ static_cast<std::uint64_t>(which.step));
    hetsched::random_source by_number(by_step() ^ number);
    const auto first = static_cast<std::size_t>(by_number.uniform() * static_cast<double>(text.size() - length));
    inputs += text.substr(first, length);
    targets += text.substr(first + 1, length);
  }
  return {.inputs = encode<Real>(inputs), .targets = encode<Real>(targets)};
}

/// These samples' rows of a microbatch's tokens, or of anything with a row per token, and of each sample this rank's slice of the
/// sequence along the context and tensor axes of its group. Throws input_error unless the sequence is divisible and the samples
/// are there.
template <class Real>
[[nodiscard]] tensor<Real> rows_of(const tensor<Real>& all, int sequence, const hetsched::degrees& d,
                                   const hetsched::stage_place& place, const hetsched::interval& samples) {
  const auto length = static_cast<std::size_t>(sequence),
             slices = static_cast<std::size_t>(d.context) * static_cast<std::size_t>(d.tensor);
  if (length % slices != 0 || all.rows() % length != 0 || samples.first < 0 || samples.last < samples.first ||
      static_cast<std::size_t>(samples.last) > all.rows() / length)
    throw hetsched::input_error("samples of " + std::to_string(sequence) + " tokens, " + std::to_string(all.rows()) +
                                " in all, cannot be cut for " + std::to_string(d.data) + " x " + std::to_string(d.context) +
                                " x " + std::to_string(d.tensor) + " devices (data, context, tensor)");
  const auto count = static_cast<std::size_t>(samples.size()), before = static_cast<std::size_t>(samples.first);
  const std::size_t rows = length / slices, own_slice = static_cast<std::size_t>(place.context * d.tensor + place.tensor);
  tensor<Real> own(count * rows, all.columns());
  for (std::size_t s = 0; s < count; ++s) {
    const std::size_t first = (before + s) * length + own_slice * rows;
    std::copy_n(all.data() + first * all.columns(), rows * all.columns(), own.data() + s * rows * all.columns());
  }
  return own;
}

/// The same of equal shares of the samples along the data axis. Throws input_error, too, unless they are divisible.
template <class Real>
[[nodiscard]] tensor<Real> rows_of(const tensor<Real>& all, int sequence, const hetsched::degrees& d,
                                   const hetsched::stage_place& place) {
  const auto samples = static_cast<std::int64_t>(all.rows()) / sequence / d.data;
  const bool even = samples * sequence * d.data == static_cast<std::int64_t>(all.rows());
  return rows_of(all, sequence, d, place,
                 even ? hetsched::interval{place.data * samples, (place.data + 1) * samples} : hetsched::interval{-1, -1});
}

}  // namespace gpt
