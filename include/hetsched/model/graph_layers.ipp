// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
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
  const double cap =
      options.layers == 0 ? std::numeric_limits<double>::infinity() : (1 + options.tolerance) * flops / options.layers;

  graph_layers result;
  result.modules = find_repeated_modules(sequence, options.products);
  std::vector<std::pair<std::uint64_t, int>> parts;  // where each occurrence starts, and of which module
  for (std::size_t m = 0; m < result.modules.size(); ++m)
    for (const int s : result.modules[m].starts) parts.emplace_back(static_cast<std::uint64_t>(s), static_cast<int>(m));
  std::sort(parts.begin(), parts.end());

  std::vector<int> ends;                                      // of layers
  std::vector<std::vector<int>> cuts(result.modules.size());  // ends of a module's layers, from its start
  const auto between = [&](layer_range run) {
    if (run.size() == 0) return;
    const bool glue = std::none_of(graph.nodes.begin() + run.first, graph.nodes.begin() + run.last, [](const graph_node& n) {
      return has_product(n) || n.parameters > 0 || n.shared_parameters > 0;
    });
    if (glue && !ends.empty()) {
      ends.back() = run.last;
    } else {
      const auto more = detail::layer_ends(graph, sequence.cut_bytes, run, cap);
      ends.insert(ends.end(), more.begin(), more.end());
    }
  };
  int at = 0;
  for (const auto& [start, module] : parts) {
    const auto m = static_cast<std::size_t>(module);
    const layer_range run{static_cast<int>(start), static_cast<int>(start) + result.modules[m].length};
    between({at, run.first});
    if (cuts[m].empty()) {
      cuts[m] = detail::layer_ends(graph, sequence.cut_bytes, run, cap);
      for (auto& end : cuts[m]) end -= run.first;
    }
    for (const int end : cuts[m]) ends.push_back(run.first + end);
    at = run.last;
  }
  between({at, graph.size()});

  auto& chain = result.chain;
  chain.parameter_bytes = graph.parameter_bytes;
  chain.heads = graph.heads;
  detail::layer_sums sums(graph);
  detail::numbering kinds, names;
  std::vector<int> first_of, uses;  // the first layer of each kind, and how many have each name
  for (const int end : ends) {
    const layer_range run{result.operators_of.empty() ? 0 : result.operators_of.back().last, end};
    auto& l = chain.layers.emplace_back(sums(run));
    l.boundary_bytes = sequence.cut_bytes[static_cast<std::size_t>(end)];
    l.recomputable = run.first > 0 && end < graph.size();
    l.name = detail::common_name(graph, run);
    const auto name = static_cast<std::size_t>(names(l.name));
    uses.resize(std::max(uses.size(), name + 1));
    if (const int used = uses[name]++; used > 0) l.name += " (" + std::to_string(used + 1) + ")";
    const auto tokens =
        std::span(sequence.tokens).first(static_cast<std::size_t>(end)).last(static_cast<std::size_t>(run.size()));
    const auto kind = static_cast<std::size_t>(kinds(tokens));
    if (kind == first_of.size()) first_of.push_back(chain.size() - 1);
    result.kind.push_back(first_of[kind]);
    result.operators_of.push_back(run);
  }
  return result;
}

}  // namespace hetsched
