// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/layer/layer.hpp>

#include <gpt/config.hpp>
#include <gpt/tokenizer.hpp>

namespace gpt {

struct generate_options {
  int bytes = 200;
  double temperature = 0.8;  ///< 0: always the likeliest
  std::uint64_t seed = 1;
};

/// A byte by the scores in a row of logits. Throws input_error if it is a token that is no byte.
template <class Real>
[[nodiscard]] char choose(const tensor<Real>& logits, std::size_t of_row, double temperature, hetsched::random_source& random) {
  const auto row = map(logits).row(static_cast<Eigen::Index>(of_row)).template cast<double>().eval();
  Eigen::Index next = 0;
  const double largest = row.maxCoeff(&next);
  if (temperature > 0) {
    const auto weights = ((row.array() - largest) / temperature).exp().eval();
    double left = random.uniform() * weights.sum();
    for (Eigen::Index i = 0; i < weights.size() && left >= 0; ++i)
      if (weights(i) > 0) {
        next = i;
        left -= weights(i);
      }
  }
  if (next > 255) throw hetsched::input_error("token " + std::to_string(next) + " is no byte");
  return static_cast<char>(static_cast<unsigned char>(next));
}

/// Goes on with a text, byte after byte, each from the last `sequence` ones. model: a whole one, tokens to logits, such as a
/// layer_list of all layers. Throws input_error for an empty prompt and for tokens that are no bytes.
/// O(bytes) forwards of a whole sample.
template <class Real, hetsched::pipeline_layer<tensor<Real>> Model>
[[nodiscard]] std::string generate(const config& m, Model& model, std::string prompt, const generate_options& options = {}) {
  if (prompt.empty()) throw hetsched::input_error("text generation needs a prompt of at least one byte");
  hetsched::random_source random(options.seed);
  auto context = hetsched::detail::make_context(model);
  const auto length = static_cast<std::size_t>(m.sequence);
  for (int k = 0; k < options.bytes; ++k) {
    // What stands behind the last byte is not seen from there.
    std::string window = prompt.substr(prompt.size() - std::min(prompt.size(), length));
    const std::size_t last = window.size() - 1;
    window.resize(length, '\0');
    const tensor<Real> logits = model.forward(encode<Real>(window), context);
    prompt += choose(logits, last, options.temperature, random);
  }
  return prompt;
}

}  // namespace gpt
