// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/group_checkpoint_test.cpp.

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/reshard/strided_runs.hpp>
#include <hetsched/runtime/device/detail/on_queue.hpp>
#include <hetsched/runtime/layer/layer.hpp>
#include <hetsched/runtime/layout/detail/layer_directory.hpp>
#include <hetsched/runtime/layout/model_parameter.hpp>
#include <hetsched/runtime/layout/training_layout.hpp>
#include <hetsched/runtime/tensor/tensor.hpp>
#include <hetsched/runtime/trainer/detail/held_parameter.hpp>

namespace hetsched::detail {

/// What state_slice calls a tensor's elements.
template <class Tensor>
[[nodiscard]] std::string element_name() {
  using element = typename tensor_traits<Tensor>::element;
  const char kind = std::is_floating_point_v<element> || small_float<element> ? 'f'
                    : std::is_signed_v<element>                               ? 'i'
                    : std::is_unsigned_v<element>                             ? 'u'
                                                                              : 'b';
  return kind + std::to_string(8 * sizeof(element));
}

/// A tensor's elements (side b of the runs) as those of the whole parameter (side a), or of what is kept for it.
template <class Tensor>
[[nodiscard]] state_slice state_of(const model_parameter& m, std::string_view name, Tensor& t, const strided_runs& r) {
  const auto apart = r.rows > 1 ? r.stride_b : 0;
  const auto count = as_size((r.rows - 1) * apart + r.length);
  return {.layer = m.id.layer,
          .name = std::string(name) + "." + std::to_string(m.id.number),
          .element = element_name<Tensor>(),
          .shape = m.shape,
          .first = as_size(r.first_a),
          .bytes = std::as_writable_bytes(std::span(tensor_traits<Tensor>::data(t) + r.first_b, count)),
          .rows = as_size(r.rows),
          .apart = r.rows > 1 ? as_size(r.stride_a) : 0,
          .held_apart = as_size(apart)};
}

/// Tensors as the host sees them: those in host memory themselves, of others copies that live as long as this.
template <class Tensor>
class host_copies {
  static constexpr bool copies = tensor_traits<Tensor>::space == memory_space::device;

 public:
  /// What it returns is complete behind read(), and what is written there is in the tensor behind write().
  template <class Backend>
  [[nodiscard]] Tensor& of(Tensor& t, [[maybe_unused]] const Backend& backend) {
    if constexpr (!copies) {
      return t;
    } else {
      auto found = copies_.find(&t);
      if (found == copies_.end()) found = copies_.emplace(&t, copy_to_host(backend, backend.compute_queue(), t)).first;
      return found->second;
    }
  }
  /// Calls body(const Tensor&) with one of them.
  template <class Backend, class Body>
  static void show(Tensor& t, const Backend& backend, Body&& body) {
    host_copies one;
    const Tensor& copy = one.of(t, backend);
    one.read(backend.compute_queue());
    body(copy);
  }
  template <class Queue>
  void read(const Queue& q) const {
    if (!copies_.empty()) q.finish();
  }
  template <class Queue>
  void write(const Queue& q) {
    for (auto& [tensor, copy] : copies_) assign(*tensor, copy, q);
    clear();
  }
  void clear() { copies_.clear(); }

 private:
  std::map<Tensor*, Tensor> copies_;
};

/// What slices call an optimizer's state, without the parameter's number.
template <class Optimizer>
[[nodiscard]] std::vector<std::string> state_slice_names(const Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const std::string_view name : optimizer.state_names())
    names.push_back(std::string(optimizer.name()) + "." + std::string(name));
  return names;
}

