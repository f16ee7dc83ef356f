// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/model/trace.hpp>

namespace hetsched::symbolic {

HETSCHED_INLINE tensor tracer::record(traced_operator what) {
  for (const auto* list : {&what.reads, &what.keeps})
    for (const auto& t : *list)
      if (t.trace != this) throw input_error(what.type + ": a tensor of another trace");
  if (!what.launches && what.reads.empty()) throw input_error(what.type + ": a view of nothing");
  // A view of a weight is that weight, and one of an input that input.
  if (!what.launches && (what.reads.front().is_parameter() || what.reads.front().node < 0))
    return make(std::move(what.result), -1, what.reads.front().parameter);
  const int index = graph_.size();
  graph_node node{.name = path_ + what.type, .type = std::move(what.type), .op = what.op, .launches = what.launches};
  node.output_bytes = bytes_of(what.result);
  node.saved_bytes = what.saved_bytes;
  for (const auto& t : what.reads) {
    if (t.is_parameter())
      read_parameter(node, index, t.parameter);
    else if (t.node >= 0)
      node.inputs.push_back(t.node);
  }
  for (const auto& t : what.keeps) {
    if (t.node >= 0)
      add(node.kept, storage_of(graph_, t.node));
    else if (!t.is_parameter())
      node.saved_bytes = checked_add(node.saved_bytes, bytes_of(t.shape));
  }
  if (what.keeps_result) add(node.kept, index);
  graph_.nodes.push_back(std::move(node));
  return make(std::move(what.result), index, -1);
}

HETSCHED_INLINE void tracer::read_parameter(graph_node& node, int index, int id) {
  auto& w = at(parameters_, id);
  if (w.owner == index) return;
  if (w.owner < 0) {
    w.owner = index;
    node.parameters = checked_add(node.parameters, w.count);
  } else {
    node.shared_parameters = checked_add(node.shared_parameters, w.count);
    add(node.owners, w.owner);
  }
}

}  // namespace hetsched::symbolic
