// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/model/detail/cluster_operators.hpp>
#include <hetsched/model/graph_layers.hpp>

namespace hetsched::detail {

// What the names of a run of operators have in common up to a '/', else the first one's name or type.
[[nodiscard]] inline std::string common_name(const operator_graph& graph, layer_range run) {
  const auto scope = [](std::string_view name) {
    const auto slash = name.rfind('/');
    return slash == std::string_view::npos ? std::string_view{} : name.substr(0, slash);
  };
  std::string_view common = scope(graph.at(run.first).name);
  for (int i = run.first; i < run.last; ++i)
    while (!common.empty() && !(graph.at(i).name.starts_with(common) && graph.at(i).name[common.size()] == '/'))
      common = scope(common);
  if (!common.empty()) return std::string(common);
  const auto& first = graph.at(run.first);
  return first.name.empty() ? first.type : first.name;
}

// The first layer that owns parameters which the last one shares; unknown owners are in the first.
[[nodiscard]] inline int first_owner(const operator_graph& graph, std::span<const layer_range> layers) {
  int first = layers.back().first;
  for (int i = layers.back().first; i < layers.back().last; ++i) {
    const auto& n = graph.at(i);
    if (n.shared_parameters > 0 && n.owners.empty()) return 0;
    for (const int owner : n.owners) first = std::min(first, owner);
  }
  const auto has = [&](layer_range l) { return first < l.last; };
  return static_cast<int>(std::find_if(layers.begin(), layers.end(), has) - layers.begin());
}

// Where layers end: each occurrence of a module is cut in the same way, and so is what lies between them, where there is more
// than glue. `cap`: FLOP of the products of a layer.
[[nodiscard]] inline std::vector<int> ends_of_layers(const operator_graph& graph, const std::vector<bytes_t>& cut_bytes,
                                                     const std::vector<repeated_module>& modules, double cap) {
  std::vector<std::pair<std::uint64_t, int>> parts;  // where each occurrence starts, and of which module
  for (std::size_t m = 0; m < modules.size(); ++m)
    for (const int s : modules[m].starts) parts.emplace_back(static_cast<std::uint64_t>(s), static_cast<int>(m));
  std::sort(parts.begin(), parts.end());

  std::vector<int> ends;                               // of layers
  std::vector<std::vector<int>> cuts(modules.size());  // ends of a module's layers, from its start
  const auto between = [&](layer_range run) {
    if (run.size() == 0) return;
    const bool glue = std::none_of(graph.nodes.begin() + run.first, graph.nodes.begin() + run.last, [](const graph_node& n) {
      return has_product(n) || n.parameters > 0 || n.shared_parameters > 0;
    });
    if (glue && !ends.empty()) {
      ends.back() = run.last;
    } else {
      const auto more = layer_ends(graph, cut_bytes, run, cap);
      ends.insert(ends.end(), more.begin(), more.end());
    }
  };
  int done = 0;
  for (const auto& [start, module] : parts) {
    const auto m = as_size(module);
    const layer_range run{static_cast<int>(start), static_cast<int>(start) + modules[m].length};
    between({done, run.first});
    if (cuts[m].empty()) {
      cuts[m] = layer_ends(graph, cut_bytes, run, cap);
      for (auto& end : cuts[m]) end -= run.first;
    }
    for (const int end : cuts[m]) ends.push_back(run.first + end);
    done = run.last;
  }
  between({done, graph.size()});
  return ends;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE graph_layers make_layers(const operator_graph& graph, const graph_layer_options& options) {
  validate(graph);
  if (options.layers < 0) throw input_error("layers must not be negative");
  if (!(options.tolerance >= 0)) throw input_error("tolerance must not be negative");
  operator_sequence sequence{.tokens = operator_tokens(graph), .intensive = {}, .cut_bytes = cut_bytes(graph)};
  double flops = 0;
  for (const auto& n : graph.nodes) {
    sequence.intensive.push_back(has_product(n));
    if (has_product(n)) flops += product_flops(n.op);
  }
  const double cap = options.layers == 0 ? infinity : (1 + options.tolerance) * flops / options.layers;

  graph_layers result;
  result.modules = find_repeated_modules(sequence, options.products);
  const auto ends = detail::ends_of_layers(graph, sequence.cut_bytes, result.modules, cap);
  auto& chain = result.chain;
  chain.parameter_bytes = graph.parameter_bytes;
  chain.heads = graph.heads;
  detail::layer_sums sums(graph);
  detail::numbering kinds, names;
  std::vector<int> first_of, uses;  // the first layer of each kind, and how many have each name
  for (const int end : ends) {
    const layer_range run{result.operators_of.empty() ? 0 : result.operators_of.back().last, end};
    auto& l = chain.layers.emplace_back(sums(run));
    l.boundary_bytes = at(sequence.cut_bytes, end);
    l.recomputable = run.first > 0 && end < graph.size();
    l.name = detail::common_name(graph, run);
    const auto name = as_size(names(l.name));
    uses.resize(std::max(uses.size(), name + 1));
    if (const int used = uses[name]++; used > 0) l.name += " (" + std::to_string(used + 1) + ")";
    const auto tokens = std::span(sequence.tokens).first(as_size(end)).last(as_size(run.size()));
    const auto kind = as_size(kinds(tokens));
    if (kind == first_of.size()) first_of.push_back(chain.size() - 1);
    result.kind.push_back(first_of[kind]);
    result.operators_of.push_back(run);
    if (run.first == 0) l.shared_parameters = 0;  // what owns them is before their readers, and so in this layer
    if (l.shared_parameters > 0) l.owner = detail::first_owner(graph, result.operators_of);
  }
  return result;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE layer layer_sums::operator()(layer_range range) {
  ++stamp_;
  layer l;
  double traffic = 0;
  std::int64_t looked_up = 0, copies = 0, owners_hold = 0;
  for (int i = range.first; i < range.last; ++i) {
    const auto& n = graph_.at(i);
    const char core = at(cores_, i);
    l.parameters = checked_add(l.parameters, n.parameters);
    if (n.launches) {
      traffic += n.op.traffic_bytes - weight_traffic(n);
      if (n.op.kind == operator_kind::gather) looked_up = checked_add(looked_up, checked_add(n.parameters, n.shared_parameters));
    }
    add_products(l, i);
    l.activation_bytes = checked_add(l.activation_bytes, n.saved_bytes);
    if (core != 0) l.selective_saved_bytes = checked_add(l.selective_saved_bytes, n.saved_bytes);
    for (const int j : n.kept) {
      if (std::exchange(at(seen_, j), stamp_) == stamp_) continue;
      l.activation_bytes = checked_add(l.activation_bytes, graph_.at(j).output_bytes);
      if (at(cores_, j) == 2 && j >= range.first)
        l.selective_saved_bytes = checked_add(l.selective_saved_bytes, graph_.at(j).output_bytes);
    }
    // A copy is needed of what another layer owns, once.
    const auto elsewhere = [&](int owner) { return owner < range.first; };
    if (n.shared_parameters > 0 && (n.owners.empty() || std::any_of(n.owners.begin(), n.owners.end(), elsewhere))) {
      copies = checked_add(copies, n.shared_parameters);
      if (n.owners.empty()) owners_hold = checked_add(owners_hold, n.shared_parameters);
      for (const int j : n.owners)
        if (elsewhere(j) && std::exchange(at(owned_, j), stamp_) != stamp_)
          owners_hold = checked_add(owners_hold, graph_.at(j).parameters);
    }
  }
  l.shared_parameters = std::min(copies, owners_hold);
  l.memory_traffic_bytes = static_cast<bytes_t>(std::min(traffic, 9e18));
  if (const auto held = checked_add(l.parameters, l.shared_parameters); held > 0 && looked_up > 0)
    l.active_fraction = static_cast<double>(std::max<std::int64_t>(0, held - looked_up)) / static_cast<double>(held);
  return l;
}

}  // namespace hetsched::detail
