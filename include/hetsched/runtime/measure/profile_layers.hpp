// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layer/tensor.hpp>

namespace hetsched {

/// The middle of repeated measurements of a time, and how far they spread.
struct measured_time {
  double median_s = 0;
  double spread_s = 0;  ///< from the first to the third quartile
  friend bool operator==(const measured_time&, const measured_time&) = default;
};

/// The median of some times and the distance between their quartiles. Quantiles between two measurements are interpolated; no
/// measurements give 0.
[[nodiscard]] inline measured_time median_and_spread(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double share) {
    const double place = share * static_cast<double>(seconds.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const auto above = std::min(below + 1, seconds.size() - 1);
    return seconds[below] + (place - static_cast<double>(below)) * (seconds[above] - seconds[below]);
  };
  return {quantile(0.5), quantile(0.75) - quantile(0.25)};
}

/// What a layer costs here, per microbatch.
struct layer_profile {
  measured_time forward, backward;
  bytes_t parameter_bytes = 0;
  bytes_t output_bytes = 0;
  friend bool operator==(const layer_profile&, const layer_profile&) = default;
};

struct profile_options {
  int warmup = 2;                              ///< runs that do not count
  int repeats = 7;                             ///< runs that do
  std::function<void(int)> before_layer = {};  ///< called with every layer that is about to be timed
};

/// Times layers one by one, as a stage would call them. `input`: the first layer's; each other layer gets what the one before
/// has put out. `make_layer`: (layer) -> Layer. `kind_of`: (layer) -> a value that is equal for layers that cost the same;
/// one layer of every kind is made and timed. `loss`: (const Tensor& output) -> loss_value<Tensor>, of the last layer's
/// output, counted as part of its forward.
/// Returns: one entry per layer of the range.
/// Throws: input_error for an empty range or no repeats, and what layers and loss throw.
/// Complexity: (warmup + repeats) forwards and backwards per kind.
/// Source: HARP sec. 5.1 (one layer of every kind).
/// Example:
///   const auto kind_of = [](int layer) { return layer % 2; };  // two kinds, in turn
///   const auto profiles = profile_layers<Tensor>({0, 8}, input, make_layer, kind_of, loss);
///   const double forward_s = profiles.front().forward.median_s;
template <class Tensor, class MakeLayer, class KindOf, class Loss>
[[nodiscard]] std::vector<layer_profile> profile_layers(layer_range layers, const Tensor& input, MakeLayer&& make_layer,
                                                        KindOf&& kind_of, Loss&& loss, const profile_options& options = {}) {
  using kind = std::decay_t<decltype(kind_of(0))>;
  constexpr auto bytes_of = [](const Tensor& t) {
    return static_cast<bytes_t>(detail::elements(t) * sizeof(typename tensor_traits<Tensor>::element));
  };
  if (layers.size() < 1) throw input_error("there is no layer to profile");
  if (options.repeats < 1 || options.warmup < 0) throw input_error("a profile needs at least one repeat");
  struct timed_kind {
    kind what;
    bool has_loss;
    layer_profile costs;
    Tensor output;
  };
  std::vector<timed_kind> known;
  known.reserve(static_cast<std::size_t>(layers.size()));  // outputs stay where they are
  std::vector<layer_profile> found;
  const Tensor* in = &input;
  for (int l = layers.first; l < layers.last; ++l) {
    const bool last = l + 1 == layers.last;
    const kind what = kind_of(l);
    auto same =
        std::find_if(known.begin(), known.end(), [&](const timed_kind& k) { return k.what == what && k.has_loss == last; });
    if (same == known.end()) {
      if (options.before_layer) options.before_layer(l);
      auto layer = make_layer(l);
      auto context = detail::make_context(layer);
      timed_kind one{what, last, {}, {}};
      for (Tensor& p : layer.parameters()) one.costs.parameter_bytes += bytes_of(p);
      std::vector<double> forward_s, backward_s;
      for (int run = 0; run < options.warmup + options.repeats; ++run) {
        const double start_s = steady_now_s();
        one.output = layer.forward(*in, context);
        Tensor gradient;
        double middle_s = 0;
        if (last) {
          gradient = std::move(loss(std::as_const(one.output)).gradient);
          middle_s = steady_now_s();
        } else {
          middle_s = steady_now_s();
          gradient = tensor_traits<Tensor>::make(detail::shape_of(one.output));
          detail::assign(gradient, one.output);  // numbers of an ordinary size
        }
        const double again_s = steady_now_s();
        [[maybe_unused]] const Tensor back = layer.backward(gradient, context);
        const double end_s = steady_now_s();
        if (run < options.warmup) continue;
        forward_s.push_back(middle_s - start_s);
        backward_s.push_back(end_s - again_s);
      }
      one.costs.output_bytes = bytes_of(one.output);
      one.costs.forward = median_and_spread(std::move(forward_s));
      one.costs.backward = median_and_spread(std::move(backward_s));
      known.push_back(std::move(one));
      same = known.end() - 1;
    }
    found.push_back(same->costs);
    in = &same->output;
  }
  return found;
}

}  // namespace hetsched
