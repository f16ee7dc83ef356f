// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hetsched {

/// What torch.profiler (Kineto) has measured of operators, as the text of an operators CSV with the column measured_ms:
/// products, softmax and layer norms whose sizes it was told to record (record_shapes=True), each by the time of its kernels on
/// the GPU; of equal ones the median. A product in float is fp32, whatever torch let the GPU do with it.
/// Throws: file_error for what is no such trace, and where it has no such operator.
/// Complexity: O(events * log(events)).
[[nodiscard]] std::string kineto_operators_csv(std::string_view text, std::string_view file_name);

/// The text of an operators CSV: the file's own, or what kineto_operators_csv makes of a trace.
/// Throws: file_error.
[[nodiscard]] std::string read_operators_text(const std::string& path);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/trace/kineto_operators.ipp>
#endif
