// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <gpt/embedding.hpp>
#include <gpt/tensor.hpp>

namespace gpt {

/// A token per byte: n x 1, from 0 to 255. Every text, UTF-8 or not, comes back as it was.
template <class Real>
[[nodiscard]] tensor<Real> encode(std::string_view text) {
  tensor<Real> tokens(text.size(), 1);
  for (std::size_t i = 0; i < text.size(); ++i) tokens.data()[i] = static_cast<Real>(static_cast<unsigned char>(text[i]));
  return tokens;
}

/// Throws input_error for a number that is no byte.
template <class Real>
[[nodiscard]] std::string decode(const tensor<Real>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    text += static_cast<char>(static_cast<unsigned char>(token_at(tokens.data(), i, 256)));
  return text;
}

}  // namespace gpt
