// SPDX-License-Identifier: Apache-2.0
// Operators of ONNX by what they are to a trainer; all others are in import.cpp, one by one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace onnx_import {

/// What an elementwise operator keeps for its backward.
enum class keeping { nothing, input, result, operands, indices, mask };

namespace detail {

// clang-format off
inline constexpr struct { keeping kept; std::string_view types; } elementwise_operators[] = {
    {keeping::nothing,
     " Add And ArgMax ArgMin AveragePool BitShift Cast Ceil Concat CumSum DepthToSpace DequantizeLinear "
     "DynamicQuantizeLinear Equal Floor GlobalAveragePool Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Mean "
     "Mod Neg NonZero Not OneHot Or Pad QuantizeLinear ReduceMean ReduceSum Resize RotaryEmbedding Round Sign "
     "SpaceToDepth Sub Sum Tile Trilu Upsample Xor "},
    {keeping::input,
     " Abs Acos Acosh Asin Asinh Atan Atanh Celu Clip Cos Cosh Elu Erf Gelu GlobalLpPool GlobalMaxPool GridSample "
     "HardSigmoid HardSwish LRN LeakyRelu Log LpNormalization LpPool MaxPool MeanVarianceNormalization Mish Pow "
     "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSumSquare Selu Shrink Sin "
     "Sinh Softplus Softsign Swish Tan ThresholdedRelu "},
    {keeping::result,
     " Exp Reciprocal Relu Sigmoid Sqrt Tanh "},
    {keeping::operands,
     " Div Max Min Mul PRelu "},
    {keeping::indices,
     " GatherElements GatherND NegativeLogLikelihoodLoss Scatter ScatterElements ScatterND TopK Where "},
    {keeping::mask,
     " Dropout "},
};
// clang-format on

inline constexpr std::string_view views = " CastLike Expand Flatten Identity Reshape Slice Split Squeeze Transpose Unsqueeze ";
inline constexpr std::string_view configured =
    " Clip DequantizeLinear Dropout OneHot Pad QuantizeLinear Resize Tile TopK Upsample Where ";
inline constexpr std::string_view control_flow = " If Loop Scan SequenceMap ";
inline constexpr std::string_view shape_only = " EyeLike RandomNormalLike RandomUniformLike Shape Size ";

[[nodiscard]] inline bool lists(std::string_view types, const std::string& type) {
  return types.find(" " + type + " ") != std::string_view::npos;
}

}  // namespace detail

[[nodiscard]] inline std::optional<keeping> elementwise_kind(const std::string& type) {
  for (const auto& group : detail::elementwise_operators)
    if (detail::lists(group.types, type)) return group.kept;
  return std::nullopt;
}

/// Other sizes or order of the same memory, as trainers have it.
[[nodiscard]] inline bool is_view_type(const std::string& type) { return detail::lists(detail::views, type); }

/// Only the first input can be trained: the others say how.
[[nodiscard]] inline bool is_configured(const std::string& type) { return detail::lists(detail::configured, type); }

[[nodiscard]] inline bool is_control_flow(const std::string& type) { return detail::lists(detail::control_flow, type); }

/// What it makes depends on shapes only.
[[nodiscard]] inline bool is_shape_only(const std::string& type) { return detail::lists(detail::shape_only, type); }

}  // namespace onnx_import