/// What pipeline_trainer::state() returns on rank `me`. `exchange`: of gradients, with the parts of sharded parameters that this
/// rank keeps, whose state is owned_state. `seen`: (Tensor&) -> Tensor&, in host memory.
template <class Tensor, class Optimizer, class Exchange, class Seen>
[[nodiscard]] std::vector<state_slice> state_of_training(std::span<const model_parameter> model,
                                                         std::span<held_parameter<Tensor>> parameters, Optimizer& optimizer,
                                                         Exchange& exchange, std::vector<std::vector<Tensor>>& owned_state,
                                                         int me, bool owned_only, Seen&& seen) {
  std::vector<state_slice> slices;
  const auto add = [&](const model_parameter& m, std::string_view name, Tensor& t, const strided_runs& r) {
    slices.push_back(state_of(m, name, seen(t), r));
  };
  const auto names = state_slice_names(optimizer);
  const auto each_state = [&](auto&& visit) {
    for (std::size_t i = 0; i < names.size(); ++i) visit(names[i], i);
  };
  std::vector<char> listed(model.size(), 0);
  for (auto& p : parameters) {
    const auto& m = model[p.model];
    if (owned_only && std::exchange(listed[p.model], char{1})) continue;
    const auto add_all = [&](std::string_view name, Tensor& t) {
      for (const auto& held : p.pieces) {
        const auto add_part = [&](const slice& part) {
          for (const auto& r : runs_of(whole_slice(m.shape), held.array, part, 0, element_count(part))) add(m, name, t, r);
        };
        if (!owned_only) add_part(held.part);
        for (std::size_t c = 0; c < m.chunks.size() && owned_only; ++c)
          if (m.owners[c] == me && contains(held.part, m.chunks[c].part)) add_part(m.chunks[c].part);
      }
    };
    if (!p.gathered) add_all("parameter", *p.value);
    if (!owned_only || (m.owners.empty() ? m.holders.front().first_rank : m.owners.front()) == me)
      slices.push_back({.layer = m.id.layer,
                        .name = "updates." + std::to_string(m.id.number),
                        .element = "i64",
                        .shape = {1},
                        .first = 0,
                        .bytes = std::as_writable_bytes(std::span(&p.updates, 1))});
    if (!p.sharded) each_state([&](const std::string& name, std::size_t i) { add_all(name, p.state[i]); });
  }
  for (std::size_t k = 0; k < owned_state.size(); ++k) {
    const auto& o = exchange.owned(k);
    const auto& m = model[o.parameter];
    const auto& part = m.chunks[o.chunk].part;
    for (auto r : runs_of(whole_slice(m.shape), part, part, o.first, o.last)) {
      r.first_b -= o.first;
      if (m.gathered) add(m, "parameter", exchange.owned(k).value, r);
      each_state([&](const std::string& name, std::size_t i) { add(m, name, owned_state[k][i], r); });
    }
  }
  return slices;
}

/// Adds, without elements, the tensors of the model that this rank has nothing of. `states`: the optimizer's, by their names in
/// slices; `buffers`: the shapes of all layers'.
template <class Tensor>
void add_held_elsewhere(std::vector<state_slice>& slices, std::span<const model_parameter> model,
                        const std::vector<std::string>& states, const std::vector<std::vector<tensor_shape>>& buffers) {
  std::set<std::pair<int, std::string>> listed;
  for (const auto& s : slices) listed.emplace(s.layer, s.name);
  const auto add = [&](int layer, const std::string& name, int number, const std::string& element, const tensor_shape& shape) {
    auto named = name + "." + std::to_string(number);
    if (!listed.contains({layer, named}))
      slices.push_back({.layer = layer, .name = std::move(named), .element = element, .shape = shape, .bytes = {}});
  };
  const auto element = element_name<Tensor>();
  for (const auto& m : model) {
    add(m.id.layer, "parameter", m.id.number, element, m.shape);
    add(m.id.layer, "updates", m.id.number, "i64", {1});
    for (const auto& name : states) add(m.id.layer, name, m.id.number, element, m.shape);
  }
  for (std::size_t l = 0; l < buffers.size(); ++l)
    for (std::size_t n = 0; n < buffers[l].size(); ++n)
      add(static_cast<int>(l), "buffer", static_cast<int>(n), element, buffers[l][n]);
}

/// Adds the buffers of this rank's layers, with their numbers; `owned_only`: of those that no rank before it holds.
template <class Tensor, class Layer, class Seen>
void add_buffers(std::vector<state_slice>& slices, const std::vector<std::pair<int, Layer*>>& layers, const training_layout& t,
                 int me, bool owned_only, Seen&& seen) {
  std::vector<char> listed(as_size(t.layers));
  for (const auto& [number, layer] : layers) {
    auto held = buffers<Tensor>(*layer);
    if (held.empty() || (owned_only && std::exchange(at(listed, number), char{1}))) continue;
    bool before = false;
    for (int r = 0; r < me && owned_only && !before; ++r) {
      const auto theirs = layers_of_rank(t, r);
      before = std::find(theirs.begin(), theirs.end(), number) != theirs.end();
    }
    for (std::size_t n = 0; n < held.size() && !before; ++n) {
      Tensor& b = seen(held[n]);
      slices.push_back({.layer = number,
                        .name = "buffer." + std::to_string(n),
                        .element = element_name<Tensor>(),
                        .shape = shape_of(b),
                        .bytes = std::as_writable_bytes(std::span(tensor_traits<Tensor>::data(b), elements(b)))});
    }
  }
}

}  // namespace hetsched::detail
