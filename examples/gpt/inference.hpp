// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>
#include <hetsched/runtime/inference/inference_layer.hpp>
#include <hetsched/runtime/inference/inference_queue.hpp>
#include <hetsched/runtime/layer/any_layer.hpp>

#include <gpt/cache.hpp>
#include <gpt/generate.hpp>
#include <gpt/model.hpp>

namespace gpt {

/// A layer of make_layer on one device, with a cache for each text; models hetsched::inference_layer. Tokens of one text go in,
/// those after the ones before, and of the head come the logits of the last.
template <class Real>
class cached_layer {
 public:
  using state = cache<Real>;
  explicit cached_layer(hetsched::any_layer<tensor<Real>> layer) : layer_(std::move(layer)) {}

  const tensor<Real>& infer(const tensor<Real>& x, state& past);
  [[nodiscard]] hetsched::any_layer<tensor<Real>>& layer() { return layer_; }

 private:
  hetsched::any_layer<tensor<Real>> layer_;
  // Of one of them; of no use between calls.
  typename embedding<Real>::context embedding_;
  typename block<Real>::context block_;
  typename block<Real, experts<Real>>::context sparse_;
  typename head<Real>::context head_;
};

// Not in the class, and so not inline: who says extern template does not compile the layers once more.
template <class Real>
const tensor<Real>& cached_layer<Real>::infer(const tensor<Real>& x, state& past) {
  if (auto* const first = layer_.template get<embedding<Real>>()) return first->infer(x, embedding_, past);
  if (auto* const inner = layer_.template get<block<Real>>()) return inner->infer(x, block_, past);
  if (auto* const inner = layer_.template get<block<Real, experts<Real>>>()) return inner->infer(x, sparse_, past);
  return layer_.template get<head<Real>>()->infer(x, head_);
}

template <class Real>
using cached_stage = hetsched::inference_list<tensor<Real>, cached_layer<Real>>;

/// Layers [first, last).
template <class Real>
[[nodiscard]] cached_stage<Real> make_cached_stage(const config& m, int first, int last) {
  std::vector<cached_layer<Real>> layers;
  for (int l = first; l < last; ++l) layers.emplace_back(make_layer<Real>(m, l));
  return cached_stage<Real>(std::move(layers));
}

/// Goes on with a text as generate() does, as a request to a pipeline of cached stages. on_byte(char): called on its first rank
/// with each byte. While the text fits into a sequence, a step is one position; then each is a whole sequence, as all have moved.
/// Throws input_error as generate(), and unless bytes are to come.
template <class Real, class OnByte>
[[nodiscard]] hetsched::inference_request<tensor<Real>> text_request(const config& m, std::string prompt,
                                                                     const generate_options& options, OnByte on_byte) {
  if (prompt.empty()) throw hetsched::input_error("text generation needs a prompt of at least one byte");
  if (options.bytes < 1) throw hetsched::input_error("text generation makes at least one byte");
  const auto length = static_cast<std::size_t>(m.sequence);
  const auto last = [](const std::string& text, std::size_t count) {
    return encode<Real>(text.substr(text.size() - std::min(text.size(), count)));
  };
  auto first = last(prompt, length);
  return {.input = std::move(first),
          .next = [=, random = hetsched::random_source(options.seed), text = std::move(prompt),
                   left = options.bytes](tensor<Real> logits) mutable -> std::optional<hetsched::inference_input<tensor<Real>>> {
            text += choose(logits, 0, options.temperature, random);
            on_byte(text.back());
            if (--left == 0) return std::nullopt;
            const bool moves = text.size() > length;
            return hetsched::inference_input<tensor<Real>>{last(text, moves ? length : 1), moves};
          }};
}

}  // namespace gpt
