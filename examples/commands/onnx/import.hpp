// SPDX-License-Identifier: Apache-2.0
// ONNX models as graphs of operators. This header does without ONNX's own, which are heavy.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include <hetsched/model/graph.hpp>

namespace onnx_import {

struct options {
  hetsched::number_format format = hetsched::number_format::fp16;  ///< of parameters and activations, whatever the file has
  std::map<std::string, std::vector<std::int64_t>> samples{};      ///< sizes of inputs by name; also binds names of axes
};

struct imported {
  hetsched::operator_graph graph{};
  std::vector<std::string> warnings{};
};

/// The operators of a ModelProto, for one sample. A first axis without a fixed size is the batch and becomes 1; other sizes must
/// be fixed, by the file or by `samples`. Parameters are tensors of floating-point numbers with more than one element that
/// products, norms, lookups and arithmetic read; their values are not needed. What depends on shapes and constants only costs
/// nothing. Throws input_error, naming node and value, for what is no model, control flow, and sizes that cannot be known.
/// Linear in the model.
[[nodiscard]] imported import_model(std::istream& file, const options& options = {});

/// What forward launches for one sample as rows of op,batch,m,n,k,dtype,name. An operator that moves neither two nor three
/// tensors of its size becomes a copy that moves as many bytes.
[[nodiscard]] std::string operators_csv(const hetsched::operator_graph& graph);

}  // namespace onnx_import
