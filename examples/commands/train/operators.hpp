// SPDX-License-Identifier: Apache-2.0
// Times single operators on this machine.
#pragma once

#include <vector>

#include <hetsched/io/operators_csv.hpp>
#include <hetsched/runtime/measure/profile_layers.hpp>

namespace train {

/// Calls of an operator: short ones are timed many at a time.
/// Throws: as gpt::make_host_operator.
[[nodiscard]] hetsched::measured_time time_on_host(const hetsched::operator_row& row, int warmup, int repeats);

/// The same on a GPU, for single products in fp32 and bf16. Throws: input_error for others; cuda_error.
[[nodiscard]] hetsched::measured_time time_on_gpu(const hetsched::operator_row& row, int place, int warmup, int repeats);

/// What is timed where no table is given: twenty operators and more, large and small, that take some seconds in all.
[[nodiscard]] std::vector<hetsched::operator_row> usual_operators(bool on_gpu);

}  // namespace train
