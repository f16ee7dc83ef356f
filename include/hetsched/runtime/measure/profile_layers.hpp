// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/layer_range.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/executor.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>

namespace hetsched {

/// The middle of repeated measurements of a time, and how far they spread.
struct measured_time {
  double median_s = 0;
  double spread_s = 0;  ///< from the first to the third quartile
  friend bool operator==(const measured_time&, const measured_time&) = default;
};

/// The median of some times and the distance between their quartiles. Quantiles between two measurements are interpolated; no
/// measurements give 0.
[[nodiscard]] measured_time median_and_spread(std::vector<double> seconds);

/// What a layer costs here, per microbatch.
struct layer_profile {
  measured_time forward, backward;
  bytes_t parameter_bytes = 0;
  bytes_t output_bytes = 0;
  friend bool operator==(const layer_profile&, const layer_profile&) = default;
};

struct profile_options {
  int warmup = 2;                              ///< microbatches that do not count
  int repeats = 7;                             ///< microbatches that do
  int copies = 4;                              ///< of equal layers, so many are run
  std::function<void(int)> before_layer = {};  ///< called with every layer that is about to be timed, once for equal ones
};

/// Times layers as a stage would call them: microbatches go forward through all of them and back, so that a layer finds as
/// little of its numbers in caches as in training. `input`: the first layer's; each other layer gets what the one before has put
/// out. `make_layer`: (layer) -> Layer, which can be moved. `kind_of`: (layer) -> a value that is equal for layers that cost the
/// same; `copies` layers of every kind are made and timed, or as many as there are. `loss`: (const Tensor& output) ->
/// loss_value<Tensor>, of the last layer's output, which it may take for its own, counted as part of its forward.
/// Returns: one entry per layer of the range.
/// Throws: input_error for an empty range, no repeats or no copies, and what layers and loss throw.
/// Complexity: (warmup + repeats) copies forwards and backwards per kind; holds all layers made, with their contexts.
/// Source: HARP sec. 5.1 (layers of every kind).
/// Example:
///   const auto kind_of = [](int layer) { return layer % 2; };  // two kinds, in turn
///   const auto profiles = profile_layers<Tensor>({0, 8}, input, make_layer, kind_of, loss);
///   const double forward_s = profiles.front().forward.median_s;
template <class Tensor, class MakeLayer, class KindOf, class Loss>
[[nodiscard]] std::vector<layer_profile> profile_layers(layer_range layers, const Tensor& input, MakeLayer&& make_layer,
                                                        KindOf&& kind_of, Loss&& loss, const profile_options& options = {}) {
  constexpr auto bytes_of = [](const Tensor& t) {
    return static_cast<bytes_t>(detail::elements(t) * sizeof(typename tensor_traits<Tensor>::element));
  };
  if (layers.size() < 1) throw input_error("there is no layer to profile");
  if (options.repeats < 1 || options.warmup < 0) throw input_error("a profile needs at least one repeat");
  if (options.copies < 1) throw input_error("a profile needs at least one layer of each kind");

  struct timed_kind {
    std::decay_t<decltype(kind_of(0))> what;
    int first, made = 0;
    std::size_t last = 0;  // of those made
    std::vector<double> forward_s{}, backward_s{};
    layer_profile costs{};
  };
  struct made_layer {
    std::decay_t<decltype(make_layer(0))> layer;
    int number;
    std::size_t kind, before;  // of those made, whose output it gets
    Tensor output{}, gradient{};
  };
  std::vector<timed_kind> kinds;
  std::vector<made_layer> made;
  made.reserve(as_size(layers.size()));  // contexts may know where their layer is
  std::vector<std::size_t> kind_at;      // by layer
  for (int l = layers.first; l < layers.last; ++l) {
    const auto what = kind_of(l);
    // The last layer's forward has the loss.
    const auto same = l + 1 == layers.last
                          ? kinds.end()
                          : std::find_if(kinds.begin(), kinds.end(), [&](const timed_kind& k) { return k.what == what; });
    const std::size_t before = kind_at.empty() ? 0 : kinds[kind_at.back()].last;
    kind_at.push_back(as_size(same - kinds.begin()));
    if (same == kinds.end()) kinds.push_back({what, l});
    auto& kind = kinds[kind_at.back()];
    if (kind.made == options.copies) continue;
    kind.last = made.size();
    made.push_back({make_layer(l), l, kind_at.back(), before});
    if (kind.made++ == 0)
      for (Tensor& p : made.back().layer.parameters()) kind.costs.parameter_bytes += bytes_of(p);
  }
  std::vector<decltype(detail::make_context(made.front().layer))> contexts;
  contexts.reserve(made.size());
  for (auto& m : made) contexts.push_back(detail::make_context(m.layer));

  for (int run = 0; run < options.warmup + options.repeats; ++run) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      auto& [layer, number, k, before, output, gradient] = made[i];
      if (run == 0 && kinds[k].first == number && options.before_layer) options.before_layer(number);
      const double start_s = steady_now_s();
      output = layer.forward(i == 0 ? input : std::as_const(made[before].output), contexts[i]);
      kinds[k].costs.output_bytes = bytes_of(output);
      double end_s = 0;
      if (i + 1 == made.size()) {
        gradient = std::move(loss(std::move(output)).gradient);
        end_s = steady_now_s();
      } else {
        end_s = steady_now_s();
        gradient = tensor_traits<Tensor>::make(detail::shape_of(output));
        detail::assign(gradient, output);  // numbers of an ordinary size
      }
      if (run >= options.warmup) kinds[k].forward_s.push_back(end_s - start_s);
    }
    for (std::size_t i = made.size(); i-- > 0;) {
      const double start_s = steady_now_s();
      [[maybe_unused]] const Tensor back = made[i].layer.backward(made[i].gradient, contexts[i]);
      const double end_s = steady_now_s();
      if (run >= options.warmup) kinds[made[i].kind].backward_s.push_back(end_s - start_s);
    }
  }
  for (auto& k : kinds) {
    k.costs.forward = median_and_spread(std::move(k.forward_s));
    k.costs.backward = median_and_spread(std::move(k.backward_s));
  }
  std::vector<layer_profile> found;
  for (const auto k : kind_at) found.push_back(kinds[k].costs);
  return found;
}

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/runtime/measure/profile_layers.ipp>
#endif
